//! The part of a configuration that may be kept in the store for all nodes.
//!
//! Routes are no part of it: they name programs and secrets of a host.

use sha2::{Digest, Sha256};

use crate::gate::{BreakerRule, LimitRule};
use crate::policy::Policies;

use super::problem::{ConfigError, Problems, Text};
use super::source::{Layers, Request, Secrets};
use super::{gates, policies, read};

/// What of a configuration may be kept in the store for all nodes: `[[policy]]`, `[[limit]]`, `[[breaker]]`.
#[derive(Debug, Clone)]
pub struct SharedRules {
    /// `[[policy]]` in order, the built-in one last.
    pub policies: Policies,
    /// `[[limit]]` in order.
    pub limits: Vec<LimitRule>,
    /// `[[breaker]]` in order.
    pub breakers: Vec<BreakerRule>,
}

impl SharedRules {
    /// Reads and validates the rules in `text`; the other sections are read and passed over. `name` stands for the file in error texts.
    ///
    /// # Errors
    /// Every problem at once.
    pub fn read(name: &str, text: &str) -> Result<SharedRules, ConfigError> {
        let mut problems = Problems::new(Text { path: name.to_owned(), text });
        let raw: super::RawFile = read::read(text, &mut problems);
        let request = Request { file: None, environment: &|_| None, flags: Vec::new(), secrets: Secrets::Optional };
        let mut layers = Layers::new(&request, &mut problems);
        let rules = SharedRules {
            policies: policies::policies(raw.policy, &mut layers),
            limits: gates::limits(raw.limit, &mut layers),
            breakers: gates::breakers(raw.breaker, &mut layers),
        };
        problems.into_result()?;
        Ok(rules)
    }

    /// The sections of `text` that hold such rules, and nothing else of it: the others may hold passwords.
    ///
    /// # Errors
    /// When it is no TOML.
    pub fn sections_of(text: &str) -> Result<String, String> {
        let mut table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
        let before = table.len();
        table.retain(|key, _| matches!(key, "policy" | "limit" | "breaker"));
        if table.len() == before {
            // Nothing else is in it, so its comments may stay.
            return Ok(text.to_owned());
        }
        toml::to_string(&table).map_err(|error| error.to_string())
    }

    /// SHA-256 (hex) of what they say, however it is laid out.
    pub fn digest(&self) -> String {
        digest(&self.policies, &self.limits, &self.breakers)
    }
}

/// See [`Config::rules_digest`].
pub(crate) fn digest(policies: &Policies, limits: &[LimitRule], breakers: &[BreakerRule]) -> String {
    hex::encode(Sha256::digest(format!("{} {limits:?} {breakers:?}", policies.digest())))
}
