//! How far predicted times are from measured ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Map, Value, json};

use super::model::{Model, Tier, roofline};
use super::sweep::{Family, Sample};

/// How a sweep is parted into what is fitted and what is judged. Precisions of
/// one shape always stay together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Split {
    /// Every second size of a curve is judged: tokens of a GEMM, length of
    /// an attention.
    Points,
    /// Half of the curves are judged whole: weights of a GEMM, heads of an
    /// attention, experts. The salt chooses the half.
    Shapes(u64),
    /// All but a share of the single shapes, drawn by the salt, is judged.
    Random(f64, u64),
}

/// A number in `0 .. 1` that looks random and depends on all of the key.
fn draw(key: &[u64], salt: u64) -> f64 {
    // Steps of SplitMix64 (Steele, Lea, Flood 2014).
    let mix = |state: u64| {
        let state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        state ^ (state >> 31)
    };
    let state = key.iter().fold(mix(salt.wrapping_add(0x9E37_79B9_7F4A_7C15)), |state, part| {
        mix(state.wrapping_add(0x9E37_79B9_7F4A_7C15) ^ mix(part.wrapping_add(1)))
    });
    (state >> 11) as f64 / 9_007_199_254_740_992.0
}

impl Split {
    /// The samples to fit on, and those to judge.
    pub fn part(self, samples: &[Sample]) -> (Vec<Sample>, Vec<Sample>) {
        // The precision is no part of a place; the kind of kernel is.
        let kind = |sample: &Sample| match sample.shape.family() {
            Family::Gemm | Family::GemmFp8Block => 0,
            Family::Prefill => 1,
            Family::Decode => 2,
            Family::Moe | Family::MoeFp8 => 3,
            Family::AllReduce => 4,
        };
        let key = |sample: &Sample, wide: bool| {
            let (mut curve, at) = sample.shape.place(wide);
            curve.push(kind(sample));
            (curve, at)
        };
        let mut curves: BTreeMap<Vec<u64>, BTreeSet<u64>> = BTreeMap::new();
        if self == Self::Points {
            for sample in samples {
                let (curve, at) = key(sample, false);
                curves.entry(curve).or_default().insert(at);
            }
        }
        samples.iter().partition(|sample| match self {
            Self::Points => {
                let (curve, at) = key(sample, false);
                let rank = curves.get(&curve).map_or(0, |sizes| sizes.range(..at).count());
                rank.is_multiple_of(2)
            }
            Self::Shapes(salt) => draw(&key(sample, true).0, salt) < 0.5,
            Self::Random(share, salt) => {
                let (mut curve, at) = key(sample, false);
                curve.push(at);
                draw(&curve, salt) < share
            }
        })
    }
}

/// Errors of a set of predictions. Percent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// Predictions.
    pub n: usize,
    /// Mean absolute error.
    pub mape: f64,
    /// Median absolute error.
    pub median: f64,
    /// Mean error: above zero when predictions are too long.
    pub bias: f64,
    /// How many are off by more than 20 %.
    pub above_20: f64,
    /// Mean absolute error of the plain roofline.
    pub roofline: f64,
}

