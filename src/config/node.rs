//! A JSON value with its path, read with errors that name field, value and
//! what is allowed.

use super::{ConfigError, Warning};
use core::cell::RefCell;
use serde_json::{Map, Value};

/// What becomes of unknown fields: an error, or in a newer document a warning.
#[derive(Default)]
pub(super) struct Unknown {
    pub(super) allowed: bool,
    pub(super) warnings: RefCell<Vec<Warning>>,
}

/// A value and where it stands.
#[derive(Clone)]
pub(super) struct Node<'a> {
    pub(super) path: String,
    pub(super) value: &'a Value,
    unknown: &'a Unknown,
    /// What has the wrong shape may be a key: errors tell its type only.
    secret: bool,
}

impl<'a> Node<'a> {
    pub(super) fn root(value: &'a Value, unknown: &'a Unknown) -> Self {
        Self { path: String::new(), value, unknown, secret: false }
    }

    /// The same, for values that errors should not repeat.
    pub(super) fn secret(mut self) -> Self {
        self.secret = true;
        self
    }

    /// The error that this value is of the wrong type.
    fn refuse_type(&self, allowed: &str) -> ConfigError {
        let mut error = self.refuse(allowed);
        if self.secret {
            let kind = match self.value {
                Value::Null => "(null)",
                Value::Bool(_) => "(true or false)",
                Value::Number(_) => "(a number)",
                Value::String(_) => "(a string)",
                Value::Array(_) => "(a list)",
                Value::Object(_) => "(an object)",
            };
            kind.clone_into(&mut error.value);
        }
        error
    }

    /// The error that this value is not one of the allowed.
    pub(super) fn refuse(&self, allowed: impl Into<String>) -> ConfigError {
        let mut value = self.value.to_string();
        if value.len() > 80 {
            let end = (0..=77).rev().find(|at| value.is_char_boundary(*at)).unwrap_or(0);
            value.truncate(end);
            value.push_str("...");
        }
        let field = if self.path.is_empty() { "configuration" } else { &self.path };
        ConfigError { field: field.to_owned(), value, allowed: allowed.into() }
    }

    pub(super) fn object(&self) -> Result<Members<'a>, ConfigError> {
        let members =
            self.value.as_object().ok_or_else(|| self.refuse_type("must be an object"))?;
        Ok(Members { node: self.clone(), members })
    }

    pub(super) fn list(&self) -> Result<Vec<Self>, ConfigError> {
        let items = self.value.as_array().ok_or_else(|| self.refuse_type("must be a list"))?;
        let node = |(at, value)| Self {
            path: format!("{}[{at}]", self.path),
            value,
            unknown: self.unknown,
            secret: self.secret,
        };
        Ok(items.iter().enumerate().map(node).collect())
    }

    pub(super) fn text(&self) -> Result<&'a str, ConfigError> {
        self.value.as_str().ok_or_else(|| self.refuse_type("must be a string"))
    }

    pub(super) fn flag(&self) -> Result<bool, ConfigError> {
        self.value.as_bool().ok_or_else(|| self.refuse("must be true or false"))
    }

    /// An integer in a range. `8192.0` is one too: some control planes turn
    /// all numbers into floats.
    pub(super) fn integer(&self, min: u64, max: u64, note: &str) -> Result<u64, ConfigError> {
        let value = self.value.as_u64().or_else(|| {
            let value = self.value.as_f64()?;
            let whole = value == value.trunc() && (0.0..=1e15).contains(&value);
            whole.then_some(value as u64)
        });
        value
            .filter(|value| (min..=max).contains(value))
            .ok_or_else(|| self.refuse(format!("must be an integer from {min} to {max}{note}")))
    }

    /// A number in a closed range.
    pub(super) fn number(&self, min: f64, max: f64) -> Result<f64, ConfigError> {
        let value = self.value.as_f64().filter(|value| (min..=max).contains(value));
        value.ok_or_else(|| self.refuse(format!("must be a number from {min} to {max}")))
    }

    /// One of a few words.
    pub(super) fn word<T: Copy>(&self, words: &[(&str, T)]) -> Result<T, ConfigError> {
        let found = words.iter().find(|(word, _)| self.value.as_str() == Some(word));
        found.map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
            self.refuse(format!("must be {}", words.join(" or ")))
        })
    }

    /// A name that may become part of a metric: 1 to 64 of `a-z 0-9 _ -`.
    pub(super) fn name(&self) -> Result<String, ConfigError> {
        let text = self.text()?;
        let fine = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
        if text.is_empty() || text.len() > 64 || !text.bytes().all(fine) {
            return Err(self.refuse("must be 1 to 64 of the characters a-z 0-9 _ -"));
        }
        Ok(text.to_owned())
    }

    /// A header's name in lower case (RFC 9110 token).
    pub(super) fn header(&self) -> Result<String, ConfigError> {
        let text = self.text()?;
        let fine = |byte: u8| {
            matches!(byte, b'a'..=b'z' | b'0'..=b'9') || b"!#$%&'*+-.^_`|~".contains(&byte)
        };
        if text.is_empty() || text.len() > 128 || !text.bytes().all(fine) {
            return Err(self.refuse("must be a header name in lower case"));
        }
        Ok(text.to_owned())
    }
}

