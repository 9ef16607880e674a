//! A night to look at: a day of work behind it, three kinds of dead letters, retries on every rung, one shop locked.
//!
//! Everything is made by the commands that workers give, by a clock that is moved through the day.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use redeliver::config::{self, Config, Request, Secrets};
use redeliver::gate::PersonsWord;
use redeliver::store::sqlite::{SqliteOptions, SqliteStore};
use redeliver::store::{Clock, NewPolicies, Store, Urgency};
use redeliver::task::{
    Answer, Attachment, AttachmentBody, Claimant, Command, DeadReason, Decision, Failure, Millis, NewTask,
    RawSubmission, Refusal, Settlement, Spec, Stamp, TaskResult, fingerprint,
};

use crate::png;

pub const MINUTE: Millis = 60_000;
pub const HOUR: Millis = 60 * MINUTE;

pub const CONFIG: &str = r#"
[broker]
url = "embedded"

[[policy]]
name = "vip shipping"
type = "order.ship"
labels = { shop_tier = "vip" }
max_retries = 5
backoff = { exponential = { base = "2s", max = "30s", multiplier = 1.5, jitter = 0.2 } }

[[policy]]
name = "listing"
type = "listing.#"
variants = [
  { name = "fast", weight = 50, backoff = { steps = ["1m", "5m", "15m"] } },
  { name = "slow", weight = 50, backoff = { steps = ["15m", "30m", "45m"] } },
]

[[policy]]
name = "night bulk"
type = "bulk.#"
hours = { from = "02:00", to = "06:00", tz = "Asia/Shanghai" }
max_retries = 1
backoff = { fixed = "10s" }

[[limit]]
name = "per shop"
per = ["label.shop"]
rate = "5/min"
burst = 2

[[breaker]]
name = "shop"
per = ["label.shop"]
consecutive_same = 3
open_for = "60s"
"#;

/// One attempt of a story: how long after the one before it was due, how long it took, how it ended.
#[derive(Clone)]
pub enum Try {
    Succeeds(Millis),
    Fails { took: Millis, failure: Failure, then: Then, attachments: Vec<Attachment> },
}

#[derive(Clone, Copy)]
pub enum Then {
    Retry { delay_ms: Millis },
    Die(DeadReason),
}

pub struct Night {
    pub store: Arc<dyn Store>,
    clock: Clock,
    config: Config,
}

pub fn config() -> Config {
    let request = Request { file: None, environment: &|_| None, flags: Vec::new(), secrets: Secrets::Optional };
    config::load_text(&request, PathBuf::from("redeliver.toml"), CONFIG.to_owned()).unwrap().config
}

pub fn url(folder: &Path) -> String {
    format!("sqlite://{}", folder.join("store.db").display())
}

pub fn failure(task_type: &str, class: &str, code: Option<&str>, http_status: Option<u16>, message: &str) -> Failure {
    let mut failure = Failure { code: code.map(Into::into), http_status, ..Failure::new(class, message) };
    failure.fingerprint = fingerprint(task_type, &failure);
    failure
}

pub fn spec(
    id: &str,
    task_type: &str,
    labels: &[(&str, &str)],
    payload: serde_json::Value,
    created_at: Millis,
) -> Spec {
    Spec {
        id: id.into(),
        task_type: task_type.into(),
        payload: payload.to_string(),
        labels: labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        idempotency_key: Some(id.into()),
        priority: 0,
        cache_key: None,
        reply_to: None,
        trace: None,
        payload_hash: format!("hash of {id}"),
        submission_hash: None,
        created_at,
        raw: None,
        conflicts_with: None,
    }
}

impl Night {
    pub async fn begin(folder: &Path) -> Night {
        let config = config();
        let clock = Clock::manual(Clock::System.now());
        let options = SqliteOptions { clock: clock.clone(), ..SqliteOptions::default() };
        let store = SqliteStore::open(&url(folder), config.settings(), options).await.unwrap();
        Night { store: Arc::new(store), clock, config }
    }

    pub fn claimant(&self) -> Claimant {
        Claimant {
            worker: "worker-a.example:4711".into(),
            serves: None,
            gates: Arc::new(self.config.gates.clone()),
            policies: None,
        }
    }

