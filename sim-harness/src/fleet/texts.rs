//! Prompts of a wanted number of tokens, as the gateway's scanner would count
//! them. The gate sees the counts of a real text, not what kind it is.

use tidegate::estimate::Tally;

use crate::rng::Pcg;
use crate::texts::{Kind, TOKENS, units};

/// Bytes of text that are prepared for each kind.
const PREPARED: usize = 512 << 10;
/// Deviation of the tokens of a text from those of its parts. Real texts differ
/// more than shuffled sentences do: names, spelling, formatting. Chosen so that
/// the estimator errs on these texts about as much as on the real ones that
/// `tidegate-sim calibrate` is given.
const SPREAD: f64 = 0.035;

/// A long text of one kind, of which prompts are pieces.
#[derive(Debug)]
pub(super) struct Prepared {
    text: Vec<u8>,
    /// Where each unit starts, in bytes and in tokens, and the end of the last.
    starts: Vec<(u32, u32)>,
}

impl Prepared {
    /// The same text for the same kind, whatever the seed of a run.
    pub(super) fn new(kind: Kind) -> Self {
        let counts = Kind::ALL.into_iter().zip(TOKENS).find(|(one, _)| *one == kind);
        let counts = counts.map_or(&[][..], |(_, counts)| counts);
        let all = units(|_, text| text);
        let texts = all.into_iter().find(|(one, _)| *one == kind).map_or(Vec::new(), |(_, u)| u);
        let units: Vec<(String, u8)> = texts.into_iter().zip(counts.iter().copied()).collect();
        let (mut rng, mut text, mut starts, mut tokens) =
            (Pcg::new(0, kind as u64), Vec::with_capacity(PREPARED + 1024), vec![(0, 0)], 0);
        while text.len() < PREPARED
            && let Some((unit, count)) = rng.pick(&units)
        {
            text.extend_from_slice(unit.as_bytes());
            text.extend_from_slice(kind.glue().as_bytes());
            tokens += u32::from(*count);
            starts.push((text.len() as u32, tokens));
        }
        Self { text, starts }
    }

    /// The counts of a text of about so many tokens: a random piece.
    pub(super) fn prompt(&self, tokens: u32, rng: &mut Pcg) -> Tally {
        let noise = (rng.unit() + rng.unit() + rng.unit() - 1.5) * 2.0 * SPREAD;
        let wanted = (f64::from(tokens) * (1.0 + noise)).max(1.0) as u32;
        let all = self.starts.last().map_or(1, |(_, tokens)| *tokens).max(1);
        // A prompt that is longer than the text goes on in the same mix.
        let read = wanted.min(all);
        let room = self.starts.partition_point(|(_, before)| before + read <= all);
        let first = rng.below(u32::try_from(room).unwrap_or(1).max(1)) as usize;
        let (from, before) = self.starts.get(first).copied().unwrap_or_default();
        let end = self.byte(before + read);
        let text = self.text.get(from as usize..end).unwrap_or_default();
        let mut tally = Tally::read(text);
        if wanted > read {
            let more = u64::from(wanted - read) * tally.total() / u64::from(read);
            tally.extend(more);
        }
        tally
    }

    /// Where a token ends, within its unit as if all were of one length.
    fn byte(&self, token: u32) -> usize {
        let after = self.starts.partition_point(|(_, tokens)| *tokens < token);
        let (end, upper) = self.starts.get(after).copied().unwrap_or_default();
        let (start, lower) =
            after.checked_sub(1).and_then(|at| self.starts.get(at)).copied().unwrap_or_default();
        let share =
            u64::from(end - start) * u64::from(token - lower) / u64::from((upper - lower).max(1));
        let mut byte = start as usize + share as usize;
        // Not within a character.
        while byte < self.text.len() && self.text.get(byte).is_some_and(|b| b & 0xC0 == 0x80) {
            byte += 1;
        }
        byte.max(start as usize + 1)
    }
}

#[cfg(test)]
mod tests {
    use tidegate::estimate::Feature;

    use super::*;

    #[test]
    fn prompts_have_the_bytes_of_their_tokens() {
        let mut rng = Pcg::new(3, 3);
        // Bytes per token as cl100k has them, roughly.
        for (kind, ratio) in [(Kind::English, 5.0), (Kind::Json, 2.4), (Kind::Hindi, 2.6)] {
            let prepared = Prepared::new(kind);
            for tokens in [1_u32, 20, 500, 20_000, 500_000] {
                let mean =
                    (0..50).map(|_| prepared.prompt(tokens, &mut rng).total() as f64).sum::<f64>()
                        / 50.0;
                let found = mean / f64::from(tokens);
                assert!(found > ratio * 0.7 && found < ratio * 1.5, "{kind:?} {tokens} {found}");
            }
        }
    }

    #[test]
    fn prompts_of_one_length_differ() {
        let (prepared, mut rng) = (Prepared::new(Kind::English), Pcg::new(1, 1));
        let all: Vec<Tally> = (0..20).map(|_| prepared.prompt(100, &mut rng)).collect();
        let letters = |tally: &Tally| tally.get(Feature::E) / tally.total() as f64;
        let most = all.iter().map(letters).fold(0.0, f64::max);
        let least = all.iter().map(letters).fold(1.0, f64::min);
        assert!(most > least * 1.2, "{least} {most}");
        let again = prepared.prompt(100, &mut Pcg::new(1, 1));
        assert_eq!(all[0], again);
    }

    #[test]
    fn tokens_and_bytes_end_together() {
        let prepared = Prepared::new(Kind::German);
        for window in prepared.starts.windows(2) {
            assert_eq!(prepared.byte(window[1].1), window[1].0 as usize);
        }
    }
}
