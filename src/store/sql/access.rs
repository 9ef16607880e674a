//! Tokens, sessions, links and the audit.

use async_trait::async_trait;

use super::columns::Columns;
use super::engine::{Ask, Engine, limit, read_records};
use super::question::Question;
use super::value::{Source, plain, values, without_nul};
use crate::store::access::{
    AccessStore, AuditEntry, AuditFilter, AuditRecord, Door, NewToken, Role, Session, SignInLink, Token,
};
use crate::store::{Page, StoreError};

const TOKENS: &str =
    "SELECT name, role, created_at, created_by, last_used_at, expires_at, revoked_at FROM tokens ORDER BY name";
const TOKEN_BY_HASH: &str =
    "SELECT name, role, created_at, created_by, last_used_at, expires_at, revoked_at FROM tokens WHERE hash = ?";
const SESSION: &str = "SELECT s.hash, s.who, s.token, s.role, s.created_at, s.expires_at \
     FROM sessions s LEFT JOIN tokens t ON t.name = s.token WHERE s.hash = ?1 AND s.expires_at > ?2 \
     AND (s.token IS NULL OR t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > ?2))";

fn token<R: Source>(columns: &mut Columns<'_, R>) -> Result<Token, String> {
    Ok(Token {
        name: columns.next()?,
        role: columns.word(Role::parse)?,
        created_at: columns.next()?,
        created_by: columns.next()?,
        last_used_at: columns.next()?,
        expires_at: columns.next()?,
        revoked_at: columns.next()?,
    })
}

fn session<R: Source>(columns: &mut Columns<'_, R>) -> Result<Session, String> {
    Ok(Session {
        hash: columns.next()?,
        who: columns.next()?,
        token: columns.next()?,
        role: columns.word(Role::parse)?,
        created_at: columns.next()?,
        expires_at: columns.next()?,
    })
}

fn audit_record<R: Source>(columns: &mut Columns<'_, R>) -> Result<AuditRecord, String> {
    Ok(AuditRecord {
        seq: columns.next()?,
        at: columns.next()?,
        entry: AuditEntry {
            who: columns.next()?,
            role: columns.optional_word(Role::parse)?,
            door: columns.word(Door::parse)?,
            origin: columns.next()?,
            action: columns.next()?,
            target: columns.next()?,
            reason: columns.next()?,
            count: columns.next()?,
        },
    })
}

fn link<R: Source>(columns: &mut Columns<'_, R>) -> Result<SignInLink, String> {
    Ok(SignInLink {
        hash: columns.next()?,
        who: columns.next()?,
        role: columns.word(Role::parse)?,
        expires_at: columns.next()?,
    })
}

#[async_trait]
impl<E: Engine> AccessStore for E {
    async fn create_token(&self, new: NewToken) -> Result<bool, StoreError> {
        let sql = "INSERT INTO tokens (name, hash, role, created_at, created_by, expires_at) \
                   VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING";
        let work = self.write(move |tx, now| {
            let (name, by) = (without_nul(&new.name).into_owned(), without_nul(&new.created_by).into_owned());
            tx.run(sql, values![name, new.hash, new.role.as_str(), now, by, new.expires_at])
        });
        Ok(work.await? > 0)
    }

    async fn tokens(&self) -> Result<Vec<Token>, StoreError> {
        self.all(TOKENS, values![], token).await
    }

    async fn token_by_hash(&self, hash: &str) -> Result<Option<Token>, StoreError> {
        self.first(TOKEN_BY_HASH, values![hash], token).await
    }

    async fn touch_token(&self, name: &str) -> Result<(), StoreError> {
        let name = name.to_owned();
        let sql = "UPDATE tokens SET last_used_at = ? WHERE name = ?";
        self.write(move |tx, now| tx.run(sql, values![now, name])).await.map(drop)
    }

    async fn revoke_token(&self, name: &str) -> Result<bool, StoreError> {
        let name = name.to_owned();
        self.write(move |tx, now| {
            Box::pin(async move {
                let sql = "UPDATE tokens SET revoked_at = ? WHERE name = ? AND revoked_at IS NULL";
                let revoked = tx.run(sql, values![now, name.as_str()]).await? > 0;
                tx.run("DELETE FROM sessions WHERE token = ?", values![name]).await?;
                Ok(revoked)
            })
        })
        .await
    }

