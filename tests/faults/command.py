"""The shared parts of the campaigns' commands: temporary folder, signals, and choice of pairs."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import sys
import tempfile


def run_command(arguments: argparse.Namespace) -> int:
    """Run the chosen command; returns the exit code."""
    # Thousands of faults cause thousands of retries, each with two warnings.
    logging.getLogger("headrace").setLevel(logging.ERROR)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C, so that the servers are stopped
    folder = tempfile.mkdtemp(prefix="hr-faults-")
    os.environ["TMPDIR"] = tempfile.tempdir = folder  # the servers' folders are removed with it
    try:
        code: int = arguments.command(arguments)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 1
    else:
        return code
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def list_of(text: str) -> list[str]:
    """The words of a text, which commas or spaces separate."""
    return text.replace(",", " ").split()


def chosen_of(every: list[tuple[str, str]], names: list[str] | None) -> list[tuple[str, str]]:
    chosen = [pair for pair in every if names is None or "/".join(pair) in names]
    if names and len(chosen) < len(names):
        sys.exit(f"pairs of this machine: {', '.join('/'.join(pair) for pair in every)}")
    return chosen
