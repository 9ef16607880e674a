//! Working through a running server instead of on the store: `--api URL --token T`.
//!
//! The server's documents are the store's: a verb prints the same, whichever door it took. The server's problems become exit codes.

use std::path::Path;

use anyhow::Context as _;
use redeliver::api::ProblemBody;
use redeliver::config::process_environment;
use reqwest::{Method, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::exit::{self, Exit};

/// `--api`, `--token`
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ApiArgs {
    /// Work through this server instead of the store: `http://127.0.0.1:8780`
    #[arg(long, global = true, value_name = "URL", env = "REDELIVER_API", hide_env_values = true)]
    pub api: Option<String>,
    /// The token for it; better kept in REDELIVER_TOKEN, or in a file that REDELIVER_TOKEN_FILE names
    #[arg(long, global = true, value_name = "T", env = "REDELIVER_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
}

/// A server.
pub struct Remote {
    base: Url,
    token: String,
    client: reqwest::Client,
}

impl ApiArgs {
    /// The server that is meant; `None`: the store.
    ///
    /// # Errors
    /// [`Exit::Usage`] for a URL that is none, or without a token.
    pub fn remote(&self) -> anyhow::Result<Option<Remote>> {
        let look = |name: &str| process_environment(name).filter(|value| !value.is_empty());
        let api = match &self.api {
            Some(api) => Some(api.clone()),
            None => from_file(look("REDELIVER_API_FILE"))?,
        };
        let Some(api) = api.filter(|api| !api.is_empty()) else { return Ok(None) };
        let usage = |text: String| exit::error(Exit::Usage, text);
        let place = || usage("--api: expected http:// or https:// and a host, like http://127.0.0.1:8780".into());
        let mut base: Url = api.parse().map_err(|_| place())?;
        if !matches!(base.scheme(), "http" | "https") || base.host().is_none() {
            return Err(place());
        }
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        let token = match &self.token {
            Some(token) => Some(token.clone()),
            None => from_file(look("REDELIVER_TOKEN_FILE"))?,
        };
        let token = token.filter(|token| !token.is_empty()).ok_or_else(|| {
            exit::error(Exit::NotAllowed, "--api needs a token: --token, REDELIVER_TOKEN or REDELIVER_TOKEN_FILE")
        })?;
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build();
        Ok(Some(Remote { base, token, client: client.context("cannot make an HTTP client")? }))
    }
}

/// The first line of the file that a `*_FILE` variable names.
fn from_file(path: Option<String>) -> anyhow::Result<Option<String>> {
    let Some(path) = path else { return Ok(None) };
    let text = std::fs::read_to_string(Path::new(&path))
        .map_err(|error| exit::error(Exit::Usage, format!("cannot read {path}: {error}")))?;
    Ok(Some(text.trim().to_owned()))
}

impl Remote {
    /// Asks.
    ///
    /// # Errors
    /// With the exit code that the answer means.
    pub async fn get<T: DeserializeOwned>(&self, path: &[&str], query: &impl Serialize) -> anyhow::Result<T> {
        let query = serde_html_form::to_string(query).context("this cannot be asked")?;
        self.send(Method::GET, path, Some(query).filter(|query| !query.is_empty()), None).await
    }

    /// Does something.
    ///
    /// # Errors
    /// With the exit code that the answer means.
    pub async fn post<T: DeserializeOwned>(&self, path: &[&str], body: &impl Serialize) -> anyhow::Result<T> {
        let body = serde_json::to_vec(body).context("this cannot be sent")?;
        self.send(Method::POST, path, None, Some(body)).await
    }

    /// Takes something away.
    ///
    /// # Errors
    /// With the exit code that the answer means.
    pub async fn delete<T: DeserializeOwned>(&self, path: &[&str]) -> anyhow::Result<T> {
        self.send(Method::DELETE, path, None, None).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &[&str],
        query: Option<String>,
        body: Option<Vec<u8>>,
    ) -> anyhow::Result<T> {
        let bytes = self.bytes(method, path, query, body).await?;
        serde_json::from_slice(&bytes).context("the server answered with something else than this program knows")
    }

    /// The bytes of an answer.
    ///
    /// # Errors
    /// With the exit code that the answer means.
    pub async fn bytes(
        &self,
        method: Method,
        path: &[&str],
        query: Option<String>,
        body: Option<Vec<u8>>,
    ) -> anyhow::Result<Vec<u8>> {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("v1").extend(path);
        }
        url.set_query(query.as_deref());
        let mut request = self.client.request(method, url).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        let unreachable = |error: reqwest::Error| {
            // The URL may hold a password; the cause says what is wrong.
            let error = anyhow::Error::from(error.without_url());
            let server = redeliver::config::mask(self.base.as_str());
            let text = format!("{server} did not answer: {error:#}; does `redeliver serve` run there?");
            exit::error(Exit::Unreachable, text)
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let bytes = response.bytes().await.map_err(unreachable)?;
        if status.is_success() {
            return Ok(bytes.into());
        }
        Err(refusal(status, &bytes))
    }
}

/// What a refusal means for a script.
fn refusal(status: StatusCode, body: &[u8]) -> anyhow::Error {
    let exit = match status.as_u16() {
        400 | 413 | 415 | 422 => Exit::Usage,
        401 | 403 => Exit::NotAllowed,
        404 => Exit::NotFound,
        409 => Exit::Conflict,
        421 | 429 | 502..=504 => Exit::Unreachable,
        _ => Exit::Failed,
    };
    let text = match serde_json::from_slice::<ProblemBody>(body) {
        Ok(problem) => {
            let errors: Vec<String> = problem.errors.iter().map(|error| error.message.clone()).collect();
            if errors.len() > 1 { errors.join("\n") } else { problem.detail }
        }
        Err(_) => format!("the server answered {status}"),
    };
    exit::error(exit, text)
}
