//! All that a worker learned, as one value that workers can exchange.

use super::ema::{RATIOS_MAX, Ratio, Ratios};
use super::output::{Lengths, OUTPUTS_MAX, Outputs};
use super::regress::{Evidence, EvidenceTable};
use super::{Key, MODELS_MAX};
use crate::bytes::{take, take_u64};
use crate::time::Instant;

/// What one worker learned, or a blend of what several did.
#[derive(Clone, Debug, Default)]
pub struct Learned {
    /// Bytes per token, for `ema`.
    pub(super) ratios: Ratios,
    /// What `regress` was taught, for each model.
    pub(super) evidence: EvidenceTable,
    /// Output tokens.
    pub(super) outputs: Outputs,
}

impl Learned {
    /// What several learned, together. The result depends on their order in
    /// the last bits only; give them in a fixed order.
    pub fn blend<'a>(all: impl Iterator<Item = &'a Self> + Clone, decay: f64) -> Self {
        let ratios = Ratios::blend(all.clone().map(|one| &one.ratios), decay);
        let evidence = EvidenceTable::sum(all.clone().map(|one| &one.evidence));
        let mut outputs = Outputs::default();
        for one in all {
            outputs.merge(&one.outputs);
        }
        Self { ratios, evidence, outputs }
    }

    /// Appends its bytes, in a fixed layout.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let ratios = self.ratios.sorted();
        bytes.extend((ratios.len() as u32).to_le_bytes());
        for (key, ratio) in ratios {
            bytes.extend(key.0.to_le_bytes());
            bytes.extend(ratio.mean.to_le_bytes());
            bytes.extend(ratio.deviation.to_le_bytes());
            bytes.extend(ratio.samples.to_le_bytes());
            bytes.extend(ratio.taught.as_nanos().to_le_bytes());
        }
        let evidence = self.evidence.sorted();
        bytes.extend((evidence.len() as u32).to_le_bytes());
        for (key, evidence) in evidence {
            bytes.extend(key.0.to_le_bytes());
            bytes.extend(evidence.taught.as_nanos().to_le_bytes());
            bytes.extend(evidence.answers.to_le_bytes());
            for number in evidence.numbers() {
                bytes.extend(number.to_le_bytes());
            }
        }
        let outputs = self.outputs.sorted();
        bytes.extend((outputs.len() as u32).to_le_bytes());
        for (key, lengths) in outputs {
            bytes.extend(key.0.to_le_bytes());
            bytes.extend(lengths.taught.as_nanos().to_le_bytes());
            bytes.push(lengths.filled().count() as u8);
            for (bucket, count) in lengths.filled() {
                bytes.push(bucket);
                bytes.extend(count.to_le_bytes());
            }
        }
    }

    /// Reads what [`encode`](Self::encode) wrote; `None` if the bytes are
    /// anything else.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let rest = &mut bytes;
        let mut learned = Self::default();
        let count = u32::from_le_bytes(take(rest)?) as usize;
        if count > RATIOS_MAX {
            return None;
        }
        for _ in 0..count {
            let key = Key(take_u64(rest)?);
            let ratio = Ratio {
                mean: f64::from_le_bytes(take(rest)?),
                deviation: f64::from_le_bytes(take(rest)?),
                samples: f64::from_le_bytes(take(rest)?),
                taught: Instant::from_nanos(take_u64(rest)?),
            };
            let sane = |value: f64, max: f64| (0.0..=max).contains(&value);
            let mean = ratio.mean > 0.0 && sane(ratio.mean, 1e3);
            if !mean || !sane(ratio.deviation, 1e3) || !sane(ratio.samples, 1e15) {
                return None;
            }
            learned.ratios.set(key, ratio);
        }
        let count = u32::from_le_bytes(take(rest)?) as usize;
        if count > MODELS_MAX {
            return None;
        }
        for _ in 0..count {
            let key = Key(take_u64(rest)?);
            let mut evidence = Evidence::none(Instant::from_nanos(take_u64(rest)?));
            evidence.answers = f64::from_le_bytes(take(rest)?);
            for number in evidence.numbers_mut() {
                *number = f32::from_le_bytes(take(rest)?);
            }
            learned.evidence.set(key, evidence.sane()?);
        }
        let count = u32::from_le_bytes(take(rest)?) as usize;
        if count > OUTPUTS_MAX {
            return None;
        }
        for _ in 0..count {
            let key = Key(take_u64(rest)?);
            let taught = Instant::from_nanos(take_u64(rest)?);
            let [filled] = take(rest)?;
            let mut pairs = Vec::with_capacity(usize::from(filled));
            for _ in 0..filled {
                let [bucket] = take(rest)?;
                pairs.push((bucket, f32::from_le_bytes(take(rest)?)));
            }
            learned.outputs.set(key, Lengths::from_filled(taught, pairs.into_iter())?);
        }
        rest.is_empty().then_some(learned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in any::<Vec<u8>>()) {
            let _ = Learned::decode(&bytes);
            // One pair of output lengths, and something for its content.
            let mut outputs = [0_u32.to_le_bytes(), 1_u32.to_le_bytes()].concat();
            outputs.extend(&bytes);
            let _ = Learned::decode(&outputs);
        }
    }
}
