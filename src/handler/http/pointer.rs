//! JSON pointers (RFC 6901) that were checked before they are used, and filling in what they lead to.

use serde_json::{Map, Value};

/// A JSON pointer that can be followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pointer(String);

impl Pointer {
    /// `text` as a pointer: empty for the whole document, else `/`-separated, `~` only in `~0` and `~1`.
    pub fn new(text: &str) -> Option<Pointer> {
        let starts = text.is_empty() || text.starts_with('/');
        let escapes = text.split('~').skip(1).all(|after| after.starts_with(['0', '1']));
        (starts && escapes).then(|| Pointer(text.to_owned()))
    }

    /// As written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What it leads to; `null` counts as nothing.
    pub fn find<'a>(&self, document: &'a Value) -> Option<&'a Value> {
        document.pointer(&self.0).filter(|value| !value.is_null())
    }

    /// Puts `value` where it leads if nothing is there, making objects on the way. Where a value of another kind stands in the way,
    /// or the way leads past the end of an array, nothing changes. Says whether something did.
    pub fn fill(&self, document: &mut Value, value: &Value) -> bool {
        if self.find(document).is_some() {
            return false;
        }
        let mut place = document;
        for word in self.0.split('/').skip(1).map(|word| word.replace("~1", "/").replace("~0", "~")) {
            if place.is_null() {
                *place = Value::Object(Map::new());
            }
            let next = match place {
                Value::Object(fields) => Some(fields.entry(word).or_insert(Value::Null)),
                Value::Array(items) => index(&word).and_then(|index| items.get_mut(index)),
                _ => None,
            };
            let Some(next) = next else { return false };
            place = next;
        }
        *place = value.clone();
        true
    }
}

/// An array's index as the RFC writes it, so that what is filled is what is found: `01` and `+1` lead nowhere.
fn index(word: &str) -> Option<usize> {
    let plain = word == "0" || !word.starts_with(['0', '+']);
    word.parse().ok().filter(|_| plain)
}