impl Errors {
    fn of(pairs: &[(f64, f64)]) -> Self {
        let n = pairs.len();
        if n == 0 {
            return Self::default();
        }
        let mean = |sum: f64| sum / n as f64 * 100.0;
        let mut sizes: Vec<f64> = pairs.iter().map(|pair| pair.0.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        Self {
            n,
            mape: mean(sizes.iter().sum()),
            median: sizes.get(n / 2).copied().unwrap_or(0.0) * 100.0,
            bias: mean(pairs.iter().map(|pair| pair.0).sum()),
            above_20: mean(sizes.iter().filter(|size| **size > 0.2).count() as f64),
            roofline: mean(pairs.iter().map(|pair| pair.1.abs()).sum()),
        }
    }

    /// In fractions, as `calibrate` has them.
    fn json(&self) -> Value {
        let round = |percent: f64| libm::round(percent * 1e3) / 1e5;
        json!({
            "n": self.n,
            "mape": round(self.mape),
            "median": round(self.median),
            "bias": round(self.bias),
            "above_20": round(self.above_20),
            "roofline_mape": round(self.roofline),
        })
    }
}

/// Errors by family.
#[derive(Clone, Debug)]
pub struct Report {
    gpu: String,
    tier: Tier,
    sources: Vec<String>,
    /// Shapes that occur in serving.
    realistic: Vec<(Family, Errors)>,
    /// All shapes.
    all: Vec<(Family, Errors)>,
}

impl Report {
    /// Judges a model by samples that it was not fitted on.
    pub fn new(model: &Model, tier: Tier, test: &[Sample]) -> Self {
        let mut pairs: BTreeMap<Family, Vec<(f64, f64, bool)>> = BTreeMap::new();
        for sample in test {
            let off = |micros: f64| micros / sample.micros - 1.0;
            pairs.entry(sample.shape.family()).or_default().push((
                off(model.micros(&sample.shape)),
                off(roofline(model.gpu(), &sample.shape)),
                sample.shape.is_realistic(),
            ));
        }
        let errors = |all: bool| {
            pairs
                .iter()
                .map(|(family, pairs)| {
                    let pairs: Vec<(f64, f64)> = pairs
                        .iter()
                        .filter(|pair| all || pair.2)
                        .map(|pair| (pair.0, pair.1))
                        .collect();
                    (*family, Errors::of(&pairs))
                })
                .filter(|(_, errors)| errors.n > 0)
                .collect()
        };
        Self {
            gpu: model.gpu().name.clone(),
            tier,
            sources: model.sources().map(str::to_string).collect(),
            realistic: errors(false),
            all: errors(true),
        }
    }

    /// The errors of the families that count, each with the same weight:
    /// density of a grid is no measure of importance.
    pub fn overall(&self) -> Errors {
        overall(&self.realistic)
    }

    /// Errors of one family over realistic shapes.
    pub fn family(&self, family: Family) -> Option<Errors> {
        self.realistic.iter().find(|(of, _)| *of == family).map(|(_, errors)| *errors)
    }

    /// One document; errors in fractions.
    pub fn to_json(&self) -> Value {
        let group = |errors: &[(Family, Errors)], counted: bool| {
            let group: Map<String, Value> = errors
                .iter()
                .filter(|(family, _)| family.is_counted() == counted)
                .map(|(family, errors)| (family.name().to_string(), errors.json()))
                .collect();
            Value::Object(group)
        };
        json!({
            "gpu": self.gpu,
            "tier": tier_name(self.tier),
            "sources": self.sources,
            "families": group(&self.realistic, true),
            "overall": self.overall().json(),
            "apart": group(&self.realistic, false),
            "all_shapes": {
                "families": group(&self.all, true),
                "overall": overall(&self.all).json(),
            },
        })
    }
}

fn tier_name(tier: Tier) -> &'static str {
    match tier {
        Tier::Measured => "measured",
        Tier::Cross => "cross",
    }
}

