-- The first schema.
--
-- `tasks` is a public door: any program may INSERT INTO tasks (id, type, payload) and has made a valid pending task.
-- Defaults, checks and the trigger therefore run in the inserting program's SQLite (floor 3.38): no unixepoch(), no ->>,
-- no JSONB here. Times are milliseconds since the Unix epoch.
--
-- The order of the columns is deliberate. What transitions change comes first and what was asked for, which may be
-- large, last, so that reading a state never walks the overflow pages of a payload. Every index but the first two is
-- partial: a task that succeeds at its first attempt touches only id, idempotency key and lease. The checks avoid IN with
-- more than two words: SQLite would build a table of the words each time, which made them cost as much as the write.

CREATE TABLE tasks (
    -- The order of arrival; lists page over it.
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL
        CONSTRAINT id_has_1_to_200_bytes CHECK (length(CAST(id AS BLOB)) BETWEEN 1 AND 200 AND instr(id, char(0)) = 0),
    -- An AMQP topic: words without white space, control characters or wildcards, separated by single dots.
    type TEXT NOT NULL
        CONSTRAINT type_is_a_topic CHECK (length(CAST(type AS BLOB)) BETWEEN 1 AND 255
            AND instr(type, char(0)) = 0 AND '.' || type || '.' NOT GLOB '*..*'
            -- Ordinary types need no look at the rest.
            AND (type NOT GLOB '*[^a-zA-Z0-9._-]*'
                OR type NOT GLOB '*[*#' || char(1) || '-' || char(32) || char(127) || '-' || char(160) || char(5760)
                    || char(8192) || '-' || char(8202) || char(8232) || char(8233) || char(8239) || char(8287)
                    || char(12288) || ']*')),

    -- Where it stands.
    status TEXT NOT NULL DEFAULT 'pending'
        CONSTRAINT status_is_known CHECK (CASE status WHEN 'running' THEN 1 WHEN 'succeeded' THEN 1 WHEN 'pending' THEN 1
            WHEN 'retry_waiting' THEN 1 WHEN 'dead' THEN 1 WHEN 'discarded' THEN 1 WHEN 'cancelled' THEN 1 ELSE 0 END),
    dead_reason TEXT
        CONSTRAINT dead_reason_is_known CHECK (dead_reason IS NULL OR CASE dead_reason WHEN 'retries_exhausted' THEN 1
            WHEN 'permanent_error' THEN 1 WHEN 'circuit_open' THEN 1 WHEN 'deadline_exceeded' THEN 1
            WHEN 'malformed' THEN 1 WHEN 'duplicate_conflict' THEN 1 WHEN 'poison' THEN 1 ELSE 0 END),
    degraded TEXT,
    generation INTEGER NOT NULL DEFAULT 0 CHECK (generation >= 0),
    retry_count INTEGER NOT NULL DEFAULT 0 CHECK (retry_count >= 0),
    -- When it may next run; a producer that wants it later gives this.
    due_at INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)),
    -- When the store acts by itself.
    wake_at INTEGER DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)),
    deadline INTEGER,
    -- NULL until a dispatcher has seen a row that another program inserted.
    queue TEXT,
    fence INTEGER NOT NULL DEFAULT 0 CHECK (fence >= 0),
    worker TEXT,
    started_at INTEGER,
    releases INTEGER NOT NULL DEFAULT 0,
    wakes INTEGER NOT NULL DEFAULT 0,
    -- The outstanding wake-up: all four or none.
    sent_lane TEXT CONSTRAINT sent_lane_is_known CHECK (sent_lane IS NULL OR sent_lane = 'tasks' OR sent_lane = 'retries'),
    sent_rung_ms INTEGER,
    sent_at INTEGER,
    arrives_at INTEGER,
    -- What holds it, its turn among what is held, and when waiting for a breaker ends it.
    held_by TEXT,
    held_turn TEXT NOT NULL DEFAULT '',
    park_until INTEGER,
    -- What its running claim keeps of the gates it went through, as JSON.
    passes TEXT,
    -- The variant of its policy that it keeps for life.
    variant TEXT,
    dlq_copy TEXT NOT NULL DEFAULT 'none'
        CONSTRAINT dlq_copy_is_known CHECK (dlq_copy = 'none' OR dlq_copy = 'wanted' OR dlq_copy = 'present'),
    dlq_at INTEGER,
    delay_ms INTEGER,
    delay_reason TEXT,
    -- Whether the handler itself asked for the coming retry.
    retry_by_handler INTEGER NOT NULL DEFAULT 0,
    -- The last failure; its stack is in the attempt.
    failure_class TEXT,
    failure_code TEXT,
    failure_http_status INTEGER CHECK (failure_http_status IS NULL OR failure_http_status BETWEEN 0 AND 65535),
    failure_message TEXT,
    failure_fingerprint TEXT,
    ended_at INTEGER,
    -- What the last person who acted on it said.
    note TEXT,

    -- What was asked for. Never changes.
    priority INTEGER NOT NULL DEFAULT 0 CONSTRAINT priority_is_0_to_9 CHECK (priority BETWEEN 0 AND 9),
    -- NULL means the id; the trigger below writes it out. A refused row owns no key.
    idempotency_key TEXT CHECK (instr(idempotency_key, char(0)) = 0),
    cache_key TEXT,
    reply_to TEXT,
    payload_hash TEXT NOT NULL DEFAULT '',
    submission_hash TEXT,
    created_at INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)),
    conflicts_with TEXT,
    labels TEXT NOT NULL DEFAULT '{}'
        CONSTRAINT labels_are_a_json_object CHECK (CASE WHEN labels = '{}' THEN 1 WHEN json_valid(labels) THEN json_type(labels) = 'object' ELSE 0 END),
    payload TEXT NOT NULL DEFAULT 'null' CONSTRAINT payload_is_json CHECK (json_valid(payload)),
    -- What arrived, for rows that were refused: all of length, bytes and key, or none.
    raw_length INTEGER,
    raw_routing_key TEXT,
    raw_message_id TEXT,
    raw_bytes BLOB,

    CONSTRAINT dead_has_a_reason CHECK ((status = 'dead') = (dead_reason IS NOT NULL)),
    CONSTRAINT unfinished_has_an_alarm
        CHECK (wake_at IS NOT NULL OR status = 'succeeded' OR status = 'dead' OR status = 'discarded' OR status = 'cancelled'),
    CONSTRAINT held_is_waiting CHECK (held_by IS NULL OR status = 'pending' OR status = 'retry_waiting'),
    CONSTRAINT held_has_a_queue CHECK (held_by IS NULL OR queue IS NOT NULL),
    CONSTRAINT copy_is_of_a_dead_task CHECK (dlq_copy = 'none' OR status = 'dead'),
    CONSTRAINT wanted_copy_has_a_time CHECK (dlq_copy <> 'wanted' OR dlq_at IS NOT NULL),
    CONSTRAINT outstanding_is_whole CHECK (sent_lane IS NULL AND sent_at IS NULL
        OR sent_lane IS NOT NULL AND sent_at IS NOT NULL AND arrives_at IS NOT NULL AND sent_rung_ms IS NOT NULL),
    CONSTRAINT failure_is_whole CHECK ((failure_class IS NULL) = (failure_message IS NULL)),
    CONSTRAINT raw_is_whole CHECK ((raw_length IS NULL) = (raw_bytes IS NULL) AND (raw_length IS NULL) = (raw_routing_key IS NULL))
) STRICT;