/// The members of an object.
pub(super) struct Members<'a> {
    node: Node<'a>,
    members: &'a Map<String, Value>,
}

impl<'a> Members<'a> {
    /// The member of this key; `None` if absent.
    pub(super) fn get(&self, key: &str) -> Option<Node<'a>> {
        let value = self.members.get(key)?;
        let Node { unknown, secret, .. } = self.node;
        Some(Node { path: self.path_of(key), value, unknown, secret })
    }

    /// The member of this key, or the error that it is required.
    pub(super) fn need(&self, key: &str, what: &str) -> Result<Node<'a>, ConfigError> {
        self.get(key).ok_or_else(|| ConfigError {
            field: self.path_of(key),
            value: "(absent)".to_owned(),
            allowed: format!("is required: {what}"),
        })
    }

    /// All members, in order.
    pub(super) fn entries(&self) -> Vec<(&'a str, Node<'a>)> {
        let node = |(key, value): (&'a String, &'a Value)| {
            let path = self.path_of(key);
            let Node { unknown, secret, .. } = self.node;
            (key.as_str(), Node { path, value, unknown, secret })
        };
        self.members.iter().map(node).collect()
    }

    /// Refuses members of other names, or warns of them in a newer document.
    /// Their values are not repeated: they may be anything, a secret too.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), ConfigError> {
        for key in self.members.keys().filter(|key| !known.contains(&key.as_str())) {
            let nearest = known.iter().min_by_key(|known| distance(key, known));
            let hint = nearest.map_or(String::new(), |name| format!(", did you mean \"{name}\"?"));
            let error = ConfigError {
                field: self.path_of(key),
                value: "(unknown)".to_owned(),
                allowed: format!("is not a known field{hint}"),
            };
            if !self.node.unknown.allowed {
                return Err(error);
            }
            self.node.unknown.warnings.borrow_mut().push(Warning(error.to_string()));
        }
        Ok(())
    }

    pub(super) fn path_of(&self, key: &str) -> String {
        if self.node.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.node.path) }
    }
}

/// Levenshtein distance of two short names.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (at, x) in a.bytes().take(64).enumerate() {
        let mut corner = at;
        let mut left = at + 1;
        for (slot, y) in row.iter_mut().skip(1).zip(b.bytes()) {
            let up = *slot;
            let next = (corner + usize::from(x != y)).min(left + 1).min(up + 1);
            corner = up;
            left = next;
            *slot = next;
        }
        if let Some(first) = row.first_mut() {
            *first = at + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::distance;

    #[test]
    fn distances() {
        assert_eq!(distance("pools", "pools"), 0);
        assert_eq!(distance("treshold", "threshold"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }
}
