"""`headrace send` as a process: its cost with its start, compared with a loop in Python that is already running."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from itertools import repeat
from pathlib import Path
from typing import Literal

from benches.contenders.common import payloads
from benches.turns import Done, Run, Target

__all__ = ["send"]

HEADRACE = str(Path(sys.executable).parent / "headrace")


def send(target: Target, form: Literal["lines", "jsonl"]) -> Run:
    """Send a file with one row per line, which is the payload byte for byte."""
    file = tempfile.NamedTemporaryFile(suffix=f".{form}")  # noqa: SIM115, it exists as long as the run
    file.writelines(repeat(b"".join(payload + b"\n" for payload in payloads(target)), target.rows // target.batch))
    file.flush()
    where = ["--unix-socket", target.unix_socket]
    if not target.unix_socket:
        where = ["--host", target.host, "--port", str(target.port)]
    options = ["--format", form, "--maxlen", str(target.maxlen), "-o", "json", *where]

    def run() -> Done:
        before = cpu()
        command = [HEADRACE, "send", target.stream_key, file.name, *options]
        ended = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        return Done(json.loads(ended.stdout)["delivered"], {"client_cpu": cpu() - before})

    return run


def cpu() -> float:
    """Return the CPU seconds of child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
