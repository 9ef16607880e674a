//! Tokens, sessions, links and the audit.

use redeliver::store::access::{AuditEntry, AuditFilter, Door, NewToken, Role, Session, SignInLink};

use crate::fixture::Fixture;

fn token(name: &str, expires_at: Option<i64>) -> NewToken {
    NewToken {
        name: name.into(),
        hash: format!("hash of {name}"),
        role: Role::Operator,
        created_by: "me@here".into(),
        expires_at,
    }
}

fn session(f: &Fixture, hash: &str, token: Option<&str>, length_ms: i64) -> Session {
    let now = f.now();
    Session {
        hash: hash.into(),
        who: "li".into(),
        token: token.map(str::to_owned),
        role: Role::Viewer,
        created_at: now,
        expires_at: now + length_ms,
    }
}

pub fn entry(who: &str, action: &str, target: &str) -> AuditEntry {
    AuditEntry {
        who: who.into(),
        role: Some(Role::Admin),
        door: Door::Api,
        origin: Some("10.0.0.1".into()),
        action: action.into(),
        target: target.into(),
        reason: Some("because \u{202e}<b>".into()),
        count: Some(3),
    }
}

conformance! {
    async fn a_token_is_found_by_its_hash_until_it_is_over_or_revoked(f) {
        let expires_at = f.now() + 1_000;
        assert!(f.store.create_token(token("bot", Some(expires_at))).await.unwrap());
        assert!(!f.store.create_token(NewToken { hash: "other".into(), ..token("bot", None) }).await.unwrap(), "a name is given once");
        assert!(!f.store.create_token(NewToken { hash: "hash of bot".into(), ..token("other", None) }).await.unwrap());
        let found = f.store.token_by_hash("hash of bot").await.unwrap().unwrap();
        assert_eq!((found.name.as_str(), found.role, found.created_by.as_str()), ("bot", Role::Operator, "me@here"));
        assert_eq!((found.created_at, found.last_used_at, found.expires_at), (f.now(), None, Some(expires_at)));
        assert!(found.is_good(expires_at - 1) && !found.is_good(expires_at));
        assert_eq!(f.store.token_by_hash("bot").await.unwrap(), None);
        f.store.touch_token("bot").await.unwrap();
        assert!(f.store.revoke_token("bot").await.unwrap());
        assert!(!f.store.revoke_token("bot").await.unwrap(), "once");
        assert!(!f.store.revoke_token("nobody").await.unwrap());
        let revoked = f.store.tokens().await.unwrap().remove(0);
        assert_eq!((revoked.last_used_at, revoked.revoked_at), (Some(f.now()), Some(f.now())));
        assert!(!revoked.is_good(f.now()));
        assert!(!f.store.create_token(token("bot", None)).await.unwrap(), "the audit knows it by that name");
    }

    async fn a_session_ends_by_itself_by_sign_out_and_with_its_token(f) {
        f.store.create_token(token("li", Some(f.now() + 5_000))).await.unwrap();
        f.store.create_token(token("bo", None)).await.unwrap();
        for (hash, token) in [("a", None), ("b", Some("li")), ("c", Some("bo")), ("d", Some("nobody"))] {
            f.store.create_session(session(&f, hash, token, 10_000)).await.unwrap();
        }
        assert_eq!(f.store.session("a").await.unwrap(), Some(session(&f, "a", None, 10_000)));
        assert_eq!(f.store.session("b").await.unwrap(), Some(session(&f, "b", Some("li"), 10_000)));
        assert_eq!(f.store.session("x").await.unwrap(), None);
        f.store.revoke_token("bo").await.unwrap();
        assert_eq!(f.store.session("c").await.unwrap(), None, "its token was revoked");
        f.clock.advance(5_000);
        assert_eq!(f.store.session("b").await.unwrap(), None, "its token is over");
        assert!(f.store.session("a").await.unwrap().is_some());
        f.clock.advance(5_000);
        assert_eq!(f.store.session("a").await.unwrap(), None, "it is over");
        f.store.create_session(session(&f, "e", None, 1)).await.unwrap();
        assert!(!f.store.end_session("a").await.unwrap(), "those that are over are forgotten");
        assert!(f.store.end_session("e").await.unwrap());
        assert_eq!(f.store.session("e").await.unwrap(), None);
    }

    async fn a_sign_in_link_works_once_and_not_for_ever(f) {
        let link = |hash: &str| SignInLink { hash: hash.into(), who: "first".into(), role: Role::Admin, expires_at: f.now() + 1_000 };
        f.store.create_link(link("a")).await.unwrap();
        f.store.create_link(link("b")).await.unwrap();
        assert_eq!(f.store.use_link("a").await.unwrap(), Some(link("a")));
        assert_eq!(f.store.use_link("a").await.unwrap(), None);
        assert_eq!(f.store.use_link("x").await.unwrap(), None);
        f.clock.advance(1_000);
        assert_eq!(f.store.use_link("b").await.unwrap(), None);
    }

    async fn the_audit_tells_every_change_newest_first_in_pages(f) {
        for n in 0..5 {
            let (who, action) = if n % 2 == 0 { ("li", "dlq.replay") } else { ("bo", "task.cancel") };
            assert_eq!(f.store.record(entry(who, action, &format!("t{n}"))).await.unwrap(), n + 1);
        }
        let first = f.store.audit(&AuditFilter::default(), None, 2).await.unwrap();
        assert_eq!(first.items.iter().map(|record| record.seq).collect::<Vec<_>>(), [5, 4]);
        assert_eq!(first.items[0].entry, entry("li", "dlq.replay", "t4"), "as it was told");
        assert_eq!(first.items[0].at, f.now());
        let rest = f.store.audit(&AuditFilter::default(), first.next.as_deref(), 9).await.unwrap();
        assert_eq!(rest.items.iter().map(|record| record.seq).collect::<Vec<_>>(), [3, 2, 1]);
        assert_eq!(rest.next, None);
        for (filter, seqs) in [
            (AuditFilter { who: Some("bo".into()), ..AuditFilter::default() }, vec![4, 2]),
            (AuditFilter { action: Some("dlq.replay".into()), ..AuditFilter::default() }, vec![5, 3, 1]),
            (AuditFilter { target: Some("t2".into()), who: Some("li".into()), ..AuditFilter::default() }, vec![3]),
            (AuditFilter { target: Some("t2".into()), who: Some("bo".into()), ..AuditFilter::default() }, vec![]),
        ] {
            let page = f.store.audit(&filter, None, 10).await.unwrap();
            assert_eq!(page.items.iter().map(|record| record.seq).collect::<Vec<_>>(), seqs, "{filter:?}");
        }
        assert!(f.store.audit(&AuditFilter::default(), Some("x"), 1).await.is_err());
    }
}
