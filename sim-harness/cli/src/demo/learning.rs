//! How the estimate got better, as two small tables.

use std::collections::BTreeMap;
use std::io::{self, Write};

use tidegate_sim::table::table;

use crate::replay::Outcome;
use crate::stats::mean;
use crate::text::Kind;

/// Where one group of requests ends and the next begins.
const ENDS: [usize; 5] = [25, 50, 100, 200, 300];
/// How many requests of a kind are its first and its last ones.
const FEW: usize = 2;

/// Prints the error by age and by kind of text. `outcomes` is in order of sending.
pub(super) fn print(outcomes: &[Outcome], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\nHow it learned: mean |error| of the estimate, in order of sending")?;
    out.write_all(table(&by_age(outcomes)).as_bytes())?;
    writeln!(
        out,
        "\nThe same by kind of text: its true bytes per token, which nobody tells the filter, and the\n\
         mean |error| of the kind's first and last requests"
    )?;
    out.write_all(table(&by_kind(outcomes)).as_bytes())
}

fn by_age(outcomes: &[Outcome]) -> Vec<Vec<String>> {
    let mut rows = vec![row(["  requests", "error"])];
    let mut from = 0;
    for to in ENDS.into_iter().chain([usize::MAX]).map(|end| end.min(outcomes.len())) {
        let Some(group) = outcomes.get(from..to).filter(|group| !group.is_empty()) else { break };
        rows.push(row([&format!("  {}-{to}", from + 1), &error(group)]));
        from = to;
    }
    rows
}

fn by_kind(outcomes: &[Outcome]) -> Vec<Vec<String>> {
    let mut kinds: BTreeMap<Kind, Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes {
        kinds.entry(outcome.kind).or_default().push(outcome);
    }
    let head = ["  text", "requests", "bytes/token", "first 2", "last 2"];
    let mut rows = vec![row(head)];
    for (kind, group) in kinds {
        let bytes: usize = group.iter().map(|outcome| outcome.content_bytes).sum();
        let tokens: f64 = group.iter().map(|outcome| f64::from(outcome.prompt_tokens())).sum();
        // Fewer have no last ones that are not among the first.
        let last = group.len().checked_sub(FEW).filter(|from| *from >= FEW);
        rows.push(row([
            &format!("  {}", kind.name()),
            &group.len().to_string(),
            &format!("{:.1}", bytes as f64 / tokens.max(1.0)),
            &error(group.iter().copied().take(FEW)),
            &last.map_or("-".into(), |from| error(group.iter().copied().skip(from))),
        ]));
    }
    rows
}

fn error<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> String {
    let errors = outcomes.into_iter().filter_map(Outcome::estimate_error);
    let errors: Vec<f64> = errors.map(f64::abs).collect();
    mean(&errors).map_or("-".into(), |error| format!("{:.1} %", 100.0 * error))
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(String::from).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::tests::outcome;

    /// Errors of 50 % in the first 25 requests, later of 10 %; 2 bytes a token.
    fn outcomes(count: usize) -> Vec<Outcome> {
        let mut all: Vec<Outcome> =
            (0..count).map(|i| outcome(i, 100, Some(if i < 25 { 150 } else { 110 }))).collect();
        for outcome in &mut all {
            outcome.content_bytes = 200;
            if outcome.index % 7 == 0 {
                outcome.kind = Kind::Hindi;
            }
        }
        all
    }

    #[test]
    fn groups_show_the_error_fall() {
        let rows = by_age(&outcomes(60));
        let cells: Vec<String> = rows.iter().map(|row| row.join(" ")).collect();
        assert_eq!(cells[1..], ["  1-25 50.0 %", "  26-50 10.0 %", "  51-60 10.0 %"]);
        assert_eq!(by_age(&outcomes(301)).last().unwrap().join(" "), "  301-301 10.0 %");
    }

    #[test]
    fn kinds_show_their_ratio_and_both_ends() {
        let rows = by_kind(&outcomes(60));
        assert_eq!(rows[1][..].join(" "), "  english 51 2.0 50.0 % 10.0 %");
        assert_eq!(rows[2][..].join(" "), "  hindi 9 2.0 50.0 % 10.0 %");
        // Two requests: the last ones would be the first ones again.
        assert_eq!(by_kind(&outcomes(8))[2].join(" "), "  hindi 2 2.0 50.0 % -");
    }
}
