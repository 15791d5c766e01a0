"""Kernel timings of more GPUs, in the form that `tidegate-sim kernels` reads.

    pip install aiconfigurator-core pyarrow pandas
    python3 sim-harness/bench/aic_tables.py b200_sxm OUT_FOLDER
    tidegate-sim kernels fit --profiles OUT_FOLDER --gpu b200_sxm --out b200.fits

The package (Apache-2.0) carries sweeps of vLLM's kernels for a dozen GPUs. Kept
are the rows that the project's families have: head size 128 without a window,
sizes that are powers of two, the fastest of equal shapes.
"""

import pathlib
import sys

import aiconfigurator_core
import pandas

gpu, out = sys.argv[1], pathlib.Path(sys.argv[2])
data = pathlib.Path(aiconfigurator_core.__file__).parent / "systems" / "data" / gpu
out.mkdir(parents=True, exist_ok=True)
precisions = ["bfloat16", "fp8", "fp8_block"]


def newest(family, name):
    found = sorted(data.glob(f"{family}/vllm/*/{name}.parquet"))
    if not found:
        return None
    table = pandas.read_parquet(found[-1])
    return table.assign(system=gpu, latency_us=(table.latency * 1000).round(3))


def write(name, table, columns):
    table = table.groupby(columns, as_index=False).latency_us.min()
    table.to_csv(out / f"aic_vllm_{name}.csv.gz", index=False)
    print(f"{name}: {len(table)} rows")


if (table := newest("gemm", "gemm_perf")) is not None:
    power = (table.m & (table.m - 1) == 0) & (table.m <= 32768)
    table = table[power & table.gemm_dtype.isin(precisions)]
    write("gemm", table, ["system", "gemm_dtype", "m", "n", "k"])
for source, name in [("context", "attn_context"), ("generation", "attn_generation")]:
    if (table := newest("attention", f"{source}_attention_perf")) is not None:
        plain = (table.head_dim == 128) & (table.window_size == 0)
        table = table[plain & table.kv_cache_dtype.isin(precisions)]
        length = "isl" if source == "context" else "kv_len"
        if source == "generation":
            table = table.assign(kv_len=table.isl + table.step)
        heads = ["num_heads", "num_key_value_heads", "head_dim"]
        write(name, table, ["system", "kv_cache_dtype", "batch_size", length, *heads])
if (table := newest("moe", "moe_perf")) is not None:
    table = table[table.moe_dtype.isin(precisions)]
    sizes = ["num_tokens", "hidden_size", "inter_size", "topk", "num_experts"]
    split = ["moe_tp_size", "moe_ep_size"]
    write("moe", table, ["system", "moe_dtype", "distribution", *sizes, *split])
if (table := newest("comm", "custom_allreduce_perf")) is not None:
    write("allreduce", table, ["system", "backend", "allreduce_dtype", "num_gpus", "message_size"])
