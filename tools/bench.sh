#!/usr/bin/env bash
# Runs benchmarks on the release build in .bench/release, and draws their pictures:
#
#   tools/bench.sh times [ARGUMENT OF PYTEST…]      headrace beside other clients
#   tools/bench.sh instructions [CASE…]             the instructions of a message
#   tools/bench.sh profile CASE [CASE…]             the same by function, with a wheel that has their names; no pictures
#
# All times go into docs/, and with RECORD all that is measured; else the figures go into .bench.
set -euo pipefail
cd "$(dirname "$0")/.."

what=$1
shift
python=.venv/bin/python
export PYTHONPATH=$PWD/.bench/release
part="$*${HEADRACE_BENCH_ROWS:-}${HEADRACE_BENCH_ROUNDS:-}"
if [ -n "${RECORD:-}" ] || { [ "$what" = times ] && [ -z "$part" ]; }; then
    folder=docs/pictures keep="--document docs/benchmarks.md"
else
    folder=.bench keep=
fi
keep="--figures $folder/figures.json $keep"

case $what in
    times)
        $python -m pytest benches -q -p no:randomly --benchmark-enable --benchmark-only --benchmark-quiet --timeout 600 $keep "$@"
        ;;
    instructions)
        PYTHONPATH=$PYTHONPATH:tests $python -m benches.instructions "$@" $keep
        ;;
    profile)
        tools/step.sh "Building headrace with the names of its functions" .venv/bin/maturin build --release --strip false \
            ${CI:+--locked} --interpreter "$PYO3_PYTHON" --out .bench/profile
        .venv/bin/pip install --quiet --no-deps --upgrade --target .bench/profile/site .bench/profile/headrace-*.whl
        profiled=$1
        [ $# -eq 1 ] || shift
        PYTHONPATH=.bench/profile/site:tests $python -m benches.instructions "$@" --profile "$profiled"
        exit
        ;;
esac
PYTHONPATH=$PYTHONPATH:tests $python -m benches.pictures $folder/figures.json $folder/
