//! Tables with a header line: columns by name, errors by line and column.

use std::fmt;

/// A cell, or the header, is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsvError {
    /// The file, as the caller named it.
    pub file: String,
    /// Counts from 1; the header is line 1.
    pub line: usize,
    /// The column's name.
    pub column: String,
    /// What was found.
    pub found: String,
    /// What is allowed there.
    pub allowed: String,
}

impl fmt::Display for CsvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, found, allowed } = self;
        write!(f, "{file}: line {line}, column {column}: found {found:?}, allowed is {allowed}")
    }
}

impl std::error::Error for CsvError {}

/// The lines of a table, of which some columns are read. No quotes: none of the
/// files has them.
pub(crate) struct Table<'a> {
    file: &'a str,
    columns: Vec<&'a str>,
    lines: std::iter::Enumerate<std::str::Lines<'a>>,
}

/// One line.
pub(crate) struct Row<'a> {
    file: &'a str,
    line: usize,
    columns: &'a [&'a str],
    cells: Vec<&'a str>,
}

impl<'a> Table<'a> {
    /// Reads the header, which must have the columns `required`.
    pub(crate) fn new(file: &'a str, text: &'a str, required: &[&str]) -> Result<Self, CsvError> {
        let mut lines = text.lines().enumerate();
        let header = lines.next().map_or("", |(_, line)| line);
        let columns: Vec<&str> =
            header.trim_start_matches('\u{feff}').split(',').map(str::trim).collect();
        for name in required {
            if !columns.contains(name) {
                return Err(CsvError {
                    file: file.into(),
                    line: 1,
                    column: (*name).into(),
                    found: header.chars().take(200).collect(),
                    allowed: format!("a header with {}", required.join(",")),
                });
            }
        }
        Ok(Self { file, columns, lines })
    }

    /// The next line that is not blank.
    pub(crate) fn next(&mut self) -> Result<Option<Row<'_>>, CsvError> {
        let Some((index, line)) = self.lines.find(|(_, line)| !line.trim().is_empty()) else {
            return Ok(None);
        };
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        if cells.len() != self.columns.len() {
            return Err(CsvError {
                file: self.file.into(),
                line: index + 1,
                column: self.columns.get(cells.len()).unwrap_or(&"(none)").to_string(),
                found: format!("{} cells", cells.len()),
                allowed: format!("{} cells, as in the header", self.columns.len()),
            });
        }
        Ok(Some(Row { file: self.file, line: index + 1, columns: &self.columns, cells }))
    }
}

impl Row<'_> {
    /// The cell of a column; nothing if there is no such column.
    pub(crate) fn text(&self, column: &str) -> Option<&str> {
        let at = self.columns.iter().position(|c| *c == column)?;
        self.cells.get(at).copied()
    }

    /// A whole number of at least 1.
    pub(crate) fn count<T: TryFrom<u64>>(&self, column: &str) -> Result<T, CsvError> {
        let cell = self.text(column).unwrap_or_default();
        cell.parse::<u64>()
            .ok()
            .filter(|value| *value >= 1)
            .and_then(|value| T::try_from(value).ok())
            .ok_or_else(|| self.error(column, "a whole number from 1"))
    }

    /// A whole number, 0 included.
    pub(crate) fn whole<T: TryFrom<u64>>(&self, column: &str) -> Result<T, CsvError> {
        let cell = self.text(column).unwrap_or_default();
        let value = cell.parse::<u64>().ok().and_then(|value| T::try_from(value).ok());
        value.ok_or_else(|| self.error(column, "a whole number from 0"))
    }

    /// A finite number, 0 or more.
    pub(crate) fn seconds(&self, column: &str) -> Result<f64, CsvError> {
        let value = self.text(column).unwrap_or_default().parse::<f64>().ok();
        let value = value.filter(|value| value.is_finite() && *value >= 0.0);
        value.ok_or_else(|| self.error(column, "a number from 0"))
    }

    /// A finite number above zero.
    pub(crate) fn positive(&self, column: &str) -> Result<f64, CsvError> {
        self.optional(column)?.ok_or_else(|| self.error(column, "a number above 0"))
    }

    /// The same, or an empty cell, or no such column.
    pub(crate) fn optional(&self, column: &str) -> Result<Option<f64>, CsvError> {
        match self.text(column) {
            None | Some("") => Ok(None),
            Some(cell) => match cell.parse::<f64>() {
                Ok(value) if value.is_finite() && value > 0.0 => Ok(Some(value)),
                _ => Err(self.error(column, "a number above 0")),
            },
        }
    }

    /// An error at a cell of this line.
    pub(crate) fn error(&self, column: &str, allowed: &str) -> CsvError {
        CsvError {
            file: self.file.into(),
            line: self.line,
            column: column.into(),
            found: self.text(column).unwrap_or_default().into(),
            allowed: allowed.into(),
        }
    }
}
