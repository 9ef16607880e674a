//! What gates remember, and a person's word to a breaker.

use std::collections::BTreeMap;
use std::sync::Arc;

use redeliver::gate::{BreakerRule, GateState, Gates, Per, PersonsWord, Phase, WhenOpen, Word};
use redeliver::task::{Answer, Claimant, Command, NewTask};

use crate::fixture::{Fixture, claimant, new_task, submit};

const KEY: &str = "breaker/shop/label.shop=a";

fn gates() -> Arc<Gates> {
    let shop = BreakerRule {
        name: "shop".into(),
        per: Per(vec![Word::Label("shop".into())]),
        consecutive_same: Some(3),
        consecutive: None,
        failure_rate: None,
        ignore: Vec::new(),
        open_for_ms: 60_000,
        open_for_max_ms: 60_000,
        probes: 1,
        when_open: WhenOpen::Park,
        park_max_ms: 3_600_000,
    };
    Arc::new(Gates { breakers: vec![shop], ..Gates::default() })
}

async fn come(f: &Fixture, id: &str, shop: &str) -> Answer {
    let claimant = Claimant { gates: gates(), ..claimant() };
    let mut new = NewTask { claimant: Some(claimant), ..new_task(id) };
    new.spec_mut().labels.insert("shop".into(), shop.into());
    f.one(submit(new)).await
}

fn word(f: &Fixture, open: bool) -> Command {
    let word = PersonsWord { open, by: "mei".into(), reason: Some("locked".into()), at: f.now() };
    Command::Breaker { key: KEY.into(), word }
}

conformance! {
    async fn a_persons_word_to_a_breaker_is_kept_and_stops_its_key_only(f) {
        assert!(f.store.gates().await.unwrap().is_empty());
        assert_eq!(f.one(word(&f, true)).await, Answer::Done);
        assert_eq!(come(&f, "a-1", "a").await, Answer::Held { by: KEY.into() });
        assert!(matches!(come(&f, "b-1", "b").await, Answer::Run(_)));
        let gates = f.store.gates().await.unwrap();
        let [(key, GateState::Breaker(breaker))] = &gates[..] else { panic!("{gates:?}") };
        assert_eq!((key.as_str(), breaker.is_forced_open()), (KEY, true));
        let said = breaker.word.clone().unwrap();
        assert_eq!((said.by.as_str(), said.reason.as_deref(), said.at), ("mei", Some("locked"), f.now()));
    }

    async fn held_rows_are_counted_by_their_gate(f) {
        assert_eq!(f.store.held_counts().await.unwrap(), BTreeMap::new());
        assert_eq!(f.one(word(&f, true)).await, Answer::Done);
        for id in ["a-1", "a-2"] {
            assert_eq!(come(&f, id, "a").await, Answer::Held { by: KEY.into() });
        }
        assert_eq!(f.store.held_counts().await.unwrap(), BTreeMap::from([(KEY.to_owned(), 2)]));
        assert_eq!(f.one(Command::Cancel { id: "a-1".into(), note: None }).await, Answer::Done);
        assert_eq!(f.store.held_counts().await.unwrap(), BTreeMap::from([(KEY.to_owned(), 1)]));
    }

    async fn a_breaker_that_a_person_closes_lets_its_held_rows_in(f) {
        assert_eq!(f.one(word(&f, true)).await, Answer::Done);
        assert_eq!(come(&f, "a-1", "a").await, Answer::Held { by: KEY.into() });
        assert_eq!(f.one(word(&f, false)).await, Answer::Done);
        let gates_then = f.store.gates().await.unwrap();
        let [(_, GateState::Breaker(breaker))] = &gates_then[..] else { panic!("{gates_then:?}") };
        assert_eq!(breaker.phase, Phase::Closed);
        let stamp = f.task("a-1").await.stamp();
        let claimant = Claimant { gates: gates(), ..claimant() };
        let admit = Command::Admit { id: "a-1".into(), stamp, claimant };
        assert!(matches!(f.one(admit).await, Answer::Run(_)));
        assert_eq!(f.store.held_counts().await.unwrap(), BTreeMap::new());
    }
}
