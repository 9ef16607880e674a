//! Which gates a task meets, and under which keys their state lies in the store.
//!
//! A key is `kind/name/word=value,…`, for instance `limit/per shop/label.shop=a`; `/`, `,`, `=` and `%` inside a name or value are
//! percent-encoded, so that a key says exactly one thing.

use thiserror::Error;

use super::{BreakerRule, CapRule, Gates, LimitKind, LimitRule, Per, Subject, Word};

/// A gate that a task has to pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateOf<'g> {
    /// Where its state lies.
    pub key: String,
    /// What it does.
    pub rule: RuleOf<'g>,
}

/// The rule behind a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleOf<'g> {
    /// A `[[limit]]`.
    Limit(&'g LimitRule),
    /// The concurrency of a `[[route]]`.
    Cap(&'g CapRule),
    /// A `[[breaker]]`.
    Breaker(&'g BreakerRule),
    /// A Retry-After that was answered for this key.
    Hold,
}

/// Everything about a task's way through the gates that does not depend on their state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Way<'g> {
    /// Its gates.
    pub gates: Vec<GateOf<'g>>,
    /// The values of its narrowest key: held tasks take turns by it.
    pub turn: String,
    /// Where a Retry-After for it is kept; `None` when no gate names a dimension.
    pub hold: Option<String>,
}

impl Gates {
    /// Whether no gate is configured.
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.breakers.is_empty() && self.caps.is_empty()
    }

    /// The way of a task. `retry`: whether its coming attempt is a retry, which is all that most limits look at.
    pub fn way(&self, subject: Subject<'_>, retry: bool) -> Way<'_> {
        let mut way = Way::default();
        if self.is_empty() {
            return way;
        }
        // Labels before types, then the order of the file: the first of the narrowest wins.
        let mut narrowest: Option<((usize, usize), String)> = None;
        let mut consider = |per: &Per, values: &str| {
            let labels = per.0.iter().filter(|word| matches!(word, Word::Label(_))).count();
            let rank = (per.0.len(), labels);
            if narrowest.as_ref().is_none_or(|(best, _)| rank > *best) {
                narrowest = Some((rank, values.to_owned()));
            }
        };
        for rule in &self.limits {
            let Some(values) = self.values(&rule.per, subject) else { continue };
            consider(&rule.per, &values);
            // A ratio counts first attempts too: they are what its retries are measured by.
            if retry || rule.calls || matches!(rule.kind, LimitKind::Ratio { .. }) {
                way.gates.push(GateOf { key: key("limit", &rule.name, &values), rule: RuleOf::Limit(rule) });
            }
        }
        for rule in &self.breakers {
            let Some(values) = self.values(&rule.per, subject) else { continue };
            consider(&rule.per, &values);
            way.gates.push(GateOf { key: key("breaker", &rule.name, &values), rule: RuleOf::Breaker(rule) });
        }
        if !self.caps.is_empty()
            && let Some(route) = self.routes.iter().find(|route| route.matches(subject.task_type))
        {
            for rule in self.caps.iter().filter(|rule| rule.route == *route) {
                let Some(values) = self.values(&rule.per, subject) else { continue };
                consider(&rule.per, &values);
                way.gates.push(GateOf { key: key("cap", route.as_str(), &values), rule: RuleOf::Cap(rule) });
            }
        }
        if let Some(values) = narrowest.filter(|((words, _), _)| *words > 0).map(|(_, values)| values) {
            let hold = key("hold", "retry-after", &values);
            way.gates.push(GateOf { key: hold.clone(), rule: RuleOf::Hold });
            way.hold = Some(hold);
            way.turn = values;
        }
        way
    }

    /// Whether a `held_by` names a gate of this configuration. One that does not is open.
    pub fn knows(&self, held_by: &str) -> bool {
        self.rule(held_by).is_some()
    }

    /// The rule of a key, if this configuration has it.
    pub fn rule(&self, key: &str) -> Option<RuleOf<'_>> {
        let mut parts = key.splitn(3, '/');
        let (kind, name, values) = (parts.next()?, parts.next()?, parts.next().unwrap_or_default());
        // A rule whose dimensions have changed is another gate than the one that a key of before names.
        let fits = |per: &Per| {
            let words = values
                .split(',')
                .filter(|part| !part.is_empty())
                .map(|part| part.split('=').next().unwrap_or_default());
            words.eq(per.0.iter().map(|word| encode(&word.to_string())))
        };
        match kind {
            "limit" => self.limits.iter().find(|rule| encode(&rule.name) == name && fits(&rule.per)).map(RuleOf::Limit),
            "breaker" => {
                self.breakers.iter().find(|rule| encode(&rule.name) == name && fits(&rule.per)).map(RuleOf::Breaker)
            }
            "cap" => {
                let of_route = |rule: &&CapRule| encode(rule.route.as_str()) == name && fits(&rule.per);
                self.caps.iter().find(of_route).map(RuleOf::Cap)
            }
            "hold" => (!self.is_empty()).then_some(RuleOf::Hold),
            _ => None,
        }
    }

    /// The gates that have one key for everything, whether they were used or not.
    pub fn alone(&self) -> Vec<GateOf<'_>> {
        let is_alone = |per: &Per| per.0.is_empty();
        let limits = self.limits.iter().filter(|rule| is_alone(&rule.per));
        let caps = self.caps.iter().filter(|rule| is_alone(&rule.per));
        let breakers = self.breakers.iter().filter(|rule| is_alone(&rule.per));
        (limits.map(|rule| GateOf { key: key("limit", &rule.name, ""), rule: RuleOf::Limit(rule) }))
            .chain(caps.map(|rule| GateOf { key: key("cap", rule.route.as_str(), ""), rule: RuleOf::Cap(rule) }))
            .chain(breakers.map(|rule| GateOf { key: key("breaker", &rule.name, ""), rule: RuleOf::Breaker(rule) }))
            .collect()
    }

    /// The breaker that a person means, by its key with or without `breaker/` in front.
    ///
    /// # Errors
    /// When no breaker has that name, or the key does not name exactly the dimensions of that breaker: its state would stop nothing.
    pub fn breaker_key(&self, typed: &str) -> Result<(String, &BreakerRule), BreakerKeyError> {
        let rest = typed.strip_prefix("breaker/").unwrap_or(typed);
        let (name, values) = rest.split_once('/').unwrap_or((rest, ""));
        let rule = self.breakers.iter().find(|rule| encode(&rule.name) == name || rule.name == name);
        let Some(rule) = rule else {
            let known = self.breakers.iter().map(|rule| rule.name.clone()).collect();
            return Err(BreakerKeyError::Unknown { name: decode(name), known });
        };
        let form = || {
            let words: Vec<String> = rule.per.0.iter().map(|word| format!("{}=…", encode(&word.to_string()))).collect();
            key("breaker", &rule.name, &words.join(","))
        };
        let bad = || BreakerKeyError::Form { typed: typed.to_owned(), form: form() };
        let parts: Vec<&str> = if values.is_empty() { Vec::new() } else { values.split(',').collect() };
        if parts.len() != rule.per.0.len() {
            return Err(bad());
        }
        let mut canonical = Vec::with_capacity(parts.len());
        for (part, word) in parts.into_iter().zip(&rule.per.0) {
            let (name, value) = part.split_once('=').ok_or_else(bad)?;
            if decode(name) != word.to_string() {
                return Err(bad());
            }
            canonical.push(format!("{}={}", encode(&word.to_string()), encode(&decode(value))));
        }
        Ok((key("breaker", &rule.name, &canonical.join(",")), rule))
    }

    /// `word=value,…`; `None` when the task has no such label or route.
    fn values(&self, per: &Per, subject: Subject<'_>) -> Option<String> {
        let mut text = String::new();
        for word in &per.0 {
            let value = match word {
                Word::Type => subject.task_type,
                Word::Queue => subject.queue,
                Word::Route => self.routes.iter().find(|route| route.matches(subject.task_type))?.as_str(),
                Word::Label(name) => subject.labels.get(name)?,
            };
            if !text.is_empty() {
                text.push(',');
            }
            match word {
                Word::Label(name) => {
                    text.push_str("label.");
                    encode_into(&mut text, name);
                }
                word => text.push_str(&word.to_string()),
            }
            text.push('=');
            encode_into(&mut text, value);
        }
        Some(text)
    }
}