    pub async fn apply(&self, commands: Vec<Command>) -> Vec<Answer> {
        self.store.apply(Urgency::Normal, commands).await.unwrap()
    }

    pub fn new_task(&self, spec: Spec, queue: &str) -> NewTask {
        let raw = RawSubmission { bytes: b"{".to_vec(), length: 1, routing_key: "x".into(), message_id: None };
        let refused = Spec {
            id: format!("refused {}", spec.id),
            idempotency_key: None,
            raw: Some(Arc::new(raw)),
            ..spec.clone()
        };
        let refusal = Refusal {
            spec: refused,
            queue: queue.into(),
            reason: DeadReason::Malformed,
            failure: Failure::new("malformed", "not JSON"),
        };
        NewTask {
            spec: Arc::new(spec),
            queue: queue.into(),
            not_before: None,
            deadline: None,
            redelivered: false,
            refusal: refusal.into(),
            claimant: Some(self.claimant()),
            publish: false,
            rejected: false,
        }
    }

    /// Tasks that all live through the same story, from `began` on; those that still wait keep waiting.
    pub async fn live(&self, began: Millis, policy: &str, variant: Option<&str>, tasks: Vec<Spec>, story: &[Try]) {
        self.clock.set(began);
        let queue = "default";
        let submits = tasks.into_iter().map(|spec| Command::Submit(Box::new(self.new_task(spec, queue)))).collect();
        let mut running: Vec<(String, i64, Stamp)> = runs(self.apply(submits).await);
        for attempt in story {
            let (took, decision, attachments) = match attempt {
                Try::Succeeds(took) => (*took, Decision::Succeed, Vec::new()),
                Try::Fails { took, failure, then, attachments } => {
                    let failure = failure.clone();
                    let decision = match then {
                        Then::Retry { delay_ms } => Decision::Retry {
                            delay_ms: *delay_ms,
                            reason: format!(
                                "policy {policy:?}, step {}",
                                redeliver::config::show_duration(std::time::Duration::from_millis(
                                    delay_ms.unsigned_abs()
                                ))
                            ),
                            on_rung: true,
                            by_handler: false,
                            failure,
                        },
                        Then::Die(reason) => Decision::Die { reason: *reason, failure },
                    };
                    (*took, decision, attachments.clone())
                }
            };
            self.clock.advance(took);
            let settles = running
                .iter()
                .map(|(id, fence, _)| {
                    let mut settlement = Settlement::new("worker-a.example:4711", decision.clone());
                    settlement.policy = Some(policy.to_owned());
                    settlement.variant = variant.map(str::to_owned);
                    settlement.attachments.clone_from(&attachments);
                    settlement.cost = Some(0.002);
                    if decision == Decision::Succeed {
                        let body = br#"{"ok":true,"tracking":"SF1234567890"}"#.to_vec();
                        settlement.result =
                            Some(TaskResult { media_type: "application/json".into(), body, truncated: false });
                    }
                    Command::Settle { id: id.clone(), fence: *fence, settlement: Box::new(settlement) }
                })
                .collect();
            for answer in self.apply(settles).await {
                assert!(matches!(answer, Answer::Settled(_)), "{answer:?}");
            }
            let Try::Fails { then: Then::Retry { delay_ms }, .. } = attempt else { return };
            self.clock.advance(*delay_ms);
            if self.clock.now() > Clock::System.now() {
                return;
            }
            let claims = running
                .iter()
                .map(|(id, _, stamp)| Command::Claim {
                    id: id.clone(),
                    stamp: Stamp { retry_count: stamp.retry_count + 1, ..*stamp },
                    claimant: Some(Claimant { gates: Arc::default(), ..self.claimant() }),
                })
                .collect();
            running = runs(self.apply(claims).await);
        }
    }

    /// All of it. Ends with the store closed, for a server and a worker to open.
    pub async fn fall(self, letters: usize) {
        let now = Clock::System.now();
        self.day(now).await;
        self.letters(now, letters).await;
        self.ladder(now).await;
        self.locked_shop(now).await;
        self.clock.set(now - 3 * HOUR);
        let new = NewPolicies {
            applied_by: "ming".into(),
            reason: Some("listing: compare fast and slow".into()),
            text: None,
            hash: String::new(),
        };
        self.store.apply_policies(new).await.unwrap();
        self.store.close().await;
    }

