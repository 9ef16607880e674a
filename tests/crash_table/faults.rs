//! A store and a broker that kill their process at a chosen step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use redeliver::broker::{
    About, Broker, BrokerError, Consumption, DEAD_LETTER_TYPE, DeadPass, Delivery, Difference, Message, Published,
    QueueDepth, SessionWatch, Topology, WAKE_UP_TYPE,
};
use redeliver::gate::{Chance, GateState, HeldGate};
use redeliver::store::access::{
    AccessStore, AuditEntry, AuditFilter, AuditRecord, NewToken, Session, SignInLink, Token,
};
use redeliver::store::look::{AttemptHead, LookStore, WaitScale, Waiting};
use redeliver::store::notice::{NoticeBacklog, NoticeStore, TakenNotice};
use redeliver::store::{
    Alarm, AttemptTally, DeadRow, FailureTally, Filter, GroupBy, GroupNote, ItemCounts, ItemOutcome, LetterGroup,
    LetterGroupBy, LetterHistory, NewPolicies, NewReplay, Node, Pace, Page, Pause, PolicyVersion, Prunable, Released,
    ReplayItem, ReplayJob, ReplayLease, ReplayState, ReplayStep, Selection, Steer, Steered, Store, StoreError,
    StoreReport, Tally, TriageStore, Urgency,
};
use redeliver::task::{
    Answer, Attachment, Attempt, Command, DlqLedger, EditRecord, LaneKey, LaneLedger, Millis, Spot, Status, Task,
    TaskResult,
};
use tokio::sync::mpsc;

/// Where the process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    BeforeSubmitCommit,
    AfterSubmitCommit,
    InHandler,
    BeforeSettleCommit,
    AfterSettleCommit,
    BeforeWakeUpPublish,
    AfterWakeUpPublish,
    BeforeCopyPublish,
    AfterCopyPublish,
    BeforeReleaseCommit,
    AfterReleaseCommit,
}

pub const STEPS: [Step; 11] = [
    Step::BeforeSubmitCommit,
    Step::AfterSubmitCommit,
    Step::InHandler,
    Step::BeforeSettleCommit,
    Step::AfterSettleCommit,
    Step::BeforeWakeUpPublish,
    Step::AfterWakeUpPublish,
    Step::BeforeCopyPublish,
    Step::AfterCopyPublish,
    Step::BeforeReleaseCommit,
    Step::AfterReleaseCommit,
];

impl Step {
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    pub fn parse(name: &str) -> Option<Step> {
        STEPS.into_iter().find(|step| step.name() == name)
    }

    /// Dies like a process that is killed: no destructor runs, no socket is closed politely.
    pub fn die(self) -> ! {
        std::process::abort()
    }
}

/// Called with the commands of every transaction.
type BeforeApply = Box<dyn Fn(&[Command]) -> Result<(), StoreError> + Send + Sync>;
type AfterApply = Box<dyn Fn(&[Command]) -> Result<(), StoreError> + Send + Sync>;

/// A store that is watched: something may happen before or after each commit.
pub struct WatchedStore {
    inner: Arc<dyn Store>,
    before: BeforeApply,
    after: AfterApply,
    step: Option<Step>,
}

impl WatchedStore {
    /// Dies at `step`.
    pub fn dying(inner: Arc<dyn Store>, step: Step) -> WatchedStore {
        let concerned = move |commands: &[Command]| {
            commands.iter().any(|command| match step {
                Step::BeforeSubmitCommit | Step::AfterSubmitCommit => matches!(command, Command::Submit(_)),
                Step::BeforeSettleCommit | Step::AfterSettleCommit => matches!(command, Command::Settle { .. }),
                _ => false,
            })
        };
        let first = matches!(step, Step::BeforeSubmitCommit | Step::BeforeSettleCommit);
        WatchedStore {
            inner,
            step: Some(step),
            before: Box::new(move |commands| if first && concerned(commands) { step.die() } else { Ok(()) }),
            after: Box::new(move |commands| if concerned(commands) { step.die() } else { Ok(()) }),
        }
    }

