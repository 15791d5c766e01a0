//! What a data sheet says of a GPU.
//!
//! Capacity, bandwidth, peak rates and links are those of the vendors' data
//! sheets as aiconfigurator's system files list them
//! (<https://github.com/ai-dynamo/aiconfigurator>). SM counts and L2 sizes are
//! from NVIDIA's architecture white papers (A100, Ada, H100, Blackwell, RTX
//! Blackwell) and from what the devices report. The clock is the one behind the
//! peak: peak = SMs × operations an SM does in a cycle × clock.

use super::Precision;
use super::csv::{CsvError, Table};

/// Data sheet of one GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// As in the profiles' column `system`.
    pub name: String,
    /// Device memory. Bytes.
    pub memory: f64,
    /// Bandwidth of it. Bytes a second.
    pub bandwidth: f64,
    /// Dense bfloat16 peak of the tensor cores. Operations a second.
    pub bf16: f64,
    /// Dense 8-bit float peak; nothing where there are no such units.
    pub fp8: Option<f64>,
    /// Compute capability × 10: 80, 89, 90, 100, ….
    pub capability: u32,
    /// GPUs of one node.
    pub per_node: u32,
    /// One direction of the links inside a node. Bytes a second.
    pub link: f64,
    /// Streaming multiprocessors.
    pub sms: f64,
    /// The clock behind the peak. Cycles a second.
    pub clock: f64,
    /// Second-level cache. Bytes.
    pub l2: f64,
    /// Thermal design power. Watts; infinite where it is not known.
    pub power: f64,
}

const MB: f64 = 1_048_576.0;

