//! What people look at: how much waits where, and attempts without the weight of what they left.

use std::collections::BTreeMap;
use std::sync::Arc;

use redeliver::gate::{Gates, PersonsWord};
use redeliver::store::look::{AttachmentHead, WAIT_PARTS, WaitScale};
use redeliver::task::{Answer, Attachment, AttachmentBody, Claimant, Command, NewTask};

use crate::fixture::{claimant, new_task, retry_after, settlement, submit};

/// Two delays are rungs; all others are counted on ten seconds.
fn scale(most: usize) -> WaitScale {
    WaitScale { delays_ms: vec![60_000, 900_000], other_ms: 10_000, most }
}

conformance! {
    async fn what_waits_is_counted_by_queue_delay_and_the_time_that_is_left(f) {
        f.pending("new").await;
        f.insert_row("foreign", "order.ship", "{}").await;
        f.running("runs").await;
        f.retrying("other", 7_000).await;
        f.retrying("long", 900_000).await;
        for id in ["a", "b"] {
            f.retrying(id, 60_000).await;
            f.clock.advance(1_500);
        }
        let waiting = f.store.waiting(&scale(100)).await.unwrap();
        let one = |name: &str| BTreeMap::from([(name.to_owned(), 1)]);
        assert_eq!(waiting.unsent.values().sum::<i64>() + waiting.sent.values().sum::<i64>(), 2);
        assert_eq!((waiting.running, waiting.held.is_empty(), waiting.is_part), (one("worker 1"), true, false));
        let found: Vec<_> = waiting.retries.iter().map(|wait| (wait.delay_ms, wait.waiting, wait.due)).collect();
        assert_eq!(found, [(None, 1, 0), (Some(60_000), 2, 0), (Some(900_000), 1, 0)]);
        let minute = &waiting.retries[1].parts;
        assert_eq!((minute[57], minute[58], minute.iter().sum::<i64>()), (1, 1, 2));
        assert_eq!(waiting.retries[2].parts[WAIT_PARTS - 1], 1);

        f.clock.advance(59_000);
        let waiting = f.store.waiting(&scale(100)).await.unwrap();
        let found: Vec<_> = waiting.retries.iter().map(|wait| (wait.delay_ms, wait.waiting, wait.due)).collect();
        assert_eq!(found, [(None, 1, 1), (Some(60_000), 2, 2), (Some(900_000), 1, 0)]);
        let part = f.store.waiting(&scale(3)).await.unwrap();
        assert_eq!((part.retries.iter().map(|wait| wait.waiting).sum::<i64>(), part.is_part), (3, true));
    }

    async fn what_a_gate_holds_waits_on_no_rung(f) {
        let config = "[[breaker]]\nname = \"all\"\nper = []\nconsecutive = 3\n";
        let gates: Arc<Gates> = Arc::new(gates(config));
        let word = PersonsWord { open: true, by: "test".into(), reason: None, at: f.now() };
        let answer = f.one(Command::Breaker { key: "breaker/all".into(), word }).await;
        assert_eq!(answer, Answer::Done);
        let new = NewTask { claimant: Some(Claimant { gates, ..claimant() }), ..new_task("held") };
        let answer = f.one(submit(new)).await;
        assert!(matches!(answer, Answer::Held { .. }), "{answer:?}");
        let waiting = f.store.waiting(&scale(100)).await.unwrap();
        assert_eq!(waiting.held, BTreeMap::from([("default".to_owned(), 1)]));
        assert!(waiting.retries.is_empty() && waiting.unsent.is_empty());
    }

    async fn a_window_is_shortened_to_the_newest_that_ended_in_it(f) {
        let began = f.now();
        for id in ["a", "b", "c"] {
            f.clock.advance(1_000);
            f.succeeded(id).await;
        }
        f.pending("waits").await;
        let newest = async |since, until, most| f.store.newest_ended(since, until, most).await.unwrap();
        assert_eq!(newest(began, began + 60_000, 3).await, None);
        assert_eq!(newest(began, began + 60_000, 2).await, Some(began + 1_000));
        assert_eq!(newest(began, began + 60_000, 1).await, Some(began + 2_000));
        assert_eq!(newest(began, began + 3_000, 1).await, Some(began + 1_000), "the end of the window is not in it");
        assert_eq!(newest(began + 1_500, began + 60_000, 2).await, None);
    }

    async fn attempts_are_looked_at_without_the_bytes_and_one_attachment_by_its_place(f) {
        let fence = f.running("a").await.state.fence;
        let mut settled = settlement(retry_after(1_000, false));
        settled.attachments = vec![
            Attachment { name: "page.png".into(), media_type: "image/png".into(), body: AttachmentBody::Bytes(Arc::from([0, 255, 7])) },
            Attachment { name: "log".into(), media_type: "text/plain".into(), body: AttachmentBody::Link("https://logs/7".into()) },
            Attachment { name: "video".into(), media_type: "video/mp4".into(), body: AttachmentBody::TooLarge { size: 5_000_000_000 } },
        ];
        let attachments = settled.attachments.clone();
        let answer = f.one(Command::Settle { id: "a".into(), fence, settlement: settled }).await;
        assert!(matches!(answer, Answer::Settled(_)), "{answer:?}");
        f.retrying("b", 5_000).await;

        let heads = f.store.attempt_heads("a").await.unwrap();
        let mut attempts = f.store.attempts("a").await.unwrap();
        attempts[0].attachments.clear();
        assert_eq!((heads.len(), &heads[0].attempt), (1, &attempts[0]));
        let head = |name: &str, media_type: &str, size, is_kept, link: Option<&str>| AttachmentHead {
            name: name.into(), media_type: media_type.into(), size, is_kept, link: link.map(Into::into),
        };
        assert_eq!(heads[0].attachments, [
            head("page.png", "image/png", 3, true, None),
            head("log", "text/plain", 0, false, Some("https://logs/7")),
            head("video", "video/mp4", 5_000_000_000, false, None),
        ]);
        for (position, attachment) in attachments.iter().enumerate() {
            assert_eq!(f.store.attachment("a", fence, position).await.unwrap().as_ref(), Some(attachment));
        }
        for (id, fence, position) in [("a", fence, 3), ("a", fence + 1, 0), ("nobody", fence, 0)] {
            assert_eq!(f.store.attachment(id, fence, position).await.unwrap(), None);
        }
        assert!(f.store.attempt_heads("nobody").await.unwrap().is_empty());
    }
}

fn gates(text: &str) -> Gates {
    use redeliver::config::{Request, Secrets, load_text};
    let request = Request { file: None, environment: &|_| None, flags: Vec::new(), secrets: Secrets::Optional };
    load_text(&request, "test.toml".into(), text.to_owned()).unwrap().config.gates
}
