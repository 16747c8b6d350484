#!/usr/bin/env bash
# Compiles the binding for macOS without linking it, which would take Apple's SDK.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-apple-darwin
if [ ! -d "$(rustc --print target-libdir --target $target)" ]; then
    command -v rustup > /dev/null || { echo "the standard library of $target is missing, and there is no rustup to add it" >&2; exit 1; }
    rustup target add $target
fi
PATH="$PWD/.venv/bin:$PATH" cargo-zigbuild check ${CI:+--locked} --quiet --target $target --package headrace-py
