//! How long requests are: published distributions as small tables.
//!
//! The sources publish total tokens; how a total splits into prompt and output
//! is a rule of ours, named beside each table.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use crate::rng::Pcg;

/// A cumulative distribution of token counts: points `(tokens, fraction)`,
/// both rising, the last fraction 1. Between two points tokens are spread
/// evenly; the first point's share is spread from 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Cdf {
    points: Cow<'static, [(u32, f64)]>,
}

/// How a total splits into prompt and output. The prompt keeps at least 1.
#[derive(Clone, Debug, PartialEq)]
pub enum Split {
    /// The output is this share of the total, `0.0 ..= 1.0`.
    Share(f64),
    /// The output is drawn from its own distribution, independent of the total,
    /// and cut to at most this share of the total.
    Drawn(Cdf, f64),
}

/// A named distribution of request lengths.
#[derive(Clone, Debug, PartialEq)]
pub struct Lengths {
    /// Total tokens, prompt and output.
    pub total: Cdf,
    /// The split of that total.
    pub split: Split,
}

/// What is wrong with a distribution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LengthError {
    /// The document is not JSON; carries the parser's words.
    NotJson(String),
    /// The document is JSON of another shape; says what was found.
    NotPoints(String),
    /// A point is malformed or out of order; carries its index from 0, and
    /// what is wrong.
    Point(usize, String),
}

impl fmt::Display for LengthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotJson(why) => write!(f, "the length distribution is not JSON: {why}"),
            Self::NotPoints(found) => write!(
                f,
                "the length distribution must be [[total_tokens, cumulative_fraction], ...] or \
                 {{\"cdf\": [...]}}; found {found}"
            ),
            Self::Point(index, why) => write!(f, "point {index} of the distribution: {why}"),
        }
    }
}

impl std::error::Error for LengthError {}

impl Cdf {
    /// Reads `[[tokens, fraction], ...]` or `{"cdf": [[tokens, fraction], ...]}`.
    pub fn parse(bytes: &[u8]) -> Result<Self, LengthError> {
        let document: Value =
            serde_json::from_slice(bytes).map_err(|e| LengthError::NotJson(e.to_string()))?;
        let list = match &document {
            Value::Object(fields) => fields.get("cdf").and_then(Value::as_array),
            other => other.as_array(),
        };
        let Some(list) = list else {
            return Err(LengthError::NotPoints(kind_of(&document).into()));
        };
        let mut points: Vec<(u32, f64)> = Vec::with_capacity(list.len());
        for (index, item) in list.iter().enumerate() {
            let point = read_point(item).ok_or_else(|| {
                let why = format!("{item} is not [tokens 1..=4294967295, fraction 0..=1]");
                LengthError::Point(index, why)
            })?;
            if let Some(&(tokens, fraction)) = points.last()
                && (point.0 <= tokens || point.1 < fraction)
            {
                let why = format!("{item} must lie above [{tokens}, {fraction}], the point before");
                return Err(LengthError::Point(index, why));
            }
            points.push(point);
        }
        match points.last() {
            None => Err(LengthError::NotPoints("an empty list".into())),
            Some(&(_, last)) if last < 1.0 - 1e-6 => Err(LengthError::Point(
                points.len() - 1,
                format!("the last fraction must be 1, found {last}"),
            )),
            Some(_) => Ok(Self { points: Cow::Owned(points) }),
        }
    }

    /// The token count at a fraction: the smallest that at least this share of
    /// requests stays within. At least 1.
    pub fn quantile(&self, fraction: f64) -> u32 {
        let (mut tokens, mut below) = (0u32, 0.0);
        for &(next_tokens, next) in self.points.iter() {
            if fraction <= next {
                let share = if next > below { (fraction - below) / (next - below) } else { 1.0 };
                let step = f64::from(next_tokens - tokens) * share.max(0.0);
                // The ceiling, in whole numbers.
                let whole = step as u32;
                let up = u32::from(f64::from(whole) < step);
                return (tokens + whole + up).max(1);
            }
            (tokens, below) = (next_tokens, next);
        }
        tokens.max(1)
    }

    /// The share of requests with at most this many tokens.
    pub fn fraction(&self, tokens: u32) -> f64 {
        let (mut low, mut below) = (0u32, 0.0);
        for &(high, next) in self.points.iter() {
            if tokens < high {
                return below + (next - below) * f64::from(tokens - low) / f64::from(high - low);
            }
            (low, below) = (high, next);
        }
        1.0
    }
}

