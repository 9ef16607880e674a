//! Payload fields that are not for everybody.

use serde_json::Value;

use crate::config::MaskedFields;
use crate::task::Task;

/// What stands in for a masked value.
const MASKED: &str = "•••";

/// Which payload fields are hidden from whoever looks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mask<'a>(&'a [MaskedFields]);

impl<'a> Mask<'a> {
    /// Nothing is hidden.
    pub fn none() -> Mask<'static> {
        Mask(&[])
    }

    /// These are.
    pub fn of(fields: &'a [MaskedFields]) -> Mask<'a> {
        Mask(fields)
    }

    /// Hides them in the payload of a task of that type. Returns those that were there.
    pub fn hide(&self, task_type: &str, payload: &mut Value) -> Vec<String> {
        let mut hidden = Vec::new();
        for rule in self.0.iter().filter(|rule| rule.task_type.matches(task_type)) {
            for field in &rule.fields {
                if let Some(value) = payload.pointer_mut(field) {
                    *value = MASKED.into();
                    hidden.push(field.clone());
                }
            }
        }
        hidden
    }

    /// The payload of a task of that type as it may be shown, and the fields that are hidden of it.
    ///
    /// What does not fit a [`Value`] (a lone surrogate, a number beyond the largest, a row that others inserted by
    /// force) is shown as text; where there may be something to hide, not at all: nobody knows where in it that is.
    pub fn read(&self, task_type: &str, payload: &str) -> (Value, Vec<String>) {
        match serde_json::from_str::<Value>(payload) {
            Ok(mut payload) => {
                let hidden = self.hide(task_type, &mut payload);
                (payload, hidden)
            }
            // The empty pointer is all of it.
            Err(_) if self.concerns(task_type) => (MASKED.into(), vec![String::new()]),
            Err(_) => (payload.into(), Vec::new()),
        }
    }

    /// Whether the bytes of a refused submission may hold something to hide: nobody knows what is in them, or of which type they are.
    pub fn hides_bytes(&self, task: &Task) -> bool {
        task.spec.raw.is_some() && !self.0.is_empty()
    }

    /// Whether any payload of that type has something to hide.
    pub fn concerns(&self, task_type: &str) -> bool {
        self.0.iter().any(|rule| rule.task_type.matches(task_type))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::policy::TopicPattern;

    #[test]
    fn a_payload_that_cannot_be_read_is_hidden_whole_where_a_field_of_it_would_be() {
        let task_type = TopicPattern::new("order.#").unwrap();
        let fields = [MaskedFields { task_type, fields: vec!["/card".into()] }];
        let mask = Mask::of(&fields);
        for payload in [r#"{"card": "4111", "name": "\ud83d"}"#, r#"{"card": "4111", "sum": 1e999}"#] {
            assert_eq!(mask.read("order.ship", payload), (json!("•••"), vec![String::new()]), "{payload}");
            assert_eq!(mask.read("report.render", payload), (json!(payload), Vec::new()));
            assert_eq!(Mask::none().read("order.ship", payload), (json!(payload), Vec::new()));
        }
        let (shown, hidden) = mask.read("order.ship", r#"{"card": "4111", "order": 7}"#);
        assert_eq!((shown, hidden), (json!({"card": "•••", "order": 7}), vec!["/card".to_owned()]));
    }
}
