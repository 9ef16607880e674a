//! Where values come from: the file that is found, the environment, flags, defaults; and which of them won.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::problem::{ConfigError, Origin, Problems};
use super::units::{parse_duration, parse_size, show_duration, show_size};
use super::url::mask;
use super::value::{DurationText, SizeText, Spanned, Topics, Urls};

/// Looks a variable up in the environment; tests bring their own.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The process's own environment. A variable that is not UTF-8 is as good as absent.
pub fn process_environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// What to load.
pub struct Request<'a> {
    /// The file named by `--config` or `REDELIVER_CONFIG`; `None` searches.
    pub file: Option<PathBuf>,
    /// The environment.
    pub environment: Environment<'a>,
    /// Values given by flags, which win over everything.
    pub flags: Vec<FlagValue>,
    /// What to do about secrets that routes take from the environment.
    pub secrets: Secrets,
}

/// A value given by a flag.
#[derive(Debug, Clone)]
pub struct FlagValue {
    /// The config key: `worker.concurrency`.
    pub key: &'static str,
    /// The flag, for error texts: `--concurrency`.
    pub flag: &'static str,
    /// What was typed.
    pub value: String,
}

/// What to do about `env:NAME` in routes when `NAME` is not set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secrets {
    /// It is an error: this process will call third parties.
    Required,
    /// The header is left out: this process never runs a route, and whoever lists tasks need not hold its secrets.
    Optional,
}

/// One value in force and where it came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Effective {
    /// `worker.concurrency`, `queue[shipping].types`
    pub key: String,
    /// As the file would say it; passwords masked.
    pub value: String,
    /// `flag`, `env`, `file` or `default`.
    pub source: &'static str,
    /// The flag, the variable, or file and line; empty for a default.
    pub place: String,
}

