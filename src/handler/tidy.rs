//! What comes out of a handler is bounded here, whoever wrote it, before it reaches the store.

use std::collections::BTreeSet;

use crate::task::{Attachment, AttachmentBody, Outcome, TaskResult, class};

use super::{Caps, Report};

const LONGEST_CLASS: usize = 100;
const LONGEST_CODE: usize = 200;
const LONGEST_MESSAGE: usize = 4 * 1024;
const LONGEST_STACK: usize = 64 * 1024;
const LONGEST_NAME: usize = 200;
const LONGEST_LINK: usize = 2000;

impl Report {
    /// The same report within `caps`: texts cut on a character boundary and without NUL, the result cut, attachments with plain,
    /// distinct names, no more and no larger than allowed, a wait that is not negative and a cost that is a number.
    #[must_use]
    pub fn within(mut self, caps: Caps) -> Report {
        match &mut self.outcome {
            Outcome::Success { result, cost } => {
                if let Some(result) = result {
                    bound_result(result, caps);
                }
                *cost = cost.filter(|amount| amount.is_finite());
            }
            Outcome::Failure { failure, retry_after, cost, .. } => {
                bound(&mut failure.class, LONGEST_CLASS);
                if failure.class.is_empty() {
                    failure.class = class::FAILED.into();
                }
                bound(&mut failure.message, LONGEST_MESSAGE);
                if let Some(code) = &mut failure.code {
                    bound(code, LONGEST_CODE);
                }
                if let Some(stack) = &mut failure.stack {
                    bound(stack, LONGEST_STACK);
                }
                if let Some(asked) = retry_after {
                    asked.delay_ms = asked.delay_ms.max(0);
                }
                *cost = cost.filter(|amount| amount.is_finite());
            }
        }
        if let Some(by) = &mut self.degraded {
            bound(by, LONGEST_CLASS);
        }
        if self.attachments.len() > caps.attachments {
            tracing::warn!(
                left = self.attachments.len(),
                kept = caps.attachments,
                "an attempt left too many attachments"
            );
            self.attachments.truncate(caps.attachments);
        }
        let mut names = BTreeSet::new();
        for attachment in &mut self.attachments {
            bound_attachment(attachment, caps, &mut names);
        }
        self
    }
}

fn bound(text: &mut String, longest: usize) {
    text.truncate(text.floor_char_boundary(longest));
    if text.contains('\0') {
        *text = text.replace('\0', "\u{FFFD}");
    }
}

fn bound_result(result: &mut TaskResult, caps: Caps) {
    bound(&mut result.media_type, LONGEST_NAME);
    if result.body.len() > caps.body {
        result.body.truncate(caps.body);
        result.truncated = true;
    }
}

fn bound_attachment(attachment: &mut Attachment, caps: Caps, names: &mut BTreeSet<String>) {
    bound(&mut attachment.media_type, LONGEST_NAME);
    let last = attachment.name.rsplit(['/', '\\']).next().unwrap_or_default();
    let plain: String = last.chars().map(|c| if c.is_control() { '\u{FFFD}' } else { c }).collect();
    let plain = match plain[..plain.floor_char_boundary(LONGEST_NAME)].trim() {
        "" | "." | ".." => "attachment",
        name => name,
    };
    let mut name = plain.to_owned();
    let mut n = 2;
    while !names.insert(name.clone()) {
        name = format!("{n}-{plain}");
        n += 1;
    }
    attachment.name = name;
    match &mut attachment.body {
        AttachmentBody::Bytes(bytes) => {
            let size = bytes.len() as u64;
            if size > caps.attachment {
                attachment.body = AttachmentBody::TooLarge { size };
            }
        }
        AttachmentBody::Link(url) => bound(url, LONGEST_LINK),
        AttachmentBody::TooLarge { .. } => {}
    }
}

/// The beginning of `bytes` as one line: what is no UTF-8 replaced, white space and control characters as single blanks, at most
/// `longest` bytes of text and a mark where something is left out.
pub(super) fn one_line(bytes: &[u8], longest: usize) -> String {
    // Looking at a few times the length is enough: only white space shrinks.
    let looked_at = &bytes[..bytes.len().min(longest * 4)];
    let text = String::from_utf8_lossy(looked_at);
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let mut line = String::new();
    for word in words {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if line.len() > longest || looked_at.len() < bytes.len() {
        line.truncate(line.floor_char_boundary(longest));
        line.push('…');
    }
    line
}
