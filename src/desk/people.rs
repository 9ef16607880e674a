//! Tokens and the audit as documents.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{secret, time};
use crate::store::access::{AuditRecord, Door, NewToken, Role, Token};
use crate::store::{Store, StoreError};
use crate::task::Millis;

/// The longest name of a token.
const LONGEST_NAME: usize = 100;

/// A token, without its secret.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Token")]
pub struct TokenDocument {
    /// Who it is, in the audit.
    pub name: String,
    /// What it may.
    pub role: Role,
    /// When it was made.
    pub created_at: String,
    /// By whom.
    pub created_by: String,
    /// When it was last shown, to the minute.
    pub last_used_at: Option<String>,
    /// From then on it is refused.
    pub expires_at: Option<String>,
    /// Since then it is refused.
    pub revoked_at: Option<String>,
}

impl TokenDocument {
    /// The document of a token.
    pub fn of(token: &Token) -> TokenDocument {
        TokenDocument {
            name: token.name.clone(),
            role: token.role,
            created_at: time(token.created_at),
            created_by: token.created_by.clone(),
            last_used_at: token.last_used_at.map(time),
            expires_at: token.expires_at.map(time),
            revoked_at: token.revoked_at.map(time),
        }
    }
}

/// A token that was just made.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "NewToken")]
pub struct NewTokenDocument {
    /// Who it is, in the audit.
    pub name: String,
    /// What it may.
    pub role: Role,
    /// From then on it is refused.
    pub expires_at: Option<String>,
    /// What to show as `Authorization: Bearer …`. Only now; the store keeps its hash.
    pub token: String,
}

/// Whether a token can have that name.
///
/// # Errors
/// What was expected.
pub fn check_token_name(name: &str) -> Result<(), String> {
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '@');
    if !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(fits) {
        return Ok(());
    }
    Err(format!("expected 1 to {LONGEST_NAME} bytes: letters, digits, `.`, `-`, `_` or `@`"))
}

/// Makes a token; `None` when the name is or was in use.
///
/// # Errors
/// When the store does not take it.
pub async fn make_token(
    store: &dyn Store,
    name: &str,
    role: Role,
    expires_at: Option<Millis>,
    created_by: &str,
) -> Result<Option<NewTokenDocument>, StoreError> {
    let token = secret::new_token();
    let new = NewToken {
        name: name.to_owned(),
        hash: secret::hash(&token),
        role,
        created_by: created_by.to_owned(),
        expires_at,
    };
    let made = store.create_token(new).await?;
    let document = NewTokenDocument { name: name.to_owned(), role, expires_at: expires_at.map(time), token };
    Ok(made.then_some(document))
}

/// A change.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Change")]
pub struct AuditDocument {
    /// Its place in the audit.
    pub seq: i64,
    /// When.
    pub at: String,
    /// Who.
    pub who: String,
    /// Their role; null at the command line.
    pub role: Option<Role>,
    /// By which door.
    pub door: Door,
    /// The address or host it came from.
    pub origin: Option<String>,
    /// What was done.
    pub action: String,
    /// To what.
    pub target: String,
    /// Why.
    pub reason: Option<String>,
    /// How many things it changed.
    pub count: Option<i64>,
}

impl AuditDocument {
    /// The document of a change.
    pub fn of(record: AuditRecord) -> AuditDocument {
        let entry = record.entry;
        AuditDocument {
            seq: record.seq,
            at: time(record.at),
            who: entry.who,
            role: entry.role,
            door: entry.door,
            origin: entry.origin,
            action: entry.action,
            target: entry.target,
            reason: entry.reason,
            count: entry.count,
        }
    }
}
