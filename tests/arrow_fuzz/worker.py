"""The process that runs executions. If one kills it, its parent reads the number of the execution from a file.

It writes a line of JSON for each finding, and one for its progress at intervals.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import mmap
import resource
import struct
import sys
import time
from dataclasses import asdict
from typing import Any

from .execution import draw
from .session import Session

#: Executions between two flushes.
CHECKED_EVERY = 200
_PROGRESS_EVERY = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m arrow_fuzz.worker", description=__doc__)
    for name in ("seed", "first", "executions"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--unix-socket", required=True)
    parser.add_argument("--place", required=True, help="a file of 8 bytes, for the number of the execution")
    arguments = parser.parse_args()
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(arguments.place, "r+b") as file, mmap.mmap(file.fileno(), 8) as place:
        _execute(arguments, place)


def _execute(arguments: argparse.Namespace, place: mmap.mmap) -> None:
    session = Session(arguments.unix_socket)
    last = arguments.first + arguments.executions
    last_progress = time.monotonic()
    for number in range(arguments.first, last):
        place[:] = struct.pack("<q", number)
        session.run(number, draw(arguments.seed, number))
        if number % CHECKED_EVERY == CHECKED_EVERY - 1:
            session.check()
        _tell_findings(session)
        if time.monotonic() - last_progress > _PROGRESS_EVERY:
            last_progress = time.monotonic()
            _tell_progress(session, number + 1 - arguments.first)
    session.close()
    _tell_findings(session)
    _tell_progress(session, arguments.executions)


def _tell_progress(session: Session, done: int) -> None:
    _tell(progress=done, counts=dict(session.counts))
    session.counts.clear()


def _tell_findings(session: Session) -> None:
    for finding in session.findings:
        _tell(finding=asdict(finding))
    session.findings.clear()


def _tell(**what: Any) -> None:
    print(json.dumps(what), file=sys.stdout, flush=True)


if __name__ == "__main__":
    main()
