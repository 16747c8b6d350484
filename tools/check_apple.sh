#!/usr/bin/env bash
# Compiles the binding for macOS, by the oldest Rust that Cargo.toml allows. Does not link it, which would take Apple's SDK.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-apple-darwin
RUSTUP_TOOLCHAIN=$(sed -nE 's/^rust-version = "([0-9.]+)"/\1/p' Cargo.toml)
export RUSTUP_TOOLCHAIN
command -v rustup > /dev/null || { echo "this takes rustup, for Rust $RUSTUP_TOOLCHAIN and the standard library of $target" >&2; exit 1; }
# Without the network, once it is there.
if ! [ -d "$(rustup run "$RUSTUP_TOOLCHAIN" rustc --print target-libdir --target $target 2> /dev/null)" ]; then
    rustup toolchain install "$RUSTUP_TOOLCHAIN" --profile minimal --target $target
fi
PATH="$PWD/.venv/bin:$PATH" cargo-zigbuild check ${CI:+--locked} --quiet --target $target --package headrace-py
