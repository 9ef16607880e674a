//! Task types are AMQP topics; patterns are AMQP's: `*` is one word, `#` any number of words, none included.

use std::fmt;

use thiserror::Error;

/// A topic or pattern that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TopicError {
    /// Empty text.
    #[error("is empty")]
    Empty,
    /// AMQP routing keys are short strings.
    #[error("is {0} bytes long, the longest AMQP routing key is 255")]
    TooLong(usize),
    /// `a..b`, `.a` or `a.`.
    #[error("has an empty word; words are separated by single dots")]
    EmptyWord,
    /// White space or a control character.
    #[error("has the character {0:?}; words are letters, digits and punctuation without white space")]
    BadCharacter(char),
    /// `*` or `#` in a task type, or beside other characters in a pattern.
    #[error("has {0:?} inside the word {1:?}; `*` and `#` stand alone between dots, in patterns only")]
    Wildcard(char, String),
}

/// A pattern over task types.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TopicPattern {
    text: String,
}

impl TopicPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// When it is no AMQP binding pattern over task types.
    pub fn new(text: &str) -> Result<TopicPattern, TopicError> {
        check_words(text)?;
        for word in text.split('.') {
            if word.len() > 1
                && let Some(c) = word.chars().find(|c| matches!(c, '*' | '#'))
            {
                return Err(TopicError::Wildcard(c, word.into()));
            }
        }
        Ok(TopicPattern { text: text.into() })
    }

    /// `#`: every type.
    pub fn any() -> TopicPattern {
        TopicPattern { text: "#".into() }
    }

    /// Whether this is `#`.
    pub fn is_any(&self) -> bool {
        self.text == "#"
    }

    /// The text it was read from.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether `task_type` matches.
    pub fn matches(&self, task_type: &str) -> bool {
        if self.is_any() {
            return true;
        }
        // Most patterns are plain types, and every message asks.
        if !self.text.contains(['*', '#']) {
            return self.text == task_type;
        }
        let pattern: Vec<&str> = self.text.split('.').collect();
        let words: Vec<&str> = task_type.split('.').collect();
        matches_words(&pattern, &words)
    }

    /// Whether some task type matches both patterns.
    pub fn overlaps(&self, other: &TopicPattern) -> bool {
        let a: Vec<&str> = self.text.split('.').collect();
        let b: Vec<&str> = other.text.split('.').collect();
        overlap_words(&a, &b)
    }
}

impl fmt::Display for TopicPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Checks a task type: dot-separated words without wildcards, white space or control characters, at most 255 bytes.
///
/// # Errors
/// Says what is wrong with it.
pub fn check_topic(text: &str) -> Result<(), TopicError> {
    check_words(text)?;
    for word in text.split('.') {
        if let Some(c) = word.chars().find(|c| matches!(c, '*' | '#')) {
            return Err(TopicError::Wildcard(c, word.into()));
        }
    }
    Ok(())
}

fn check_words(text: &str) -> Result<(), TopicError> {
    if text.is_empty() {
        return Err(TopicError::Empty);
    }
    if text.len() > 255 {
        return Err(TopicError::TooLong(text.len()));
    }
    if let Some(c) = text.chars().find(|c| c.is_whitespace() || c.is_control()) {
        return Err(TopicError::BadCharacter(c));
    }
    if text.split('.').any(str::is_empty) {
        return Err(TopicError::EmptyWord);
    }
    Ok(())
}

/// One row of the usual wildcard table at a time, so that `#.#.#.#` costs words × pattern and not an exponent of them.
fn matches_words(pattern: &[&str], words: &[&str]) -> bool {
    let mut row = vec![false; words.len() + 1];
    row[0] = true;
    for part in pattern {
        let mut next = vec![false; words.len() + 1];
        if *part == "#" {
            let mut reached = false;
            for (slot, before) in next.iter_mut().zip(&row) {
                reached |= *before;
                *slot = reached;
            }
        } else {
            for (i, word) in words.iter().enumerate() {
                next[i + 1] = row[i] && (*part == "*" || part == word);
            }
        }
        row = next;
    }
    row[words.len()]
}

/// Two patterns overlap when a walk through both meets at their ends; `#` may stand still or swallow a word of the other.
fn overlap_words(a: &[&str], b: &[&str]) -> bool {
    let mut table = vec![vec![false; b.len() + 1]; a.len() + 1];
    for i in (0..=a.len()).rev() {
        for j in (0..=b.len()).rev() {
            let (x, y) = (a.get(i).copied(), b.get(j).copied());
            table[i][j] = match (x, y) {
                (None, None) => true,
                (Some("#"), None) => table[i + 1][j],
                (None, Some("#")) => table[i][j + 1],
                (None, Some(_)) | (Some(_), None) => false,
                (Some("#"), Some("#")) => table[i + 1][j] || table[i][j + 1],
                (Some("#"), Some(_)) => table[i + 1][j] || table[i][j + 1],
                (Some(_), Some("#")) => table[i][j + 1] || table[i + 1][j],
                (Some(p), Some(q)) => (p == q || p == "*" || q == "*") && table[i + 1][j + 1],
            };
        }
    }
    table[0][0]
}

#[cfg(test)]
mod tests;
