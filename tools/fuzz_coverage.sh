#!/usr/bin/env bash
# Fuzzes with libFuzzer, which keeps what reaches new code in target/coverage/corpus-TARGET:
#
#   tools/fuzz_coverage.sh TARGET SECONDS
set -euo pipefail
cd "$(dirname "$0")/.."

target=$1 seconds=$2
folder=${CARGO_TARGET_DIR:-target}/coverage
host=$(rustc -vV | sed -n 's/^host: //p')
# The flags of cargo-fuzz, which would want a nightly compiler; what needs one is left out: sanitizers.
flags="--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1"
for flag in level=4 inline-8bit-counters pc-table trace-compares; do
    flags+=" -Cllvm-args=-sanitizer-coverage-$flag"
done

tools/step.sh "Compiling for libFuzzer (the first time some minutes)" env RUSTFLAGS="$flags" \
    cargo build --release --manifest-path rust/headrace-fuzz/Cargo.toml --target "$host" --target-dir "$folder"
mkdir -p "$folder/corpus-$target"
"$folder/$host/release/$target" "$folder/corpus-$target" -dict=rust/headrace-fuzz/replies.dict -max_len=2048 \
    -max_total_time="$seconds" -timeout=10 -rss_limit_mb=512 -malloc_limit_mb=16 -print_final_stats=1 -verbosity=0 \
    -artifact_prefix="$folder/"
