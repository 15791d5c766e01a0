//! What a GPU costs.

use std::fmt;

use crate::kernels::plain_name;

/// The price of one GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Price {
    /// The GPU's name, as in the data sheets.
    pub gpu: String,
    /// Dollars an hour.
    pub per_hour: f64,
    /// As of when.
    pub date: String,
    /// Who says so.
    pub source: String,
}

/// The shipped table. Only published prices that a reader can look up: of other
/// GPUs there are none, and none is guessed.
const TABLE: [(&str, f64, &str, &str); 2] = [
    ("a100_sxm", 2.21, "2026-04", "arXiv 2604.08075, evaluation"),
    ("h100_sxm", 4.02, "2026-04", "vLLM Semantic Router fleet-sim, H100-80GB profile"),
];

/// A line that is no price. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriceLine {
    /// The line.
    pub line: usize,
    /// What was found.
    pub found: String,
}

impl fmt::Display for PriceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, found } = self;
        write!(f, "line {line}: found {found:?}; allowed: {HEADER}, with a price above 0")
    }
}

impl std::error::Error for PriceLine {}

const HEADER: &str = "gpu,usd_per_hour,date,source";

impl Price {
    /// Reads a table: CSV with the header `gpu,usd_per_hour,date,source`.
    pub fn parse(text: &str) -> Result<Vec<Self>, PriceLine> {
        let mut prices = Vec::new();
        for (nth, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') || (nth == 0 && line == HEADER) {
                continue;
            }
            let wrong = || PriceLine { line: nth + 1, found: line.into() };
            let mut cells = line.splitn(4, ',').map(str::trim);
            let mut cell = || cells.next().filter(|cell| !cell.is_empty()).ok_or_else(wrong);
            let (gpu, price, date, source) = (cell()?, cell()?, cell()?, cell()?);
            let per_hour = price.parse::<f64>().ok().filter(|p| *p > 0.0 && p.is_finite());
            prices.push(Self {
                gpu: gpu.into(),
                per_hour: per_hour.ok_or_else(wrong)?,
                date: date.into(),
                source: source.into(),
            });
        }
        Ok(prices)
    }

    /// The price of a GPU: from `own` first, then from the shipped table.
    pub fn of(gpu: &str, own: &[Self]) -> Option<Self> {
        let wanted = plain_name(gpu);
        let found = own.iter().find(|price| plain_name(&price.gpu) == wanted);
        let shipped = || {
            TABLE.iter().find(|(name, ..)| plain_name(name) == wanted).map(
                |&(gpu, per_hour, date, source)| Self {
                    gpu: gpu.into(),
                    per_hour,
                    date: date.into(),
                    source: source.into(),
                },
            )
        };
        found.cloned().or_else(shipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_prices_come_before_shipped_ones() {
        let own = Price::parse(
            "gpu,usd_per_hour,date,source\n# ours\n\nA100_SXM,1.5,2026-11,contract, part 2\n",
        );
        let own = own.unwrap();
        let price = Price::of("a100_sxm", &own).unwrap();
        assert_eq!((price.per_hour, price.source.as_str()), (1.5, "contract, part 2"));
        assert_eq!(Price::of("a100_sxm", &[]).unwrap().per_hour, 2.21);
        assert_eq!(Price::of("b200_sxm", &own), None);
        for line in ["a,b", "a,0,d,s", "a,-1,d,s", "a,x,d,s", "a,1,d"] {
            let error = Price::parse(line).unwrap_err().to_string();
            assert!(error.starts_with(&format!("line 1: found {line:?}")), "{error}");
        }
    }
}
