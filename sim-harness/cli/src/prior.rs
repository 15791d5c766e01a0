//! Makes the prior that the filter ships: what the vocabularies of the world
//! have in common, fitted to texts of which the token counts are known.

#![allow(clippy::indexing_slicing)] // matrices of one fixed size

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;
use tidegate::estimate::{FEATURES, Feature, Tally};

/// How far a coefficient may be off on its own, as a share of its size over
/// all vocabularies: languages differ more than vocabularies do.
const APART: f64 = 0.5;
/// The same, at least.
const APART_MIN: f64 = 0.002;
/// A text of so many tokens counts half as much as a long one.
const SHORT: f64 = 20.0;
/// Strength of the ridge, as a share of the texts.
const RIDGE: f64 = 1e-3;
/// Rounds of reweighing; each gives less weight to what fits badly.
const ROUNDS: usize = 4;

/// The same in each text, so no text tells one from the other.
const LEVELS: [Feature; 2] = [Feature::Constant, Feature::Text];

type Vector = [f64; FEATURES];

/// Fits every vocabulary and returns the table as Rust source. `lines` holds
/// one JSON object a line, `{"text": "...", "tokens": {"NAME": 12}}`. A
/// problem names its line.
pub fn table(lines: &str) -> Result<String, String> {
    let mut counts: BTreeMap<String, Vec<(Vector, f64)>> = BTreeMap::new();
    for (at, line) in lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |problem: &str| format!("line {}: {problem}", at + 1);
        let row: Value = serde_json::from_str(line).map_err(|e| wrong(&e.to_string()))?;
        let text = row.get("text").and_then(Value::as_str);
        let text = text.ok_or_else(|| wrong("text: must be a string"))?;
        let tokens = row.get("tokens").and_then(Value::as_object);
        let tokens = tokens.ok_or_else(|| wrong("tokens: must be an object"))?;
        let tally = Tally::read(text.as_bytes());
        let x: Vector = Feature::ALL.map(|feature| match feature {
            Feature::Constant => 1.0,
            _ => tally.get(feature),
        });
        for (name, count) in tokens {
            let count = count.as_f64().ok_or_else(|| wrong("tokens: must be numbers"))?;
            counts.entry(name.clone()).or_default().push((x, count));
        }
    }
    if counts.len() < 2 {
        return Err("needs the counts of two vocabularies at least".into());
    }
    let fits: Vec<Vector> = counts.values().map(|rows| fit(rows)).collect();
    let share = 1.0 / fits.len() as f64;
    let mut mean = [0.0; FEATURES];
    let mut square = [0.0; FEATURES];
    for fit in &fits {
        for ((mean, square), value) in mean.iter_mut().zip(&mut square).zip(fit) {
            *mean += value * share;
            *square += value * value * share;
        }
    }
    let scale = 1.0 / ((fits.len() - 1) as f64).sqrt();
    let names: Vec<&str> = counts.keys().map(String::as_str).collect();
    let mut out = format!(
        "//! Made by `tidegate-sim prior`; not to be edited.\n\nuse super::features::Feature;\n\n\
         /// Of each feature: the mean coefficient, its standard deviation on its own, and\n\
         /// how far each vocabulary is from the mean, over the square root of their number\n\
         /// less one.\n\
         ///\n\
         /// The vocabularies: {}.\n\
         pub(super) const TABLE: &[(Feature, f32, f32, [f32; {}])] = &[\n",
        names.join(", "),
        fits.len()
    );
    for (at, feature) in Feature::ALL
        .into_iter()
        .enumerate()
        .filter(|(at, feature)| square[*at] > 0.0 && !LEVELS.contains(feature))
    {
        let apart = APART * square[at].sqrt() + APART_MIN;
        let together: Vec<String> =
            fits.iter().map(|fit| format!("{:.4}", (fit[at] - mean[at]) * scale)).collect();
        let together = together.join(", ");
        let _ = writeln!(out, "(Feature::{feature:?}, {:.4}, {apart:.4}, [{together}]),", mean[at]);
    }
    out.push_str("];\n");
    Ok(out)
}

/// Coefficients for one vocabulary: ridge regression of relative errors.
fn fit(rows: &[(Vector, f64)]) -> Vector {
    let weight = |y: f64| 1.0 / (y + SHORT);
    let mut size = [0.0; FEATURES];
    for (x, y) in rows {
        for (size, x) in size.iter_mut().zip(x) {
            let relative = x * weight(*y);
            *size += relative * relative / rows.len() as f64;
        }
    }
    let mut trust = vec![1.0; rows.len()];
    let mut fitted = [0.0; FEATURES];
    for _ in 0..ROUNDS {
        let mut matrix = vec![[0.0; FEATURES + 1]; FEATURES];
        for ((x, y), trust) in rows.iter().zip(&trust) {
            let factor = weight(*y) * weight(*y) * trust;
            for (row, xi) in matrix.iter_mut().zip(x).filter(|(_, xi)| **xi != 0.0) {
                for (slot, xj) in row.iter_mut().zip(x.iter().chain([y])) {
                    *slot += factor * xi * xj;
                }
            }
        }
        for (at, (row, size)) in matrix.iter_mut().zip(size).enumerate() {
            row[at] += RIDGE * rows.len() as f64 * (size + 1e-9);
        }
        fitted = solve(matrix);
        let residual = |(x, y): &(Vector, f64)| {
            let estimate: f64 = x.iter().zip(&fitted).map(|(x, c)| x * c).sum();
            (estimate - y).abs() * weight(*y)
        };
        let mut sorted: Vec<f64> = rows.iter().map(residual).collect();
        let residuals = sorted.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let usual = 4.5 * sorted[sorted.len() / 2] + 1e-12;
        trust = residuals.into_iter().map(|residual| (usual / residual).min(1.0)).collect();
    }
    fitted
}

/// Solves a positive definite system by elimination; the right side is the
/// last column.
fn solve(mut matrix: Vec<[f64; FEATURES + 1]>) -> Vector {
    for at in 0..FEATURES {
        let pivot = matrix[at];
        for row in &mut matrix[at + 1..] {
            let factor = row[at] / pivot[at];
            for (slot, value) in row.iter_mut().zip(pivot).skip(at) {
                *slot -= factor * value;
            }
        }
    }
    let mut solution = [0.0; FEATURES];
    for at in (0..FEATURES).rev() {
        let row = &matrix[at];
        let known: f64 = (at + 1..FEATURES).map(|j| row[j] * solution[j]).sum();
        solution[at] = (row[FEATURES] - known) / row[at];
    }
    solution
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_tokenizer_is_found() {
        let mut lines = String::new();
        for n in 1..60_usize {
            let text = "ab 12 ".repeat(n) + &"Ö".repeat(n * n % 17);
            let tokens = |per_word: usize| per_word * n + 3 * (n * n % 17);
            let row = serde_json::json!({"text": text, "tokens": {"a": tokens(2), "b": tokens(4)}});
            let _ = writeln!(lines, "{row}");
        }
        let table = table(&lines).unwrap();
        let row = table.lines().find(|line| line.contains("LatinOne")).unwrap();
        let latin: f64 = row.split(", ").nth(1).unwrap().parse().unwrap();
        // A ridge pulls it towards zero.
        assert!((latin - 3.0).abs() < 0.25, "{row}");
    }

    #[test]
    fn wrong_lines_are_told() {
        assert!(table("{}").unwrap_err().starts_with("line 1: text"));
        assert!(table(r#"{"text": "a", "tokens": {"a": 1}}"#).unwrap_err().contains("two"));
    }
}
