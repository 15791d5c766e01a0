#!/bin/bash
# Runs what README and DESIGN claim at full size and writes docs/proof.md:
# command, date, size, result. Called by `make prove`.
set -euo pipefail
cd "$(dirname "$0")/.."
out=docs/proof.md
data=../shared/data
sim="cargo run --quiet --release -p tidegate-sim-cli --"
export TIDEGATE_PROVE=1 CARGO_TERM_COLOR=never

say() { printf '%s\n' "$@" >>"$out"; }
# prove TITLE SHOWN-COMMAND COMMAND...: runs it and keeps what it printed.
prove() {
  local title=$1 shown=$2
  shift 2
  echo "prove: $title" >&2
  say "" "## $title" "" '```' "\$ $shown"
  "$@" >>"$out" 2>&1 || { say "(failed)" '```'; echo "failed: see $out" >&2; exit 1; }
  say '```'
}
lines() { "$@" 2>/dev/null | grep -E "$keep" | sed 's/^\.*//'; }

cat >"$out" <<EOF
# Proof

Written by \`make prove\` on $(date -u +%Y-%m-%d), $(nproc) cores, $(rustc --version | cut -d' ' -f1,2),
$("${ENVOY:-envoy}" --version | grep -o 'version: [^ ]*' | cut -d/ -f2) (Envoy), commit $(git rev-parse --short HEAD).
EOF

if [ -f "$data/tokens/chat_bodies.jsonl.gz" ]; then
  for tokenizer in llama3 qwen3 cl100k_base o200k_base; do
    prove "Estimators on real bodies, $tokenizer" \
      "tidegate-sim calibrate --bodies chat_bodies.jsonl.gz --tokenizer $tokenizer --threshold 4096" \
      $sim calibrate --bodies "$data/tokens/chat_bodies.jsonl.gz" --tokenizer $tokenizer --threshold 4096
  done
fi

keep='fuel$'
prove "Fuel of one request" "cargo test -p tidegate-wasm-tests --test abi fuel -- --nocapture" \
  lines cargo test -q -p tidegate-wasm-tests --test abi fuel -- --nocapture

keep='pages|test result'
prove "Memory over 100,000 requests of 100,000 models" \
  "TIDEGATE_PROVE=1 cargo test -p tidegate-wasm-tests --test faults memory -- --nocapture" \
  lines cargo test -q -p tidegate-wasm-tests --test faults memory -- --nocapture

keep='requests|test result'
prove "Native and shipped filter decide alike" \
  "TIDEGATE_PROVE=1 cargo test -p tidegate-wasm-tests --test parity -- --nocapture" \
  lines cargo test -q -p tidegate-wasm-tests --test parity -- --nocapture

prove "The demo" "tidegate-sim demo" $sim demo
echo "wrote $out" >&2
