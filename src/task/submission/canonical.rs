//! "The same payload", as one hash.
//!
//! Producers in different languages write the same value with other white space, another order of fields or other escapes;
//! that must not look like a conflict. What must not look the same either: `1` and `1.0`, and two integers that differ
//! only beyond the 53 bits of a float. So this works on the text of the JSON and never turns a number into a float.

use sha2::{Digest, Sha256};

/// The deepest nesting of arrays and objects that is accepted: what `serde_json` reads without stack trouble, and so what a
/// handler can be given.
pub const MAX_DEPTH: usize = 127;

/// SHA-256 (hex) of a task type and its payload in canonical form: fields sorted, no white space, escapes undone, numbers as
/// written. Doubled fields of a payload stay, in their order, because readers disagree about which one counts.
///
/// Text that is no JSON or nests deeper than [`MAX_DEPTH`] (rows that others inserted) is hashed as it stands, under
/// another prefix, so that this always answers and always the same.
pub fn canonical_payload_hash(task_type: &str, payload: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(task_type.as_bytes());
    // A task type holds no control characters, so these bytes end it without ambiguity.
    match canonical(payload) {
        Ok(text) => {
            hash.update([0]);
            hash.update(text.as_bytes());
        }
        Err(_) => {
            hash.update([1]);
            hash.update(payload.as_bytes());
        }
    }
    hex::encode(hash.finalize())
}

/// Why there is no canonical form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoCanonicalForm {
    /// Deeper than [`MAX_DEPTH`].
    TooDeep,
    /// Not JSON.
    NotJson,
}

/// The canonical form of `json`.
pub(super) fn canonical(json: &str) -> Result<String, NoCanonicalForm> {
    let mut writer = Writer { rest: json.as_bytes(), out: Vec::with_capacity(json.len()) };
    writer.value(0)?;
    if writer.peek().is_some() {
        return Err(NoCanonicalForm::NotJson);
    }
    // Only ASCII is cut or replaced, between or inside characters never.
    String::from_utf8(writer.out).map_err(|_| NoCanonicalForm::NotJson)
}

struct Writer<'a> {
    rest: &'a [u8],
    out: Vec<u8>,
}

