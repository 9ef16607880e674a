//! A store in front of another one, where something may happen before and after each call.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
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
    Answer, Attachment, Attempt, Command, DlqLedger, EditRecord, LaneKey, LaneLedger, Millis, Status, Task, TaskResult,
};

/// What may happen.
#[async_trait]
pub trait Interference: Send + Sync + 'static {
    /// Stands for [`Store::apply`].
    async fn apply(
        &self,
        store: &dyn Store,
        urgency: Urgency,
        commands: Vec<Command>,
    ) -> Result<Vec<Answer>, StoreError>;

    /// Before any other call; on `Err` the store is not asked.
    async fn before(&self, _call: &'static str) -> Result<(), StoreError> {
        Ok(())
    }

    /// After any other call that succeeded; on `Err` its caller does not hear of it.
    async fn after(&self, _call: &'static str) -> Result<(), StoreError> {
        Ok(())
    }

    /// Before the clock is read.
    fn reading_clock(&self) {}
}

/// See the module.
pub struct StoreDouble<I> {
    pub inner: Arc<dyn Store>,
    pub interference: I,
}

/// One port: what is written out, and what goes through `before` and `after`.
macro_rules! doubles {
    ($port:ident { $($written:tt)* } $(fn $name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl<I: Interference> $port for StoreDouble<I> {
            $($written)*
            $(async fn $name(&self, $($argument: $type),*) -> Result<$answer, StoreError> {
                self.interference.before(stringify!($name)).await?;
                let answer = self.inner.$name($($argument),*).await?;
                self.interference.after(stringify!($name)).await?;
                Ok(answer)
            })*
        }
    };
}

doubles! {
    Store {
        fn now(&self) -> Millis {
            self.interference.reading_clock();
            self.inner.now()
        }

        async fn apply(&self, urgency: Urgency, commands: Vec<Command>) -> Result<Vec<Answer>, StoreError> {
            self.interference.apply(self.inner.as_ref(), urgency, commands).await
        }

        async fn called(&self) {
            self.inner.called().await;
        }

        async fn close(&self) {
            self.inner.close().await;
        }
    }
    fn alarms(kind: Alarm, now: Millis, limit: usize) -> Vec<Task>;
    fn next_alarm() -> Option<Millis>;
    fn feed(queue: &str, now: Millis, limit: usize) -> Vec<Task>;
    fn unrouted(limit: usize) -> Vec<(String, String)>;
    fn waiting_queues() -> BTreeMap<String, i64>;
    fn outstanding(queue: &str, limit: usize) -> usize;
    fn held_gates(queues: &[String], from: &str) -> Vec<HeldGate>;
    fn held_heads(chance: &Chance, after: &str) -> Vec<Task>;
    fn held_counts() -> BTreeMap<String, i64>;
    fn gates() -> Vec<(String, GateState)>;
    fn outside_changes() -> i64;
    fn get(ids: &[String]) -> Vec<Option<Task>>;
    fn attempts(id: &str) -> Vec<Attempt>;
    fn result(id: &str) -> Option<TaskResult>;
    fn cached(task_type: &str, cache_key: &str) -> Option<(TaskResult, Millis)>;
    fn list(filter: &Filter, cursor: Option<&str>, limit: usize) -> Page<Task>;
    fn count(filter: &Filter) -> BTreeMap<Status, i64>;
    fn tallies(by: &GroupBy, filter: &Filter) -> Vec<Tally>;
    fn attempt_tallies(filter: &Filter) -> Vec<AttemptTally>;
    fn failure_tallies(filter: &Filter, limit: usize) -> Vec<FailureTally>;
    fn dead_rows(queue: &str, after: &str, limit: usize) -> Vec<DeadRow>;
    fn dead_copies(queue: &str) -> (i64, i64);
    fn lanes() -> Vec<(LaneKey, LaneLedger)>;
    fn dlqs() -> Vec<(String, DlqLedger)>;
    fn pauses() -> Vec<Pause>;
    fn pause(pause: Pause) -> ();
    fn resume(key: &str) -> bool;
    fn policies(limit: usize) -> Vec<PolicyVersion>;
    fn apply_policies(new: NewPolicies) -> i64;
    fn report_node(worker: &str, hash: &str, version: Option<i64>) -> ();
    fn forget_node(worker: &str) -> ();
    fn nodes() -> Vec<Node>;
    fn report(deep: bool) -> StoreReport;
}

doubles! {
    LookStore {}
    fn waiting(scale: &WaitScale) -> Waiting;
    fn newest_ended(since: Millis, until: Millis, most: usize) -> Option<Millis>;
    fn attempt_heads(id: &str) -> Vec<AttemptHead>;
    fn attachment(id: &str, fence: i64, position: usize) -> Option<Attachment>;
}

doubles! {
    AccessStore {}
    fn create_token(new: NewToken) -> bool;
    fn tokens() -> Vec<Token>;
    fn token_by_hash(hash: &str) -> Option<Token>;
    fn touch_token(name: &str) -> ();
    fn revoke_token(name: &str) -> bool;
    fn create_session(session: Session) -> ();
    fn session(hash: &str) -> Option<Session>;
    fn end_session(hash: &str) -> bool;
    fn create_link(link: SignInLink) -> ();
    fn use_link(hash: &str) -> Option<SignInLink>;
    fn record(entry: AuditEntry) -> i64;
    fn audit(filter: &AuditFilter, cursor: Option<&str>, limit: usize) -> Page<AuditRecord>;
}

doubles! {
    TriageStore {}
    fn letter_groups(by: &LetterGroupBy, filter: &Filter, limit: usize) -> Vec<LetterGroup>;
    fn group_notes(by: &LetterGroupBy) -> Vec<GroupNote>;
    fn note_group(by: &LetterGroupBy, note: GroupNote) -> ();
    fn preview_replay(selection: &Selection) -> ItemCounts;
    fn create_replay(new: NewReplay) -> ReplayJob;
    fn replays(states: &[ReplayState], before: Option<i64>, limit: usize) -> Vec<ReplayJob>;
    fn replay(id: i64) -> Option<ReplayJob>;
    fn replay_items(id: i64, outcomes: &[ItemOutcome], after: i64, limit: usize) -> Vec<ReplayItem>;
    fn replays_of(task_id: &str, limit: usize) -> Vec<ReplayItem>;
    fn steer_replay(id: i64, word: Steer, by: Option<&str>, why: Option<&str>) -> Steered;
    fn lease_replay(id: Option<i64>, worker: &str, hold_ms: Millis) -> Option<ReplayJob>;
    fn release_items(lease: &ReplayLease, most: usize, paced_to_us: i64) -> Option<Released>;
    fn judge_items(lease: &ReplayLease, after: i64, most: usize) -> (ItemCounts, Option<i64>);
    fn step_replay(lease: &ReplayLease, step: ReplayStep) -> bool;
    fn unappointed(limit: usize) -> Vec<(Task, usize, bool)>;
    fn appoint(looked_to: Option<Millis>, letters: &[(String, i64, Millis)]) -> ();
    fn create_automatic_replay(pace: Pace, most: usize) -> Option<ReplayJob>;
    fn edits_of(task_id: &str) -> Vec<EditRecord>;
    fn letter_histories(ids: &[String]) -> Vec<LetterHistory>;
    fn prune(what: Prunable, before: Millis, most: usize, dry_run: bool) -> i64;
}

doubles! {
    NoticeStore {}
    fn next_notice() -> Option<Millis>;
    fn take_notices(most: usize, hold_ms: Millis) -> Vec<TakenNotice>;
    fn drop_notices(numbers: Vec<i64>) -> ();
    fn notice_backlog() -> NoticeBacklog;
}
