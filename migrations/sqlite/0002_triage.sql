-- For people who look after dead letters: groups, replay jobs, edits, retention.
--
-- Every index on tasks here holds dead rows only: a task that never dies does not touch them.

-- All that groups, searches and selections ask of a dead letter, so that none of them reads the rows, which lie scattered among
-- those that succeeded. The columns by which letters are grouped come first, then the hour of death: counts by group and hour come
-- out in the order of the index.
CREATE INDEX tasks_letters ON tasks (failure_fingerprint, type, failure_class, failure_code, failure_http_status,
    dead_reason, ended_at / 3600000, ended_at, wake_at, queue, labels, failure_message) WHERE status = 'dead';

-- Dead letters that replay themselves, by when.
CREATE INDEX tasks_appointed ON tasks (wake_at) WHERE status = 'dead' AND wake_at IS NOT NULL;

-- What people have written at a group of dead letters.
CREATE TABLE group_notes (
    -- What the group is a group by (fingerprint, class, …), and its key.
    grouped_by TEXT NOT NULL,
    key TEXT NOT NULL,
    owner TEXT,
    note TEXT,
    noted_by TEXT,
    noted_at INTEGER NOT NULL,
    PRIMARY KEY (grouped_by, key)
) STRICT, WITHOUT ROWID;

-- The number of a job is never given again, whatever is pruned.
CREATE TABLE replay_jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    origin TEXT NOT NULL CHECK (origin = 'person' OR origin = 'automatic'),
    created_at INTEGER NOT NULL,
    created_by TEXT,
    reason TEXT,
    -- What was asked for, for people.
    about TEXT NOT NULL CHECK (json_valid(about)),
    rate_per_s REAL CHECK (rate_per_s IS NULL OR rate_per_s > 0),
    ramp INTEGER NOT NULL CHECK (ramp IN (0, 1)),
    max_failure_ratio REAL CHECK (max_failure_ratio IS NULL OR max_failure_ratio BETWEEN 0 AND 1),
    -- A JSON Patch for each payload.
    edit TEXT CHECK (edit IS NULL OR json_valid(edit)),
    state TEXT NOT NULL CHECK (CASE state WHEN 'selecting' THEN 1 WHEN 'running' THEN 1 WHEN 'paused' THEN 1
        WHEN 'stopped' THEN 1 WHEN 'cancelled' THEN 1 WHEN 'done' THEN 1 ELSE 0 END),
    why TEXT,
    changed_by TEXT,
    changed_at INTEGER NOT NULL,
    stage INTEGER NOT NULL DEFAULT 0,
    -- Up to which moment (epoch microseconds) the rate is used up.
    paced_to_us INTEGER NOT NULL DEFAULT 0,
    -- Who drives it: only the newest fence may, until the lease is over.
    worker TEXT,
    fence INTEGER NOT NULL DEFAULT 0,
    lease_until INTEGER NOT NULL DEFAULT 0,
    ended_at INTEGER
) STRICT;

CREATE INDEX replay_jobs_open ON replay_jobs (id) WHERE state = 'selecting' OR state = 'running' OR state = 'paused';

-- The letters of a job, as they were when it was made: the selection never widens.
CREATE TABLE replay_items (
    job INTEGER NOT NULL,
    position INTEGER NOT NULL,
    task_id TEXT NOT NULL,
    generation INTEGER NOT NULL,
    outcome TEXT NOT NULL CHECK (CASE outcome WHEN 'waiting' THEN 1 WHEN 'replayed' THEN 1 WHEN 'skipped' THEN 1
        WHEN 'failed_again' THEN 1 WHEN 'succeeded' THEN 1 WHEN 'cancelled' THEN 1 ELSE 0 END),
    -- Why it was skipped.
    why TEXT,
    -- What runs: the letter itself in its next generation, or the task that an edit made of it.
    runs_as TEXT,
    runs_generation INTEGER,
    at INTEGER NOT NULL,
    PRIMARY KEY (job, position),
    CHECK ((outcome = 'skipped') = (why IS NOT NULL))
) STRICT, WITHOUT ROWID;

CREATE INDEX replay_items_outcome ON replay_items (job, outcome, why, position);
CREATE INDEX replay_items_task ON replay_items (task_id);

-- Tasks that were made of a dead letter by an edit.
CREATE TABLE edits (
    task_id TEXT NOT NULL PRIMARY KEY,
    edited_from TEXT NOT NULL,
    edited_at INTEGER NOT NULL,
    edited_by TEXT,
    reason TEXT,
    patch TEXT NOT NULL CHECK (json_valid(patch))
) STRICT, WITHOUT ROWID;

CREATE INDEX edits_from ON edits (edited_from);

-- Up to when dead letters have been looked at for automatic replays.
CREATE TABLE triage_marks (
    name TEXT NOT NULL PRIMARY KEY,
    at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
