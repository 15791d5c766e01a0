#!/bin/bash
# How fast the engine is, beside AISimulate's core, in one run: whole processes,
# reading included, on the traces in the folder given. Alternates between the two
# and prints medians of five; what counts is the ratio. Called by `make bench`.
set -euo pipefail
traces=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cargo build --quiet --release -p tidegate-sim-cli
# 400 crates: some minutes the first time.
cargo build --quiet --release --manifest-path sim-harness/bench/aisimulate/Cargo.toml \
  --target-dir target/aisimulate
python3 sim-harness/bench/speed.py "$traces" "$scratch" \
  target/release/tidegate-sim target/aisimulate/release/aisimulate-bench
