-- Who may use the API and the console, and who changed what.
--
-- Secrets are kept as SHA-256 (hex) only: whoever reads the file can sign in as nobody.

-- What programs and people show to the API. The name is who did it, in the audit.
CREATE TABLE tokens (
    name TEXT NOT NULL PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    role TEXT NOT NULL CHECK (role = 'viewer' OR role = 'operator' OR role = 'editor' OR role = 'admin'),
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    -- To the minute, so that a busy token is not a write per request.
    last_used_at INTEGER,
    expires_at INTEGER,
    revoked_at INTEGER
) STRICT;

-- People who signed in with a browser. A session ends with its token.
CREATE TABLE sessions (
    hash TEXT NOT NULL PRIMARY KEY,
    who TEXT NOT NULL,
    -- The token that was shown; NULL for a sign-in link.
    token TEXT,
    role TEXT NOT NULL CHECK (role = 'viewer' OR role = 'operator' OR role = 'editor' OR role = 'admin'),
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_expiry ON sessions (expires_at);
CREATE INDEX sessions_token ON sessions (token) WHERE token IS NOT NULL;

-- Links that sign somebody in once.
CREATE TABLE sign_in_links (
    hash TEXT NOT NULL PRIMARY KEY,
    who TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role = 'viewer' OR role = 'operator' OR role = 'editor' OR role = 'admin'),
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Every change that a person or a program made through API, console or command line. Grows only.
CREATE TABLE audit (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    who TEXT NOT NULL,
    role TEXT CHECK (role IS NULL OR role = 'viewer' OR role = 'operator' OR role = 'editor' OR role = 'admin'),
    -- `api`, `console` or `cli`, and the address or host it came from.
    door TEXT NOT NULL CHECK (door = 'api' OR door = 'console' OR door = 'cli'),
    origin TEXT,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    reason TEXT,
    -- How many things it changed; NULL where that has no meaning.
    count INTEGER
) STRICT;
CREATE INDEX audit_who ON audit (who, seq);
CREATE INDEX audit_action ON audit (action, seq);
CREATE INDEX audit_target ON audit (target, seq);

CREATE TRIGGER audit_is_never_changed BEFORE UPDATE ON audit
BEGIN
    SELECT RAISE(ABORT, 'the audit is append-only');
END;
CREATE TRIGGER audit_is_never_deleted BEFORE DELETE ON audit
BEGIN
    SELECT RAISE(ABORT, 'the audit is append-only');
END;
-- INSERT OR REPLACE deletes without the trigger above.
CREATE TRIGGER audit_is_never_replaced BEFORE INSERT ON audit
WHEN EXISTS (SELECT 1 FROM audit WHERE seq = new.seq)
BEGIN
    SELECT RAISE(ABORT, 'the audit is append-only');
END;
