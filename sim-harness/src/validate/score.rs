//! How far a replay is from what was measured.

use serde_json::{Value, json};

/// Errors of one quantity over its pairs of (simulated, measured).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Errors {
    pairs: Vec<(f64, f64)>,
}

impl Errors {
    /// Adds a pair. One that was measured as nothing is left out.
    pub fn add(&mut self, simulated: f64, measured: f64) {
        if measured > 0.0 {
            self.pairs.push((simulated, measured));
        }
    }

    /// How many pairs there are.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    fn percentages(&self) -> Vec<f64> {
        let each = self.pairs.iter().map(|(s, m)| {
            let error = (s - m) / m * 100.0;
            if error < 0.0 { -error } else { error }
        });
        let mut all: Vec<f64> = each.collect();
        all.sort_by(f64::total_cmp);
        all
    }

    /// Percent: the median of |simulated − measured| / measured.
    pub fn median_ape(&self) -> f64 {
        median(&self.percentages())
    }

    /// Percent: its mean.
    pub fn mean_ape(&self) -> f64 {
        let all = self.percentages();
        all.iter().sum::<f64>() / all.len().max(1) as f64
    }

    /// Percent, signed: how far the mean is above the measured mean.
    pub fn bias(&self) -> f64 {
        let (mut simulated, mut measured) = (0.0, 0.0);
        for (s, m) in &self.pairs {
            simulated += s;
            measured += m;
        }
        if measured > 0.0 { (simulated / measured - 1.0) * 100.0 } else { 0.0 }
    }

    /// As an object, in fractions; `null` when there is nothing.
    pub fn json(&self) -> Value {
        if self.is_empty() {
            return Value::Null;
        }
        json!({
            "n": self.len(),
            "median_ape": fraction(self.median_ape()),
            "mean_ape": fraction(self.mean_ape()),
            "bias": fraction(self.bias()),
        })
    }
}

/// Of what is sorted; 0 of nothing.
pub fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    let high = sorted.get(middle).copied().unwrap_or(0.0);
    if sorted.len() % 2 == 1 || middle == 0 {
        return high;
    }
    f64::midpoint(sorted.get(middle - 1).copied().unwrap_or(high), high)
}

/// Three digits after the point.
pub fn round(x: f64) -> f64 {
    libm::round(x * 1e3) / 1e3
}

/// Percent as a fraction, as all of the command's JSON has errors.
pub(super) fn fraction(percent: f64) -> f64 {
    libm::round(percent * 1e3) / 1e5
}

/// The four quantities of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// Time to the first token.
    pub ttft: Errors,
    /// Time of each later token.
    pub tpot: Errors,
    /// From arrival to the last token.
    pub e2e: Errors,
    /// Answered per time.
    pub throughput: Errors,
}

impl Scores {
    /// By name.
    pub fn parts(&self) -> [(&'static str, &Errors); 4] {
        [
            ("ttft", &self.ttft),
            ("tpot", &self.tpot),
            ("e2e", &self.e2e),
            ("throughput", &self.throughput),
        ]
    }

    /// As an object.
    pub fn json(&self) -> Value {
        self.parts().iter().map(|(name, errors)| ((*name).to_string(), errors.json())).collect()
    }

    /// Over runs: medians of medians, means of means and of biases, so that a
    /// run of many requests counts no more than one of few.
    pub fn overall<'a>(runs: impl IntoIterator<Item = &'a Self>) -> Value {
        let runs: Vec<&Self> = runs.into_iter().collect();
        let mut names = serde_json::Map::new();
        for (index, name) in ["ttft", "tpot", "e2e", "throughput"].into_iter().enumerate() {
            let all = runs.iter().filter_map(|run| run.parts().get(index).map(|part| part.1));
            let all: Vec<&Errors> = all.filter(|errors| !errors.is_empty()).collect();
            let mean = |pick: fn(&Errors) -> f64| {
                all.iter().map(|errors| pick(errors)).sum::<f64>() / all.len().max(1) as f64
            };
            let mut medians: Vec<f64> = all.iter().map(|errors| errors.median_ape()).collect();
            medians.sort_by(f64::total_cmp);
            let value = json!({
                "runs": all.len(),
                "median_ape": fraction(median(&medians)),
                "mean_ape": fraction(mean(Errors::mean_ape)),
                "bias": fraction(mean(Errors::bias)),
            });
            names.insert(name.into(), if all.is_empty() { Value::Null } else { value });
        }
        Value::Object(names)
    }
}

