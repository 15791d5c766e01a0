#!/bin/bash
# What the gate costs in the simulator: instructions and nanoseconds of one request's
# open and close, while 12,800 are open, as 400 replicas of 32 sequences hold them.
# Apart from it: what the fleet pays for a request's text, and for its facts. Needs
# valgrind. Times are the least of ten runs; other jobs lengthen them.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --quiet --release -p tidegate-sim --example gate
bin=${CARGO_TARGET_DIR:-target}/release/examples/gate
count() {
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$bin" "$@" 2>&1 |
    awk '/Collected/ { print $NF }'
}
for what in text facts plain spill tenants; do
  # What starting costs falls out.
  none=$(count $what 0) many=$(count $what 4000)
  least=$(for _ in {1..10}; do "$bin" $what 100000; done | awk '{ print $2 }' | sort -n | head -1)
  awk -v what=$what -v none="$none" -v many="$many" -v least="$least" 'BEGIN {
    printf "%-8s %7d instructions, %6d ns\n", what, (many - none) / 4000, least }'
done
