//! Rules that are kept for all nodes, and what each node runs.

use redeliver::store::{NODE_FORGOTTEN_MS, NewPolicies};

fn rules(text: Option<&str>, reason: Option<&str>) -> NewPolicies {
    NewPolicies {
        applied_by: "me@here".into(),
        reason: reason.map(str::to_owned),
        text: text.map(str::to_owned),
        hash: text.map(|text| format!("hash of {text}")).unwrap_or_default(),
    }
}

conformance! {
    async fn rules_are_versions_of_which_the_newest_comes_first(f) {
        assert!(f.store.policies(10).await.unwrap().is_empty());
        let all = [rules(Some("a"), Some("first")), rules(None, None), rules(Some("b"), None)];
        for (n, new) in (1..).zip(&all) {
            assert_eq!(f.store.apply_policies(new.clone()).await.unwrap(), n);
        }
        let found = f.store.policies(10).await.unwrap();
        assert_eq!(found.iter().map(|version| version.version).collect::<Vec<_>>(), [3, 2, 1]);
        assert_eq!(found.iter().map(|version| version.rules.clone()).rev().collect::<Vec<_>>(), all);
        assert_eq!(f.store.policies(1).await.unwrap(), found[..1]);
        assert!(found.iter().all(|version| (version.applied_at - f.now()).abs() < 60_000));
    }

    async fn a_node_says_what_it_runs_and_is_forgotten_when_it_no_longer_does(f) {
        f.store.report_node("w1", "h1", None).await.unwrap();
        f.store.report_node("w2", "h1", Some(3)).await.unwrap();
        f.store.report_node("w1", "h2", Some(4)).await.unwrap();
        let nodes = f.store.nodes().await.unwrap();
        let said: Vec<_> = nodes.iter().map(|node| (node.worker.as_str(), node.hash.as_str(), node.version)).collect();
        assert_eq!(said, [("w1", "h2", Some(4)), ("w2", "h1", Some(3))]);
        f.clock.advance(NODE_FORGOTTEN_MS + 60_000);
        f.store.report_node("w2", "h1", Some(3)).await.unwrap();
        assert_eq!(f.store.nodes().await.unwrap().len(), 1);
    }

    async fn a_node_that_stops_is_forgotten_at_once(f) {
        f.store.report_node("w1", "h1", None).await.unwrap();
        f.store.report_node("w2", "h1", None).await.unwrap();
        f.store.forget_node("w1").await.unwrap();
        f.store.forget_node("w1").await.unwrap();
        let left: Vec<_> = f.store.nodes().await.unwrap().into_iter().map(|node| node.worker).collect();
        assert_eq!(left, ["w2"]);
    }
}
