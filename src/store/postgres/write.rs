//! Writes what a batch changed: a statement for each table, however many rows, and all of them in one message to the server.

use sqlx::postgres::{PgArguments, PgConnection};
use sqlx::{Arguments, AssertSqlSafe};

use crate::store::sql::columns::{bind_state, spec, state};
use crate::store::sql::fault::Fault;
use crate::store::sql::notices;
use crate::store::sql::value::Bind;
use crate::store::sql::written::{self, Kind, columns};
use crate::task::{Changes, Notice};

/// A column of many rows.
#[derive(Debug)]
enum Column {
    Text(Vec<Option<String>>),
    Integer(Vec<Option<i64>>),
    Real(Vec<Option<f64>>),
    Bytes(Vec<Option<Vec<u8>>>),
}

fn array(kind: Kind) -> &'static str {
    match kind {
        Kind::Text => "text[]",
        Kind::Integer => "bigint[]",
        Kind::Real => "double precision[]",
        Kind::Bytes => "bytea[]",
    }
}

/// A statement for any number of rows, each of which has these columns.
struct Statement {
    /// With `@` where the rows stand.
    text: String,
    columns: Vec<(String, Kind)>,
}

impl Statement {
    fn new(text: String, columns: &str) -> Statement {
        let columns = columns.split(',').map(str::trim).map(|column| (column.to_owned(), Kind::of(column))).collect();
        Statement { text, columns }
    }

    /// Inserts rows; `then` says what becomes of one that is there already.
    fn insert(table: &str, columns: &str, then: &str) -> Statement {
        Statement::new(format!("INSERT INTO {table} ({columns}) SELECT {columns} FROM @{then}"), columns)
    }

    /// Inserts rows, in the place of those with the same key.
    fn replace(table: &str, key: &str, columns: &str) -> Statement {
        let keys: Vec<&str> = key.split(", ").collect();
        let others = columns.split(", ").filter(|column| !keys.contains(column));
        let set: Vec<String> = others.map(|column| format!("{column} = excluded.{column}")).collect();
        Statement::insert(table, columns, &format!(" ON CONFLICT ({key}) DO UPDATE SET {}", set.join(", ")))
    }

    /// The text, its arguments numbered from `first`.
    fn text(&self, first: usize) -> String {
        let arrays = self.columns.iter().zip(first..).map(|((_, kind), n)| format!("${n}::{}", array(*kind)));
        let names = self.columns.iter().map(|(name, _)| name.as_str());
        let rows = format!(
            "unnest({}) AS new({})",
            arrays.collect::<Vec<_>>().join(", "),
            names.collect::<Vec<_>>().join(", ")
        );
        self.text.replacen('@', &rows, 1)
    }
}

/// Rows on their way in, column by column.
struct Table {
    columns: Vec<Column>,
    next: usize,
}

impl Table {
    fn new(statement: &Statement, rows: usize) -> Table {
        let column = |(_, kind): &(String, Kind)| match kind {
            Kind::Text => Column::Text(Vec::with_capacity(rows)),
            Kind::Integer => Column::Integer(Vec::with_capacity(rows)),
            Kind::Real => Column::Real(Vec::with_capacity(rows)),
            Kind::Bytes => Column::Bytes(Vec::with_capacity(rows)),
        };
        Table { columns: statement.columns.iter().map(column).collect(), next: 0 }
    }

    fn column(&mut self) -> Option<&mut Column> {
        let at = self.next % self.columns.len().max(1);
        self.next += 1;
        self.columns.get_mut(at)
    }
}

/// A value that is not of its column's kind is left out, which the length of the arrays then tells the server.
impl Bind for Table {
    fn word(&mut self, text: &str) -> &mut Self {
        if let Some(Column::Text(column)) = self.column() {
            column.push(Some(text.to_owned()));
        }
        self
    }

    fn null(&mut self) -> &mut Self {
        if let Some(Column::Text(column)) = self.column() {
            column.push(None);
        }
        self
    }

    fn number(&mut self, number: Option<i64>) -> &mut Self {
        if let Some(Column::Integer(column)) = self.column() {
            column.push(number);
        }
        self
    }

    fn real(&mut self, number: Option<f64>) -> &mut Self {
        if let Some(Column::Real(column)) = self.column() {
            column.push(number);
        }
        self
    }

    fn bytes(&mut self, bytes: Option<&[u8]>) -> &mut Self {
        if let Some(Column::Bytes(column)) = self.column() {
            column.push(bytes.map(<[u8]>::to_vec));
        }
        self
    }
}

/// The statements of a writer.
pub(super) struct Writes {
    create: Statement,
    update: Statement,
    attempt: Statement,
    attachment: Statement,
    result: Statement,
    cached: Statement,
    edit: Statement,
    notice: Statement,
    lane: Statement,
    missing: Statement,
    dlq: Statement,
    gate: Statement,
}

