#!/bin/bash
# Native instructions for a byte of a chat body: the filter's scanner, and a
# plain memchr pass over the same bytes. Needs valgrind.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --quiet --release --example scan
bin=${CARGO_TARGET_DIR:-target}/release/examples/scan
count() {
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$bin" "$@" 2>&1 |
    awk '/Collected/ { print $NF }'
}
for bytes in 2048 102400; do
  for what in memchr scan; do
    # Ten more runs than one: what starting costs falls out.
    one=$(count $what $bytes 1)
    eleven=$(count $what $bytes 11)
    awk -v what=$what -v bytes=$bytes -v one="$one" -v eleven="$eleven" 'BEGIN {
      each = (eleven - one) / 10
      printf "%-6s %6d bytes: %7d instructions, %.2f a byte\n", what, bytes, each, each / bytes }'
  done
done
