//! Reads fields of a JSON object, with errors that name the field, the value
//! found and what is allowed.

use std::fmt;

use serde_json::{Map, Value};

/// A field is missing, unknown, or has a value that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Where it stands, such as `pools[1].ports[0]`.
    pub path: String,
    /// The value found, as JSON, or `absent`.
    pub found: String,
    /// What is allowed.
    pub allowed: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: found {}; allowed: {}", self.path, self.found, self.allowed)
    }
}

impl std::error::Error for FieldError {}

/// One object of the document and where it stands.
pub struct Fields<'a> {
    path: String,
    object: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The object, whose fields must all be among `known`.
    pub fn new(path: &str, value: &'a Value, known: &[&str]) -> Result<Self, FieldError> {
        let Some(object) = value.as_object() else {
            return Err(FieldError {
                path: if path.is_empty() { "the document".into() } else { path.into() },
                found: short(value),
                allowed: "an object".into(),
            });
        };
        let fields = Self { path: path.into(), object };
        match object.keys().find(|key| !known.contains(&key.as_str())) {
            Some(key) => Err(FieldError {
                path: fields.at(key),
                found: "an unknown field".into(),
                allowed: known.join(", "),
            }),
            None => Ok(fields),
        }
    }

    /// The path of a field.
    pub fn at(&self, field: &str) -> String {
        if self.path.is_empty() { field.into() } else { format!("{}.{field}", self.path) }
    }

    /// The field's value; nothing when absent or null.
    pub fn get(&self, field: &str) -> Option<&'a Value> {
        self.object.get(field).filter(|value| !value.is_null())
    }

    /// An error about the field.
    pub fn wrong(&self, field: &str, allowed: impl Into<String>) -> FieldError {
        let found = self.object.get(field).map_or_else(|| "absent".into(), short);
        FieldError { path: self.at(field), found, allowed: allowed.into() }
    }

    /// A string that is not empty.
    pub fn text(&self, field: &str) -> Result<&'a str, FieldError> {
        let text = self.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
        text.ok_or_else(|| self.wrong(field, "a string that is not empty"))
    }

    /// A whole number in a range, or a default when absent.
    pub fn whole(
        &self,
        field: &str,
        range: std::ops::RangeInclusive<u64>,
        default: Option<u64>,
    ) -> Result<u64, FieldError> {
        let found = match (self.get(field), default) {
            (None, Some(default)) => return Ok(default),
            (value, _) => value.and_then(Value::as_u64),
        };
        found.filter(|n| range.contains(n)).ok_or_else(|| {
            self.wrong(field, format!("a whole number, {} to {}", range.start(), range.end()))
        })
    }

    /// A number in a range, or a default when absent.
    pub fn number(
        &self,
        field: &str,
        range: std::ops::RangeInclusive<f64>,
        default: f64,
    ) -> Result<f64, FieldError> {
        let Some(value) = self.get(field) else { return Ok(default) };
        value.as_f64().filter(|n| range.contains(n)).ok_or_else(|| {
            self.wrong(field, format!("a number, {} to {}", range.start(), range.end()))
        })
    }

    /// True or false, or a default when absent.
    pub fn switch(&self, field: &str, default: bool) -> Result<bool, FieldError> {
        let Some(value) = self.get(field) else { return Ok(default) };
        value.as_bool().ok_or_else(|| self.wrong(field, "true or false"))
    }

    /// A list with at least one item.
    pub fn list(&self, field: &str) -> Result<&'a [Value], FieldError> {
        let list = self.get(field).and_then(Value::as_array).filter(|list| !list.is_empty());
        list.map(Vec::as_slice).ok_or_else(|| self.wrong(field, "a list with at least one item"))
    }
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text,
    }
}
