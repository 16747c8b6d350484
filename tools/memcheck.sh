#!/usr/bin/env bash
# Runs a little of the fuzzing, and the tests of what handles secrets, under valgrind:
#
#   tools/memcheck.sh PROFILE       of cargo; HEADRACE_FUZZ_EXECUTIONS and HEADRACE_FUZZ_SEED are for the fuzzing
set -euo pipefail
cd "$(dirname "$0")/.."

command -v valgrind > /dev/null || { echo "make memcheck needs valgrind" >&2; exit 1; }
export PROPTEST_CASES=4
# Only leaks of our own count: what the tests' machinery leaves is "possibly lost".
valgrind="valgrind --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite"
cargo --config "target.\"cfg(all())\".runner = \"$valgrind\"" test ${CI:+--locked} --quiet --profile "$1" \
    --package headrace-core --lib -- --test-threads 1 fuzz_tests replies secret pem password xadd send_buffer \
    --skip net::tests --skip secret::tests # they start servers