CREATE UNIQUE INDEX tasks_id ON tasks (id);
-- One task per key. A row without one owns its id as key, in the inserting statement already and not only once the
-- trigger has run, so that INSERT OR IGNORE cannot leave a row behind that has none.
CREATE UNIQUE INDEX tasks_key ON tasks (coalesce(idempotency_key, id)) WHERE raw_length IS NULL;
CREATE INDEX tasks_submission ON tasks (submission_hash) WHERE submission_hash IS NOT NULL;

-- One index per kind of alarm, each holding only the rows it may ring for.
CREATE INDEX tasks_lease ON tasks (wake_at) WHERE status = 'running';
CREATE INDEX tasks_sent ON tasks (wake_at) WHERE status = 'pending' AND sent_at IS NOT NULL AND held_by IS NULL;
CREATE INDEX tasks_retry ON tasks (wake_at) WHERE status = 'retry_waiting' AND held_by IS NULL;
CREATE INDEX tasks_held_alarm ON tasks (wake_at) WHERE held_by IS NOT NULL;
CREATE INDEX tasks_deadline ON tasks (deadline)
    WHERE (status = 'pending' OR status = 'retry_waiting') AND deadline IS NOT NULL;
CREATE INDEX tasks_copy ON tasks (dlq_at) WHERE dlq_copy = 'wanted';

CREATE INDEX tasks_feed ON tasks (queue, wake_at)
    WHERE status = 'pending' AND sent_at IS NULL AND held_by IS NULL AND queue IS NOT NULL;
CREATE INDEX tasks_unrouted ON tasks (status) WHERE status = 'pending' AND queue IS NULL;
CREATE INDEX tasks_outstanding ON tasks (coalesce(queue, 'default')) WHERE sent_lane = 'tasks';
CREATE INDEX tasks_held ON tasks (held_by, queue, held_turn, due_at) WHERE held_by IS NOT NULL;
-- Holds all that a pass over the DLQ reads.
CREATE INDEX tasks_dead ON tasks (coalesce(queue, 'default'), id, dlq_copy, generation, retry_count, ended_at)
    WHERE status = 'dead';