/// The value that a gate's key has for a dimension (`type`, `label.shop`); `None` when it does not name it.
pub fn gate_value(key: &str, dimension: &str) -> Option<String> {
    let values = key.splitn(3, '/').nth(2)?;
    let pairs = values.split(',').filter_map(|part| part.split_once('='));
    let dimension = encode(dimension);
    pairs.into_iter().find(|(name, _)| *name == dimension).map(|(_, value)| decode(value))
}

/// The key of a gate.
fn key(kind: &str, name: &str, values: &str) -> String {
    let mut key = String::with_capacity(kind.len() + name.len() + values.len() + 8);
    key.push_str(kind);
    key.push('/');
    encode_into(&mut key, name);
    if !values.is_empty() {
        key.push('/');
        key.push_str(values);
    }
    key
}

/// A key that names no breaker.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BreakerKeyError {
    /// No `[[breaker]]` has the name.
    #[error("breaker {name:?} is not configured; there {}", listed(known))]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The dimensions are not those of the breaker.
    #[error("{typed:?} is no key of that breaker; its keys are {form}")]
    Form {
        /// What was asked for.
        typed: String,
        /// What keys of it look like.
        form: String,
    },
}

fn listed(known: &[String]) -> String {
    if known.is_empty() { "is none".into() } else { format!("are: {}", known.join(", ")) }
}

/// Keeps what separates the parts of a key out of the parts.
fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    encode_into(&mut encoded, text);
    encoded
}

fn encode_into(encoded: &mut String, text: &str) {
    let mut rest = text;
    while let Some(at) = rest.find(['%', '/', ',', '=']) {
        let (plain, special) = rest.split_at(at);
        encoded.push_str(plain);
        encoded.push_str(match special.as_bytes()[0] {
            b'%' => "%25",
            b'/' => "%2F",
            b',' => "%2C",
            _ => "%3D",
        });
        rest = &special[1..];
    }
    encoded.push_str(rest);
}

/// Takes [`encode`] back. What it never writes stays as it is.
fn decode(text: &str) -> String {
    text.replace("%2F", "/").replace("%2C", ",").replace("%3D", "=").replace("%25", "%")
}