    /// Work that went well, most of it at the first try; more of it in the last minutes.
    async fn day(&self, now: Millis) {
        let timeout = failure("order.ship", "timeout", None, None, "read timed out after 10 s");
        let busy = failure("listing.update", "server_error", None, Some(503), "the platform is busy");
        for step in 0..40_i64 {
            let began = if step < 12 { now - (step * 70 + 20) * 1_000 } else { now - step * 31 * MINUTE };
            let specs = |kind: &str, n: usize| -> Vec<Spec> {
                (0..n)
                    .map(|i| {
                        let shop = format!("s-{:02}", (i + usize::try_from(step).unwrap()) % 9 + 1);
                        let tier = if i % 4 == 0 { "vip" } else { "normal" };
                        spec(
                            &format!("{kind}-{step}-{i}"),
                            kind,
                            &[("shop", &shop), ("shop_tier", tier)],
                            serde_json::json!({"order": i}),
                            began,
                        )
                    })
                    .collect()
            };
            self.live(began, "default", None, specs("order.ship", 16), &[Try::Succeeds(180)]).await;
            let early = began - 16 * MINUTE;
            let retried = [fails(900, &timeout, Then::Retry { delay_ms: 15 * MINUTE }), Try::Succeeds(240)];
            self.live(early, "default", None, specs("order.sync", 3), &retried).await;
            let variant = if step % 2 == 0 { "fast" } else { "slow" };
            let delay_ms = if variant == "fast" { MINUTE } else { 15 * MINUTE };
            let n = if variant == "fast" { 4 } else { 7 };
            self.live(
                began - delay_ms - MINUTE,
                "listing",
                Some(variant),
                specs("listing.update", n),
                &[fails(300, &busy, Then::Retry { delay_ms }), Try::Succeeds(200)],
            )
            .await;
            self.live(began, "listing", Some(variant), specs("listing.price", 9), &[Try::Succeeds(120)]).await;
        }
    }

    async fn letters(&self, now: Millis, letters: usize) {
        let exhausted = |failure: &Failure, attachments: Vec<Attachment>| {
            let again = |delay_ms| fails(10_000, failure, Then::Retry { delay_ms });
            let last = Try::Fails {
                took: 10_000,
                failure: failure.clone(),
                then: Then::Die(DeadReason::RetriesExhausted),
                attachments,
            };
            vec![again(15 * MINUTE), again(30 * MINUTE), again(45 * MINUTE), last]
        };
        let mut timeout = failure(
            "order.ship",
            "timeout",
            None,
            None,
            "POST https://carrier.example/api/v2/shipments: no answer within 10 s (order 100231)",
        );
        timeout.stack = Some("TimeoutError: no answer within 10 s\n    at Carrier.ship (carrier.js:88:15)\n    at async Task.run (worker.js:41:9)\n    at async main (worker.js:12:3)".into());
        let timeout_story = exhausted(&timeout, Vec::new());
        for (index, part) in (0..letters).collect::<Vec<_>>().chunks(letters.div_ceil(8).max(1)).enumerate() {
            let ago = [420, 340, 260, 200, 140, 80, 50, 20][index.min(7)] * MINUTE;
            let began = now - ago - 91 * MINUTE;
            let specs = part.iter().map(|i| {
                let shop = format!("s-{:02}", i % 7 + 1);
                let payload = serde_json::json!({"order": 100_000 + i, "address": {"city": "深圳", "street": "科技园南路 12"}, "items": [{"sku": "A-17", "count": 2}], "weight_g": 1240});
                spec(&format!("ship-{}", 100_000 + i), "order.ship", &[("shop", &shop), ("shop_tier", "normal")], payload, began)
            });
            self.live(began, "default", None, specs.collect(), &timeout_story).await;
        }
        let changed = failure(
            "listing.update",
            "invalid_response",
            None,
            Some(200),
            "expected /item_id, which is null: the platform has changed its answer",
        );
        for part in 0..3_i64 {
            let began = now - (8 + part * 11) * MINUTE;
            let specs = (0..letters / 6).map(|i| {
                let shop = format!("s-{:02}", i % 5 + 1);
                spec(
                    &format!("listing-{part}-{i}"),
                    "listing.update",
                    &[("shop", &shop)],
                    serde_json::json!({"item": i, "price": "129.00"}),
                    began,
                )
            });
            let story = [fails(420, &changed, Then::Die(DeadReason::PermanentError))];
            self.live(began, "listing", Some("fast"), specs.collect(), &story).await;
        }
        let robot = failure(
            "report.render",
            "transient",
            Some("element_not_interactable"),
            None,
            "button#export is not interactable after 20 s",
        );
        let screenshot = Attachment {
            name: "after-20-s.png".into(),
            media_type: "image/png".into(),
            body: AttachmentBody::Bytes(png::screen(640, 360).into()),
        };
        let page = Attachment {
            name: "page.html".into(),
            media_type: "text/html".into(),
            body: AttachmentBody::Bytes(b"<h1>Export</h1><script>alert(1)</script>".to_vec().into()),
        };
        let story = exhausted(&robot, vec![screenshot, page]);
        for part in 0..2_i64 {
            let began = now - (9 + part * 6) * HOUR;
            let specs = (0..letters / 12).map(|i| {
                spec(
                    &format!("report-{part}-{i}"),
                    "report.render",
                    &[("shop", "s-03")],
                    serde_json::json!({"report": "settlement", "month": "2026-10"}),
                    began,
                )
            });
            self.live(began, "default", None, specs.collect(), &story).await;
        }
    }

