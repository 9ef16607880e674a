-- What other services are told: events and replies, until they are out. And the span that asked for a task, by W3C Trace Context.

-- Written by the transition that each tells of, deleted once the broker has it. Without `[events]` and `reply_to` it stays empty.
CREATE TABLE notices (
    -- Never given twice: a consumer tells repeated replies by it.
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    -- `task.dead`, …
    topic TEXT NOT NULL,
    -- The queue that asked; NULL for an event.
    reply_to TEXT,
    task_id TEXT NOT NULL,
    generation INTEGER NOT NULL,
    retry_count INTEGER NOT NULL,
    at INTEGER NOT NULL,
    document TEXT NOT NULL CHECK (json_valid(document)),
    -- Not before: whoever has taken it publishes it meanwhile.
    send_at INTEGER NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX notices_send ON notices (send_at, number);

-- What does not follow the recommendation is read as if it were not there.
ALTER TABLE tasks ADD COLUMN traceparent TEXT;
ALTER TABLE tasks ADD COLUMN tracestate TEXT;
