//! What others wrote, made fit to be shown: payloads, messages, labels and names are never trusted and never lost.
//!
//! maud escapes markup; this makes visible what a browser would hide or obey: control characters, and the invisible marks that
//! turn the direction of a line. It never changes what is stored or downloaded.

use std::borrow::Cow;

use maud::{Markup, html};

/// Characters of a text that a page shows; the rest is a download away.
pub(crate) const LONGEST_SHOWN: usize = 6_000;
/// Lines of it.
const MOST_LINES: usize = 120;

/// A text in which every character can be seen: control characters as their pictures (␀), marks of direction and other
/// invisible ones by number. Line ends and tabs stay.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut seen = String::with_capacity(text.len() + 16);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            // The line end of Windows is one.
            '\r' if rest.peek() == Some(&'\n') => {}
            c if is_hidden(c) => seen.push_str(&picture(c)),
            c => seen.push(c),
        }
    }
    Cow::Owned(seen)
}

/// The same on one line and at most `longest` characters long.
pub(crate) fn line(text: &str, longest: usize) -> String {
    // A megabyte is not turned round to show eighty characters of it.
    let head: String = text.chars().take(longest.saturating_add(1)).collect();
    let is_cut = head.chars().count() > longest;
    let mut line = String::with_capacity(head.len());
    for c in head.chars().take(longest) {
        match c {
            '\n' | '\t' => line.push(' '),
            '\r' => {}
            c if is_hidden(c) => line.push_str(&picture(c)),
            c => line.push(c),
        }
    }
    if is_cut {
        line.push('…');
    }
    line
}

/// What others wrote, in the middle of our own words: kept from turning their direction.
pub(crate) fn said(text: &str, longest: usize) -> Markup {
    html! { bdi { (line(text, longest)) } }
}

/// The beginning of a long text, and whether something is missing.
pub(crate) fn head(text: &str) -> (Cow<'_, str>, bool) {
    let by_chars = text.char_indices().nth(LONGEST_SHOWN).map_or(text.len(), |(at, _)| at);
    let by_lines = text.match_indices('\n').nth(MOST_LINES).map_or(text.len(), |(at, _)| at);
    let end = by_chars.min(by_lines);
    (visible(&text[..end]), end < text.len())
}

fn is_hidden(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        c if c.is_control() => true,
        // Marks, embeddings, overrides and isolates of direction; zero-width ones; line and paragraph separators; the byte order mark; tags.
        '\u{00AD}'
        | '\u{061C}'
        | '\u{180E}'
        | '\u{200B}'..='\u{200F}'
        | '\u{2028}'..='\u{202E}'
        | '\u{2060}'..='\u{206F}' => true,
        '\u{FEFF}' | '\u{FFF9}'..='\u{FFFB}' | '\u{E0000}'..='\u{E007F}' => true,
        _ => false,
    }
}

fn picture(c: char) -> String {
    match c {
        '\0'..='\u{1F}' => char::from_u32(0x2400 + u32::from(c)).unwrap_or('\u{FFFD}').to_string(),
        '\u{7F}' => '\u{2421}'.to_string(),
        c => format!("⟨U+{:04X}⟩", u32::from(c)),
    }
}

/// The beginning of a JSON text with line breaks and indents, and whether something is missing. Every token is as it was written:
/// numbers keep all their digits. What is no JSON comes out with odd breaks.
pub(crate) fn pretty_json(json: &str) -> (String, bool) {
    // Indents make more of a text than it was: only what will be shown is made.
    const ENOUGH: usize = 4 * LONGEST_SHOWN + 64;
    let mut out = String::with_capacity(json.len().min(ENOUGH) * 5 / 4);
    let mut depth = 0_usize;
    let mut chars = json.chars().peekable();
    let new_line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth.min(64)));
    };
    while let Some(c) = chars.next() {
        if out.len() > ENOUGH {
            return (out, true);
        }
        match c {
            '"' => {
                out.push('"');
                while let Some(c) = chars.next().filter(|_| out.len() <= ENOUGH) {
                    out.push(c);
                    match c {
                        '\\' => out.extend(chars.next()),
                        '"' => break,
                        _ => {}
                    }
                }
            }
            '{' | '[' => {
                out.push(c);
                while chars.next_if(|c| c.is_ascii_whitespace()).is_some() {}
                let close = if c == '{' { '}' } else { ']' };
                if chars.next_if_eq(&close).is_some() {
                    out.push(close);
                } else {
                    depth += 1;
                    new_line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(',');
                new_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => out.push(c),
        }
    }
    (out, false)
}

/// A word as a shell takes it back.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,#".contains(c);
    // A `#` begins a comment, a `=` in front is an expansion in zsh.
    if !word.is_empty() && word.chars().all(is_plain) && !word.starts_with(['#', '=']) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_shown() {
        assert_eq!(visible("a\0b\u{1b}[31m\u{7f}"), "a␀b␛[31m␡");
        assert_eq!(visible("price\u{202e}00.1"), "price⟨U+202E⟩00.1");
        assert_eq!(visible("one\r\ntwo\tthree\r"), "one\ntwo\tthree␍");
        assert_eq!(visible("发货失败 – شحن"), "发货失败 – شحن", "what can be read stays");
        assert!(matches!(visible("plain"), Cow::Borrowed(_)));
    }

    #[test]
    fn a_line_is_one_and_short() {
        assert_eq!(line("a\nb\tc\0", 10), "a b c␀");
        assert_eq!(line("abcdef", 3), "abc…");
        assert_eq!(line(&"é".repeat(1_000_000), 2), "éé…");
    }

    #[test]
    fn a_long_text_is_cut_between_characters_and_says_so() {
        assert_eq!(head("short"), (Cow::Borrowed("short"), false));
        let long = "漢".repeat(1_000_000);
        let (text, more) = head(&long);
        assert_eq!((text.chars().count(), more), (LONGEST_SHOWN, true));
        let many = "x\n".repeat(5_000);
        let (text, more) = head(&many);
        assert_eq!((text.lines().count(), more), (MOST_LINES + 1, true));
    }

    #[test]
    fn pretty_json_keeps_every_token() {
        let pretty = pretty_json(r#"{"a":[1,2.50,12345678901234567890123],"b":{},"c":"x, {\"y\"}: z","d":[ ]}"#);
        let wanted = "{\n  \"a\": [\n    1,\n    2.50,\n    12345678901234567890123\n  ],\n  \"b\": {},\n  \"c\": \"x, {\\\"y\\\"}: z\",\n  \"d\": []\n}";
        assert_eq!(pretty, (wanted.to_owned(), false));
        assert_eq!(pretty_json("null").0, "null");
        let deep = pretty_json(&"[".repeat(1_000_000));
        assert!(deep.1 && deep.0.len() < 100_000, "{}", deep.0.len());
        for broken in ["", "\"", "\"\\", "]]]]", "{{{{", "nothing"] {
            drop(pretty_json(broken));
        }
    }

    #[test]
    fn words_survive_the_shell() {
        assert_eq!(quoted("order.ship"), "order.ship");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted("order.#"), "order.#");
        assert_eq!((quoted(""), quoted("$(reboot)"), quoted("#x")), ("''".into(), "'$(reboot)'".into(), "'#x'".into()));
    }
}
