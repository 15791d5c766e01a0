"""The runs of speed.sh. Arguments: traces, scratch folder, ours, theirs."""

import csv
import datetime
import gzip
import json
import os
import statistics
import subprocess
import sys
import time

traces, scratch, ours, theirs = sys.argv[1:]
azure = f"{traces}/azure_llm_2023_conv.csv.gz"
mooncake = f"{traces}/mooncake_conversation.jsonl.gz"


def as_mooncake(path):
    """AISimulate reads Mooncake's form only: names for blocks of 512 tokens."""
    out, start, names = f"{scratch}/azure.jsonl", None, 0
    with gzip.open(path, "rt") as lines, open(out, "w") as to:
        for row in csv.DictReader(lines):
            whole, fraction = row["TIMESTAMP"].split(".")
            at = datetime.datetime.fromisoformat(whole + "+00:00").timestamp()
            at = at * 1000 + float("0." + fraction) * 1000
            start = at if start is None else start
            tokens = int(row["ContextTokens"])
            blocks = -(-tokens // 512)
            line = {
                "timestamp": round(at - start, 3),
                "input_length": tokens,
                "output_length": int(row["GeneratedTokens"]),
                "hash_ids": list(range(names, names + blocks)),
            }
            names += blocks
            to.write(json.dumps(line) + "\n")
    return out


def plain(path):
    out = f"{scratch}/mooncake.jsonl"
    with gzip.open(path, "rb") as lines, open(out, "wb") as to:
        to.write(lines.read())
    return out


def run(command):
    """Wall clock, processor seconds, peak memory in MB."""
    start = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"failed: {' '.join(command)}")
    return time.monotonic() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


engine = '{"engine": {"backend": "vllm", "block_size": 16}}'
cases = [
    ("Azure conv, 1 replica", 19_366, 1, azure, as_mooncake(azure)),
    ("Mooncake conversation, 8 replicas", 12_031, 8, mooncake, plain(mooncake)),
]
print(f"{'':<34}{'':<14}{'wall':>9}{'CPU':>9}{'memory':>9}{'requests/s':>12}")
for name, requests, replicas, own, other in cases:
    simple = [ours, "engine", "--trace", own, "--replicas", str(replicas)]
    commands = {
        "tidegate-sim": simple,
        # The same with kernel times of a real GPU, which the peer does not have.
        " with kernels": [*simple, "--gpu", "h100_sxm", "--model", "Llama-3.1-8B"],
        "AISimulate": [theirs, other, "512", str(replicas), engine],
    }
    runs = {who: [] for who in commands}
    for _ in range(5):
        for who, command in commands.items():
            runs[who].append(run(command))
    middle = {who: [statistics.median(x) for x in zip(*r)] for who, r in runs.items()}
    for who, (wall, cpu, memory) in middle.items():
        print(
            f"{name:<34}{who:<14}{wall:>7.2f} s{cpu:>7.2f} s{memory:>6.0f} MB"
            f"{requests / wall:>12,.0f}"
        )
        name = ""
    for who in ("tidegate-sim", " with kernels"):
        wall, cpu, memory = (b / a for a, b in zip(middle[who], middle["AISimulate"]))
        print(f"{'':<34}{'ratio':<14}{wall:>8.1f}x{cpu:>8.1f}x{memory:>7.1f}x  {who.strip()}")