fn read_point(item: &Value) -> Option<(u32, f64)> {
    let [tokens, fraction] = item.as_array()?.as_slice() else { return None };
    let tokens = u32::try_from(tokens.as_u64()?).ok().filter(|&t| t > 0)?;
    let fraction = fraction.as_f64().filter(|f| (0.0..=1.0 + 1e-6).contains(f))?;
    Some((tokens, fraction.min(1.0)))
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object without \"cdf\"",
    }
}

impl Lengths {
    /// A distribution of totals with no published split: 80 % prompt, 20 %
    /// output, as vLLM Semantic Router's fleet-sim assumes for such files.
    pub fn from_total(total: Cdf) -> Self {
        Self { total, split: Split::Share(0.2) }
    }

    /// Draws `(input_tokens, output_tokens)`, both at least 1.
    pub fn draw(&self, rng: &mut Pcg) -> (u32, u32) {
        let total = self.total.quantile(rng.unit()).max(2);
        let wanted = match &self.split {
            Split::Share(share) => (f64::from(total) * share) as u32,
            Split::Drawn(cdf, most) => {
                cdf.quantile(rng.unit()).min((f64::from(total) * most) as u32)
            }
        };
        let output = wanted.clamp(1, total - 1);
        (total - output, output)
    }
}

/// A distribution from a table below.
const fn cdf(points: &'static [(u32, f64)]) -> Cdf {
    Cdf { points: Cow::Borrowed(points) }
}

/// Azure LLM inference trace 2023, conversation and code pooled (28,185
/// requests). Licence CC-BY-4.0; cite Patel et al., "Splitwise", ISCA 2024.
///
/// Totals: `azure_cdf.json` of vLLM Semantic Router's fleet-sim, Apache-2.0.
/// Split: the output's own quantiles in the two published files, independent of
/// the total, at most four fifths of it.
pub const AZURE_2023: Lengths = Lengths {
    total: cdf(&[
        (64, 0.008_373),
        (128, 0.028_171),
        (256, 0.067_589),
        (512, 0.288_629),
        (768, 0.364_272),
        (1_024, 0.404_470),
        (1_536, 0.656_874),
        (2_048, 0.779_847),
        (3_072, 0.868_654),
        (4_096, 0.898_208),
        (6_144, 0.975_803),
        (8_192, 0.999_965),
        (16_384, 1.0),
    ]),
    split: Split::Drawn(
        cdf(&[
            (6, 0.01),
            (8, 0.05),
            (10, 0.10),
            (16, 0.20),
            (24, 0.25),
            (40, 0.30),
            (69, 0.40),
            (90, 0.50),
            (109, 0.60),
            (162, 0.70),
            (217, 0.75),
            (387, 0.80),
            (413, 0.90),
            (433, 0.95),
            (581, 0.99),
            (939, 0.999),
            (1_899, 1.0),
        ]),
        0.8,
    ),
};

/// LMSYS-Chat-1M (Zheng et al., 2023): one million conversations with 25 models.
///
/// Totals: `lmsys_cdf.json` of vLLM Semantic Router's fleet-sim, Apache-2.0.
/// Split: an exponential of the published mean response, 214.5 tokens, at most
/// nine tenths of the total.
pub const LMSYS_CHAT_1M: Lengths = Lengths {
    total: cdf(&[
        (64, 0.131_439),
        (128, 0.235_947),
        (256, 0.382_477),
        (512, 0.638_327),
        (768, 0.757_983),
        (1_024, 0.830_662),
        (1_536, 0.908_860),
        (2_048, 0.948_285),
        (3_072, 0.972_866),
        (4_096, 0.983_742),
        (6_144, 0.992_885),
        (8_192, 0.996_531),
        (12_288, 0.998_633),
        (16_384, 0.999_265),
        (24_576, 0.999_656),
        (32_768, 0.999_794),
        (49_152, 0.999_839),
        (65_536, 1.0),
    ]),
    split: Split::Drawn(
        cdf(&[
            (23, 0.10),
            (62, 0.25),
            (149, 0.50),
            (297, 0.75),
            (494, 0.90),
            (643, 0.95),
            (988, 0.99),
            (1_482, 0.999),
            (2_048, 1.0),
        ]),
        0.9,
    ),
};

/// A synthetic mixture of agents' requests: 35 % retrieval (median 1,800
/// tokens), 40 % SWE-bench-like (10,000), 25 % BFCL-like (3,000).
///
/// Totals: `agent_heavy_cdf.json` of vLLM Semantic Router's fleet-sim,
/// Apache-2.0 (100,000 samples, seed 42). Split: that simulator's 80 % prompt,
/// 20 % output.
pub const AGENT_HEAVY: Lengths = Lengths {
    total: cdf(&[
        (128, 0.0),
        (256, 0.000_07),
        (512, 0.004_07),
        (768, 0.022_37),
        (1_024, 0.057_57),
        (1_536, 0.158_71),
        (2_048, 0.264_59),
        (3_072, 0.431_63),
        (4_096, 0.538_02),
        (6_144, 0.659_87),
        (8_192, 0.740_42),
        (12_288, 0.852_13),
        (16_384, 0.917_17),
        (24_576, 0.972_82),
        (32_768, 0.990_46),
        (49_152, 0.998_49),
        (65_536, 1.0),
    ]),
    split: Split::Share(0.2),
};

