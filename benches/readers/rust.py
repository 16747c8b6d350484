"""The readers of the program `stream_reader` of rust/headrace-bench: the floor, and redis-rs."""

from __future__ import annotations

import subprocess

from benches.programs import bench_program
from benches.readers import PAGE
from benches.turns import Done, Run, Target


def prepare(target: Target, by: str) -> Run:
    """Prepare the program; the CPU figure is that of the program alone."""
    server = f"{target.host}:{target.port}"
    command = [str(bench_program("stream_reader")), "--server", server, "--key", target.stream_key]
    command += ["--entries", str(target.rows), "--page", str(PAGE), "--by", by]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise RuntimeError("stream_reader ended before it was ready")

    def run() -> Done:
        printed, _ = process.communicate("\n")
        rows, seconds, cpu = printed.split()
        return Done(int(rows), {"seconds": float(seconds), "client_cpu": float(cpu)})

    return run
