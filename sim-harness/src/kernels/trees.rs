//! Boosted symmetric trees: what the form leaves over, learned from features.
//!
//! All nodes of a level ask the same question, so a tree is a table that its
//! answers index. Leaves are stored in 8 bits; what that rounds away is left to
//! the trees that follow, so it costs no accuracy.

use super::form::FEATURES;
use crate::rng::Pcg;

/// How a forest is grown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    /// Trees.
    pub(super) trees: u32,
    /// Questions of each, at most 8.
    pub(super) depth: u32,
    /// Share of the remainder that a tree takes on.
    pub(super) rate: f64,
    /// Rows and features that a tree sees.
    pub(super) rows: f64,
    /// The same for features.
    pub(super) columns: f64,
    /// Rows' worth of doubt in every leaf.
    pub(super) doubt: f64,
}

/// The sum of many small trees.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Forest {
    /// Where each feature is cut, ascending.
    pub(super) borders: Vec<Vec<f32>>,
    /// The trees.
    pub(super) trees: Vec<Tree>,
}

/// Questions "feature above border", and a value for each combination of
/// answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Tree {
    /// Feature and border.
    pub(super) splits: Vec<(u8, u8)>,
    /// What one unit of a leaf is worth.
    pub(super) unit: f32,
    /// 2 to the number of splits.
    pub(super) leaves: Vec<i8>,
}

/// At most so many borders a feature.
const BORDERS: usize = 200;

/// Sum and number of the remainders in one cell of a histogram.
type Cell = (f64, f64);

impl Forest {
    /// The value at these features.
    pub(super) fn value(&self, features: &[f64; FEATURES]) -> f64 {
        let mut bins = [0_u8; FEATURES];
        for ((bin, feature), borders) in bins.iter_mut().zip(features).zip(&self.borders) {
            *bin = bin_of(borders, *feature);
        }
        self.trees.iter().map(|tree| tree.value(&bins)).sum()
    }

    /// Learns `targets` from the rows of features. Squared loss. The same input
    /// gives the same forest.
    pub(super) fn grow(rows: &[[f64; FEATURES]], targets: &[f64], growth: &Growth) -> Self {
        let column = |at: usize| rows.iter().map(move |row| row.get(at).copied().unwrap_or(0.0));
        let borders: Vec<Vec<f32>> = (0..FEATURES).map(|at| cut(column(at).collect())).collect();
        let binned: Vec<Vec<u8>> = borders
            .iter()
            .enumerate()
            .map(|(at, borders)| column(at).map(|value| bin_of(borders, value)).collect())
            .collect();
        let mut rest = targets.to_vec();
        let mut rng = Pcg::new(1, 1);
        let mut grower = Grower { binned: &binned, borders: &borders, growth, cells: Vec::new() };
        let trees = (0..growth.trees)
            .map(|_| {
                let (tree, leaf_of) = grower.tree(&rest, &mut rng);
                for (rest, leaf) in rest.iter_mut().zip(leaf_of) {
                    *rest -= tree.leaf(usize::from(leaf));
                }
                tree
            })
            .collect();
        Self { borders, trees }
    }
}

impl Tree {
    fn leaf(&self, at: usize) -> f64 {
        f64::from(self.leaves.get(at).copied().unwrap_or(0)) * f64::from(self.unit)
    }

    fn value(&self, bins: &[u8; FEATURES]) -> f64 {
        let mut at = 0;
        for (level, (feature, border)) in self.splits.iter().enumerate() {
            let bin = bins.get(usize::from(*feature)).copied().unwrap_or(0);
            at |= usize::from(bin > *border) << level;
        }
        self.leaf(at)
    }
}

/// Borders below the value.
fn bin_of(borders: &[f32], value: f64) -> u8 {
    let value = value as f32;
    borders.partition_point(|border| *border < value) as u8
}

/// Borders between the values: all of them if there are few, else between
/// groups of equal size.
fn cut(mut values: Vec<f64>) -> Vec<f32> {
    values.sort_by(f64::total_cmp);
    let total = values.len();
    let step = (total / BORDERS).max(1);
    let mut borders: Vec<f32> = Vec::new();
    let mut distinct = values.clone();
    distinct.dedup_by(|a, b| (*a - *b).abs() < 1e-6);
    let mut between = |low: f64, high: f64| {
        let border = f64::midpoint(low, high) as f32;
        if f64::from(border) < high && borders.last().is_none_or(|last| *last < border) {
            borders.push(border);
        }
    };
    if distinct.len() <= BORDERS {
        for pair in distinct.windows(2) {
            if let [low, high] = pair {
                between(*low, *high);
            }
        }
    } else {
        for pair in values.chunks(step).collect::<Vec<_>>().windows(2) {
            if let [low, high] = pair
                && let (Some(low), Some(high)) = (low.last(), high.first())
            {
                between(*low, *high);
            }
        }
    }
    borders.truncate(254);
    borders
}

/// Grows one tree after the other; keeps its memory.
struct Grower<'a> {
    binned: &'a [Vec<u8>],
    borders: &'a [Vec<f32>],
    growth: &'a Growth,
    cells: Vec<Cell>,
}