impl Writer<'_> {
    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        while let [b' ' | b'\t' | b'\n' | b'\r', rest @ ..] = self.rest {
            self.rest = rest;
        }
        self.rest.first().copied()
    }

    fn next(&mut self) -> Result<u8, NoCanonicalForm> {
        let (first, rest) = self.rest.split_first().ok_or(NoCanonicalForm::NotJson)?;
        self.rest = rest;
        Ok(*first)
    }

    fn expect(&mut self, wanted: u8) -> Result<(), NoCanonicalForm> {
        self.peek();
        if self.next()? == wanted { Ok(()) } else { Err(NoCanonicalForm::NotJson) }
    }

    fn value(&mut self, depth: usize) -> Result<(), NoCanonicalForm> {
        match self.peek().ok_or(NoCanonicalForm::NotJson)? {
            b'{' | b'[' if depth == MAX_DEPTH => Err(NoCanonicalForm::TooDeep),
            b'{' => self.object(depth + 1),
            b'[' => self.array(depth + 1),
            b'"' => self.string(),
            b'-' | b'0'..=b'9' => self.number(),
            _ => self.word(),
        }
    }

    fn array(&mut self, depth: usize) -> Result<(), NoCanonicalForm> {
        self.expect(b'[')?;
        self.out.push(b'[');
        if self.peek() != Some(b']') {
            loop {
                self.value(depth)?;
                if self.peek() != Some(b',') {
                    break;
                }
                self.expect(b',')?;
                self.out.push(b',');
            }
        }
        self.expect(b']')?;
        self.out.push(b']');
        Ok(())
    }

    fn object(&mut self, depth: usize) -> Result<(), NoCanonicalForm> {
        self.expect(b'{')?;
        let start = self.out.len();
        // Where each field lies in `out`: its start, the end of its name, its end.
        let mut fields: Vec<(usize, usize, usize)> = Vec::new();
        if self.peek() != Some(b'}') {
            loop {
                let name_start = self.out.len();
                self.peek();
                self.string()?;
                let name_end = self.out.len();
                self.expect(b':')?;
                self.out.push(b':');
                self.value(depth)?;
                fields.push((name_start, name_end, self.out.len()));
                if self.peek() != Some(b',') {
                    break;
                }
                self.expect(b',')?;
            }
        }
        self.expect(b'}')?;
        let found = self.out.split_off(start);
        let field = |at: usize, end: usize| &found[at - start..end - start];
        // Stable, so doubled names keep their order.
        fields.sort_by(|a, b| field(a.0, a.1).cmp(field(b.0, b.1)));
        self.out.push(b'{');
        for (i, (at, _, end)) in fields.iter().enumerate() {
            if i > 0 {
                self.out.push(b',');
            }
            self.out.extend_from_slice(field(*at, *end));
        }
        self.out.push(b'}');
        Ok(())
    }

    fn string(&mut self) -> Result<(), NoCanonicalForm> {
        if self.next()? != b'"' {
            return Err(NoCanonicalForm::NotJson);
        }
        self.out.push(b'"');
        loop {
            match self.next()? {
                b'"' => break,
                b'\\' => self.escape()?,
                0..0x20 => return Err(NoCanonicalForm::NotJson),
                byte => self.out.push(byte),
            }
        }
        self.out.push(b'"');
        Ok(())
    }

    fn escape(&mut self) -> Result<(), NoCanonicalForm> {
        let plain = match self.next()? {
            b'u' => return self.unicode_escape(),
            b'n' => '\n',
            b't' => '\t',
            b'r' => '\r',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            other @ (b'"' | b'\\' | b'/') => char::from(other),
            _ => return Err(NoCanonicalForm::NotJson),
        };
        self.character(plain);
        Ok(())
    }

    /// After `\u`. Half a surrogate pair names no character and stays an escape.
    fn unicode_escape(&mut self) -> Result<(), NoCanonicalForm> {
        let unit = self.code_unit()?;
        if (0xD800..0xDC00).contains(&unit) {
            let before = self.rest;
            if let [b'\\', b'u', rest @ ..] = self.rest {
                self.rest = rest;
                let low = self.code_unit()?;
                if (0xDC00..0xE000).contains(&low) {
                    let code = 0x10000 + ((u32::from(unit) - 0xD800) << 10) + (u32::from(low) - 0xDC00);
                    self.character(char::from_u32(code).ok_or(NoCanonicalForm::NotJson)?);
                    return Ok(());
                }
                self.rest = before;
            }
        }
        match char::from_u32(u32::from(unit)) {
            Some(c) => self.character(c),
            None => self.out.extend_from_slice(format!("\\u{unit:04x}").as_bytes()),
        }
        Ok(())
    }

    fn code_unit(&mut self) -> Result<u16, NoCanonicalForm> {
        let mut unit = 0_u16;
        for _ in 0..4 {
            let digit = char::from(self.next()?).to_digit(16).ok_or(NoCanonicalForm::NotJson)?;
            unit = unit << 4 | u16::try_from(digit).map_err(|_| NoCanonicalForm::NotJson)?;
        }
        Ok(unit)
    }

    fn character(&mut self, c: char) {
        match c {
            '"' | '\\' => self.out.extend_from_slice(&[b'\\', c as u8]),
            '\0'..' ' => self.out.extend_from_slice(format!("\\u{:04x}", u32::from(c)).as_bytes()),
            _ => self.out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }

    /// As written, but for the exponent's sign and case: `1E+5` is `1e5`.
    fn number(&mut self) -> Result<(), NoCanonicalForm> {
        let length =
            self.rest.iter().take_while(|b| matches!(b, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E')).count();
        let (text, rest) = self.rest.split_at(length);
        let text = std::str::from_utf8(text).map_err(|_| NoCanonicalForm::NotJson)?;
        serde_json::from_str::<&serde_json::value::RawValue>(text).map_err(|_| NoCanonicalForm::NotJson)?;
        self.rest = rest;
        self.out.extend(text.bytes().filter(|b| *b != b'+').map(|b| b.to_ascii_lowercase()));
        Ok(())
    }

    fn word(&mut self) -> Result<(), NoCanonicalForm> {
        for word in ["null", "true", "false"] {
            if let Some(rest) = self.rest.strip_prefix(word.as_bytes()) {
                self.rest = rest;
                self.out.extend_from_slice(word.as_bytes());
                return Ok(());
            }
        }
        Err(NoCanonicalForm::NotJson)
    }
}