    /// Fails before or after a commit as it is told to.
    pub fn failing(inner: Arc<dyn Store>, before: BeforeApply, after: AfterApply) -> WatchedStore {
        WatchedStore { inner, before, after, step: None }
    }

    /// Refuses every transaction while `away` says so, and counts the refusals.
    pub fn away(inner: Arc<dyn Store>, away: Arc<AtomicBool>, refusals: Arc<AtomicU64>) -> WatchedStore {
        WatchedStore {
            inner,
            step: None,
            before: Box::new(move |_| {
                if !away.load(Ordering::SeqCst) {
                    return Ok(());
                }
                refusals.fetch_add(1, Ordering::SeqCst);
                Err(StoreError::Unavailable { place: "test".into(), reason: "away".into() })
            }),
            after: Box::new(|_| Ok(())),
        }
    }
}

#[async_trait]
impl LookStore for WatchedStore {
    async fn waiting(&self, scale: &WaitScale) -> Result<Waiting, StoreError> {
        self.inner.waiting(scale).await
    }

    async fn newest_ended(&self, since: Millis, until: Millis, most: usize) -> Result<Option<Millis>, StoreError> {
        self.inner.newest_ended(since, until, most).await
    }

    async fn attempt_heads(&self, id: &str) -> Result<Vec<AttemptHead>, StoreError> {
        self.inner.attempt_heads(id).await
    }

    async fn attachment(&self, id: &str, fence: i64, position: usize) -> Result<Option<Attachment>, StoreError> {
        self.inner.attachment(id, fence, position).await
    }
}

#[async_trait]
impl NoticeStore for WatchedStore {
    async fn next_notice(&self) -> Result<Option<Millis>, StoreError> {
        self.inner.next_notice().await
    }

    async fn take_notices(&self, most: usize, hold_ms: Millis) -> Result<Vec<TakenNotice>, StoreError> {
        self.inner.take_notices(most, hold_ms).await
    }

    async fn drop_notices(&self, numbers: Vec<i64>) -> Result<(), StoreError> {
        self.inner.drop_notices(numbers).await
    }

    async fn notice_backlog(&self) -> Result<NoticeBacklog, StoreError> {
        self.inner.notice_backlog().await
    }
}

#[async_trait]
impl AccessStore for WatchedStore {
    async fn create_token(&self, new: NewToken) -> Result<bool, StoreError> {
        self.inner.create_token(new).await
    }

    async fn tokens(&self) -> Result<Vec<Token>, StoreError> {
        self.inner.tokens().await
    }

    async fn token_by_hash(&self, hash: &str) -> Result<Option<Token>, StoreError> {
        self.inner.token_by_hash(hash).await
    }

    async fn touch_token(&self, name: &str) -> Result<(), StoreError> {
        self.inner.touch_token(name).await
    }

    async fn revoke_token(&self, name: &str) -> Result<bool, StoreError> {
        self.inner.revoke_token(name).await
    }

    async fn create_session(&self, session: Session) -> Result<(), StoreError> {
        self.inner.create_session(session).await
    }

    async fn session(&self, hash: &str) -> Result<Option<Session>, StoreError> {
        self.inner.session(hash).await
    }

    async fn end_session(&self, hash: &str) -> Result<bool, StoreError> {
        self.inner.end_session(hash).await
    }

    async fn create_link(&self, link: SignInLink) -> Result<(), StoreError> {
        self.inner.create_link(link).await
    }

    async fn use_link(&self, hash: &str) -> Result<Option<SignInLink>, StoreError> {
        self.inner.use_link(hash).await
    }

    async fn record(&self, entry: AuditEntry) -> Result<i64, StoreError> {
        self.inner.record(entry).await
    }

    async fn audit(
        &self,
        filter: &AuditFilter,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Page<AuditRecord>, StoreError> {
        self.inner.audit(filter, cursor, limit).await
    }
}

#[async_trait]
impl Store for WatchedStore {
    fn now(&self) -> Millis {
        self.inner.now()
    }

