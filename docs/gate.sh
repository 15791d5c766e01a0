#!/bin/bash
# What the gate costs in the simulator: instructions and nanoseconds of one request's
# open and close, while 12,800 are open, as 400 replicas of 32 sequences hold them.
# Apart from it: what the fleet pays for a request's text, and for its facts. The last
# column is of a build for this processor alone, whose vectors are longer. Needs
# valgrind. Times are the least of ten runs; other jobs lengthen them.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
cargo build --quiet --release -p tidegate-sim --example gate
RUSTFLAGS="-C target-cpu=native" CARGO_TARGET_DIR=$target/native \
  cargo build --quiet --release -p tidegate-sim --example gate
bin=$target/release/examples/gate native=$target/native/release/examples/gate
count() {
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$bin" "$@" 2>&1 |
    awk '/Collected/ { print $NF }'
}
least() {
  for _ in {1..10}; do "$@"; done | awk '{ print $2 }' | sort -n | head -1
}
for what in text facts plain spill tenants; do
  # What starting costs falls out.
  none=$(count $what 0) many=$(count $what 4000)
  awk -v what=$what -v none="$none" -v many="$many" -v least="$(least "$bin" $what 100000)" \
    -v own="$(least "$native" $what 100000)" 'BEGIN {
    printf "%-8s %7d instructions, %6d ns, %6d ns\n", what, (many - none) / 4000, least, own }'
done
