#!/usr/bin/env bash
# Fetches an emulator and a Python for aarch64, as Debian packages, without root and without installing anything:
#
#   tools/get_aarch64_python.sh DIR     puts DIR/python there, which runs Python 3.11 of aarch64
#
# The first call takes some 10 s and 75 MB; what is there already is kept. Without apt or a Debian mirror it fails.
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: $0 DIR" >&2; exit 2; }
tools=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)

say() { echo "get_aarch64_python: $*" >&2; }

[ ! -x "$dir/python" ] || exit 0
# shellcheck source=tools/debian_packages.sh
. "$tools/debian_packages.sh"
find_mirror || { say "$why, so no emulator and Python are fetched"; exit 1; }
work=$(mktemp -d "$dir/.work.XXXXXX")
trap 'rm -rf "$work"' EXIT

mkdir "$work/emulator" && cd "$work/emulator"
download bookworm "$(dpkg --print-architecture)" qemu-user-static
unpack "$work/all"
mv "$work/all/usr/bin/qemu-aarch64-static" "$dir/" # the package has one for each architecture
mkdir "$work/python" && cd "$work/python"
download bookworm arm64 python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libexpat1 zlib1g libssl3 libffi8 \
    libgcc-s1 libsqlite3-0 liblzma5 libbz2-1.0 libuuid1 libcrypt1
unpack "$dir/system"
printf '#!/bin/sh\nexec "%s" -L "%s" "%s" "$@"\n' \
    "$dir/qemu-aarch64-static" "$dir/system" "$dir/system/usr/bin/python3.11" > "$dir/python.new"
chmod +x "$dir/python.new"
mv "$dir/python.new" "$dir/python"