    async fn apply(&self, urgency: Urgency, commands: Vec<Command>) -> Result<Vec<Answer>, StoreError> {
        (self.before)(&commands)?;
        let answers = self.inner.apply(urgency, commands.clone()).await;
        (self.after)(&commands)?;
        answers
    }

    async fn alarms(&self, kind: Alarm, now: Millis, limit: usize) -> Result<Vec<Task>, StoreError> {
        self.inner.alarms(kind, now, limit).await
    }

    async fn next_alarm(&self) -> Result<Option<Millis>, StoreError> {
        self.inner.next_alarm().await
    }

    async fn feed(&self, queue: &str, now: Millis, limit: usize) -> Result<Vec<Task>, StoreError> {
        self.inner.feed(queue, now, limit).await
    }

    async fn unrouted(&self, limit: usize) -> Result<Vec<(String, String)>, StoreError> {
        self.inner.unrouted(limit).await
    }

    async fn waiting_queues(&self) -> Result<BTreeMap<String, i64>, StoreError> {
        self.inner.waiting_queues().await
    }

    async fn outstanding(&self, queue: &str, limit: usize) -> Result<usize, StoreError> {
        self.inner.outstanding(queue, limit).await
    }

    async fn held_gates(&self, queues: &[String], from: &str) -> Result<Vec<HeldGate>, StoreError> {
        self.inner.held_gates(queues, from).await
    }

    async fn held_heads(&self, chance: &Chance, after: &str) -> Result<Vec<Task>, StoreError> {
        self.inner.held_heads(chance, after).await
    }

    async fn held_counts(&self) -> Result<BTreeMap<String, i64>, StoreError> {
        self.inner.held_counts().await
    }

    async fn cached(&self, task_type: &str, cache_key: &str) -> Result<Option<(TaskResult, Millis)>, StoreError> {
        self.inner.cached(task_type, cache_key).await
    }

    async fn gates(&self) -> Result<Vec<(String, GateState)>, StoreError> {
        self.inner.gates().await
    }

    async fn outside_changes(&self) -> Result<i64, StoreError> {
        self.inner.outside_changes().await
    }

    async fn get(&self, ids: &[String]) -> Result<Vec<Option<Task>>, StoreError> {
        self.inner.get(ids).await
    }

    async fn attempts(&self, id: &str) -> Result<Vec<Attempt>, StoreError> {
        self.inner.attempts(id).await
    }

    async fn result(&self, id: &str) -> Result<Option<TaskResult>, StoreError> {
        self.inner.result(id).await
    }

    async fn list(&self, filter: &Filter, cursor: Option<&str>, limit: usize) -> Result<Page<Task>, StoreError> {
        self.inner.list(filter, cursor, limit).await
    }

    async fn count(&self, filter: &Filter) -> Result<BTreeMap<Status, i64>, StoreError> {
        self.inner.count(filter).await
    }

    async fn tallies(&self, by: &GroupBy, filter: &Filter) -> Result<Vec<Tally>, StoreError> {
        self.inner.tallies(by, filter).await
    }

    async fn attempt_tallies(&self, filter: &Filter) -> Result<Vec<AttemptTally>, StoreError> {
        self.inner.attempt_tallies(filter).await
    }

    async fn failure_tallies(&self, filter: &Filter, limit: usize) -> Result<Vec<FailureTally>, StoreError> {
        self.inner.failure_tallies(filter, limit).await
    }

    async fn dead_rows(&self, queue: &str, after: &str, limit: usize) -> Result<Vec<DeadRow>, StoreError> {
        self.inner.dead_rows(queue, after, limit).await
    }

    async fn dead_copies(&self, queue: &str) -> Result<(i64, i64), StoreError> {
        self.inner.dead_copies(queue).await
    }

    async fn lanes(&self) -> Result<Vec<(LaneKey, LaneLedger)>, StoreError> {
        self.inner.lanes().await
    }

