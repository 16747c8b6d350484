#!/usr/bin/env bash
# Checks that this machine has what headrace is built and tried with, and prints the Python to use.
# Without all of it: one message that names what is missing and how to get it, and exit 1.
#
#   tools/check_machine.sh              PYTHON=… names the Python to use
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
case $(uname -s) in
    Darwin) install="brew install" jdk=openjdk@17 python=python@3.13 cc="xcode-select --install" ;;
    *) install="apt install" jdk=openjdk-17-jre-headless python="python3 python3-venv" cc="apt install gcc" ;;
esac

# at_least WANTED FOUND: compares 1.88 with 1.95.0
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

wanted=$(sed -nE 's/^rust-version = "([0-9.]+)"/\1/p' Cargo.toml)
if ! found=$(cargo --version 2> /dev/null | cut -d ' ' -f 2) || [ -z "$found" ]; then
    missing+=("Rust $wanted or newer (cargo): https://rustup.rs")
elif ! at_least "$wanted" "$found"; then
    missing+=("Rust $wanted or newer (cargo is $found): rustup update")
fi

command -v cc > /dev/null || missing+=("a C compiler (cc): $cc")

# `openjdk version "17.0.15" …`; Java 8 calls itself "1.8.0"
java=${JAVA_HOME:+$JAVA_HOME/bin/}java
found=$("$java" -version 2>&1 | sed -nE 's/.* version "(1\.)?([0-9]+).*/\2/p' | head -n 1 || true)
if [ -z "$found" ]; then
    missing+=("Java 17 or newer, for Spark: $install $jdk")
elif [ "$found" -lt 17 ]; then
    missing+=("Java 17 or newer, for Spark ($java is $found): $install $jdk, and set JAVA_HOME")
fi

chosen='' without_venv=''
for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}; do
    "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || continue
    if "$candidate" -c 'import ensurepip, venv' 2> /dev/null; then
        chosen=$candidate
        break
    fi
    without_venv=$candidate
done
if [ -z "$chosen" ]; then
    if [ -n "$without_venv" ]; then
        missing+=("the venv module of $without_venv: $install python3-venv")
    else
        missing+=("Python 3.11 or newer${PYTHON:+ (PYTHON is $PYTHON)}: $install $python")
    fi
fi

if [ ${#missing[@]} -gt 0 ]; then
    {
        echo "headrace needs these first:"
        printf '  - %s\n' "${missing[@]}"
    } >&2
    exit 1
fi
echo "$chosen"
