//! What is wrong with a configuration, said so that a person can mend it: place, subject, what was expected, way out.
//!
//! Texts never hold a password: URLs and header values are described, not quoted.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file was named and cannot be read.
    #[error("config file {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The file, the environment or a flag says something that cannot be meant. Holds every problem that was found.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Invalid(Vec<Problem>),
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where it was said.
    pub place: Place,
    /// Which section, queue, route or policy; may be empty.
    pub subject: String,
    /// What was expected, what was found, what to do.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.subject.is_empty() {
            write!(f, "{}: ", self.subject)?;
        }
        f.write_str(&self.text)
    }
}

/// Where a value was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In the file, on this line (1 is the first).
    File {
        /// As it was named.
        path: String,
        /// The line.
        line: usize,
    },
    /// In this environment variable.
    Environment(String),
    /// By this flag.
    Flag(String),
    /// Nowhere: it is the default.
    Default,
}

impl Place {
    /// `file`, `env`, `flag` or `default`.
    pub fn kind(&self) -> &'static str {
        match self {
            Place::File { .. } => "file",
            Place::Environment(_) => "env",
            Place::Flag(_) => "flag",
            Place::Default => "default",
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File { path, line } => write!(f, "{path}:{line}"),
            Place::Environment(name) => f.write_str(name),
            Place::Flag(flag) => f.write_str(flag),
            Place::Default => f.write_str("default"),
        }
    }
}

/// A file's name and text.
#[derive(Debug, Clone)]
pub(super) struct Text<'a> {
    pub(super) path: String,
    pub(super) text: &'a str,
}

/// The same, to turn byte offsets into lines. Where lines end is looked up once: every value and problem asks.
pub(super) struct Lines<'a> {
    path: String,
    pub(super) text: &'a str,
    ends: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn of(Text { path, text }: Text<'a>) -> Lines<'a> {
        Lines { path, text, ends: text.match_indices('\n').map(|(at, _)| at).collect() }
    }

    fn place(&self, offset: usize) -> Place {
        Place::File { path: self.path.clone(), line: 1 + self.ends_before(offset) }
    }

    fn line_start(&self, offset: usize) -> usize {
        self.ends[..self.ends_before(offset)].last().map_or(0, |end| end + 1)
    }

    fn ends_before(&self, offset: usize) -> usize {
        self.ends.partition_point(|end| *end < offset)
    }
}

/// Collects problems. What lies inside a part of the file that was already refused is not complained about again.
pub(super) struct Problems<'a> {
    file: Lines<'a>,
    found: Vec<(usize, Problem)>,
    refused: Vec<Range<usize>>,
}

impl<'a> Problems<'a> {
    pub(super) fn new(file: Text<'a>) -> Problems<'a> {
        Problems { file: Lines::of(file), found: Vec::new(), refused: Vec::new() }
    }

    pub(super) fn file(&self) -> &Lines<'a> {
        &self.file
    }

    /// Notes a problem with the part of the file at `span`, which is no longer read.
    pub(super) fn refuse(&mut self, span: Range<usize>, subject: &str, text: String) {
        self.push(self.file.place(span.start), span.start, subject, text);
        self.refused.push(span);
    }

    /// Notes that something is missing in the part at `span`, unless something inside it was refused: then that may be the reason.
    pub(super) fn missing(&mut self, span: &Range<usize>, subject: &str, text: String) {
        let whole = self.element(span);
        let inside = |inner: &Range<usize>| whole.start <= inner.start && inner.end <= whole.end;
        if !self.refused.iter().any(inside) {
            self.at(span, subject, text);
        }
    }

    /// All of a `[[…]]` element: the span of one that is not written inline is its header only, which stands first on its line.
    pub(super) fn element(&self, span: &Range<usize>) -> Range<usize> {
        let text = self.file.text;
        let line = text.get(self.file.line_start(span.start)..span.start).unwrap_or_default();
        if !line.trim().is_empty() || text.get(span.clone()).is_some_and(|part| part.starts_with('{')) {
            return span.clone();
        }
        let rest = text.get(span.end..).unwrap_or_default();
        span.start..rest.find("\n[").map_or(text.len(), |at| span.end + at)
    }

    /// Notes a problem at `span`.
    pub(super) fn at(&mut self, span: &Range<usize>, subject: &str, text: String) {
        self.push(self.file.place(span.start), span.start, subject, text);
    }

    /// Notes a problem of a value that may not come from the file.
    pub(super) fn of(&mut self, origin: &Origin, subject: &str, text: String) {
        match origin {
            Origin::File(span) => self.at(span, subject, text),
            Origin::Environment(name) => self.push(Place::Environment(name.clone()), 0, subject, text),
            Origin::Flag(flag) => self.push(Place::Flag(flag.clone()), 0, subject, text),
            Origin::Default => self.push(Place::Default, 0, subject, text),
        }
    }

    fn push(&mut self, place: Place, order: usize, subject: &str, text: String) {
        self.found.push((order, Problem { place, subject: subject.to_owned(), text }));
    }

    /// Every problem: flags and environment first, then the file's from top to bottom.
    pub(super) fn into_result(mut self) -> Result<(), ConfigError> {
        self.found.sort_by_key(|(order, problem)| (matches!(problem.place, Place::File { .. }), *order));
        let mut problems: Vec<Problem> = self.found.into_iter().map(|(_, problem)| problem).collect();
        problems.dedup();
        if problems.is_empty() { Ok(()) } else { Err(ConfigError::Invalid(problems)) }
    }
}

/// Where a value comes from, before lines are counted.
#[derive(Debug, Clone)]
pub(super) enum Origin {
    File(Range<usize>),
    Environment(String),
    Flag(String),
    Default,
}

impl Origin {
    pub(super) fn place(&self, file: &Lines<'_>) -> Place {
        match self {
            Origin::File(span) => file.place(span.start),
            Origin::Environment(name) => Place::Environment(name.clone()),
            Origin::Flag(flag) => Place::Flag(flag.clone()),
            Origin::Default => Place::Default,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_on_the_line_that_its_line_break_ends() {
        let lines = Lines::of(Text { path: "f".into(), text: "a\n\nbc\n" });
        let at: Vec<Place> = (0..=8).map(|offset| lines.place(offset)).collect();
        let expected = [1, 1, 2, 3, 3, 3, 4, 4, 4].map(|line| Place::File { path: "f".into(), line });
        assert_eq!(at, expected);
        assert_eq!([0, 1, 2, 4, 6].map(|offset| lines.line_start(offset)), [0, 0, 2, 3, 6]);
    }
}
