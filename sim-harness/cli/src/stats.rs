//! The figures that every report shares.

/// The mean; nothing of nothing.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The nearest rank: the smallest value that this share of all is at or below.
/// Nothing of nothing.
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&values, 0.5), Some(50.0));
        assert_eq!(quantile(&values, 0.99), Some(99.0));
        assert_eq!(quantile(&values[..1], 0.01), Some(1.0));
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!((mean(&values), mean(&[])), (Some(50.5), None));
    }
}
