//! Access in memory.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::MemoryStore;
use crate::store::access::{AccessStore, AuditEntry, AuditFilter, AuditRecord, NewToken, Session, SignInLink, Token};
use crate::store::{Page, StoreError};

#[derive(Debug, Default)]
pub(super) struct Access {
    /// By name, with their hashes.
    tokens: BTreeMap<String, (String, Token)>,
    sessions: BTreeMap<String, Session>,
    links: BTreeMap<String, SignInLink>,
    audit: Vec<AuditRecord>,
}

#[async_trait]
impl AccessStore for MemoryStore {
    async fn create_token(&self, new: NewToken) -> Result<bool, StoreError> {
        let created_at = self.clock.now();
        let tokens = &mut self.inner().access.tokens;
        if tokens.contains_key(&new.name) || tokens.values().any(|(hash, _)| *hash == new.hash) {
            return Ok(false);
        }
        let token = Token {
            name: new.name.clone(),
            role: new.role,
            created_at,
            created_by: new.created_by,
            last_used_at: None,
            expires_at: new.expires_at,
            revoked_at: None,
        };
        tokens.insert(new.name, (new.hash, token));
        Ok(true)
    }

    async fn tokens(&self) -> Result<Vec<Token>, StoreError> {
        Ok(self.inner().access.tokens.values().map(|(_, token)| token.clone()).collect())
    }

    async fn token_by_hash(&self, hash: &str) -> Result<Option<Token>, StoreError> {
        Ok(self.inner().access.tokens.values().find(|(known, _)| known == hash).map(|(_, token)| token.clone()))
    }

    async fn touch_token(&self, name: &str) -> Result<(), StoreError> {
        let now = self.clock.now();
        if let Some((_, token)) = self.inner().access.tokens.get_mut(name) {
            token.last_used_at = Some(now);
        }
        Ok(())
    }

    async fn revoke_token(&self, name: &str) -> Result<bool, StoreError> {
        let now = self.clock.now();
        let access = &mut self.inner().access;
        let Some((_, token)) = access.tokens.get_mut(name).filter(|(_, token)| token.revoked_at.is_none()) else {
            return Ok(false);
        };
        token.revoked_at = Some(now);
        access.sessions.retain(|_, session| session.token.as_deref() != Some(name));
        Ok(true)
    }

    async fn create_session(&self, session: Session) -> Result<(), StoreError> {
        let now = self.clock.now();
        let sessions = &mut self.inner().access.sessions;
        sessions.retain(|_, session| now < session.expires_at);
        sessions.insert(session.hash.clone(), session);
        Ok(())
    }

    async fn session(&self, hash: &str) -> Result<Option<Session>, StoreError> {
        let now = self.clock.now();
        let access = &self.inner().access;
        let is_good = |session: &&Session| {
            now < session.expires_at
                && session
                    .token
                    .as_ref()
                    .is_none_or(|name| access.tokens.get(name).is_some_and(|(_, token)| token.is_good(now)))
        };
        Ok(access.sessions.get(hash).filter(is_good).cloned())
    }

    async fn end_session(&self, hash: &str) -> Result<bool, StoreError> {
        Ok(self.inner().access.sessions.remove(hash).is_some())
    }

    async fn create_link(&self, link: SignInLink) -> Result<(), StoreError> {
        let now = self.clock.now();
        let links = &mut self.inner().access.links;
        links.retain(|_, link| now < link.expires_at);
        links.insert(link.hash.clone(), link);
        Ok(())
    }

    async fn use_link(&self, hash: &str) -> Result<Option<SignInLink>, StoreError> {
        let now = self.clock.now();
        Ok(self.inner().access.links.remove(hash).filter(|link| now < link.expires_at))
    }

    async fn record(&self, entry: AuditEntry) -> Result<i64, StoreError> {
        let at = self.clock.now();
        let audit = &mut self.inner().access.audit;
        let seq = audit.last().map_or(0, |last| last.seq) + 1;
        audit.push(AuditRecord { seq, at, entry });
        Ok(seq)
    }

    async fn audit(
        &self,
        filter: &AuditFilter,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Page<AuditRecord>, StoreError> {
        let before: i64 = match cursor {
            None => i64::MAX,
            Some(text) => text.parse().map_err(|_| StoreError::Cursor { cursor: text.to_owned() })?,
        };
        let is = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        let inner = self.inner();
        let matching = inner.access.audit.iter().rev().filter(|record| {
            let entry = &record.entry;
            record.seq < before
                && is(&filter.who, &entry.who)
                && is(&filter.action, &entry.action)
                && is(&filter.target, &entry.target)
        });
        let mut items: Vec<AuditRecord> = matching.take(limit.saturating_add(1)).cloned().collect();
        let more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| more).map(|last| last.seq.to_string());
        Ok(Page { items, next })
    }
}
