//! Tables of text, for reports that people read.

/// Rows whose columns are wide enough for their cells: the first to the left,
/// numbers to the right, a last column of words to the left.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let words = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).filter(|cell| !cell.is_empty());
        column == 0
            || column + 1 == columns
                && cells.clone().all(|cell| cell.starts_with(|c: char| c.is_ascii_lowercase()))
    };
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for ((column, cell), width) in row.iter().enumerate().zip(&widths) {
            let gap = " ".repeat(width - cell.chars().count());
            line.push_str(if column == 0 { "" } else { "  " });
            if words(column) {
                line.push_str(cell);
                line.push_str(&gap);
            } else {
                line.push_str(&gap);
                line.push_str(cell);
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The same, with a row of heads.
pub fn with_heads(heads: &[&str], rows: &[Vec<String>]) -> String {
    let heads = heads.iter().map(|head| (*head).to_owned()).collect();
    table(&[&[heads], rows].concat())
}

/// A share as a cell.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["a", "requests", "why"], ["long", "7", "because"]];
        let rows: Vec<Vec<String>> = rows.iter().map(|r| r.map(String::from).to_vec()).collect();
        assert_eq!(table(&rows), "a     requests  why\nlong         7  because\n");
        let rows = [["a", "b"], ["x", "12"]];
        let rows: Vec<Vec<String>> = rows.iter().map(|r| r.map(String::from).to_vec()).collect();
        assert_eq!(table(&rows), "a   b\nx  12\n");
    }
}
