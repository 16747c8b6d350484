#!/usr/bin/env bash
# Runs one long command in silence, and shows that it runs: a clock and its last line on a terminal, else one line now
# and then. If it fails, the end of its output is shown.
#
#   tools/step.sh "What it does" COMMAND ARGUMENT…
set -euo pipefail

title=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
started=$SECONDS

set -m # a process group of its own, so that Ctrl-C here ends all of it
"$@" > "$log" 2>&1 < /dev/null &
pid=$!
set +m
trap 'kill -- "-$pid" 2> /dev/null; exit 130' INT TERM

if [ -t 1 ]; then
    columns=$(tput cols 2> /dev/null || echo 80)
    while kill -0 "$pid" 2> /dev/null; do
        last=$(tail -n 1 "$log" | tr -d '\r\t' | sed 's/\x1b\[[0-9;]*[A-Za-z]//g')
        line="$title … $((SECONDS - started)) s  $last"
        printf '\r\033[K%s' "${line:0:columns-1}"
        sleep 0.3
    done
    printf '\r\033[K'
else
    echo "$title …"
    while kill -0 "$pid" 2> /dev/null; do
        sleep 0.2
        if [ $((SECONDS - started)) -ge ${next:=60} ]; then
            echo "$title: $((SECONDS - started)) s"
            next=$((next + 60))
        fi
    done
fi

status=0
wait "$pid" || status=$?
if [ "$status" -ne 0 ]; then
    echo "$title: failed with status $status after $((SECONDS - started)) s; the end of its output:" >&2
    tail -n 60 "$log" | sed 's/^/  | /' >&2
    exit "$status"
fi
echo "$title: done in $((SECONDS - started)) s"
