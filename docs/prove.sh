#!/bin/bash
# Runs what README and DESIGN claim at full size and writes docs/proof.md:
# command, date, size, result. Called by `make prove`. With ONLY, a regular
# expression, sections whose titles match are run anew and the others stay.
set -euo pipefail
cd "$(dirname "$0")/.."
out=docs/proof.md
data=../shared/data
sim="cargo run --quiet --release -p tidegate-sim-cli --"
export TIDEGATE_PROVE=1 CARGO_TERM_COLOR=never

only=${ONLY:-}
say() { printf '%s\n' "$@" >>"$out"; }
# prove TITLE SHOWN-COMMAND COMMAND...: runs it and keeps what it printed.
prove() {
  local title=$1 shown=$2 section
  shift 2
  [[ $title =~ $only ]] || return 0
  echo "prove: $title" >&2
  section=$(mktemp)
  printf '%s\n' "## $title" "" "$(date -u +%Y-%m-%d), commit $(git rev-parse --short HEAD)." "" \
    '```' "\$ $shown" >"$section"
  "$@" >>"$section" 2>&1 || { echo "failed: see $section" >&2; exit 1; }
  printf '```\n' >>"$section"
  put "$title" "$section"
}
# put TITLE FILE: the section of this title becomes what is in the file.
put() {
  python3 - "$out" "$@" <<'END'
import re, sys
out, title, section = sys.argv[1:]
text, new = open(out).read().rstrip("\n"), open(section).read().rstrip("\n")
old = re.search(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", text, re.M | re.S)
if old:
    text = text[:old.start()] + new + "\n\n" + text[old.end():]
else:
    text += "\n\n" + new
open(out, "w").write(text.rstrip("\n") + "\n")
END
}
lines() { "$@" 2>/dev/null | grep -E "$keep" | sed 's/^\.*//'; }

if [ -z "$only" ]; then
  cat >"$out" <<EOF
# Proof

Written by \`make prove\`, $(nproc) cores, $(rustc --version | cut -d' ' -f1,2),
$("${ENVOY:-envoy}" --version | grep -o 'version: [^ ]*' | cut -d/ -f2) (Envoy). Each section says when and at which commit it was run.
EOF
fi

if [ -f "$data/tokens/chat_bodies.jsonl.gz" ]; then
  calibrate() {
    for threshold in 512 2048 8192; do
      $sim calibrate --bodies "$data/tokens/chat_bodies.jsonl.gz" "$@" --threshold "$threshold"
    done
  }
  for of in "--tokenizer llama3" "--tokenizer qwen3" "--tokenizer cl100k_base" \
    "--tokenizer o200k_base" --mixed; do
    prove "Estimators on real bodies, ${of##* }" \
      "tidegate-sim calibrate --bodies chat_bodies.jsonl.gz $of --threshold <512|2048|8192>" calibrate $of
  done
fi

if command -v valgrind >/dev/null; then
  prove "Native instructions for a byte of a chat" "docs/instructions.sh" docs/instructions.sh
elif [ -z "$only" ]; then
  say "" "Native instructions were left out: counting them needs valgrind."
fi

if command -v valgrind >/dev/null; then
  prove "Gate in the simulator" "docs/gate.sh" docs/gate.sh
fi

keep='%|lengths|test result'
prove "The papers' slots" \
  "TIDEGATE_PROVE=1 cargo test --release -p tidegate-sim --test papers -- --nocapture" \
  lines cargo test -q --release -p tidegate-sim --test papers -- --nocapture

# The properties among these tests get so many cases each, whatever the code says: the law, what may
# exceed it, what is reserved, a true Retry-After, reserves that cover, bytes that are not an account.
keep='^test tenant::.* ok$|test result'
prove "A million random cases for each property of tenants" \
  "PROPTEST_CASES=1000000 cargo test --release -p tidegate --lib tenant:: -- --skip any_two_tenants" \
  lines env PROPTEST_CASES=1000000 cargo test --release -p tidegate --lib tenant:: -- --skip any_two_tenants
# Each is half a minute of traffic.
prove "Four thousand random mixes of two tenants in a full pool" \
  "PROPTEST_CASES=4000 cargo test --release -p tidegate --lib any_two_tenants" \
  lines env PROPTEST_CASES=4000 cargo test --release -p tidegate --lib any_two_tenants

keep='tokens an answer|delivers|test result'
prove "What a tenant gets of its rate when every cap is eight times the output" \
  "TIDEGATE_PROVE=1 cargo test --release -p tidegate-sim-cli --test reserve -- --nocapture" \
  lines cargo test -q --release -p tidegate-sim-cli --test reserve -- --nocapture

keep='promised|test result'
prove "A tenant's rate over 60 s, two and four workers, and every end of a request" \
  "TIDEGATE_PROVE=1 cargo test -p tidegate-wasm-tests --test tenants_envoy -- --nocapture" \
  lines cargo test -q -p tidegate-wasm-tests --test tenants_envoy -- --nocapture
prove "Two tenants, two to one, in a full pool over 60 s, two and four workers" \
  "TIDEGATE_PROVE=1 cargo test -p tidegate-wasm-tests --test held_envoy -- --nocapture" \
  lines cargo test -q -p tidegate-wasm-tests --test held_envoy -- --nocapture

keep='p99 of TTFT|flooded / alone|elastic tenants|throughput of|busy|^Ours|test result'
prove "Overload with live pools" \
  "TIDEGATE_PROVE=1 cargo test --release -p tidegate-sim-cli --test overload -- --nocapture" \
  lines cargo test -q --release -p tidegate-sim-cli --test overload -- --nocapture

if cargo +nightly fuzz --version >/dev/null 2>&1; then
  # Four million for each scanner, two million for the configuration.
  fuzz() {
    for target in request usage config; do
      mkdir -p "fuzz/corpus/$target"
      runs=4000000
      [ "$target" = config ] && runs=2000000
      cargo +nightly fuzz run "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
        "-runs=$runs" -rss_limit_mb=4096 2>&1 | sed -n "s/^Done/$target: done/p" || return 1
    done
  }
  prove "Ten million executions of the fuzz targets" \
    "cargo +nightly fuzz run <request|usage|config> fuzz/corpus/<...> fuzz/seeds/<...> -- -runs=<4|4|2 million>" fuzz
elif [ -z "$only" ]; then
  say "" "Fuzzing was left out: it needs cargo-fuzz and a nightly compiler" \
    "(\`cargo install cargo-fuzz\`, \`rustup toolchain install nightly\`)."
fi

keep='(fuel|host calls)$'
prove "Fuel and host calls of one request" \
  "cargo test -p tidegate-wasm-tests --test abi known -- --nocapture" \
  lines cargo test -q -p tidegate-wasm-tests --test abi known -- --nocapture --test-threads 1

keep='pages|test result'
prove "Memory over 100,000 requests of 100,000 models" \
  "TIDEGATE_PROVE=1 cargo test -p tidegate-wasm-tests --test faults memory -- --nocapture" \
  lines cargo test -q -p tidegate-wasm-tests --test faults memory -- --nocapture

keep='requests|test result'
prove "Native and shipped filter decide alike" \
  "TIDEGATE_PROVE=1 cargo test -p tidegate-wasm-tests --test parity -- --nocapture" \
  lines cargo test -q -p tidegate-wasm-tests --test parity -- --nocapture

keep='^(TTFT|end to end)|test result'
prove "Live replicas answer as on virtual time" \
  "TIDEGATE_PROVE=1 cargo test --release -p tidegate-sim-cli --test live -- --nocapture" \
  lines cargo test -q --release -p tidegate-sim-cli --test live -- --nocapture

# Runs a command, and says how long it took and its peak memory.
flat() { /usr/bin/env python3 - "$@" <<'END'
import os, resource, subprocess, sys, time
start = time.monotonic()
subprocess.run(sys.argv[1:], check=True, stderr=subprocess.DEVNULL)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print(f"{time.monotonic() - start:.1f} s, peak memory {peak:.0f} MB")
END
}

cargo build --quiet --release -p tidegate-sim-cli
prove "An hour of 1,000 requests a second" "tidegate-sim run sim-harness/bench/hour.toml" \
  flat target/release/tidegate-sim run sim-harness/bench/hour.toml
planned() { flat target/release/tidegate-sim plan "$@" | grep -E '^Split|^Do not|peak'; }
llama="--model Llama-3.1-70B --gpu a100_sxm --tp 4 --rate 1000 --slo-ttft-p99 2 --slo-tpot-p99 0.08"
for lengths in azure lmsys; do
  prove "A plan for 1,000 requests a second, $lengths" \
    "tidegate-sim plan --lengths $lengths $llama" planned --lengths "$lengths" $llama
done

if [ -f "$data/profiles/aic_vllm_gemm.csv.gz" ]; then
  kernels() {
    for gpu in a100_sxm l40s h100_sxm h200_sxm; do
      $sim kernels score --gpu "$gpu" --test "$data/profiles" "$@"
    done
  }
  each='kernels score --gpu <each> --test profiles'
  prove "Kernel times, fitted on 30 % of the shapes" \
    "tidegate-sim $each --tier measured --split random --share 0.3" \
    kernels --tier measured --split random --share 0.3
  prove "Kernel times, whole curves held out" \
    "tidegate-sim $each --tier measured --split shapes" kernels --tier measured --split shapes
  prove "Kernel times, from the data sheet and other GPUs" \
    "tidegate-sim $each --tier cross" kernels --tier cross
  prove "Step times and schedules of measured serving runs" \
    "tidegate-sim validate --measured measured --profiles profiles" \
    $sim validate --measured "$data/measured" --profiles "$data/profiles"
fi

if [ -f "$data/traces/azure_llm_2023_conv.csv.gz" ]; then
  trace="$data/traces/azure_llm_2023_conv.csv.gz"
  for repeat in 1 517; do
    prove "Memory over $repeat times 19,366 requests" \
      "tidegate-sim engine --trace azure_llm_2023_conv.csv.gz --repeat $repeat" \
      flat target/release/tidegate-sim engine --trace "$trace" --repeat "$repeat"
  done
  prove "Speed beside AISimulate's core" "make bench" sim-harness/bench/speed.sh "$data/traces"
fi

prove "The demo" "tidegate-sim demo" $sim demo
echo "wrote $out" >&2
