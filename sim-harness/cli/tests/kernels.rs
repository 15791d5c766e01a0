//! `tidegate-sim kernels`, on the published sweeps where they are at hand.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at once"
)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tidegate_sim::kernels::score::{Report, Split};
use tidegate_sim::kernels::{
    DecodeAttention, Effort, Family, Fit, Gpu, Kernels, Model, Moe, Precision, PrefillAttention,
    Sample, TABLES, Tier, parse, shipped,
};
use tidegate_sim_cli::files;

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate-sim")).arg("kernels").args(args).output().unwrap()
}

fn failure(args: &[&str]) -> String {
    let output = run(args);
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// A folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let folder =
        std::env::temp_dir().join(format!("tidegate-kernels-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A sweep of a GPU that takes three microseconds and a picosecond a product.
fn made_up(folder: &Path, gpu: &str, sizes: impl Iterator<Item = u32>) {
    let mut text = "system,gemm_dtype,m,n,k,latency_us\n".to_string();
    for m in sizes {
        for n in [512, 1024, 2048, 4096] {
            let micros = 3.0 + f64::from(m * n) * 1024.0 * 1e-6;
            writeln!(text, "{gpu},bfloat16,{m},{n},1024,{micros}").unwrap();
        }
    }
    std::fs::write(folder.join("aic_vllm_gemm.csv"), text).unwrap();
}

#[test]
fn a_sweep_of_another_folder_is_fitted_and_judged() {
    let [train, test] = ["train", "test"].map(folder);
    made_up(&train, "l4", (1..400).step_by(7));
    made_up(&test, "l4", (3..400).step_by(31));
    let [train, test] = [&train, &test].map(|path| path.to_str().unwrap());
    let args = ["score", "--gpu", "L4", "--tier", "measured", "--train", train, "--test", test];
    let output = run(&[&args[..], &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["gpu"], &report["tier"]), (&"l4".into(), &"measured".into()));
    let gemm = &report["families"]["gemm"];
    assert_eq!(gemm["n"], 13 * 4);
    let mape = gemm["mape"].as_f64().unwrap();
    assert!(mape > 0.01 && mape < 0.06, "a fraction: {gemm}");
    assert_eq!(report["overall"]["mape"], gemm["mape"]);
    assert_eq!(output.stdout, run(&[&args[..], &["--json"]].concat()).stdout, "the same again");

    // The same through a file.
    let file = folder("fit").join("l4.fits");
    let file = file.to_str().unwrap();
    assert!(run(&["fit", "--gpu", "l4", "--profiles", train, "--out", file]).status.success());
    let cross = ["score", "--gpu", "l40s", "--tier", "cross", "--fits", file];
    made_up(Path::new(test), "l40s", [8].into_iter());
    let output = run(&[&cross[..], &["--test", test, "--json"]].concat());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["sources"], serde_json::json!(["l4"]));
}

#[test]
fn mistakes_are_named() {
    let sweep = folder("mistakes");
    made_up(&sweep, "l4", 1..3);
    let test = sweep.to_str().unwrap();
    let score = |rest: &[&str]| failure(&[&["score", "--test", test], rest].concat());
    let unknown = score(&["--gpu", "h900", "--tier", "cross"]);
    assert!(unknown.contains("\"h900\"") && unknown.contains("rtx_pro_6000_server"), "{unknown}");
    let none = score(&["--gpu", "h100", "--tier", "measured"]);
    assert!(none.contains("no timing of h100") && none.contains("found: gemm"), "{none}");
    std::fs::write(sweep.join("aic_vllm_moe.csv"), "system,moe_dtype\n").unwrap();
    let column = score(&["--gpu", "l4", "--tier", "measured"]);
    assert!(column.contains("aic_vllm_moe.csv: line 1, column distribution"), "{column}");
    std::fs::write(sweep.join("aic_vllm_moe.csv"), "").unwrap();
    assert!(score(&["--gpu", "l4", "--tier", "measured"]).contains("line 1"));
    std::fs::remove_file(sweep.join("aic_vllm_moe.csv")).unwrap();
    let sheet = sweep.join("gpus.csv");
    std::fs::write(&sheet, "system,mem_bytes,mem_bw_Bps,bf16_flops,sm\nx,1,?,1,1\n").unwrap();
    let sheet = score(&["--gpu", "x", "--tier", "cross", "--gpus", sheet.to_str().unwrap()]);
    assert!(sheet.contains("--gpus") && sheet.contains("line 2, column mem_bw_Bps"), "{sheet}");
    let fits = score(&["--gpu", "l4", "--tier", "cross", "--fits", "Cargo.toml"]);
    assert!(fits.contains("Cargo.toml: not a file of kernel fits"), "{fits}");
    let share = ["--gpu", "l4", "--tier", "measured", "--split", "random", "--share", "1.5"];
    let output = run(&[&["score", "--test", test], &share[..]].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("0 to 1"));
}

/// A GPU of a file is known by what the file says of it.
#[test]
fn a_gpu_that_nobody_measured_has_times() {
    let sweep = folder("unknown");
    made_up(&sweep, "x900", 1..3);
    let sheet = sweep.join("gpus.csv");
    let head = "system,mem_bytes,mem_bw_Bps,bf16_flops,fp8_flops,tdp_w,sm,intra_node_Bps_1dir";
    std::fs::write(&sheet, format!("{head}\nx900,1e11,9e12,3e15,6e15,1000,110,1e12\n")).unwrap();
    let args = ["score", "--gpu", "x900", "--tier", "cross", "--test", sweep.to_str().unwrap()];
    let output = run(&[&args[..], &["--gpus", sheet.to_str().unwrap(), "--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["families"]["gemm"]["n"], 8);
    assert_eq!(report["sources"].as_array().unwrap().len(), 4);
}

fn published(gpu: &str) -> Option<Vec<Sample>> {
    let mut samples = Vec::new();
    for table in TABLES {
        let path = files::shared_data(&format!("profiles/aic_vllm_{table}.csv.gz"))?;
        let text = files::read_text(&path).unwrap();
        samples.extend(parse(table, table, &text, gpu).unwrap());
    }
    Some(samples)
}

#[test]
fn a_quick_fit_of_a_part_is_near_the_rest() {
    let Some(samples) = published("h100_sxm") else { return };
    // Half of the shapes, of which a third is fitted on, and few trees: the
    // figures of docs/kernels.md are from the whole.
    let (part, _) = Split::Random(0.5, 9).part(&samples);
    let (train, test) = Split::Random(0.3, 1).part(&part);
    let gpu = Gpu::named("h100_sxm").unwrap();
    let model = Model::measured(Fit::new(&gpu, &train, Effort::Quick));
    let report = Report::new(&model, Tier::Measured, &test);
    let overall = report.overall();
    assert!(overall.mape < 7.0 && overall.n > 5000, "{report}");
    assert!(overall.roofline > 50.0, "{report}");
    for family in [Family::Gemm, Family::Prefill, Family::Decode, Family::Moe] {
        assert!(report.family(family).unwrap().mape < 12.0, "{report}");
    }
}

#[test]
fn other_gpus_foretell_each_of_the_four() {
    let fits = shipped();
    for (name, limit) in [("a100_sxm", 18.0), ("l40s", 18.0), ("h100_sxm", 8.0), ("h200_sxm", 8.0)]
    {
        let Some(samples) = published(name) else { return };
        let (part, _) = Split::Random(0.1, 3).part(&samples);
        let gpu = Gpu::named(name).unwrap();
        let report = Report::new(&Model::cross(&gpu, &fits), Tier::Cross, &part);
        assert!(report.overall().mape < limit, "{report}");
    }
}

/// A change of any of these is a change of every simulated step.
#[test]
fn shipped_times_are_known() {
    let fits = shipped();
    let mut text = String::new();
    let mut models: Vec<(Model, &str)> =
        fits.iter().cloned().map(|fit| (Model::measured(fit), "measured")).collect();
    models.push((Model::cross(&Gpu::named("b200").unwrap(), &fits), "cross"));
    for (model, tier) in &models {
        let bf16 = Precision::Bf16;
        let decode = DecodeAttention {
            batch: 64,
            context: 1500.5,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            kv: bf16,
        };
        let prefill = PrefillAttention {
            batch: 1,
            new: 2048,
            context: 6144,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            kv: bf16,
        };
        let moe = Moe {
            tokens: 128,
            hidden: 2048,
            intermediate: 768,
            topk: 8,
            experts: 128,
            tp: 1,
            ep: 2,
            precision: bf16,
        };
        let times = [
            model.gemm(64, 6144, 4096, bf16),
            model.gemm(2048, 28_672, 4096, Precision::Fp8),
            model.gemm(64, 128_256, 4096, bf16),
            model.prefill_attention(&prefill),
            model.decode_attention(&decode),
            model.moe(&moe),
            model.all_reduce(4, 64 * 8192, true),
            model.all_reduce(8, 8192 * 8192, false),
            model.elementwise(64 * 4096 * 8),
            model.sampler(64, 128_256),
        ];
        let times: Vec<String> = times.iter().map(|micros| format!("{micros:.6}")).collect();
        writeln!(text, "{} {tier}: {}", model.gpu().name, times.join(" ")).unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels.golden.txt");
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "TIDEGATE_BLESS=1 rewrites {}", path.display());
}
