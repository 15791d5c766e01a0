//! A header map with Envoy's rules: lower-case names, bytes as values, order kept.

use std::fmt;

/// Headers or trailers. Names are stored in lower case; values are any bytes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(Vec<u8>, Vec<u8>)>);

impl Headers {
    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends one value, beside those that the name already has.
    pub fn add(&mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.0.push((name.as_ref().to_ascii_lowercase(), value.as_ref().to_vec()));
    }

    /// Gives the name exactly one value.
    pub fn set(&mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.remove(name.as_ref());
        self.add(name, value);
    }

    /// Removes all values of the name.
    pub fn remove(&mut self, name: impl AsRef<[u8]>) {
        self.0.retain(|(stored, _)| !stored.eq_ignore_ascii_case(name.as_ref()));
    }

    /// The **first** value of the name, as Envoy gives it to a filter.
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<&[u8]> {
        let name = name.as_ref();
        self.iter().find(|(stored, _)| stored.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The first value of the name when it is text.
    pub fn text(&self, name: impl AsRef<[u8]>) -> Option<&str> {
        self.get(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// All values of the name, in order.
    pub fn get_all(&self, name: impl AsRef<[u8]>) -> Vec<&[u8]> {
        let name = name.as_ref();
        let ours = self.iter().filter(|(stored, _)| stored.eq_ignore_ascii_case(name));
        ours.map(|(_, value)| value).collect()
    }

    /// All pairs, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.iter().map(|(name, value)| (name.as_slice(), value.as_slice()))
    }

    /// How many pairs there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        f.debug_list()
            .entries(self.iter().map(|(n, v)| format!("{}: {}", text(n), text(v))))
            .finish()
    }
}

impl<N: AsRef<[u8]>, V: AsRef<[u8]>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        let mut headers = Self::new();
        headers.extend(pairs);
        headers
    }
}

impl<N: AsRef<[u8]>, V: AsRef<[u8]>> Extend<(N, V)> for Headers {
    fn extend<I: IntoIterator<Item = (N, V)>>(&mut self, pairs: I) {
        for (name, value) in pairs {
            self.add(name, value);
        }
    }
}

impl<N: AsRef<[u8]>, V: AsRef<[u8]>, const COUNT: usize> From<[(N, V); COUNT]> for Headers {
    fn from(pairs: [(N, V); COUNT]) -> Self {
        pairs.into_iter().collect()
    }
}

impl<N: AsRef<[u8]>, V: AsRef<[u8]>> From<&[(N, V)]> for Headers {
    fn from(pairs: &[(N, V)]) -> Self {
        pairs.iter().map(|(name, value)| (name, value)).collect()
    }
}
