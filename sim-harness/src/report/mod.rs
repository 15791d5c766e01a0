//! Reports as files: one HTML page that needs neither network nor script, the
//! same numbers as JSON and CSV, and traces for Perfetto.
//!
//! ```text
//! tables, series ─► Page ─► report.html, report.json, plots.csv, TABLE.csv
//! ReplicaTrace ───► perfetto::trace ─► trace.json
//! ```
//!
//! Nothing here knows what the numbers mean: [`crate::fleet`] and
//! [`crate::plan`] say what to show. The same input gives the same bytes.

mod csv;
mod number;
mod page;
mod perfetto;
mod plot;
mod scale;
mod svg;
#[cfg(test)]
mod tests;

pub use page::{Block, File, Page, Section};
pub use perfetto::perfetto;
pub use plot::{Axis, Plot, Point, Rule, Series, Shape};

/// A table: a row is named by its first cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Names its file: letters, digits and dashes.
    pub id: &'static str,
    /// What it shows.
    pub caption: String,
    /// Heads of its columns. One that is just `p99` or `most` goes with the
    /// column before it.
    pub heads: Vec<String>,
    /// Its rows, each as long as the heads or shorter.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table of these cells.
    pub fn new(id: &'static str, caption: &str, heads: &[&str], rows: Vec<Vec<String>>) -> Self {
        let heads = heads.iter().map(|head| (*head).to_owned()).collect();
        Self { id, caption: caption.into(), heads, rows }
    }

    /// As text for a terminal.
    pub fn text(&self) -> String {
        let heads: Vec<&str> = self.heads.iter().map(String::as_str).collect();
        crate::table::with_heads(&heads, &self.rows)
    }

    /// Heads that say all by themselves.
    pub(crate) fn full_heads(&self) -> Vec<String> {
        let mut heads: Vec<String> = Vec::new();
        for head in &self.heads {
            let before = heads.last().map_or("", String::as_str);
            let full = match head.as_str() {
                "p99" => before.replace("p50", "p99"),
                "most" => before.replace("mean", "most"),
                head => head.to_owned(),
            };
            heads.push(full);
        }
        heads
    }
}
