"""Options of laboratories as data. Those that several have are written once, here."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple


def list_of(text: str) -> list[str]:
    """The words of a text, which commas or spaces separate."""
    return text.replace(",", " ").split()


class Option(NamedTuple):
    """An option `--name`, or an argument. Without a `kind` its type is that of the default; False makes it a flag."""

    name: str
    default: Any
    help: str
    kind: Callable[[str], Any] | None = None
    choices: Sequence[str] | None = None
    is_argument: bool = False

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    def add(self, parser: argparse.ArgumentParser) -> None:
        kind = self.kind or (list_of if isinstance(self.default, list) else type(self.default))
        default = "" if self.default in (None, "", math.inf) else f" (default: {_text(self.default)})"
        if self.is_argument:
            parser.add_argument(self.name, type=kind, choices=self.choices, help=self.help)
        elif self.default is False:
            parser.add_argument(self.flag, action="store_true", help=self.help)
        else:
            more: dict[str, Any] = {"type": kind, "choices": self.choices, "help": self.help + default}
            parser.add_argument(self.flag, default=self.default, **more)

    def words(self, value: Any) -> list[str]:
        """What a command line says to give it this value."""
        return [] if value is False else [*[self.flag] * (not self.is_argument), *[_text(value)] * (value is not True)]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


SEED = Option("seed", 1, "what is random follows from it")
FIRST = Option("first", 0, "number of the first execution")
SERVERS = Option("servers", ["7.0", "8.6", "valkey"], "the newest of each name on this machine")
ONE_SERVER = SERVERS._replace(default=["8.6"])
PAIRS = Option("pairs", None, "such as redis-8.6/idmp,valkey-9.1/redis-py; default: all", list_of)
JOBS = Option("jobs", os.cpu_count() or 1, "processes that work side by side")
KEEP = Option("keep", False, "keep the files of the run even if nothing is wrong")
RESULTS = Option("results", None, "a file of results: the same command continues after an interruption", Path)
RECORD = Option("record", None, "the document whose tables are replaced", Path)
#: They say nothing about what is done, and so are not part of the command that repeats it.
ASIDE = (JOBS, KEEP, RESULTS, RECORD)
