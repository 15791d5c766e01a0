//! Fits as bytes: one file of fits, and the one that the project ships.
//!
//! ```text
//! tidegate-kernels 1␤
//! where the numbers are from, one line␤
//! fits
//! ```
//!
//! Numbers are little-endian. What was written is read back bit for bit.

use std::fmt;

use super::Precision;
use super::fit::{FamilyFit, Fit};
use super::form::{CONSTANTS, FEATURES};
use super::gpu::Gpu;
use super::sweep::Family;
use super::trees::{Forest, Tree};

/// First line. The number changes with the layout, or with what a feature or a
/// constant means.
const MAGIC: &str = "tidegate-kernels 1\n";

/// Bytes are not a file of fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// It does not start as one, or is of another version.
    Version,
    /// It ends too early, or holds what none could: at this byte.
    Broken(usize),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version => {
                write!(
                    f,
                    "not a file of kernel fits of this version: allowed first line is {MAGIC:?}"
                )
            }
            Self::Broken(at) => write!(f, "broken file of kernel fits at byte {at}"),
        }
    }
}

impl std::error::Error for StoreError {}

const PRECISIONS: [Precision; 3] = [Precision::Bf16, Precision::Fp8, Precision::Fp8Block];

/// Writes fits; `source` says where the timings are from.
pub fn encode(source: &str, fits: &[Fit]) -> Vec<u8> {
    let mut out = Writer(MAGIC.as_bytes().to_vec());
    out.0.extend(source.replace('\n', " ").bytes());
    out.0.push(b'\n');
    out.byte(fits.len());
    for fit in fits {
        out.gpu(&fit.gpu);
        out.byte(fit.families.len());
        for family in &fit.families {
            out.family(family);
        }
    }
    out.0
}

/// Reads fits, and where they are from.
///
/// # Errors
///
/// When the bytes are not what [`encode`] writes.
pub fn decode(bytes: &[u8]) -> Result<(String, Vec<Fit>), StoreError> {
    let rest = bytes.strip_prefix(MAGIC.as_bytes()).ok_or(StoreError::Version)?;
    let mut input = Reader { rest, all: bytes.len() };
    let source = input.line()?;
    let count = input.byte()?;
    let mut fits = Vec::new();
    for _ in 0..count {
        let gpu = input.gpu()?;
        let families = input.byte()?;
        let families = (0..families).map(|_| input.family()).collect::<Result<_, _>>()?;
        fits.push(Fit { gpu, families });
    }
    if input.rest.is_empty() { Ok((source, fits)) } else { Err(input.broken()) }
}

struct Writer(Vec<u8>);

impl Writer {
    fn byte(&mut self, value: usize) {
        self.0.push(u8::try_from(value).unwrap_or(u8::MAX));
    }

    fn double(&mut self, value: f64) {
        self.0.extend(value.to_le_bytes());
    }

    fn gpu(&mut self, gpu: &Gpu) {
        self.byte(gpu.name.len());
        self.0.extend(gpu.name.bytes().take(255));
        let Gpu { memory, bandwidth, bf16, fp8, link, sms, clock, l2, power, .. } = gpu;
        for value in
            [*memory, *bandwidth, *bf16, fp8.unwrap_or(0.0), *link, *sms, *clock, *l2, *power]
        {
            self.double(value);
        }
        self.0.extend(gpu.capability.to_le_bytes());
        self.0.extend(gpu.per_node.to_le_bytes());
    }

    fn family(&mut self, fit: &FamilyFit) {
        self.byte(Family::ALL.iter().position(|family| *family == fit.family).unwrap_or(255));
        self.byte(fit.constants.len());
        for (precision, constants) in &fit.constants {
            self.byte(PRECISIONS.iter().position(|p| p == precision).unwrap_or(255));
            for constant in constants {
                self.double(*constant);
            }
        }
        for borders in &fit.correction.borders {
            self.byte(borders.len());
            for border in borders {
                self.0.extend(border.to_le_bytes());
            }
        }
        self.0.extend((fit.correction.trees.len() as u32).to_le_bytes());
        for tree in &fit.correction.trees {
            self.byte(tree.splits.len());
            for (feature, border) in &tree.splits {
                self.0.extend([*feature, *border]);
            }
            self.0.extend(tree.unit.to_le_bytes());
            self.0.extend(tree.leaves.iter().map(|leaf| leaf.cast_unsigned()));
        }
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    all: usize,
}

impl<'a> Reader<'a> {
    fn broken(&self) -> StoreError {
        StoreError::Broken(self.all - self.rest.len())
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], StoreError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(|| self.broken())?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StoreError> {
        let at = self.broken();
        self.take(N)?.try_into().map_err(|_| at)
    }

    fn byte(&mut self) -> Result<usize, StoreError> {
        self.array::<1>().map(|[byte]| usize::from(byte))
    }

    fn number(&mut self) -> Result<u32, StoreError> {
        self.array().map(u32::from_le_bytes)
    }

    fn single(&mut self) -> Result<f32, StoreError> {
        let at = self.broken();
        let value = self.array().map(f32::from_le_bytes)?;
        if value.is_finite() { Ok(value) } else { Err(at) }
    }

    fn double(&mut self) -> Result<f64, StoreError> {
        let at = self.broken();
        let value = self.array().map(f64::from_le_bytes)?;
        if value.is_finite() { Ok(value) } else { Err(at) }
    }

