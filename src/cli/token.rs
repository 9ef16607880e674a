//! `redeliver token …`

use clap::Subcommand;
use redeliver::desk::people::{NewTokenDocument, TokenDocument, check_token_name, make_token};
use redeliver::desk::{List, to_json};
use redeliver::store::access::Role;
use serde_json::json;

use super::audit::{tell, whoami};
use super::confirm::Consent;
use super::context::{Context, Door};
use super::exit::{self, Exit};
use super::filter::{Moment, moment, now};
use super::output::{Document, Entry, Listing, time};

/// Make, list and revoke the tokens of API and console
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Make a token and print it: it is shown this once
    #[command(after_help = "Examples:
  redeliver token create li --role operator --expires 90d
  redeliver token create dashboard --role viewer -o name

Roles: viewer reads; operator submits, replays, discards, cancels, retries, pauses, opens and closes breakers; editor edits payloads,
applies policies and sees masked fields; admin makes tokens and reads the audit. Each may do what those before it may.")]
    Create {
        /// Who it is, in the audit; a name is given once
        name: String,
        /// viewer, operator, editor or admin
        #[arg(long, value_name = "ROLE", value_parser = role)]
        role: Role,
        /// When it ends: in `90d`, or RFC 3339 [default: never]
        #[arg(long, value_name = "T", value_parser = moment)]
        expires: Option<Moment>,
        #[command(flatten)]
        consent: Consent,
    },
    /// List tokens, without their secrets
    #[command(after_help = "Examples:
  redeliver token list
  redeliver token list -o json | jq '.items[] | select(.revoked_at == null)'")]
    List,
    /// Revoke a token, and end the sessions it began
    #[command(after_help = "Examples:
  redeliver token revoke li --reason 'left the team' --yes")]
    Revoke {
        /// The token
        name: String,
        #[command(flatten)]
        consent: Consent,
    },
}

fn role(text: &str) -> Result<Role, String> {
    Role::parse(text).ok_or_else(|| format!("expected one of {}", Role::ALL.map(Role::as_str).join(", ")))
}

/// Runs the verb.
///
/// # Errors
/// With an exit code in the chain where one fits.
pub async fn run(verb: Verb, context: &Context) -> anyhow::Result<Exit> {
    match verb {
        Verb::Create { name, role, expires, consent } => create(context, &name, role, expires, consent).await,
        Verb::List => list(context).await,
        Verb::Revoke { name, consent } => revoke(context, &name, consent).await,
    }
}

async fn create(
    context: &Context,
    name: &str,
    role: Role,
    expires: Option<Moment>,
    consent: Consent,
) -> anyhow::Result<Exit> {
    check_token_name(name).map_err(|message| exit::error(Exit::Usage, format!("{name:?}: {message}")))?;
    let expires_at = expires.map(|moment| moment.resolve_ahead(now()));
    if expires_at.is_some_and(|at| at <= now()) {
        return Err(exit::error(Exit::Usage, "--expires: expected a time ahead"));
    }
    if consent.dry_run {
        context.say(format!("would make a token for {name} as {role}"));
        return Ok(Exit::Done);
    }
    let made: NewTokenDocument = match context.remote() {
        Some(remote) => {
            let body = json!({ "name": name, "role": role, "expires": expires_at.map(time), "reason": consent.reason });
            context.bound("the server", remote.post(&["tokens"], &body)).await??
        }
        None => {
            // The first thing that a new installation needs.
            let store = context.store_or_new().await?;
            let by = whoami();
            let made = make_token(&*store, name, role, expires_at, &by);
            let made = context.bound("the store", made).await??.ok_or_else(|| {
                let text = format!("a token named {name:?} is there, or was; names are given once");
                exit::error(Exit::Conflict, text)
            })?;
            let told = tell(&*store, "token.create", format!("{name} ({role})"), consent.reason, None);
            context.bound("the store", told).await??;
            store.close().await;
            made
        }
    };
    let lines = vec![
        ("token", made.token.clone()),
        ("name", made.name.clone()),
        ("role", made.role.to_string()),
        ("expires_at", made.expires_at.clone().unwrap_or_else(|| "never".into())),
    ];
    // What a script wants of it is the secret.
    context.printer.one(&Document { name: made.token.clone(), lines, tables: Vec::new(), json: to_json(&made) })?;
    context.say("this is shown once; the store keeps its hash only");
    Ok(Exit::Done)
}

async fn list(context: &Context) -> anyhow::Result<Exit> {
    let list: List<TokenDocument> = match context.door().await? {
        Door::Store(store) => {
            let tokens = context.bound("the store", store.tokens()).await??;
            List::whole(tokens.iter().map(TokenDocument::of).collect())
        }
        Door::Api(remote) => context.bound("the server", remote.get(&["tokens"], &json!({}))).await??,
    };
    let mut listing = Listing::new(&["name", "role", "created_at", "created_by", "last_used_at", "ends"]);
    for token in &list.items {
        let ends = match (&token.revoked_at, &token.expires_at) {
            (Some(at), _) => format!("revoked {at}"),
            (None, Some(at)) => at.clone(),
            (None, None) => "never".into(),
        };
        let cells = vec![
            token.name.clone(),
            token.role.to_string(),
            token.created_at.clone(),
            token.created_by.clone(),
            token.last_used_at.clone().unwrap_or_else(|| "never".into()),
            ends,
        ];
        listing.push(Entry { name: token.name.clone(), cells, json: to_json(token) });
    }
    context.printer.list(&listing)?;
    Ok(Exit::Done)
}

async fn revoke(context: &Context, name: &str, consent: Consent) -> anyhow::Result<Exit> {
    consent.can_be_had()?;
    if consent.dry_run {
        context.say(format!("would revoke {name}"));
        return Ok(Exit::Done);
    }
    consent.ask(&format!("Revoke the token {name}?"))?;
    match context.door().await? {
        Door::Store(store) => {
            if !context.bound("the store", store.revoke_token(name)).await?? {
                let known = context.bound("the store", store.tokens()).await??.iter().any(|token| token.name == name);
                return Err(match known {
                    true => exit::error(Exit::Conflict, format!("the token {name:?} was revoked before")),
                    false => exit::error(Exit::NotFound, format!("there is no token named {name:?}")),
                });
            }
            context.bound("the store", tell(&*store, "token.revoke", name, consent.reason, None)).await??;
            store.close().await;
        }
        Door::Api(remote) => {
            let _: TokenDocument = context.bound("the server", remote.delete(&["tokens", name])).await??;
        }
    }
    context.say(format!("revoked: {name}"));
    Ok(Exit::Done)
}