-- For lists and counts. Running rows are few and have the lease's index; succeeded ones are nearly all rows.
CREATE INDEX tasks_status ON tasks (status)
    WHERE status = 'pending' OR status = 'retry_waiting' OR status = 'dead' OR status = 'discarded' OR status = 'cancelled';

-- A row from another program has no queue. Its key becomes its id, and its alarm does not ring before it is due.
CREATE TRIGGER tasks_inserted AFTER INSERT ON tasks
WHEN new.queue IS NULL AND new.raw_length IS NULL
BEGIN
    UPDATE tasks SET idempotency_key = coalesce(new.idempotency_key, new.id), wake_at = max(new.wake_at, new.due_at)
    WHERE seq = new.seq;
END;

-- For lists by failure: an end by a fallback is a success that keeps its last failure. These are few among the succeeded.
CREATE INDEX tasks_degraded ON tasks (status) WHERE degraded IS NOT NULL;

-- Every run of a handler. The fence numbers them over all generations.
CREATE TABLE attempts (
    task_id TEXT NOT NULL,
    fence INTEGER NOT NULL,
    number INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome = 'succeeded' OR outcome = 'retried' OR outcome = 'died' OR outcome = 'released'),
    class TEXT,
    code TEXT,
    http_status INTEGER,
    message TEXT,
    stack TEXT,
    fingerprint TEXT,
    started_at INTEGER NOT NULL,
    ended_at INTEGER NOT NULL,
    worker TEXT NOT NULL,
    policy TEXT,
    variant TEXT,
    delay_before_ms INTEGER,
    delay_reason TEXT,
    cost REAL,
    PRIMARY KEY (task_id, fence),
    CHECK ((class IS NULL) = (message IS NULL))
) STRICT, WITHOUT ROWID;

-- What attempts left for people, apart from them because it is large and prunable.
CREATE TABLE attachments (
    task_id TEXT NOT NULL,
    fence INTEGER NOT NULL,
    position INTEGER NOT NULL,
    name TEXT NOT NULL,
    media_type TEXT NOT NULL,
    -- Exactly one: the bytes, where they are, or how many there were.
    bytes BLOB,
    link TEXT,
    size INTEGER,
    PRIMARY KEY (task_id, fence, position),
    CHECK ((bytes IS NOT NULL) + (link IS NOT NULL) + (size IS NOT NULL) = 1)
) STRICT;

CREATE TABLE results (
    task_id TEXT NOT NULL PRIMARY KEY,
    media_type TEXT NOT NULL,
    truncated INTEGER NOT NULL CHECK (truncated IN (0, 1)),
    body BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- The last good result of each type and cache key, for policies that fall back on it.
CREATE TABLE cached (
    type TEXT NOT NULL,
    cache_key TEXT NOT NULL,
    stored_at INTEGER NOT NULL,
    media_type TEXT NOT NULL,
    truncated INTEGER NOT NULL CHECK (truncated IN (0, 1)),
    body BLOB NOT NULL,
    PRIMARY KEY (type, cache_key)
) STRICT;

CREATE TABLE lanes (
    queue TEXT NOT NULL,
    lane TEXT NOT NULL CHECK (lane IN ('tasks', 'retries')),
    mark INTEGER NOT NULL,
    probed_at INTEGER NOT NULL,
    probe_gap_ms INTEGER NOT NULL,
    probe_mark INTEGER NOT NULL,
    PRIMARY KEY (queue, lane)
) STRICT, WITHOUT ROWID;

-- Lanes and rungs that were found missing in the broker, and when; a lane has the delay 0.
CREATE TABLE missing (
    queue TEXT NOT NULL,
    spot TEXT NOT NULL CHECK (spot = 'tasks' OR spot = 'retries' OR spot = 'rung'),
    delay_ms INTEGER NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (queue, spot, delay_ms)
) STRICT, WITHOUT ROWID;

CREATE TABLE dlqs (
    queue TEXT NOT NULL PRIMARY KEY,
    dirty INTEGER NOT NULL,
    cleaned INTEGER NOT NULL,
    pass INTEGER NOT NULL,
    pass_until INTEGER NOT NULL,
    pass_began INTEGER NOT NULL,
    strangers INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What gates remember, as JSON; a gate that was never used has no row.
CREATE TABLE gates (
    key TEXT NOT NULL PRIMARY KEY,
    state TEXT NOT NULL CHECK (json_valid(state))
) STRICT, WITHOUT ROWID;

CREATE TABLE pauses (
    key TEXT NOT NULL PRIMARY KEY,
    since INTEGER NOT NULL,
    reason TEXT
) STRICT, WITHOUT ROWID;