    fn line(&mut self) -> Result<String, StoreError> {
        let end = self.rest.iter().position(|byte| *byte == b'\n').ok_or_else(|| self.broken())?;
        let text = self.text(end)?;
        self.take(1)?;
        Ok(text)
    }

    fn text(&mut self, length: usize) -> Result<String, StoreError> {
        let at = self.broken();
        String::from_utf8(self.take(length)?.to_vec()).map_err(|_| at)
    }

    fn gpu(&mut self) -> Result<Gpu, StoreError> {
        let length = self.byte()?;
        let name = self.text(length)?;
        let mut values = [0.0; 9];
        for value in &mut values {
            *value = self.double()?;
        }
        let [memory, bandwidth, bf16, fp8, link, sms, clock, l2, power] = values;
        let fp8 = (fp8 > 0.0).then_some(fp8);
        let (capability, per_node) = (self.number()?, self.number()?);
        Ok(Gpu {
            name,
            memory,
            bandwidth,
            bf16,
            fp8,
            capability,
            per_node,
            link,
            sms,
            clock,
            l2,
            power,
        })
    }

    fn family(&mut self) -> Result<FamilyFit, StoreError> {
        let at = self.broken();
        let family = *Family::ALL.get(self.byte()?).ok_or(at)?;
        let mut constants = Vec::new();
        for _ in 0..self.byte()? {
            let at = self.broken();
            let precision = *PRECISIONS.get(self.byte()?).ok_or(at)?;
            let mut values = [0.0; CONSTANTS];
            for value in &mut values {
                *value = self.double()?;
            }
            constants.push((precision, values));
        }
        let mut borders = Vec::with_capacity(FEATURES);
        for _ in 0..FEATURES {
            let count = self.byte()?;
            borders.push((0..count).map(|_| self.single()).collect::<Result<_, _>>()?);
        }
        let trees = self.number()?;
        let trees = (0..trees).map(|_| self.tree()).collect::<Result<_, _>>()?;
        Ok(FamilyFit { family, constants, correction: Forest { borders, trees } })
    }

    fn tree(&mut self) -> Result<Tree, StoreError> {
        let at = self.broken();
        let depth = self.byte()?;
        if depth > 8 {
            return Err(at);
        }
        let mut splits = Vec::with_capacity(depth);
        for _ in 0..depth {
            let at = self.broken();
            let [feature, border] = self.array()?;
            if usize::from(feature) >= FEATURES {
                return Err(at);
            }
            splits.push((feature, border));
        }
        let unit = self.single()?;
        let leaves = self.take(1 << depth)?.iter().map(|leaf| leaf.cast_signed()).collect();
        Ok(Tree { splits, unit, leaves })
    }
}

/// The fits that the project ships: A100, L40S, H100 and H200. The file's
/// second line has their source; `docs/kernels.md` has the command that made
/// it.
pub fn shipped() -> Vec<Fit> {
    decode(include_bytes!("shipped.fits")).map(|(_, fits)| fits).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Effort, Sample, Shape};
    use super::*;

    fn fit() -> Fit {
        let samples: Vec<Sample> = (1..60)
            .map(|m| Sample {
                shape: Shape::Gemm { m, n: 64 * m, k: 512, precision: Precision::Bf16 },
                micros: 3.0 + f64::from(m % 7),
            })
            .collect();
        Fit::new(&Gpu::named("l40s").unwrap(), &samples, Effort::Quick)
    }

    #[test]
    fn what_was_written_is_read_back() {
        let fits = vec![fit(), fit()];
        let bytes = encode("a\nsource", &fits);
        assert_eq!(decode(&bytes), Ok(("a source".to_string(), fits)));
        assert_eq!(decode(b"tidegate-kernels 0\n"), Err(StoreError::Version));
        for end in [bytes.len() - 1, bytes.len() / 2, MAGIC.len() + 3] {
            let error = decode(&bytes[..end]).unwrap_err();
            assert!(matches!(error, StoreError::Broken(at) if at <= end), "{error}");
        }
        let longer = [bytes.as_slice(), b"x"].concat();
        assert_eq!(decode(&longer), Err(StoreError::Broken(bytes.len())));
    }

    #[test]
    fn four_gpus_are_shipped() {
        let (source, fits) = decode(include_bytes!("shipped.fits")).unwrap();
        assert!(source.contains("aiconfigurator"), "{source}");
        let names: Vec<&str> = fits.iter().map(|fit| fit.gpu.name.as_str()).collect();
        assert_eq!(names, ["a100_sxm", "l40s", "h100_sxm", "h200_sxm"]);
        for fit in &fits {
            assert_eq!(Some(&fit.gpu), Gpu::named(&fit.gpu.name).as_ref(), "fitted as listed");
        }
    }

    proptest! {
        #[test]
        fn broken_bytes_are_told(at in any::<prop::sample::Index>(), value in any::<u8>()) {
            thread_local! {
                static WHOLE: Vec<u8> = encode("", &[fit()]);
            }
            let mut bytes = WHOLE.with(Vec::clone);
            let at = at.index(bytes.len());
            bytes[at] = value;
            if let Ok((_, fits)) = decode(&bytes) {
                // What is read can be used.
                let model = super::super::Model::measured(fits[0].clone());
                model.micros(&Shape::Gemm { m: 1, n: 2, k: 3, precision: Precision::Fp8 });
            }
        }
    }
}