/// Share of requests that were first scheduled in the recorded order: the
/// longest chain that both orders have. Requests of one step have no order, and
/// recorded times less than `step` apart are one step's. Pairs of (simulated,
/// recorded).
pub fn equal_order(pairs: &[(f64, f64)], step: f64) -> f64 {
    if pairs.is_empty() {
        return 1.0;
    }
    let mut sorted = pairs.to_vec();
    sorted.sort_by(|a, b| a.1.total_cmp(&b.1));
    let (mut number, mut last) = (0.0, f64::NEG_INFINITY);
    for pair in &mut sorted {
        if pair.1 - last >= step {
            number += 1.0;
        }
        last = pair.1;
        pair.1 = number;
    }
    sorted.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.total_cmp(&b.0)));
    // The least last element of a chain of each length.
    let mut ends: Vec<f64> = Vec::new();
    for (simulated, _) in sorted {
        let at = ends.partition_point(|end| *end <= simulated);
        match ends.get_mut(at) {
            Some(end) => *end = simulated,
            None => ends.push(simulated),
        }
    }
    ends.len() as f64 / pairs.len() as f64
}

/// Mean absolute difference of two series as a share of the recorded peak, in
/// percent. Nothing when the recorded one is all zero: it was not recorded.
pub fn series_difference(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<f64> {
    let (mut sum, mut count, mut peak) = (0.0, 0.0, 0.0_f64);
    for (simulated, recorded) in pairs {
        sum += if simulated < recorded { recorded - simulated } else { simulated - recorded };
        count += 1.0;
        peak = peak.max(recorded);
    }
    (peak > 0.0).then(|| sum / count / peak * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_percentages_of_what_was_measured() {
        let mut errors = Errors::default();
        for (s, m) in [(11.0, 10.0), (19.0, 20.0), (36.0, 30.0), (5.0, 0.0)] {
            errors.add(s, m);
        }
        assert_eq!((errors.len(), round(errors.median_ape())), (3, 10.0));
        assert_eq!((round(errors.mean_ape()), round(errors.bias())), (11.667, 10.0));
        assert_eq!(Errors::default().json(), Value::Null);
        assert_eq!((median(&[1.0, 3.0]), median(&[]), median(&[2.0])), (2.0, 0.0, 2.0));
    }

    #[test]
    fn order_is_the_longest_common_chain() {
        assert_eq!(equal_order(&[(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, 4.0)], 0.5), 1.0);
        // One that came far too early is one wrong, not all of them.
        assert_eq!(equal_order(&[(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (0.0, 4.0)], 0.5), 0.75);
        // One step has no order, on either side.
        assert_eq!(equal_order(&[(2.0, 1.0), (1.0, 1.0)], 0.5), 1.0);
        assert_eq!(equal_order(&[(1.0, 1.0), (1.0, 2.0)], 0.5), 1.0);
        assert_eq!(equal_order(&[(2.0, 1.0), (1.0, 2.0)], 0.5), 0.5);
        // Two ranks of one step record it at their own instants.
        assert_eq!(equal_order(&[(2.0, 1.0), (1.0, 1.4), (3.0, 2.0)], 0.5), 1.0);
    }

    #[test]
    fn series_are_compared_at_the_recorded_peak() {
        assert_eq!(series_difference([(1.0, 2.0), (10.0, 10.0)]), Some(5.0));
        assert_eq!(series_difference([(1.0, 0.0)]), None);
    }

    #[test]
    fn overall_counts_runs_alike() {
        let mut many = Scores::default();
        (0..9).for_each(|_| many.tpot.add(1.1, 1.0));
        let mut one = Scores::default();
        one.tpot.add(1.3, 1.0);
        let overall = Scores::overall([&many, &one]);
        assert_eq!(overall["tpot"]["mean_ape"], 0.2);
        assert_eq!((overall["tpot"]["runs"].as_u64(), &overall["ttft"]), (Some(2), &Value::Null));
    }
}
