//! Payload fields that are not for everybody.

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
    pub fn hide(&self, task_type: &str, payload: &mut serde_json::Value) -> Vec<String> {
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

    /// Whether the bytes of a refused submission may hold something to hide: nobody knows what is in them, or of which type they are.
    pub fn hides_bytes(&self, task: &Task) -> bool {
        task.spec.raw.is_some() && !self.0.is_empty()
    }

    /// Whether any payload of that type has something to hide.
    pub fn concerns(&self, task_type: &str) -> bool {
        self.0.iter().any(|rule| rule.task_type.matches(task_type))
    }
}
