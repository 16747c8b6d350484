"""Runs a laboratory, in the folder of the project: PYTHONPATH=tests python -m laboratory NAME

The exit status is 0 if nothing is wrong, 1 if something is or the run was stopped, and 2 for wrong options. Ctrl-C and
SIGTERM end what was started, and remove its files.
"""

from __future__ import annotations

import argparse
import atexit
import importlib
import inspect
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from laboratory import LABORATORIES, Run, Work

#: A laboratory in the text of its file: its name and its summary.
_DECLARED = re.compile(r'^@laboratory(?:.|\n)*?\ndef (\w+)\(this: Run\) -> str:\n    """(.*?)(?:"""|\n)', re.MULTILINE)


def main(words: Sequence[str]) -> int:
    every = declared()
    listed = "\n".join(f"  {name:<17} {summary}" for name, (_, summary) in sorted(every.items()))
    parser = _parser("", __doc__, f"laboratories, each with its own --help:\n{listed}")
    parser.add_argument("name", metavar="NAME", nargs="?", choices=["", *sorted(every)], default="")
    name = parser.parse_args(words[:1]).name
    if not name:
        parser.print_help()
        return 0
    # For the files of all processes. Short: the path of a Unix socket has at most 100 bytes. Removed at the very end,
    # after all that later imports register: the helpers of multiprocessing use it, and the servers.
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="hr-lab-")
    atexit.register(shutil.rmtree, tempfile.tempdir, ignore_errors=True)
    importlib.import_module(f"{every[name][0]}.laboratory")
    work, options = LABORATORIES[name]
    parser = _parser(f" {name}", inspect.getdoc(work))
    for option in options:
        option.add(parser)
    return conduct(work, Run(name, options, parser.parse_args(words[1:]), Path(tempfile.tempdir)))


def declared() -> dict[str, tuple[str, str]]:
    """The folder and the summary of each laboratory. Read, not imported: some need packages, which take time."""
    texts = {path: path.read_text() for path in sorted(Path(__file__).parents[1].glob("*/laboratory.py"))}
    found = [(path, *each) for path, text in texts.items() for each in _DECLARED.findall(text)]
    return {name.replace("_", "-"): (path.parent.name, summary) for path, name, summary in found}


def _parser(name: str, description: str | None, epilog: str = "") -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"python -m laboratory{name}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def conduct(work: Work, this: Run) -> int:
    """Do the work of a laboratory. Returns the exit status."""
    # Thousands of faults cause thousands of retries, each with two warnings.
    logging.getLogger("headrace").setLevel(logging.ERROR)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C, so that servers and processes are ended
    began, is_stopped = time.monotonic(), False
    try:
        did = work(this)
    except KeyboardInterrupt:
        is_stopped, did = True, "stopped" + "; the same command continues" * this.results.are_kept
    finally:
        keep = getattr(this.options, "keep", None)
        if keep or (keep is not None and this.wrong):
            atexit.unregister(shutil.rmtree)
            this.say(f"files: {this.folder}")
    this.say(f"{this.name}: {did}; {this.wrong} wrong; {time.monotonic() - began:,.0f} s")
    return 1 if this.wrong or is_stopped else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