/// name, memory, bandwidth GB/s, bf16 TFLOP/s, fp8, capability, GPUs a node,
/// link GB/s, SMs, L2 MB, W.
type Entry = (&'static str, f64, f64, f64, f64, u32, u32, f64, f64, f64, f64);

#[rustfmt::skip]
const TABLE: [Entry; 13] = [
    ("a100_sxm", 85_899_345_920.0, 2039.0, 312.0, 0.0, 80, 8, 300.0, 108.0, 40.0, 400.0),
    ("a100_pcie", 85_899_345_920.0, 1935.0, 312.0, 0.0, 80, 8, 32.0, 108.0, 40.0, 300.0),
    ("a30", 25_769_803_776.0, 933.0, 165.0, 0.0, 80, 8, 32.0, 56.0, 24.0, 165.0),
    ("l4", 25_769_803_776.0, 300.0, 121.0, 242.0, 89, 8, 32.0, 58.0, 48.0, 72.0),
    ("l40s", 48_305_799_168.0, 864.0, 362.05, 733.0, 89, 8, 32.0, 142.0, 96.0, 350.0),
    ("h100_sxm", 85_899_345_920.0, 3350.0, 989.0, 1978.0, 90, 8, 450.0, 132.0, 50.0, 700.0),
    ("h100_pcie", 85_899_345_920.0, 2000.0, 756.5, 1513.0, 90, 8, 64.0, 114.0, 50.0, 350.0),
    ("h200_sxm", 151_397_597_184.0, 4800.0, 989.0, 1978.0, 90, 8, 450.0, 132.0, 50.0, 700.0),
    ("b200_sxm", 193_273_528_320.0, 7700.0, 2250.0, 4500.0, 100, 8, 900.0, 148.0, 126.0, 1000.0),
    ("b300_sxm", 288_400_343_040.0, 7750.0, 2250.0, 4500.0, 103, 8, 900.0, 148.0, 126.0, 1100.0),
    ("gb200", 198_674_743_296.0, 8000.0, 2500.0, 5000.0, 100, 4, 900.0, 152.0, 126.0, 1200.0),
    ("gb300", 298_013_687_808.0, 8000.0, 2500.0, 5000.0, 103, 4, 900.0, 152.0, 126.0, 1400.0),
    ("rtx_pro_6000_server", 102_641_958_912.0, 1792.0, 467.800_534_963_698, 935.601_069_927_397, 120, 8, 64.0, 188.0, 128.0, 600.0),
];

/// Dense bfloat16 operations of one SM in one cycle.
fn operations_per_cycle(capability: u32) -> f64 {
    match capability {
        100..=119 => 8192.0,
        90..=99 => 4096.0,
        80 => 2048.0,
        81..=88 => 512.0,
        _ => 1024.0,
    }
}

impl Gpu {
    /// The GPUs that the project knows.
    pub fn all() -> Vec<Self> {
        TABLE
            .iter()
            .map(
                |&(
                    name,
                    memory,
                    bandwidth,
                    bf16,
                    fp8,
                    capability,
                    per_node,
                    link,
                    sms,
                    l2,
                    power,
                )| {
                    Self {
                        name: name.into(),
                        memory,
                        bandwidth: bandwidth * 1e9,
                        bf16: bf16 * 1e12,
                        fp8: (fp8 > 0.0).then_some(fp8 * 1e12),
                        capability,
                        per_node,
                        link: link * 1e9,
                        sms,
                        clock: bf16 * 1e12 / (sms * operations_per_cycle(capability)),
                        l2: l2 * MB,
                        power,
                    }
                },
            )
            .collect()
    }

    /// One of them, found as by [`find`]: `H100` is `h100_sxm`.
    pub fn named(name: &str) -> Option<Self> {
        find(&Self::all(), name).cloned()
    }

    /// Reads data sheets: columns as in the data set's `gpus.csv`, and if
    /// present `sm_count`, `boost_hz` and `l2_bytes`. What is not there is
    /// estimated from the others.
    ///
    /// # Errors
    ///
    /// A cell that is not what its column holds, by line and column.
    pub fn parse(file: &str, text: &str) -> Result<Vec<Self>, CsvError> {
        let required = ["system", "mem_bytes", "mem_bw_Bps", "bf16_flops", "sm"];
        let mut table = Table::new(file, text, &required)?;
        let mut gpus = Vec::new();
        while let Some(row) = table.next()? {
            let name = row.text("system").unwrap_or_default();
            if name.is_empty() {
                return Err(row.error("system", "the GPU's name"));
            }
            let (bf16, capability) = (row.positive("bf16_flops")?, row.count("sm")?);
            let known = Self::named(name).filter(|gpu| gpu.name == name);
            let per_cycle = operations_per_cycle(capability);
            // Chips of data centres clock near 1.8 GHz, those with GDDR 2.4.
            let usual = if per_cycle > 1024.0 { 1.8e9 } else { 2.4e9 };
            let sms = match (row.optional("sm_count")?, row.optional("boost_hz")?, &known) {
                (Some(count), ..) => count,
                (None, Some(clock), _) => bf16 / per_cycle / clock,
                (None, None, Some(gpu)) => gpu.sms,
                (None, None, None) => bf16 / per_cycle / usual,
            };
            let sms = libm::round(sms).max(1.0);
            let clock = row.optional("boost_hz")?.unwrap_or(bf16 / per_cycle / sms);
            let l2_guess = match capability {
                100.. => 126.0,
                90..=99 => 50.0,
                89 => 0.7 * sms,
                _ => 0.37 * sms,
            };
            let link = row.optional("intra_node_Bps_1dir")?.unwrap_or(32e9);
            let power = row.optional("tdp_w")?.unwrap_or(f64::INFINITY);
            gpus.push(Self {
                power,
                name: name.into(),
                memory: row.positive("mem_bytes")?,
                bandwidth: row.positive("mem_bw_Bps")?,
                bf16,
                fp8: row.optional("fp8_flops")?,
                capability,
                per_node: row.optional("gpus_per_node")?.map_or(8, |count| count as u32),
                link,
                sms,
                clock,
                l2: row.optional("l2_bytes")?.unwrap_or(known.map_or(l2_guess * MB, |gpu| gpu.l2)),
            });
        }
        Ok(gpus)
    }

    /// Peak for operands of this precision. Operations a second.
    pub fn peak(&self, precision: Precision) -> f64 {
        match precision {
            Precision::Bf16 => self.bf16,
            Precision::Fp8 | Precision::Fp8Block => self.fp8.unwrap_or(self.bf16),
        }
    }

    /// Microseconds of so many cycles.
    pub(super) fn cycles(&self, count: f64) -> f64 {
        count / self.clock * 1e6
    }

    /// What the L2 delivers. Bytes a second. Data sheets do not say; bytes an
    /// SM gets in a cycle, as micro-benchmarks of these generations report them.
    pub(super) fn l2_bandwidth(&self) -> f64 {
        let bytes = match self.capability {
            80..=88 => 32.0,
            90..=119 => 23.0,
            _ => 12.5,
        };
        (bytes * self.sms * self.clock).max(1.5 * self.bandwidth)
    }

    /// Query rows that a block of causal attention with heads of 128 works on:
    /// 64 on chips with 100 KB of shared memory an SM, else 128
    /// (FlashAttention's launch templates).
    pub(super) fn attention_rows(&self) -> f64 {
        if matches!(self.capability, 86..=89 | 120..=129) { 64.0 } else { 128.0 }
    }

    /// Links of its own between GPUs, and not PCIe.
    pub(super) fn has_switch(&self) -> bool {
        self.link > 100e9
    }

    /// Share of the peak that the power allows for long. Dynamic power grows
    /// with the square of the clock; the unit is set so that the H100 SXM
    /// holds at its limit the 85 % that large products reach on it, which
    /// is an assumption. Older chips need more for one operation, newer less.
    pub(super) fn sustained(&self) -> f64 {
        let joule = match self.capability {
            80..=88 => 0.6,
            100..=119 => 0.19,
            _ => 0.249,
        };
        let clock = self.clock / 1e9;
        (self.power / (self.bf16 / 1e12) / (joule * clock * clock)).clamp(0.2, 1.0)
    }

    /// Asynchronous tensor cores with their own kernels (FlashAttention 3 and
    /// later), and not those of Ampere and Ada.
    pub(super) fn is_asynchronous(&self) -> bool {
        (90..120).contains(&self.capability)
    }
}

/// A GPU by its name; without the form (`h100` is the first of `h100_…`), or
/// with one where the table has none (`gb200_sxm` is `gb200`).
pub fn find<'a>(gpus: &'a [Gpu], name: &str) -> Option<&'a Gpu> {
    let name = name.to_ascii_lowercase();
    gpus.iter()
        .find(|gpu| gpu.name.eq_ignore_ascii_case(&name))
        .or_else(|| gpus.iter().find(|gpu| gpu.name.split('_').next() == Some(name.as_str())))
        .or_else(|| gpus.iter().find(|gpu| name.split('_').next() == Some(gpu.name.as_str())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_those_of_the_devices() {
        for (name, ghz) in
            [("a100", 1.41), ("l40s", 2.49), ("l4", 2.04), ("h100", 1.83), ("a30", 1.44)]
        {
            let clock = Gpu::named(name).unwrap().clock / 1e9;
            assert!((clock - ghz).abs() < 0.01, "{name}: {clock}");
        }
        assert_eq!(Gpu::named("H100").unwrap().name, "h100_sxm");
        assert_eq!(Gpu::named("h10"), None);
    }

    #[test]
    fn a_gpu_of_a_file_needs_no_more_than_its_data_sheet() {
        let head = "system,mem_bytes,mem_bw_Bps,bf16_flops,fp8_flops,sm";
        let read = |text: &str| Gpu::parse("g.csv", text);
        let gpus = read(&format!("{head}\nx100,8e10,4e12,1e15,2e15,90\nx80,8e10,2e12,3e14,,80\n"));
        let gpus = gpus.unwrap();
        assert!((130.0..140.0).contains(&gpus[0].sms), "{}", gpus[0].sms);
        assert_eq!(gpus[0].peak(Precision::Fp8), 2e15);
        assert_eq!(gpus[1].peak(Precision::Fp8), 3e14);
        let known = read(&format!("{head}\nl40s,48305799168,864e9,362.05e12,733e12,89\n")).unwrap();
        assert_eq!((known[0].sms, known[0].l2), (142.0, 96.0 * MB));
        let extra = read(&format!("{head},sm_count,boost_hz,l2_bytes\nx,1,1,1e15,,90,10,1e9,77\n"));
        let extra = extra.unwrap();
        assert_eq!((extra[0].sms, extra[0].clock, extra[0].l2), (10.0, 1e9, 77.0));
        let error = read(&format!("{head}\nx,8e10,fast,1e15,,90\n")).unwrap_err().to_string();
        assert_eq!(
            error,
            "g.csv: line 2, column mem_bw_Bps: found \"fast\", allowed is a number above 0"
        );
        assert!(read("system,sm\n").unwrap_err().to_string().contains("line 1, column mem_bytes"));
        let short = read(&format!("{head}\nx,1\n")).unwrap_err().to_string();
        assert!(short.contains("line 2") && short.contains("2 cells"), "{short}");
    }
}
