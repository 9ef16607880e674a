//! Tokens, sessions, links and the audit in SQLite.
//!
//! Reads go by the readers, writes by the one writer like everything else.

use async_trait::async_trait;
use rusqlite::{Connection, params};
use sqlx::{QueryBuilder, Sqlite};

use super::SqliteStore;
use super::columns::{Bind, Binds, Columns, Slots};
use super::fault::Fault;
use super::read::limit;
use crate::store::access::{
    AccessStore, AuditEntry, AuditFilter, AuditRecord, Door, NewToken, Role, Session, SignInLink, Token,
};
use crate::store::{Page, StoreError, bad_cursor};

const TOKENS: &str =
    "SELECT name, role, created_at, created_by, last_used_at, expires_at, revoked_at FROM tokens ORDER BY name";
const TOKEN_BY_HASH: &str =
    "SELECT name, role, created_at, created_by, last_used_at, expires_at, revoked_at FROM tokens WHERE hash = ?";
const SESSION: &str = "SELECT s.hash, s.who, s.token, s.role, s.created_at, s.expires_at \
     FROM sessions s LEFT JOIN tokens t ON t.name = s.token WHERE s.hash = ?1 AND s.expires_at > ?2 \
     AND (s.token IS NULL OR t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > ?2))";

fn token(columns: &mut Columns<'_>) -> Result<Token, String> {
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

fn session(columns: &mut Columns<'_>) -> Result<Session, String> {
    Ok(Session {
        hash: columns.next()?,
        who: columns.next()?,
        token: columns.next()?,
        role: columns.word(Role::parse)?,
        created_at: columns.next()?,
        expires_at: columns.next()?,
    })
}

fn audit_record(columns: &mut Columns<'_>) -> Result<AuditRecord, String> {
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

/// Whether the statement changed anything.
fn change(conn: &Connection, sql: &str, bind: impl FnOnce(&mut Slots<'_, '_>)) -> Result<bool, Fault> {
    let mut statement = conn.prepare_cached(sql)?;
    let mut slots = Slots::of(&mut statement);
    bind(&mut slots);
    slots.done()?;
    Ok(statement.raw_execute()? > 0)
}

#[async_trait]
impl AccessStore for SqliteStore {
    async fn create_token(&self, new: NewToken) -> Result<bool, StoreError> {
        self.write(move |conn, _, now| {
            let sql = "INSERT INTO tokens (name, hash, role, created_at, created_by, expires_at) \
                       VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING";
            change(conn, sql, |slots| {
                slots.text(&new.name).word(&new.hash).word(new.role.as_str()).add(now).text(&new.created_by);
                slots.add(new.expires_at);
            })
        })
        .await
    }

    async fn tokens(&self) -> Result<Vec<Token>, StoreError> {
        let rows = self.rows(TOKENS, Binds::default()).await?;
        rows.iter().map(|row| self.read(row, token)).collect()
    }

    async fn token_by_hash(&self, hash: &str) -> Result<Option<Token>, StoreError> {
        let mut binds = Binds::default();
        binds.word(hash);
        let rows = self.rows(TOKEN_BY_HASH, binds).await?;
        rows.first().map(|row| self.read(row, token)).transpose()
    }

    async fn touch_token(&self, name: &str) -> Result<(), StoreError> {
        let name = name.to_owned();
        self.write(move |conn, _, now| {
            conn.execute("UPDATE tokens SET last_used_at = ? WHERE name = ?", params![now, name])?;
            Ok(())
        })
        .await
    }

    async fn revoke_token(&self, name: &str) -> Result<bool, StoreError> {
        let name = name.to_owned();
        self.write(move |conn, _, now| {
            let sql = "UPDATE tokens SET revoked_at = ? WHERE name = ? AND revoked_at IS NULL";
            let revoked = conn.execute(sql, params![now, name])? > 0;
            conn.execute("DELETE FROM sessions WHERE token = ?", [&name])?;
            Ok(revoked)
        })
        .await
    }

    async fn create_session(&self, new: Session) -> Result<(), StoreError> {
        self.write(move |conn, _, now| {
            conn.execute("DELETE FROM sessions WHERE expires_at <= ?", [now])?;
            let sql = "INSERT INTO sessions (hash, who, token, role, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?)";
            change(conn, sql, |slots| {
                slots.word(&new.hash).text(&new.who).optional_text(new.token.as_deref()).word(new.role.as_str());
                slots.add(new.created_at).add(new.expires_at);
            })?;
            Ok(())
        })
        .await
    }

    async fn session(&self, hash: &str) -> Result<Option<Session>, StoreError> {
        let mut binds = Binds::default();
        binds.word(hash).add(self.clock.now());
        let rows = self.rows(SESSION, binds).await?;
        rows.first().map(|row| self.read(row, session)).transpose()
    }

    async fn end_session(&self, hash: &str) -> Result<bool, StoreError> {
        let hash = hash.to_owned();
        self.write(move |conn, _, _| Ok(conn.execute("DELETE FROM sessions WHERE hash = ?", [hash])? > 0)).await
    }

    async fn create_link(&self, link: SignInLink) -> Result<(), StoreError> {
        self.write(move |conn, _, now| {
            conn.execute("DELETE FROM sign_in_links WHERE expires_at <= ?", [now])?;
            let sql = "INSERT INTO sign_in_links (hash, who, role, expires_at) VALUES (?, ?, ?, ?)";
            change(conn, sql, |slots| {
                slots.word(&link.hash).text(&link.who).word(link.role.as_str()).add(link.expires_at);
            })?;
            Ok(())
        })
        .await
    }

    async fn use_link(&self, hash: &str) -> Result<Option<SignInLink>, StoreError> {
        let hash = hash.to_owned();
        self.write(move |conn, _, now| {
            let mut statement =
                conn.prepare("DELETE FROM sign_in_links WHERE hash = ? RETURNING hash, who, role, expires_at")?;
            let used = statement.query_map([hash], |row| {
                let mut columns = Columns::of(row);
                let mut read = || -> Result<SignInLink, String> {
                    Ok(SignInLink {
                        hash: columns.next()?,
                        who: columns.next()?,
                        role: columns.word(Role::parse)?,
                        expires_at: columns.next()?,
                    })
                };
                Ok(read())
            })?;
            let mut link = None;
            for used in used {
                link = Some(used?.map_err(Fault::Unusable)?);
            }
            Ok(link.filter(|link| now < link.expires_at))
        })
        .await
    }

    async fn record(&self, entry: AuditEntry) -> Result<i64, StoreError> {
        self.write(move |conn, _, now| {
            let sql = "INSERT INTO audit (at, who, role, door, origin, action, target, reason, count) \
                       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
            change(conn, sql, |slots| {
                slots.add(now).text(&entry.who).optional_word(entry.role.map(Role::as_str)).word(entry.door.as_str());
                slots.optional_text(entry.origin.as_deref()).word(&entry.action).text(&entry.target);
                slots.optional_text(entry.reason.as_deref()).add(entry.count);
            })?;
            Ok(conn.last_insert_rowid())
        })
        .await
    }

    async fn audit(
        &self,
        filter: &AuditFilter,
        cursor: Option<&str>,
        most: usize,
    ) -> Result<Page<AuditRecord>, StoreError> {
        let before: i64 = match cursor {
            None => i64::MAX,
            Some(text) => text.parse().map_err(|_| bad_cursor(&self.path.display().to_string(), text))?,
        };
        // Whatever narrows most has an index that ends in seq, so a page is a range of it.
        let index = match filter {
            AuditFilter { target: Some(_), .. } => " INDEXED BY audit_target",
            AuditFilter { who: Some(_), .. } => " INDEXED BY audit_who",
            AuditFilter { action: Some(_), .. } => " INDEXED BY audit_action",
            _ => "",
        };
        let mut query: QueryBuilder<Sqlite> =
            QueryBuilder::new("SELECT seq, at, who, role, door, origin, action, target, reason, count FROM audit");
        query.push(index).push(" WHERE seq < ").push_bind(before);
        for (column, wanted) in [("target", &filter.target), ("who", &filter.who), ("action", &filter.action)] {
            if let Some(wanted) = wanted {
                query.push(" AND ").push(column).push(" = ").push_bind(wanted.clone());
            }
        }
        query.push(" ORDER BY seq DESC LIMIT ").push_bind(limit(most.saturating_add(1)));
        let rows = query.build().fetch_all(&self.readers).await.map_err(|error| self.fault(error))?;
        let mut items =
            rows.iter().map(|row| self.read(row, audit_record)).collect::<Result<Vec<AuditRecord>, StoreError>>()?;
        let more = items.len() > most;
        items.truncate(most);
        let next = items.last().filter(|_| more).map(|last| last.seq.to_string());
        Ok(Page { items, next })
    }
}
