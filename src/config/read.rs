//! From TOML text to a raw file, [`RawFile`](super::RawFile) or another one made of its parts, with every structural mistake at once.
//!
//! serde stops at the first mistake. So the text is parsed into a tree with spans, serde reads the tree, and each part that it refuses
//! is noted, cut out and read again, until the rest is acceptable.

use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::de::{DeArray, DeTable, DeValue};

use super::problem::Problems;

/// After this many structural mistakes it is not a config file.
const MOST_PROBLEMS: usize = 100;

/// Keys of the contract that this version does not know yet, by the section in which they stand.
const LATER: [(&str, &[&str]); 1] = [("", &["alert"])];

/// Reads the file; mistakes go to `problems`, and what can be read is returned.
pub(super) fn read<T: DeserializeOwned + Default>(text: &str, problems: &mut Problems<'_>) -> T {
    let (mut tree, syntax) = DeTable::parse_recoverable(text);
    if !syntax.is_empty() {
        // What follows a syntax error may have been read wrongly, so nothing else is judged.
        for error in syntax {
            let span = error.span().unwrap_or(0..0);
            problems.refuse(span, "", one_line(error.message()));
        }
        return T::default();
    }
    for _ in 0..MOST_PROBLEMS {
        let error = match T::deserialize(toml::Deserializer::from(tree.clone())) {
            Ok(raw) => return raw,
            Err(error) => error,
        };
        let Some(cut) = error.span().and_then(|span| cut_out(tree.get_mut(), &span)) else {
            problems.refuse(error.span().unwrap_or(0..0), "", one_line(error.message()));
            return T::default();
        };
        let text = explain(error.message(), &cut);
        problems.refuse(cut.span.clone(), &cut.subject, text);
    }
    T::default()
}

/// A part that was cut out of the tree.
struct Cut {
    span: Range<usize>,
    /// `policy "vip"`, `[worker]`
    subject: String,
    /// Keys without list indexes, the last one cut out: `policy.backoff.steps`
    keys: Vec<String>,
}

impl Cut {
    /// The key below the subject: `backoff.steps`
    fn key(&self) -> String {
        self.keys.get(1..).unwrap_or_default().join(".")
    }
}

/// Cuts out the smallest key or list element that holds `span`.
fn cut_out(table: &mut DeTable<'_>, span: &Range<usize>) -> Option<Cut> {
    let mut cut = Cut { span: span.clone(), subject: String::new(), keys: Vec::new() };
    cut_from_table(table, span, &mut cut).then_some(cut)
}

