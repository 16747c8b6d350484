#!/usr/bin/env bash
# Runs the Rust tests: with cargo nextest where there is one, else with cargo test.
#   tools/rust_tests.sh [--all]     without it, what is random runs less often
set -euo pipefail
cd "$(dirname "$0")/.."

locked=${CI:+--locked}
packages="--package headrace-core --package headrace-bench"
# The server that they start; without it they look on PATH. If there is none either, it is that of a Python package.
server=$PWD/.servers/redis-8.6
packaged='from headrace.testing.local_server import packaged_servers as found; print(next(found(), ""))'
if ! [ -x "$server" ] && ! command -v redis-server > /dev/null && ! command -v valkey-server > /dev/null; then
    server=$(.venv/bin/python -c "$packaged" || true)
fi
if [ -x "$server" ]; then export HEADRACE_TEST_SERVER=$server; fi

# Of what proptest generates, the usual size has a quarter of the default.
if [ "${1:-}" = --all ]; then export HEADRACE_TEST_ALL=1; else export PROPTEST_CASES=64; fi

# As many as the processes of pytest: many tests wait.
export NEXTEST_TEST_THREADS=6 RUST_TEST_THREADS=6

if cargo nextest --version > /dev/null 2>&1; then
    cargo nextest run $locked --cargo-profile quick $packages --cargo-quiet --status-level fail --hide-progress-bar
else
    cargo test $locked --profile quick --quiet $packages --lib --bins --tests
fi
cargo test $locked --profile quick --quiet $packages --doc
