//! One name for equal failures (C6).
//!
//! "Order 4711 not found" a thousand times, each with another number, is one failure to the person who triages. The
//! fingerprint leaves out of a message what differs between such failures: ids, numbers, quoted text, URLs and e-mail
//! addresses. It is stored with every attempt, so the recipe has a version: a better one gets another prefix, and old
//! rows keep the names they had.

use sha2::{Digest, Sha256};

use super::Failure;

/// Normalised text beyond this does not count. Bounds what a stack trace in a message costs; what tells failures apart comes first.
const LONGEST: usize = 1000;

/// `v1-` and 16 hex digits, from task type, class, code, status and the message without what differs from case to case.
pub fn fingerprint(task_type: &str, failure: &Failure) -> String {
    let status = failure.http_status.map(|status| status.to_string());
    let message = normalise(&failure.message);
    let parts = [
        Some(task_type),
        Some(failure.class.as_str()),
        failure.code.as_deref(),
        status.as_deref(),
        Some(message.as_str()),
    ];
    let mut hash = Sha256::new();
    for part in parts {
        // Its length before each part, and another mark for one that is missing: no two lists read the same.
        match part {
            Some(text) => {
                hash.update([1]);
                hash.update((text.len() as u64).to_be_bytes());
                hash.update(text.as_bytes());
            }
            None => hash.update([0]),
        }
    }
    format!("v1-{}", hex::encode(&hash.finalize()[..8]))
}

/// `message` with what differs from case to case replaced by what it is. One pass, linear in its length.
fn normalise(message: &str) -> String {
    let mut reader = Reader { rest: message, before: None, out: String::new(), unclosed: Vec::new() };
    while reader.out.len() < LONGEST && !reader.rest.is_empty() {
        reader.step();
    }
    let mut out = reader.out;
    out.truncate(out.floor_char_boundary(LONGEST));
    out.truncate(out.trim_end().len());
    out
}

struct Reader<'a> {
    rest: &'a str,
    /// The character before `rest`.
    before: Option<char>,
    out: String,
    /// Quotation marks of which no closing one is left on this line: a second search would find none either, and a thousand of
    /// them would cost a thousand searches.
    unclosed: Vec<char>,
}

impl Reader<'_> {
    fn step(&mut self) {
        let Some(c) = self.rest.chars().next() else { return };
        if c == '\n' {
            self.unclosed.clear();
        }
        if c.is_whitespace() || c.is_control() {
            if !self.out.is_empty() && !self.out.ends_with(' ') {
                self.out.push(' ');
            }
            self.skip(c.len_utf8());
        } else if let Some(length) = self.quoted(c) {
            self.replace("<text>", length);
        } else if let Some((length, what)) = self.token(c) {
            self.replace(what, length);
        } else if c.is_ascii_alphanumeric() {
            self.word();
        } else if c.is_numeric() {
            let length = self.rest.find(|c: char| !c.is_numeric()).unwrap_or(self.rest.len());
            self.replace("<n>", length);
        } else {
            self.out.push(c);
            self.skip(c.len_utf8());
        }
    }

    fn skip(&mut self, length: usize) {
        let (gone, rest) = self.rest.split_at(length);
        self.before = gone.chars().next_back().or(self.before);
        self.rest = rest;
    }

    fn replace(&mut self, what: &str, length: usize) {
        self.out.push_str(what);
        self.skip(length);
    }

    /// The length of the quoted text that begins here, on this line, marks included.
    fn quoted(&mut self, open: char) -> Option<usize> {
        let close = match open {
            '"' | '`' => open,
            // An apostrophe inside a word quotes nothing.
            '\'' if self.before.is_none_or(|b| !b.is_alphanumeric()) => open,
            '“' => '”',
            '‘' => '’',
            '«' => '»',
            '「' => '」',
            '『' => '』',
            _ => return None,
        };
        if self.unclosed.contains(&open) {
            return None;
        }
        let inside = &self.rest[open.len_utf8()..];
        match inside.find([close, '\n']) {
            Some(end) if inside[end..].starts_with(close) => Some(open.len_utf8() + end + close.len_utf8()),
            _ => {
                self.unclosed.push(open);
                None
            }
        }
    }

    /// What begins here and is replaced as a whole: its length and its name.
    fn token(&self, c: char) -> Option<(usize, &'static str)> {
        let starts_word = self.before.is_none_or(|b| !b.is_ascii_alphanumeric());
        if !starts_word {
            return None;
        }
        let bytes = self.rest.as_bytes();
        if matches!(c, '-' | '+') && bytes.get(1).is_some_and(u8::is_ascii_digit) {
            return number(&bytes[1..]).map(|length| (length + 1, "<n>"));
        }
        if !c.is_ascii_alphanumeric() {
            return None;
        }
        if let Some(length) = uuid(bytes) {
            return Some((length, "<id>"));
        }
        if let Some(length) = moment(bytes) {
            return Some((length, "<n>"));
        }
        // URLs and addresses begin with a run of these; looking at it once per word keeps the whole linear.
        if matches!(self.before, Some('.' | '_' | '%' | '+' | '-')) {
            return number(bytes).map(|length| (length, "<n>"));
        }
        let run = count(bytes, |b| b.is_ascii_alphanumeric() || b"._%+-".contains(&b));
        match &bytes[run..] {
            [b':', b'/', b'/', after @ ..] => return Some((run + 3 + url_rest(after), "<url>")),
            [b'@', after @ ..] => {
                let host = count(after, |b| b.is_ascii_alphanumeric() || b".-".contains(&b));
                if host > 0 {
                    return Some((run + 1 + host, "<email>"));
                }
            }
            _ => {}
        }
        number(bytes).map(|length| (length, "<n>"))
    }

    /// A run of ASCII letters and digits that is no plain number: an id, or a word of which only the digits go.
    fn word(&mut self) {
        let bytes = self.rest.as_bytes();
        let length = count(bytes, |b| b.is_ascii_alphanumeric());
        let word = &bytes[..length];
        if is_id(word) {
            return self.replace("<id>", length);
        }
        let mut left = length;
        while left > 0 && self.out.len() < LONGEST {
            let bytes = self.rest.as_bytes();
            let digits = count(&bytes[..left], |b| b.is_ascii_digit());
            let letters = count(&bytes[..left], |b| b.is_ascii_alphabetic());
            if digits > 0 {
                self.replace("<n>", digits);
            } else {
                self.out.push_str(&self.rest[..letters]);
                self.skip(letters);
            }
            left -= digits.max(letters);
        }
        if left > 0 {
            self.skip(left);
        }
    }
}

