"""redis-rs's blocking cluster client: the program `cluster_pipe` of rust/headrace-bench."""

from __future__ import annotations

import subprocess

from benches.contenders.common import now, payloads
from benches.contenders.streams import STREAMS
from benches.programs import bench_program
from benches.turns import Done, Run, Target


def prepare(target: Target) -> Run:
    """Prepare the program; the CPU figure is that of the program alone."""
    server, prefix = f"{target.host}:{target.port}", f"{target.stream_key}:stream-"
    numbers = [str(number) for number in (STREAMS, target.rows, target.maxlen)]
    command = [str(bench_program("cluster_pipe")), server, prefix, *numbers, now()]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n".join([*payloads(target), b"", b""]))
    process.stdin.flush()
    if process.stdout.readline() != b"ready\n":
        raise RuntimeError("cluster_pipe ended before it was ready")

    def run() -> Done:
        printed, _ = process.communicate(b"\n")
        rows, seconds, cpu = printed.split()
        return Done(int(rows), {"seconds": float(seconds), "client_cpu": float(cpu)})

    return run
