//! Who may use the API and the console, and who changed what: tokens, sessions, sign-in links, the audit.
//!
//! A store keeps hashes, never a secret, and does not judge: what a role may do is in `api::access`. The audit only grows.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Page, StoreError};
use crate::task::Millis;

/// What somebody may do. Each role may do all that those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads, with masked payload fields.
    Viewer,
    /// Submits, replays, discards, cancels, retries, pauses, opens and closes breakers.
    Operator,
    /// Edits payloads, applies policies, sees masked fields.
    Editor,
    /// Makes and revokes tokens, reads the audit.
    Admin,
}

impl Role {
    /// Weakest first.
    pub const ALL: [Role; 4] = [Role::Viewer, Role::Operator, Role::Editor, Role::Admin];

    /// The word in the store, the API and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Editor => "editor",
            Role::Admin => "admin",
        }
    }

    /// The role of that word.
    pub fn parse(word: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.as_str() == word)
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Who it is, in the audit. Never given twice, also not after it was revoked.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// When it was made.
    pub created_at: Millis,
    /// By whom.
    pub created_by: String,
    /// When it was last shown, to the minute.
    pub last_used_at: Option<Millis>,
    /// From then on it is refused.
    pub expires_at: Option<Millis>,
    /// Since then it is refused.
    pub revoked_at: Option<Millis>,
}

impl Token {
    /// Whether it is good at `now`.
    pub fn is_good(&self, now: Millis) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|expires_at| now < expires_at)
    }
}

/// A token to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewToken {
    /// See [`Token::name`].
    pub name: String,
    /// SHA-256 of the secret, in hex.
    pub hash: String,
    /// See [`Token::role`].
    pub role: Role,
    /// By whom.
    pub created_by: String,
    /// See [`Token::expires_at`].
    pub expires_at: Option<Millis>,
}

/// Somebody who signed in with a browser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// SHA-256 of the cookie, in hex.
    pub hash: String,
    /// Who, in the audit.
    pub who: String,
    /// The token that was shown; `None` for a sign-in link. The session is over when the token is.
    pub token: Option<String>,
    /// What they may do.
    pub role: Role,
    /// Since when.
    pub created_at: Millis,
    /// Until when.
    pub expires_at: Millis,
}

/// A link that signs somebody in once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignInLink {
    /// SHA-256 of its secret, in hex.
    pub hash: String,
    /// Who it makes of its user.
    pub who: String,
    /// What they may do.
    pub role: Role,
    /// Until when it works.
    pub expires_at: Millis,
}

/// By which door a change came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Door {
    /// A token at the HTTP API.
    Api,
    /// A session of the console.
    Console,
    /// The command line on the store.
    Cli,
}

impl Door {
    /// The word in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Door::Api => "api",
            Door::Console => "console",
            Door::Cli => "cli",
        }
    }

    /// The door of that word.
    pub fn parse(word: &str) -> Option<Door> {
        [Door::Api, Door::Console, Door::Cli].into_iter().find(|door| door.as_str() == word)
    }
}

/// One change, as it is told to the audit. The store adds when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// The token's name, the session's user, or `user@host` at the command line.
    pub who: String,
    /// Their role; `None` at the command line, which has the store itself.
    pub role: Option<Role>,
    /// By which door.
    pub door: Door,
    /// The address or host it came from.
    pub origin: Option<String>,
    /// What was done: `task.cancel`, `dlq.discard`, `token.create`.
    pub action: String,
    /// To what: an id, a key, or the filter that chose.
    pub target: String,
    /// Why, in their words.
    pub reason: Option<String>,
    /// How many things it changed; `None` where that has no meaning.
    pub count: Option<i64>,
}

/// One change, as the audit tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    /// Its place in the audit, from 1 on.
    pub seq: i64,
    /// When, by the store's clock.
    pub at: Millis,
    /// What.
    pub entry: AuditEntry,
}

/// Which changes; empty fields do not restrict.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// By this one.
    pub who: Option<String>,
    /// This action.
    pub action: Option<String>,
    /// With exactly this target.
    pub target: Option<String>,
}

/// How exact [`Token::last_used_at`] is.
pub const LAST_USED_EVERY_MS: Millis = 60_000;

/// The part of the Store port that is about access.
#[async_trait]
pub trait AccessStore: Send + Sync + 'static {
    /// Makes a token; `false` when the name is or was in use.
    async fn create_token(&self, new: NewToken) -> Result<bool, StoreError>;

    /// Every token, revoked ones too, by name.
    async fn tokens(&self) -> Result<Vec<Token>, StoreError>;

    /// The token with this hash, whether or not it is still good.
    async fn token_by_hash(&self, hash: &str) -> Result<Option<Token>, StoreError>;

    /// Notes that a token was shown now.
    async fn touch_token(&self, name: &str) -> Result<(), StoreError>;

    /// Ends a token and its sessions; `false` when there is no such token, or it was revoked before.
    async fn revoke_token(&self, name: &str) -> Result<bool, StoreError>;

    /// Begins a session, and forgets those that are over.
    async fn create_session(&self, session: Session) -> Result<(), StoreError>;

    /// The session with this hash, if it is not over by the store's clock and its token is still good.
    async fn session(&self, hash: &str) -> Result<Option<Session>, StoreError>;

    /// Ends a session; `false` when there was none.
    async fn end_session(&self, hash: &str) -> Result<bool, StoreError>;

    /// Makes a sign-in link, and forgets those that are over.
    async fn create_link(&self, link: SignInLink) -> Result<(), StoreError>;

    /// Uses a link up; `None` when it was used before, is over, or never was.
    async fn use_link(&self, hash: &str) -> Result<Option<SignInLink>, StoreError>;

    /// Adds to the audit. Returns the place.
    async fn record(&self, entry: AuditEntry) -> Result<i64, StoreError>;

    /// A page of the audit, newest first.
    async fn audit(
        &self,
        filter: &AuditFilter,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Page<AuditRecord>, StoreError>;
}