/// Those above by the names that commands and documents give them.
pub static NAMED: [(&str, Lengths); 3] =
    [("azure", AZURE_2023), ("lmsys", LMSYS_CHAT_1M), ("agent", AGENT_HEAVY)];

impl FromStr for Lengths {
    type Err = String;

    /// One of [`NAMED`].
    fn from_str(text: &str) -> Result<Self, String> {
        let found = NAMED.iter().find(|(name, _)| *name == text);
        found.map(|(_, lengths)| lengths.clone()).ok_or_else(|| {
            let names = NAMED.each_ref().map(|(name, _)| *name).join(", ");
            format!("unknown lengths {text:?}; allowed: {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn draws_follow_the_published_totals() {
        for (lengths, at) in [
            (AZURE_2023, [(1_024, 0.4045), (2_048, 0.7798), (4_096, 0.8982)]),
            (LMSYS_CHAT_1M, [(1_024, 0.8307), (2_048, 0.9483), (4_096, 0.9837)]),
            (AGENT_HEAVY, [(1_024, 0.0576), (8_192, 0.7404), (16_384, 0.9172)]),
        ] {
            let mut rng = Pcg::new(1, 1);
            let drawn: Vec<(u32, u32)> = (0..40_000).map(|_| lengths.draw(&mut rng)).collect();
            for (tokens, published) in at {
                let under = drawn.iter().filter(|(i, o)| i + o <= tokens).count();
                let share = under as f64 / drawn.len() as f64;
                assert!((share - published).abs() < 0.01, "<= {tokens}: {share} != {published}");
            }
        }
    }

    #[test]
    fn azure_outputs_keep_their_published_mean() {
        let mut rng = Pcg::new(2, 2);
        let sum: u64 = (0..40_000).map(|_| u64::from(AZURE_2023.draw(&mut rng).1)).sum();
        let mean = sum as f64 / 40_000.0;
        // 153.8 in the trace; the cut for short totals takes a little.
        assert!((142.0..156.0).contains(&mean), "{mean}");
    }

    #[test]
    fn errors_name_the_point_the_value_and_the_rule() {
        let error = |text: &str| Cdf::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error("[[64, 0.5], [32, 1]]").contains("point 1"));
        assert!(error("[[64, 0.5], [128, 0.4]]").contains("above [64, 0.5]"));
        assert!(error("[[64, 0.5]]").contains("last fraction must be 1, found 0.5"));
        assert!(error("[[64, 2]]").contains("fraction 0..=1"));
        assert!(error("[[0, 1]]").contains("tokens 1..="));
        assert!(error("[[1, 2, 3]]").contains("[1,2,3]"));
        assert!(error("[]").contains("empty"));
        assert!(error("{}").contains("without \"cdf\""));
        assert!(error("nonsense").contains("not JSON"));
        assert!(Cdf::parse(br#"{"cdf": [[10, 0.5], [20, 1.0]], "seed": 42}"#).is_ok());
    }

    proptest! {
        #[test]
        fn quantile_inverts_fraction(tokens in 1u32..70_000) {
            for lengths in [AZURE_2023, LMSYS_CHAT_1M, AGENT_HEAVY] {
                let fraction = lengths.total.fraction(tokens);
                let back = lengths.total.quantile(fraction);
                // On a flat piece the quantile is its left end, except before the
                // first point, where there is nothing to the left.
                prop_assert!(back <= tokens + 1 || fraction == 0.0, "{tokens} -> {fraction} -> {back}");
                // One token is at most 0.0021, in the first piece of LMSYS.
                prop_assert!((lengths.total.fraction(back) - fraction).abs() < 3e-3);
            }
        }

        #[test]
        fn a_draw_always_has_both_parts(seed: u64, share in 0.0f64..1.0) {
            let lengths = Lengths { total: AZURE_2023.total, split: Split::Share(share) };
            let mut rng = Pcg::new(seed, 0);
            let (input, output) = lengths.draw(&mut rng);
            prop_assert!(input >= 1 && output >= 1);
        }

        #[test]
        fn parsing_never_panics(bytes: Vec<u8>) {
            let _ = Cdf::parse(&bytes);
        }
    }
}