/// The file to read: the one that was named, else the first that exists of `./redeliver.toml`, `$XDG_CONFIG_HOME/redeliver/redeliver.toml`
/// (`~/.config` when unset) and `/etc/redeliver/redeliver.toml`. `None`: there is none, defaults hold.
///
/// # Errors
/// When the file was named and is not there, or one that is there cannot be read.
pub(super) fn find_file(request: &Request<'_>) -> Result<Option<(PathBuf, String)>, ConfigError> {
    if let Some(path) = &request.file {
        return read_file(path).map(|text| Some((path.clone(), text)));
    }
    let home_config = || (request.environment)("HOME").map(|home| Path::new(&home).join(".config"));
    let user = (request.environment)("XDG_CONFIG_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let user = user.or_else(home_config).map(|dir| dir.join("redeliver/redeliver.toml"));
    let places = [Some("redeliver.toml".into()), user, Some("/etc/redeliver/redeliver.toml".into())];
    for path in places.into_iter().flatten() {
        // A file that is there and cannot be read must not be passed over: other settings than meant would hold.
        match std::fs::metadata(&path) {
            Ok(_) => return read_file(&path).map(|text| Some((path, text))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {}
            Err(error) => return Err(ConfigError::Unreadable { path, reason: error.to_string() }),
        }
    }
    Ok(None)
}

fn read_file(path: &Path) -> Result<String, ConfigError> {
    let bytes = std::fs::read(path)
        .map_err(|error| ConfigError::Unreadable { path: path.to_owned(), reason: error.to_string() })?;
    String::from_utf8(bytes).map_err(|error| ConfigError::Unreadable {
        path: path.to_owned(),
        reason: format!("is not UTF-8 text (byte {})", error.utf8_error().valid_up_to()),
    })
}

/// A scalar value of the config.
pub(super) trait Scalar: Clone {
    /// Reads what a flag or variable says.
    fn from_text(text: &str) -> Result<Self, String>;
    /// As the file would say it; passwords masked.
    fn show(&self) -> String;
}

impl Scalar for String {
    fn from_text(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
    fn show(&self) -> String {
        mask(self)
    }
}

impl Scalar for i64 {
    fn from_text(text: &str) -> Result<Self, String> {
        text.trim().parse().map_err(|_| format!("expected a whole number, found {text:?}"))
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Scalar for bool {
    fn from_text(text: &str) -> Result<Self, String> {
        text.trim().parse().map_err(|_| format!("expected true or false, found {text:?}"))
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Scalar for f64 {
    fn from_text(text: &str) -> Result<Self, String> {
        text.trim().parse().map_err(|_| format!("expected a number, found {text:?}"))
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Scalar for DurationText {
    fn from_text(text: &str) -> Result<Self, String> {
        parse_duration(text).map(DurationText)
    }
    fn show(&self) -> String {
        show_duration(self.0)
    }
}

impl Scalar for SizeText {
    fn from_text(text: &str) -> Result<Self, String> {
        parse_size(text).map(SizeText)
    }
    fn show(&self) -> String {
        show_size(self.0)
    }
}

impl Scalar for Urls {
    /// Commas separate the nodes of a cluster; in a password they are written `%2C`.
    fn from_text(text: &str) -> Result<Self, String> {
        Ok(Urls(text.split(',').map(|url| url.trim().to_owned()).collect()))
    }
    fn show(&self) -> String {
        self.0.iter().map(|url| mask(url)).collect::<Vec<_>>().join(",")
    }
}

impl Scalar for Topics {
    fn from_text(text: &str) -> Result<Self, String> {
        Ok(Topics(text.split(',').map(|topic| topic.trim().to_owned()).collect()))
    }
    fn show(&self) -> String {
        self.0.join(",")
    }
}

/// Settings that may hold a password and so may be given in a file of their own (`REDELIVER_BROKER_URL_FILE`).
const SECRET_KEYS: [&str; 3] = ["broker.url", "broker.management_url", "store.url"];

/// Puts flag, environment, file and default on top of each other.
pub(super) struct Layers<'r, 'p, 'a> {
    pub(super) request: &'r Request<'a>,
    pub(super) problems: &'p mut Problems<'a>,
    pub(super) effective: Vec<Effective>,
}

impl<'r, 'p, 'a> Layers<'r, 'p, 'a> {
    pub(super) fn new(request: &'r Request<'a>, problems: &'p mut Problems<'a>) -> Self {
        Layers { request, problems, effective: Vec::new() }
    }

    /// The value of `section.name` that wins. What `check` refuses is noted with its place, and the default stands in for it.
    pub(super) fn scalar<T: Scalar>(
        &mut self,
        key: &'static str,
        in_file: Option<Spanned<T>>,
        default: T,
        check: impl Fn(&T) -> Result<(), String>,
    ) -> T {
        let given = self.outside(key);
        let (value, origin) = match given {
            Some((text, origin)) => (T::from_text(&text), origin),
            None => match in_file {
                Some(Spanned { span, value }) => (Ok(value), Origin::File(span)),
                None => (Ok(default.clone()), Origin::Default),
            },
        };
        match value.and_then(|value| check(&value).map(|()| value)) {
            Ok(value) => {
                self.note(key.to_owned(), value.show(), &origin);
                value
            }
            Err(text) => {
                let (section, name) = key.split_once('.').unwrap_or(("", key));
                match &origin {
                    Origin::File(_) | Origin::Default => {
                        self.problems.of(&origin, &format!("[{section}]"), format!("{name}: {text}"));
                    }
                    Origin::Environment(_) | Origin::Flag(_) => self.problems.of(&origin, "", text),
                }
                default
            }
        }
    }

    /// Notes a value in force.
    pub(super) fn note(&mut self, key: String, value: String, origin: &Origin) {
        let place = origin.place(self.problems.file());
        let source = place.kind();
        let place = if source == "default" { String::new() } else { place.to_string() };
        self.effective.push(Effective { key, value, source, place });
    }

    fn outside(&mut self, key: &'static str) -> Option<(String, Origin)> {
        if let Some(given) = self.request.flags.iter().find(|given| given.key == key) {
            return Some((given.value.clone(), Origin::Flag(given.flag.to_owned())));
        }
        let name = variable(key);
        if SECRET_KEYS.contains(&key) {
            return self.secret(&name).unwrap_or_else(|(variable, text)| {
                self.problems.of(&Origin::Environment(variable), "", text);
                None
            });
        }
        let value = (self.request.environment)(&name).filter(|value| !value.is_empty())?;
        Some((value, Origin::Environment(name)))
    }

    /// The value of `name`, or of the file that `name_FILE` names; the last line break is not part of it. Empty is absent.
    ///
    /// On failure: the variable that is to blame, and why.
    pub(super) fn secret(&self, name: &str) -> Result<Option<(String, Origin)>, (String, String)> {
        let look = |name: &str| (self.request.environment)(name).filter(|value| !value.is_empty());
        let by_file = format!("{name}_FILE");
        match (look(name), look(&by_file)) {
            (Some(_), Some(_)) => Err((by_file, format!("{name} is set too; unset one of them"))),
            (Some(value), None) => Ok(Some((value, Origin::Environment(name.to_owned())))),
            (None, Some(path)) => match std::fs::read_to_string(&path) {
                Ok(text) => {
                    let text = text.strip_suffix('\n').unwrap_or(&text);
                    let text = text.strip_suffix('\r').unwrap_or(text);
                    Ok(Some((text.to_owned(), Origin::Environment(by_file))))
                }
                Err(error) => Err((by_file, format!("cannot read {path}: {error}"))),
            },
            (None, None) => Ok(None),
        }
    }
}

/// `worker.concurrency` → `REDELIVER_WORKER_CONCURRENCY`
pub fn variable(key: &str) -> String {
    format!("REDELIVER_{}", key.replace('.', "_").to_uppercase())
}