    /// Something on every rung, due at all times from now on.
    async fn ladder(&self, now: Millis) {
        for (rung, retries) in [(15_i64, 0_usize), (30, 1), (45, 2)] {
            for part in 0..14_i64 {
                // Waits `left` more.
                let left = (rung * MINUTE * (part + 1) / 15).max(MINUTE / 2);
                let n = usize::try_from((part * 7 + rung) % 9 + if part < 3 { 6 } else { 1 }).unwrap();
                let busy =
                    failure("order.ship", "server_error", None, Some(503), "the carrier is down for maintenance");
                let before: Millis = [0, 15, 45][retries] * MINUTE;
                let began = now + left - rung * MINUTE - before - 3_000;
                let specs = (0..n).map(|i| {
                    spec(
                        &format!("wait-{rung}-{part}-{i}"),
                        "order.ship",
                        &[("shop", "s-08"), ("shop_tier", "normal")],
                        serde_json::json!({"order": i}),
                        began,
                    )
                });
                let mut story: Vec<Try> = [15, 30]
                    .iter()
                    .take(retries)
                    .map(|step| fails(1_000, &busy, Then::Retry { delay_ms: step * MINUTE }))
                    .collect();
                story.push(fails(1_000, &busy, Then::Retry { delay_ms: rung * MINUTE }));
                self.live(began, "default", None, specs.collect(), &story).await;
            }
        }
    }

    async fn locked_shop(&self, now: Millis) {
        self.clock.set(now - 25 * MINUTE);
        let key = "breaker/shop/label.shop=s-17".to_owned();
        let word = PersonsWord {
            open: true,
            by: "ming".into(),
            reason: Some("the platform has locked this shop, ticket 4711".into()),
            at: self.clock.now(),
        };
        let answers = self.apply(vec![Command::Breaker { key, word }]).await;
        assert_eq!(answers, [Answer::Done]);
        let began = self.clock.now();
        let submits = (0..23).map(|i| {
            let spec = spec(
                &format!("locked-{i}"),
                "order.ship",
                &[("shop", "s-17"), ("shop_tier", "vip")],
                serde_json::json!({"order": i}),
                began,
            );
            Command::Submit(Box::new(self.new_task(spec, "default")))
        });
        for answer in self.apply(submits.collect()).await {
            assert!(matches!(answer, Answer::Held { .. }), "{answer:?}");
        }
    }

    pub async fn close(self) {
        self.store.close().await;
    }
}

pub fn fails(took: Millis, failure: &Failure, then: Then) -> Try {
    Try::Fails { took, failure: failure.clone(), then, attachments: Vec::new() }
}

fn runs(answers: Vec<Answer>) -> Vec<(String, i64, Stamp)> {
    let run = |answer: Answer| match answer {
        Answer::Run(task) => (task.id().to_owned(), task.state.fence, task.stamp()),
        other => panic!("expected a run, found {other:?}"),
    };
    answers.into_iter().map(run).collect()
}