/// How many bytes from the first on satisfy `is`.
fn count(bytes: &[u8], is: impl Fn(u8) -> bool) -> usize {
    bytes.iter().take_while(|b| is(**b)).count()
}

/// A number with its fraction, groups, or colons (`1.5`, `1,000`, `10:30:00`, `127.0.0.1:80`). Whole digits that letters follow
/// may be the beginning of an id and are left to [`is_id`].
fn number(bytes: &[u8]) -> Option<usize> {
    let mut length = count(bytes, |b| b.is_ascii_digit());
    if length == 0 || bytes.get(length).is_some_and(u8::is_ascii_alphabetic) {
        return None;
    }
    while let [b'.' | b',' | b':', after @ ..] = &bytes[length..] {
        let digits = count(after, |b| b.is_ascii_digit());
        if digits == 0 {
            break;
        }
        length += 1 + digits;
    }
    Some(length)
}

/// 8-4-4-4-12 hex digits.
fn uuid(bytes: &[u8]) -> Option<usize> {
    const LENGTH: usize = 36;
    let text = bytes.get(..LENGTH)?;
    let fits = text.iter().enumerate().all(|(i, b)| match i {
        8 | 13 | 18 | 23 => *b == b'-',
        _ => b.is_ascii_hexdigit(),
    });
    (fits && !bytes.get(LENGTH).is_some_and(u8::is_ascii_alphanumeric)).then_some(LENGTH)
}

/// A date with or without a time, as ISO 8601 writes them.
fn moment(bytes: &[u8]) -> Option<usize> {
    let two = |at: usize| bytes.get(at..at + 2).is_some_and(|part| part.iter().all(u8::is_ascii_digit));
    let is = |at: usize, any: &[u8]| bytes.get(at).is_some_and(|b| any.contains(b));
    if !(two(0) && two(2) && is(4, b"-/") && two(5) && is(7, b"-/") && two(8)) {
        return None;
    }
    let mut length = 10;
    if is(10, b"Tt ") && two(11) && is(13, b":") && two(14) {
        length = 16;
        if is(16, b":") && two(17) {
            length = 19;
            if is(19, b".,") {
                length += 1 + count(&bytes[20..], |b| b.is_ascii_digit());
            }
        }
        if is(length, b"Zz") {
            length += 1;
        } else if is(length, b"+-") && two(length + 1) {
            length += if is(length + 3, b":") && two(length + 4) { 6 } else { 3 };
        }
    }
    (!bytes.get(length).is_some_and(u8::is_ascii_alphanumeric)).then_some(length)
}

/// What belongs to a URL after `://`, without the punctuation of the sentence round it.
fn url_rest(bytes: &[u8]) -> usize {
    let mut length = count(bytes, |b| b.is_ascii_graphic() && !b"\"'`<>()[]{}|\\^".contains(&b));
    while length > 0 && b".,;:!?".contains(&bytes[length - 1]) {
        length -= 1;
    }
    length
}

/// Whether a run of letters and digits was made by a machine: hex of at least 8 with a digit in it, or at least 8 that change
/// between letters and digits more than once. `http2`, `ORD4711` and `E1000000` are words with a number.
fn is_id(word: &[u8]) -> bool {
    if let [b'0', b'x' | b'X', hex @ ..] = word {
        return !hex.is_empty() && hex.iter().all(u8::is_ascii_hexdigit);
    }
    let has_digit = word.iter().any(u8::is_ascii_digit);
    if word.len() < 8 || !has_digit {
        return false;
    }
    let changes = word.windows(2).filter(|pair| pair[0].is_ascii_digit() != pair[1].is_ascii_digit()).count();
    // A prefix of up to three letters before a long number is how people number things, even where the letters are hex digits.
    let prefix = count(word, |b| b.is_ascii_alphabetic());
    changes > 1 || (word.iter().all(u8::is_ascii_hexdigit) && (prefix == 0 || prefix > 3))
}

#[cfg(test)]
mod tests;