impl Grower<'_> {
    /// A tree for the remainders, and the leaf of every row.
    fn tree(&mut self, rest: &[f64], rng: &mut Pcg) -> (Tree, Vec<u8>) {
        let seen: Vec<usize> = (0..rest.len()).filter(|_| rng.chance(self.growth.rows)).collect();
        let mut leaf_of = vec![0_u8; rest.len()];
        let mut splits = Vec::new();
        for level in 0..self.growth.depth.min(8) {
            let mut best: (f64, Option<(usize, usize)>) = (0.0, None);
            for feature in 0..FEATURES {
                if !rng.chance(self.growth.columns) {
                    continue;
                }
                let (gain, border) = self.best_border(feature, 1 << level, &seen, &leaf_of, rest);
                if gain > best.0 {
                    best = (gain, Some((feature, border)));
                }
            }
            let (_, Some((feature, border))) = best else { break };
            if let Some(bins) = self.binned.get(feature) {
                for (leaf, bin) in leaf_of.iter_mut().zip(bins) {
                    *leaf |= u8::from(usize::from(*bin) > border) << level;
                }
            }
            splits.push((feature as u8, border as u8));
        }
        let mut sums: Vec<Cell> = vec![(0.0, 0.0); 1 << splits.len()];
        for (leaf, rest) in leaf_of.iter().zip(rest) {
            if let Some(cell) = sums.get_mut(usize::from(*leaf)) {
                *cell = (cell.0 + rest, cell.1 + 1.0);
            }
        }
        let values: Vec<f64> = sums
            .iter()
            .map(|(sum, count)| self.growth.rate * sum / (count + self.growth.doubt))
            .collect();
        let top = values.iter().fold(0.0_f64, |top, value| top.max(value.abs()));
        let unit = (top / 127.0) as f32;
        let leaves = values
            .iter()
            .map(|value| if top > 0.0 { libm::round(value / f64::from(unit)) as i8 } else { 0 })
            .collect();
        (Tree { splits, unit, leaves }, leaf_of)
    }

    /// The border of a feature that parts all leaves best, and its score.
    fn best_border(
        &mut self,
        feature: usize,
        leaves: usize,
        seen: &[usize],
        leaf_of: &[u8],
        rest: &[f64],
    ) -> (f64, usize) {
        let none = (f64::NEG_INFINITY, 0);
        let (Some(bins), Some(borders)) = (self.binned.get(feature), self.borders.get(feature))
        else {
            return none;
        };
        if borders.is_empty() {
            return none;
        }
        let width = borders.len() + 1;
        self.cells.clear();
        self.cells.resize(leaves * width, (0.0, 0.0));
        for row in seen {
            if let (Some(bin), Some(leaf), Some(rest)) =
                (bins.get(*row), leaf_of.get(*row), rest.get(*row))
                && let Some(cell) =
                    self.cells.get_mut(usize::from(*leaf) * width + usize::from(*bin))
            {
                cell.0 += rest;
                cell.1 += 1.0;
            }
        }
        let mut scores = [0.0; 256];
        let doubt = self.growth.doubt;
        for histogram in self.cells.chunks_exact(width) {
            let (sum, count) =
                histogram.iter().fold((0.0, 0.0), |all, cell| (all.0 + cell.0, all.1 + cell.1));
            if count == 0.0 {
                continue;
            }
            let (mut left, mut below) = (0.0, 0.0);
            for (cell, score) in histogram.iter().zip(&mut scores).take(width - 1) {
                left += cell.0;
                below += cell.1;
                let (right, above) = (sum - left, count - below);
                *score += left * left / (below + doubt) + right * right / (above + doubt);
            }
        }
        scores.iter().take(width - 1).enumerate().fold(none, |best, (border, score)| {
            if *score > best.0 { (*score, border) } else { best }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<[f64; FEATURES]> {
        let mut rng = Pcg::new(7, 0);
        (0..600)
            .map(|_| {
                let mut row = [0.0; FEATURES];
                row[0] = rng.unit();
                row[3] = f64::from(rng.below(5));
                row[9] = rng.unit();
                row
            })
            .collect()
    }

    const GROWTH: Growth =
        Growth { trees: 200, depth: 4, rate: 0.1, rows: 0.8, columns: 0.7, doubt: 1.0 };

    #[test]
    fn a_step_and_a_product_are_learned() {
        let truth = |row: &[f64; FEATURES]| {
            if row[0] > 0.37 { row[3] * 0.2 } else { -0.3 }
        };
        let rows = rows();
        let targets: Vec<f64> = rows.iter().map(truth).collect();
        let forest = Forest::grow(&rows, &targets, &GROWTH);
        let mut off = 0.0;
        let mut rng = Pcg::new(8, 0);
        for _ in 0..500 {
            let mut row = [0.0; FEATURES];
            row[0] = rng.unit();
            row[3] = f64::from(rng.below(5));
            off += (forest.value(&row) - truth(&row)).abs() / 500.0;
        }
        assert!(off < 0.02, "{off}");
        assert_eq!(forest, Forest::grow(&rows, &targets, &GROWTH), "the same again");
    }

    #[test]
    fn nothing_to_learn_is_no_trouble() {
        for (rows, targets) in [(vec![], vec![]), (vec![[1.0; FEATURES]; 9], vec![0.5; 9])] {
            let forest = Forest::grow(&rows, &targets, &GROWTH);
            assert!(forest.value(&[3.0; FEATURES]).is_finite());
        }
        let flat = Forest::grow(&[[1.0; FEATURES]; 9], &[0.5; 9], &GROWTH);
        assert!((flat.value(&[1.0; FEATURES]) - 0.5).abs() < 0.01);
        assert!(flat.value(&[f64::NAN; FEATURES]).is_finite());
    }

    #[test]
    fn many_values_get_borders_between_groups() {
        let borders = cut((0..10_000).map(f64::from).collect());
        assert!((100..=254).contains(&borders.len()), "{}", borders.len());
        assert!(borders.is_sorted());
        assert_eq!(cut(vec![2.0, 1.0, 2.0]), [1.5]);
    }
}