fn overall(errors: &[(Family, Errors)]) -> Errors {
    let cells: Vec<&Errors> =
        errors.iter().filter(|(family, _)| family.is_counted()).map(|(_, errors)| errors).collect();
    let mean = |pick: fn(&Errors) -> f64| {
        cells.iter().map(|errors| pick(errors)).sum::<f64>() / cells.len().max(1) as f64
    };
    Errors {
        n: cells.iter().map(|errors| errors.n).sum(),
        mape: mean(|e| e.mape),
        median: mean(|e| e.median),
        bias: mean(|e| e.bias),
        above_20: mean(|e| e.above_20),
        roofline: mean(|e| e.roofline),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sources = self.sources.join(", ");
        writeln!(f, "{} · {} tier · from {sources}", self.gpu, tier_name(self.tier))?;
        writeln!(f, "errors in percent, shapes that occur in serving\n")?;
        writeln!(
            f,
            "{:<18} {:>6} {:>7} {:>7} {:>7} {:>7} {:>9}",
            "family", "n", "mape", "median", "bias", "> 20", "roofline"
        )?;
        let line = |f: &mut fmt::Formatter<'_>, name: &str, e: &Errors| {
            let Errors { n, mape, median, bias, above_20, roofline } = e;
            writeln!(
                f,
                "{name:<18} {n:>6} {mape:>7.2} {median:>7.2} {bias:>+7.2} {above_20:>7.2} {roofline:>9.1}"
            )
        };
        for counted in [true, false] {
            for (family, errors) in &self.realistic {
                if family.is_counted() == counted {
                    line(f, family.name(), errors)?;
                }
            }
            if counted {
                line(f, "overall", &self.overall())?;
                writeln!(f, "apart:")?;
            }
        }
        line(f, "whole grid", &overall(&self.all))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Precision, Shape};
    use super::*;

    fn grid() -> Vec<Sample> {
        let mut samples = Vec::new();
        for (n, k) in (0..40).flat_map(|n| (0..5).map(move |k| (512 + n * 64, 512 + k * 64))) {
            for m in [1, 2, 4, 8, 16] {
                for precision in [Precision::Bf16, Precision::Fp8, Precision::Fp8Block] {
                    samples.push(Sample { shape: Shape::Gemm { m, n, k, precision }, micros: 1.0 });
                }
            }
        }
        samples
    }

    fn sizes(samples: &[Sample]) -> BTreeSet<(u32, u32, u32)> {
        let size = |sample: &Sample| match sample.shape {
            Shape::Gemm { m, n, k, .. } => (n, k, m),
            _ => unreachable!("the grid has none"),
        };
        samples.iter().map(size).collect()
    }

    #[test]
    fn no_split_parts_the_precisions_of_a_shape() {
        let grid = grid();
        for split in [Split::Points, Split::Shapes(1), Split::Random(0.3, 1)] {
            let (train, test) = split.part(&grid);
            assert_eq!(train.len() + test.len(), grid.len());
            assert!(sizes(&train).is_disjoint(&sizes(&test)), "{split:?}");
        }
        let (train, test) = Split::Points.part(&grid);
        assert!(sizes(&train).iter().all(|(.., m)| matches!(m, 1 | 4 | 16)));
        assert!(sizes(&test).iter().all(|(.., m)| matches!(m, 2 | 8)));
        let (train, test) = Split::Shapes(1).part(&grid);
        let curves = |part: &[Sample]| -> BTreeSet<(u32, u32)> {
            sizes(part).into_iter().map(|(n, k, _)| (n, k)).collect()
        };
        assert!(curves(&train).is_disjoint(&curves(&test)));
        assert!((70..130).contains(&curves(&train).len()), "{}", curves(&train).len());
    }

    #[test]
    fn the_salt_and_nothing_else_chooses_the_draw() {
        let grid = grid();
        let of = |salt| Split::Random(0.3, salt).part(&grid).0;
        assert_eq!(of(1), of(1));
        let share = of(1).len() as f64 / grid.len() as f64;
        assert!((share - 0.3).abs() < 0.05, "{share}");
        let (one, two) = (sizes(&of(1)), sizes(&of(2)));
        let both = one.intersection(&two).count() as f64 / one.len() as f64;
        assert!((both - 0.3).abs() < 0.1, "independent draws share 30 %: {both}");
    }

    #[test]
    fn cells_weigh_the_same_however_many_points_they_have() {
        let errors = |family, n, mape| (family, Errors { n, mape, ..Errors::default() });
        let cells = [
            errors(Family::Gemm, 900, 2.0),
            errors(Family::Moe, 100, 6.0),
            errors(Family::AllReduce, 100, 99.0),
        ];
        let overall = overall(&cells);
        assert_eq!((overall.n, overall.mape), (1000, 4.0));
        let off = Errors::of(&[(0.3, 0.5), (-0.1, -0.5), (0.1, 0.5)]);
        let rounded = |value: f64| libm::round(value * 10.0) / 10.0;
        assert_eq!(rounded(off.mape), 16.7);
        assert_eq!((rounded(off.median), rounded(off.bias)), (10.0, 10.0));
        assert_eq!((rounded(off.above_20), rounded(off.roofline)), (33.3, 50.0));
    }
}
