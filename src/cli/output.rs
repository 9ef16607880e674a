//! What commands print on stdout: tables for people, JSON, JSON lines, CSV, names and TSV for programs.
//!
//! A command hands over its data once and never looks at the format. Text that came from outside (messages, payloads) never
//! reaches a terminal with control characters in it.

use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use comfy_table::{Cell, Color, ColumnConstraint, ContentArrangement, Table};
use redeliver::task::Millis;
use serde_json::{Value, json};

/// `-o`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table that fits the terminal.
    Table,
    /// One JSON document; lists as {"items": […], "next": cursor|null}.
    Json,
    /// One JSON document a line.
    Jsonl,
    /// CSV with a header line (RFC 4180).
    Csv,
    /// Ids or names only, one a line.
    Name,
    /// Tab-separated without a header: what a pipe gets when nothing else is asked for.
    #[value(skip)]
    Tsv,
}

/// `--color`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// A list of things of one kind.
pub struct Listing {
    columns: Vec<&'static str>,
    entries: Vec<Entry>,
    /// Where the next page starts.
    pub next: Option<String>,
}

/// One thing, in every form it may be printed in.
pub struct Entry {
    /// Its id or name.
    pub name: String,
    /// Its cells, as many as there are columns.
    pub cells: Vec<String>,
    /// All of it.
    pub json: Value,
}

impl Listing {
    /// An empty list with these columns.
    pub fn new(columns: &[&'static str]) -> Listing {
        Listing { columns: columns.to_vec(), entries: Vec::new(), next: None }
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an entry.
    pub fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
    }
}

/// One thing with all its details.
pub struct Document {
    /// Its id or name.
    pub name: String,
    /// Label and value, for people.
    pub lines: Vec<(&'static str, String)>,
    /// Lists that belong to it (attempts), for people.
    pub tables: Vec<(&'static str, Listing)>,
    /// All of it.
    pub json: Value,
}

/// Prints in the chosen format.
pub struct Printer {
    format: Format,
    color: bool,
    width: Option<u16>,
}

/// The width of tables that go to no terminal.
const PIPED_WIDTH: u16 = 120;

impl Printer {
    /// `format` as asked for; by default a table on a terminal and TSV otherwise.
    pub fn new(format: Option<Format>, color: ColorChoice) -> Printer {
        let terminal = io::stdout().is_terminal();
        let color = match color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        };
        let width = if terminal { None } else { Some(columns_of_environment().unwrap_or(PIPED_WIDTH)) };
        Printer { format: format.unwrap_or(if terminal { Format::Table } else { Format::Tsv }), color, width }
    }

    /// The format in use.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Whether to use colours.
    pub fn color(&self) -> bool {
        self.color
    }

    /// Prints a list.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub fn list(&self, listing: &Listing) -> io::Result<()> {
        self.part(listing, true, true)?;
        if let (Some(next), Format::Table | Format::Tsv | Format::Csv | Format::Name) = (&listing.next, self.format) {
            eprintln!("more: --cursor {next}");
        }
        Ok(())
    }

    /// Prints a part of a list: what opens and closes it comes with the first and the last part. A table has one part only.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub fn part(&self, listing: &Listing, is_first: bool, is_last: bool) -> io::Result<()> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        match self.format {
            Format::Json => {
                if is_first {
                    write!(out, "{{\n  \"items\": [")?;
                }
                for (index, entry) in listing.entries.iter().enumerate() {
                    let comma = if is_first && index == 0 { "" } else { "," };
                    let item = format!("{:#}", entry.json).replace('\n', "\n    ");
                    write!(out, "{comma}\n    {item}")?;
                }
                if is_last {
                    let is_empty = is_first && listing.entries.is_empty();
                    let line = if is_empty { "" } else { "\n  " };
                    writeln!(out, "{line}],\n  \"next\": {}\n}}", json!(listing.next))?;
                }
            }
            Format::Jsonl => {
                for entry in &listing.entries {
                    writeln!(out, "{}", entry.json)?;
                }
            }
            Format::Name => {
                for entry in &listing.entries {
                    writeln!(out, "{}", clean(&entry.name))?;
                }
            }
            Format::Csv => {
                if is_first {
                    writeln!(out, "{}", csv_line(listing.columns.iter().copied()))?;
                }
                for entry in &listing.entries {
                    writeln!(out, "{}", csv_line(entry.cells.iter().map(String::as_str)))?;
                }
            }
            Format::Tsv => {
                for entry in &listing.entries {
                    let cells: Vec<String> = entry.cells.iter().map(|cell| clean(cell)).collect();
                    writeln!(out, "{}", cells.join("\t"))?;
                }
            }
            Format::Table => writeln!(out, "{}", self.table(listing))?,
        }
        out.flush()
    }

    /// Prints one thing.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub fn one(&self, document: &Document) -> io::Result<()> {
        let mut out = io::stdout().lock();
        match self.format {
            Format::Json => writeln!(out, "{:#}", document.json)?,
            Format::Jsonl => writeln!(out, "{}", document.json)?,
            Format::Name => writeln!(out, "{}", clean(&document.name))?,
            Format::Csv => {
                writeln!(out, "{}", csv_line(document.lines.iter().map(|(label, _)| *label)))?;
                writeln!(out, "{}", csv_line(document.lines.iter().map(|(_, value)| value.as_str())))?;
            }
            Format::Tsv => {
                for (label, value) in &document.lines {
                    writeln!(out, "{label}\t{}", clean(value))?;
                }
            }
            Format::Table => {
                let longest = document.lines.iter().map(|(label, _)| label.len()).max().unwrap_or(0);
                for (label, value) in &document.lines {
                    writeln!(out, "{label:longest$}  {}", clean(value))?;
                }
                for (title, listing) in &document.tables {
                    writeln!(out, "\n{title}\n{}", self.table(listing))?;
                }
            }
        }
        out.flush()?;
        // One line a value is the form for scripts, and has no room for lists: whoever pipes into a pager must know that there are some.
        if matches!(self.format, Format::Tsv | Format::Csv) && !document.tables.is_empty() {
            let titles: Vec<&str> = document.tables.iter().map(|(title, _)| *title).collect();
            eprintln!("more, with -o table or -o json: {}", titles.join("; "));
        }
        Ok(())
    }

    fn table(&self, listing: &Listing) -> String {
        let mut table = Table::new();
        table.load_style(comfy_table::presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        if let Some(width) = self.width {
            table.set_width(width);
        }
        if self.color {
            table.enforce_styling();
        } else {
            table.force_no_tty();
            if let Some(width) = self.width.or_else(terminal_width) {
                table.set_width(width);
            }
        }
        table.set_header(listing.columns.iter().map(|column| column.to_uppercase()));
        for entry in &listing.entries {
            table.add_row(entry.cells.iter().zip(&listing.columns).map(|(text, column)| {
                let cell = Cell::new(clean(text));
                match color_of(column, text).filter(|_| self.color) {
                    Some(color) => cell.fg(color),
                    None => cell,
                }
            }));
        }
        keep_whole(&mut table);
        table.trim_fmt()
    }
}

