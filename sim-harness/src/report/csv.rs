//! CSV as RFC 4180 has it, with line feeds.

use super::Table;

/// Adds a line. Cells with commas, quotes or line ends are quoted.
pub(super) fn line<'a>(out: &mut String, cells: impl IntoIterator<Item = &'a str>) {
    for (nth, cell) in cells.into_iter().enumerate() {
        if nth > 0 {
            out.push(',');
        }
        if cell.contains([',', '"', '\n', '\r']) {
            out.push('"');
            out.push_str(&cell.replace('"', "\"\""));
            out.push('"');
        } else {
            out.push_str(cell);
        }
    }
    out.push('\n');
}

/// A table with its heads.
pub(super) fn table(table: &Table) -> String {
    let mut out = String::new();
    line(&mut out, table.full_heads().iter().map(String::as_str));
    for row in &table.rows {
        line(&mut out, row.iter().map(String::as_str));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_cells_are_quoted_and_short_heads_made_whole() {
        let heads = ["pool, ms", "TTFT p50", "p99", "KV mean", "most"];
        let rows = vec![["a\n", "1", "2\"", "3,4", "5 %"].map(String::from).to_vec()];
        let heads = heads.map(String::from).to_vec();
        let one = Table { id: "t", caption: String::new(), heads, rows };
        let expected =
            "\"pool, ms\",TTFT p50,TTFT p99,KV mean,KV most\n\"a\n\",1,\"2\"\"\",\"3,4\",5 %\n";
        assert_eq!(table(&one), expected);
    }
}