fn holds(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

fn cut_from_table(table: &mut DeTable<'_>, span: &Range<usize>, cut: &mut Cut) -> bool {
    // A key that serde does not know is refused at the key itself.
    let key = table.iter().find(|(key, _)| holds(&key.span(), span)).map(|(key, _)| key.clone());
    if let Some(key) = key {
        enter(cut, key.get_ref(), None);
        table.remove(key.get_ref().as_ref());
        return true;
    }
    let mut whole = None;
    for (key, value) in table.iter_mut() {
        let depth = cut.keys.len();
        let subject = cut.subject.clone();
        enter(cut, key.get_ref(), Some(value.get_ref()));
        // Headers of sections lie outside their own entries' spans, so every branch is searched.
        if cut_from_value(value.get_mut(), span, cut) {
            return true;
        }
        if holds(&value.span(), span) {
            whole = Some(key.get_ref().to_string());
            break;
        }
        cut.keys.truncate(depth);
        cut.subject = subject;
    }
    whole.is_some_and(|key| table.remove(key.as_str()).is_some())
}

fn cut_from_value(value: &mut DeValue<'_>, span: &Range<usize>, cut: &mut Cut) -> bool {
    match value {
        DeValue::Table(table) => cut_from_table(table, span, cut),
        DeValue::Array(items) => {
            for index in 0..items.len() {
                let subject = cut.subject.clone();
                if cut.keys.len() == 1 {
                    cut.subject = subject_of(&cut.keys[0], index, items.get(index).map(|item| item.get_ref()));
                }
                if let Some(item) = items.get_mut(index) {
                    if cut_from_value(item.get_mut(), span, cut) {
                        return true;
                    }
                    if holds(&item.span(), span) {
                        remove_at(items, index);
                        return true;
                    }
                }
                cut.subject = subject;
            }
            false
        }
        _ => false,
    }
}

fn remove_at(items: &mut DeArray<'_>, index: usize) {
    *items = items.iter().enumerate().filter(|(i, _)| *i != index).map(|(_, item)| item.clone()).collect();
}

fn enter(cut: &mut Cut, key: &str, value: Option<&DeValue<'_>>) {
    if cut.keys.is_empty() && matches!(value, Some(DeValue::Table(_))) {
        cut.subject = format!("[{key}]");
    }
    cut.keys.push(key.to_owned());
}

/// `policy "vip"`, or `policy 2` when it has no name.
fn subject_of(section: &str, index: usize, item: Option<&DeValue<'_>>) -> String {
    let name_key = if section == "route" { "type" } else { "name" };
    let name = match item {
        Some(DeValue::Table(table)) => table.get(name_key).and_then(|value| value.get_ref().as_str()),
        _ => None,
    };
    subject(section, index, name)
}

/// `policy "vip"`, or `policy 2` when it has no name.
pub(super) fn subject(section: &str, index: usize, name: Option<&str>) -> String {
    match name {
        Some(name) => format!("{section} {name:?}"),
        None => format!("{section} {}", index + 1),
    }
}

/// serde's text in our words: what was expected first, no quoted strings (they may be secrets).
fn explain(message: &str, cut: &Cut) -> String {
    let message = one_line(message);
    let key = cut.key();
    let prefix = if key.is_empty() { String::new() } else { format!("{key}: ") };
    if let Some(rest) = message.strip_prefix("unknown field ") {
        return unknown_key(rest, cut);
    }
    if let Some(rest) = message.strip_prefix("unknown variant ")
        && let Some((found, expected)) = rest.split_once(", ")
    {
        return format!("{prefix}{expected}, found {found}");
    }
    for kind in ["invalid type: ", "invalid value: ", "invalid length "] {
        if let Some((found, expected)) = message.strip_prefix(kind).and_then(|rest| rest.rsplit_once(", expected ")) {
            let found = if found.starts_with("string") { "a text" } else { found };
            return format!("{prefix}expected {}, found {found}", plain(expected));
        }
    }
    format!("{prefix}{message}")
}

/// Rust's words for types in everybody's.
fn plain(expected: &str) -> &str {
    match expected {
        "a string" => "a text in quotes",
        "i64" => "a whole number",
        "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list in [ ]",
        _ if expected.starts_with("struct Raw") => "a table",
        "a map" => "a table",
        _ => expected,
    }
}

/// `rest` is serde's "`key`, expected one of `a`, `b`".
fn unknown_key(rest: &str, cut: &Cut) -> String {
    let mut quoted = rest.split('`').skip(1).step_by(2);
    let unknown = quoted.next().unwrap_or_default();
    let known: Vec<&str> = quoted.collect();
    let (section, key) = match cut.keys.split_last() {
        Some((_, parents)) if !parents.is_empty() => {
            let inner = parents[1..].join(".");
            (parents.join("."), if inner.is_empty() { unknown.to_owned() } else { format!("{inner}.{unknown}") })
        }
        _ => (String::new(), unknown.to_owned()),
    };
    let later = LATER.iter().any(|(place, keys)| *place == section && keys.contains(&unknown));
    if later {
        return format!("{key} is not supported by this version; leave it out");
    }
    let nearest = known.iter().map(|name| (distance(unknown, name), *name)).min();
    match nearest {
        Some((steps, name)) if steps <= 1 + unknown.chars().count() / 3 => {
            format!("unknown key {key}; did you mean {name}?")
        }
        _ => format!("unknown key {key}; known here: {}", known.join(", ")),
    }
}

/// Levenshtein distance: single-character edits from one word to the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