    async fn create_session(&self, new: Session) -> Result<(), StoreError> {
        let work = self.write(move |tx, now| {
            Box::pin(async move {
                tx.run("DELETE FROM sessions WHERE expires_at <= ?", values![now]).await?;
                let sql =
                    "INSERT INTO sessions (hash, who, token, role, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?)";
                let (who, token) = (without_nul(&new.who), plain(new.token));
                let values = values![new.hash, who, token, new.role.as_str(), new.created_at, new.expires_at];
                tx.run(sql, values).await
            })
        });
        work.await.map(drop)
    }

    async fn session(&self, hash: &str) -> Result<Option<Session>, StoreError> {
        self.first(SESSION, values![hash, self.clock().now()], session).await
    }

    async fn end_session(&self, hash: &str) -> Result<bool, StoreError> {
        Ok(self.change("DELETE FROM sessions WHERE hash = ?", values![hash]).await? > 0)
    }

    async fn create_link(&self, link: SignInLink) -> Result<(), StoreError> {
        let work = self.write(move |tx, now| {
            Box::pin(async move {
                tx.run("DELETE FROM sign_in_links WHERE expires_at <= ?", values![now]).await?;
                let sql = "INSERT INTO sign_in_links (hash, who, role, expires_at) VALUES (?, ?, ?, ?)";
                let values = values![link.hash, without_nul(&link.who), link.role.as_str(), link.expires_at];
                tx.run(sql, values).await
            })
        });
        work.await.map(drop)
    }

    async fn use_link(&self, hash: &str) -> Result<Option<SignInLink>, StoreError> {
        let hash = hash.to_owned();
        self.write(move |tx, now| {
            Box::pin(async move {
                let sql = "DELETE FROM sign_in_links WHERE hash = ? RETURNING hash, who, role, expires_at";
                let used = read_records(&tx.rows(sql, values![hash]).await?, link)?;
                Ok(used.into_iter().find(|link| now < link.expires_at))
            })
        })
        .await
    }

    async fn record(&self, entry: AuditEntry) -> Result<i64, StoreError> {
        let places = self.write(move |tx, now| {
            Box::pin(async move {
                let sql = "INSERT INTO audit (at, who, role, door, origin, action, target, reason, count) \
                           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING seq";
                let values = values![
                    now,
                    without_nul(&entry.who),
                    entry.role.map(Role::as_str),
                    entry.door.as_str(),
                    plain(entry.origin),
                    entry.action,
                    without_nul(&entry.target),
                    plain(entry.reason),
                    entry.count
                ];
                read_records(&tx.rows(sql, values).await?, |row| row.next::<i64>())
            })
        });
        Ok(places.await?.first().copied().unwrap_or(0))
    }

    async fn audit(
        &self,
        filter: &AuditFilter,
        cursor: Option<&str>,
        most: usize,
    ) -> Result<Page<AuditRecord>, StoreError> {
        let before: i64 = match cursor {
            None => i64::MAX,
            Some(text) => text.parse().map_err(|_| StoreError::Cursor { cursor: text.to_owned() })?,
        };
        // Whatever narrows most has an index that ends in seq, so a page is a range of it.
        let index = match filter {
            AuditFilter { target: Some(_), .. } => " INDEXED BY audit_target",
            AuditFilter { who: Some(_), .. } => " INDEXED BY audit_who",
            AuditFilter { action: Some(_), .. } => " INDEXED BY audit_action",
            _ => "",
        };
        let mut query =
            Question::new("SELECT seq, at, who, role, door, origin, action, target, reason, count FROM audit");
        query.push(index).push(" WHERE seq < ").bind(before);
        for (column, wanted) in [("target", &filter.target), ("who", &filter.who), ("action", &filter.action)] {
            if let Some(wanted) = wanted {
                query.push(" AND ").push(column).push(" = ").bind(wanted.as_str());
            }
        }
        query.push(" ORDER BY seq DESC LIMIT ").bind(limit(most.saturating_add(1)));
        let rows = query.rows(self).await?;
        let mut items =
            rows.iter().map(|row| self.read(row, audit_record)).collect::<Result<Vec<AuditRecord>, StoreError>>()?;
        let more = items.len() > most;
        items.truncate(most);
        let next = items.last().filter(|_| more).map(|last| last.seq.to_string());
        Ok(Page { items, next })
    }
}