    async fn dlqs(&self) -> Result<Vec<(String, DlqLedger)>, StoreError> {
        self.inner.dlqs().await
    }

    async fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        self.inner.pauses().await
    }

    async fn pause(&self, pause: Pause) -> Result<(), StoreError> {
        self.inner.pause(pause).await
    }

    async fn resume(&self, key: &str) -> Result<bool, StoreError> {
        self.inner.resume(key).await
    }

    async fn policies(&self, limit: usize) -> Result<Vec<PolicyVersion>, StoreError> {
        self.inner.policies(limit).await
    }

    async fn apply_policies(&self, new: NewPolicies) -> Result<i64, StoreError> {
        self.inner.apply_policies(new).await
    }

    async fn report_node(&self, worker: &str, hash: &str, version: Option<i64>) -> Result<(), StoreError> {
        self.inner.report_node(worker, hash, version).await
    }

    async fn nodes(&self) -> Result<Vec<Node>, StoreError> {
        self.inner.nodes().await
    }

    async fn report(&self, deep: bool) -> Result<StoreReport, StoreError> {
        self.inner.report(deep).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

// Delegations of the part about dead letters.
#[async_trait]
impl TriageStore for WatchedStore {
    async fn letter_groups(
        &self,
        by: &LetterGroupBy,
        filter: &Filter,
        limit: usize,
    ) -> Result<Vec<LetterGroup>, StoreError> {
        self.inner.letter_groups(by, filter, limit).await
    }

    async fn group_notes(&self, by: &LetterGroupBy) -> Result<Vec<GroupNote>, StoreError> {
        self.inner.group_notes(by).await
    }

    async fn note_group(&self, by: &LetterGroupBy, note: GroupNote) -> Result<(), StoreError> {
        self.inner.note_group(by, note).await
    }

    async fn preview_replay(&self, selection: &Selection) -> Result<ItemCounts, StoreError> {
        self.inner.preview_replay(selection).await
    }

    async fn create_replay(&self, new: NewReplay) -> Result<ReplayJob, StoreError> {
        self.inner.create_replay(new).await
    }

    async fn replays(
        &self,
        states: &[ReplayState],
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<ReplayJob>, StoreError> {
        self.inner.replays(states, before, limit).await
    }

    async fn replay(&self, id: i64) -> Result<Option<ReplayJob>, StoreError> {
        self.inner.replay(id).await
    }

    async fn replay_items(
        &self,
        id: i64,
        outcomes: &[ItemOutcome],
        after: i64,
        limit: usize,
    ) -> Result<Vec<ReplayItem>, StoreError> {
        self.inner.replay_items(id, outcomes, after, limit).await
    }

    async fn replays_of(&self, task_id: &str, limit: usize) -> Result<Vec<ReplayItem>, StoreError> {
        self.inner.replays_of(task_id, limit).await
    }

    async fn steer_replay(
        &self,
        id: i64,
        word: Steer,
        by: Option<&str>,
        why: Option<&str>,
    ) -> Result<Steered, StoreError> {
        self.inner.steer_replay(id, word, by, why).await
    }

    async fn lease_replay(
        &self,
        id: Option<i64>,
        worker: &str,
        hold_ms: Millis,
    ) -> Result<Option<ReplayJob>, StoreError> {
        self.inner.lease_replay(id, worker, hold_ms).await
    }

    async fn release_items(
        &self,
        lease: &ReplayLease,
        most: usize,
        paced_to_us: i64,
    ) -> Result<Option<Released>, StoreError> {
        if self.step == Some(Step::BeforeReleaseCommit) {
            Step::BeforeReleaseCommit.die();
        }
        let released = self.inner.release_items(lease, most, paced_to_us).await;
        if self.step == Some(Step::AfterReleaseCommit) {
            Step::AfterReleaseCommit.die();
        }
        released
    }

    async fn judge_items(
        &self,
        lease: &ReplayLease,
        after: i64,
        most: usize,
    ) -> Result<(ItemCounts, Option<i64>), StoreError> {
        self.inner.judge_items(lease, after, most).await
    }

    async fn step_replay(&self, lease: &ReplayLease, step: ReplayStep) -> Result<bool, StoreError> {
        self.inner.step_replay(lease, step).await
    }

    async fn unappointed(&self, limit: usize) -> Result<Vec<(Task, usize, bool)>, StoreError> {
        self.inner.unappointed(limit).await
    }

    async fn appoint(&self, looked_to: Option<Millis>, letters: &[(String, i64, Millis)]) -> Result<(), StoreError> {
        self.inner.appoint(looked_to, letters).await
    }

    async fn create_automatic_replay(&self, pace: Pace, most: usize) -> Result<Option<ReplayJob>, StoreError> {
        self.inner.create_automatic_replay(pace, most).await
    }

    async fn edits_of(&self, task_id: &str) -> Result<Vec<EditRecord>, StoreError> {
        self.inner.edits_of(task_id).await
    }

    async fn letter_histories(&self, ids: &[String]) -> Result<Vec<LetterHistory>, StoreError> {
        self.inner.letter_histories(ids).await
    }

    async fn prune(&self, what: Prunable, before: Millis, most: usize, dry_run: bool) -> Result<i64, StoreError> {
        self.inner.prune(what, before, most, dry_run).await
    }
}

pub struct DyingBroker {
    pub inner: Arc<dyn Broker>,
    pub step: Step,
}

#[async_trait]
impl Broker for DyingBroker {
    async fn publish(&self, messages: Vec<Message>) -> Vec<Published> {
        let wanted = match self.step {
            Step::BeforeWakeUpPublish | Step::AfterWakeUpPublish => Some(WAKE_UP_TYPE),
            Step::BeforeCopyPublish | Step::AfterCopyPublish => Some(DEAD_LETTER_TYPE),
            _ => None,
        };
        let concerned = wanted.is_some() && messages.iter().any(|message| message.message_type == wanted);
        if concerned && matches!(self.step, Step::BeforeWakeUpPublish | Step::BeforeCopyPublish) {
            self.step.die();
        }
        let fates = self.inner.publish(messages).await;
        if concerned {
            self.step.die();
        }
        fates
    }

    async fn connect(&self) -> Result<(), BrokerError> {
        self.inner.connect().await
    }

    fn is_up(&self) -> bool {
        self.inner.is_up()
    }

    fn holds_waits(&self) -> bool {
        self.inner.holds_waits()
    }

    async fn consume(
        &self,
        topology: Arc<Topology>,
        consumption: Consumption,
        watch: Arc<dyn SessionWatch>,
    ) -> Result<mpsc::Receiver<Delivery>, BrokerError> {
        self.inner.consume(topology, consumption, watch).await
    }

    fn keep(&self, topology: Arc<Topology>) {
        self.inner.keep(topology);
    }

    async fn stop_consuming(&self) {
        self.inner.stop_consuming().await;
    }

    async fn missing(&self, topology: &Topology, spots: &[Spot]) -> Result<Vec<Spot>, BrokerError> {
        self.inner.missing(topology, spots).await
    }

    async fn declare(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.inner.declare(topology).await
    }

    async fn plan(&self, topology: &Topology) -> Result<Vec<Difference>, BrokerError> {
        self.inner.plan(topology).await
    }

    async fn delete(&self, topology: &Topology, force: bool) -> Result<(), BrokerError> {
        self.inner.delete(topology, force).await
    }

    async fn depths(&self, topology: &Topology) -> Result<Vec<QueueDepth>, BrokerError> {
        self.inner.depths(topology).await
    }

    async fn dead_pass(&self, queue: &str) -> Result<Box<dyn DeadPass>, BrokerError> {
        self.inner.dead_pass(queue).await
    }

    async fn about(&self) -> Result<About, BrokerError> {
        self.inner.about().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