/// Ids, types and times are read, compared and copied: they stay on one line, and the last column (a text) takes what is left. On a
/// terminal too narrow for that everything is wrapped.
fn keep_whole(table: &mut Table) {
    const LONGEST: u16 = 40;
    const PADDING: u16 = 2;
    const LAST: u16 = 20;
    let widths = table.column_max_content_widths();
    let Some((_, fixed)) = widths.split_last() else { return };
    let needed: u16 = fixed.iter().map(|width| (*width).min(LONGEST) + PADDING).sum();
    if table.width().is_some_and(|width| needed.saturating_add(LAST) > width) {
        return;
    }
    for (index, width) in fixed.iter().enumerate() {
        if *width <= LONGEST
            && let Some(column) = table.column_mut(index)
        {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
}

/// Whether anything that a person reads at once stands on stderr.
pub fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

fn color_of(column: &str, text: &str) -> Option<Color> {
    if !matches!(column, "status" | "outcome" | "check") {
        return None;
    }
    match text.split('/').next().unwrap_or_default() {
        "succeeded" | "ok" => Some(Color::Green),
        "dead" | "died" | "wrong" => Some(Color::Red),
        "retry_waiting" | "retried" | "running" | "warning" => Some(Color::Yellow),
        _ => None,
    }
}

fn columns_of_environment() -> Option<u16> {
    std::env::var("COLUMNS").ok()?.parse().ok()
}

fn terminal_width() -> Option<u16> {
    Table::new().width()
}

/// Control characters as escapes, so that a stored message can neither move a cursor nor break a line of TSV.
pub fn clean(text: &str) -> String {
    if !text.chars().any(is_unsafe) {
        return text.to_owned();
    }
    let mut cleaned = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_unsafe(c) {
            cleaned.extend(c.escape_default());
        } else {
            cleaned.push(c);
        }
    }
    cleaned
}

/// Control characters, and those that turn the direction of text around.
fn is_unsafe(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn csv_line<'a>(cells: impl Iterator<Item = &'a str>) -> String {
    let quoted = cells.map(|cell| {
        if cell.contains(['"', ',', '\n', '\r']) {
            format!("\"{}\"", cell.replace('"', "\"\""))
        } else {
            cell.to_owned()
        }
    });
    quoted.collect::<Vec<_>>().join(",")
}

pub use redeliver::desk::time;

/// The time that a document says.
pub fn moment(text: &str) -> Option<Millis> {
    text.parse::<jiff::Timestamp>().ok().map(|timestamp| timestamp.as_millisecond())
}

/// A length of time for people: `1m30s`; whole seconds from ten seconds on.
pub fn length(ms: Millis) -> String {
    let ms = u64::try_from(ms).unwrap_or(0);
    let ms = if ms >= 10_000 { ms / 1000 * 1000 } else { ms };
    redeliver::config::show_duration(std::time::Duration::from_millis(ms))
}

/// How long it has been since then, in whole seconds: `27s`.
pub fn ago(at: Millis, now: Millis) -> String {
    length(now.saturating_sub(at).max(0) / 1000 * 1000)
}

/// How long it is until then, in whole seconds: `in 27s`, `now`.
pub fn ahead(at: Millis, now: Millis) -> String {
    let ms = at.saturating_sub(now);
    if ms <= 0 { "now".into() } else { format!("in {}", length(ms.saturating_add(999) / 1000 * 1000)) }
}

/// The first line of a text, cut for a table.
pub fn cut(text: &str, longest: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= longest {
        return line.to_owned();
    }
    let head: String = line.chars().take(longest.saturating_sub(1)).collect();
    format!("{head}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_with_milliseconds() {
        assert_eq!(time(1_700_000_000_000), "2023-11-14T22:13:20.000Z");
        assert_eq!(time(Millis::MAX), Millis::MAX.to_string());
    }

    #[test]
    fn control_characters_never_reach_the_terminal() {
        assert_eq!(clean("a\u{1b}[2Jb\tc\nd"), "a\\u{1b}[2Jb\\tc\\nd");
        assert_eq!(clean("订单 ok"), "订单 ok");
    }

    #[test]
    fn csv_quotes_what_needs_it() {
        assert_eq!(csv_line(["a", "b,c", "d\"e", "f\ng"].into_iter()), "a,\"b,c\",\"d\"\"e\",\"f\ng\"");
    }
}