impl Writes {
    pub(super) fn new() -> Writes {
        let set: Vec<String> =
            state!().split(',').map(str::trim).map(|column| format!("{column} = new.{column}")).collect();
        let update = format!("UPDATE tasks SET {} FROM @ WHERE tasks.id = new.id", set.join(", "));
        Writes {
            // Numbered in the order of arrival, and put in by id: two transactions with the same ids then wait for each other in turn.
            create: Statement::new(
                format!(
                    "INSERT INTO tasks (seq, {columns}) SELECT seq, {columns} FROM (SELECT nextval('tasks_seq_seq') \
                     AS seq, new.* FROM @) AS numbered ORDER BY id",
                    columns = concat!(state!(), ", ", spec!())
                ),
                concat!(state!(), ", ", spec!()),
            ),
            update: Statement::new(update, concat!("id, ", state!())),
            attempt: Statement::insert("attempts", columns::ATTEMPT, ""),
            attachment: Statement::insert("attachments", columns::ATTACHMENT, ""),
            result: Statement::replace("results", "task_id", columns::RESULT),
            cached: Statement::replace("cached", "type, cache_key", columns::CACHED),
            edit: Statement::replace("edits", "task_id", columns::EDIT),
            notice: Statement::insert("notices", notices::COLUMNS, ""),
            lane: Statement::replace("lanes", "queue, lane", columns::LANE),
            missing: Statement::replace("missing", "queue, spot, delay_ms", columns::MISSING),
            dlq: Statement::replace("dlqs", "queue", columns::DLQ),
            gate: Statement::replace("gates", "key", columns::GATE),
        }
    }

    /// Writes `changes`.
    pub(super) async fn save(&self, conn: &mut PgConnection, changes: &Changes) -> Result<(), Fault> {
        let mut message = Message::default();
        message.add(&self.create, &changes.created, |binds, row| written::bind_created(binds, row))?;
        message.add(&self.update, &changes.updated, |binds, row| {
            binds.word(row.task.id());
            bind_state(binds, &row.task.state);
        })?;
        message.add(&self.attempt, &changes.attempts, |binds, row| written::bind_attempt(binds, row))?;
        let attachments: Vec<_> =
            changes.attempts.iter().flat_map(|attempt| written::attachments_of(attempt)).collect();
        message.add(&self.attachment, &attachments, written::bind_attachment)?;
        // One statement changes a row once only: of several the last one counts.
        let results = last_of(&changes.results, |(id, _)| id.clone());
        message.add(&self.result, &results, |binds, row| written::bind_result(binds, row))?;
        let cached = last_of(&changes.cached, |cached| (cached.task_type.clone(), cached.key.clone()));
        message.add(&self.cached, &cached, |binds, row| written::bind_cached(binds, row))?;
        message.add(&self.edit, &changes.edits, written::bind_edit)?;
        message.add(&self.notice, &changes.notices, notices::bind)?;
        message.add(&self.lane, &changes.lanes, written::bind_lane)?;
        message.add(&self.missing, &changes.missing, written::bind_missing)?;
        message.add(&self.dlq, &changes.dlqs, written::bind_dlq)?;
        message.add(&self.gate, &changes.gates, written::bind_gate)?;
        message.send(conn).await
    }

    /// Writes notices.
    pub(super) async fn save_notices(&self, conn: &mut PgConnection, notices: &[Notice]) -> Result<(), Fault> {
        let mut message = Message::default();
        message.add(&self.notice, notices, notices::bind)?;
        message.send(conn).await
    }
}

fn last_of<T, K: Ord>(items: &[T], key: impl Fn(&T) -> K) -> Vec<&T> {
    items.iter().map(|item| (key(item), item)).collect::<std::collections::BTreeMap<K, &T>>().into_values().collect()
}

/// Statements that go to the server as one, so that a batch waits for one answer and not for one per table.
#[derive(Default)]
struct Message {
    statements: Vec<String>,
    arguments: PgArguments,
    columns: usize,
}

impl Message {
    fn add<T>(&mut self, statement: &Statement, rows: &[T], bind: impl Fn(&mut Table, &T)) -> Result<(), Fault> {
        if rows.is_empty() {
            return Ok(());
        }
        let mut table = Table::new(statement, rows.len());
        rows.iter().for_each(|row| bind(&mut table, row));
        self.statements.push(statement.text(self.columns + 1));
        self.columns += statement.columns.len();
        for column in table.columns {
            let added = match column {
                Column::Text(values) => self.arguments.add(values),
                Column::Integer(values) => self.arguments.add(values),
                Column::Real(values) => self.arguments.add(values),
                Column::Bytes(values) => self.arguments.add(values),
            };
            added.map_err(|error| Fault::Row(error.to_string()))?;
        }
        Ok(())
    }

    async fn send(mut self, conn: &mut PgConnection) -> Result<(), Fault> {
        let Some(last) = self.statements.pop() else { return Ok(()) };
        let others = self.statements.iter().zip(1..).map(|(text, n)| format!("part{n} AS ({text})"));
        let others: Vec<String> = others.collect();
        let text = if others.is_empty() { last } else { format!("WITH {} {last}", others.join(", ")) };
        sqlx::query_with(AssertSqlSafe(text), self.arguments).execute(conn).await?;
        Ok(())
    }
}
