"""A laboratory at work: its options and its folder, what it says, and what it found wrong."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .options import ASIDE, Option
from .results import Results

#: What a command that repeats something begins with, in the folder of the project.
REPEAT = "PYTHONPATH=tests python -m laboratory"


class Run:
    """One run of a laboratory. `folder` is for its files, and those of all processes that it starts."""

    def __init__(self, name: str, known: Sequence[Option], options: argparse.Namespace, folder: Path) -> None:
        self.name = name
        self.options = options
        self.folder = folder
        self.results = Results(getattr(options, "results", None))
        #: How often something was wrong.
        self.wrong = 0
        self._known = known
        self._print: Callable[[str], object] = print

    def say(self, text: object) -> None:
        """Print something, above the progress."""
        self._print(str(text))
        sys.stdout.flush()

    def is_wrong(self, text: object, repeat: str = "") -> None:
        """Count something wrong and print it, with the command that repeats it. The exit status is then 1."""
        self.wrong += 1
        self.say(f"{text}\n  repeat with: {repeat}" if repeat else text)

    def judge(self, text: object, is_right: bool, **changed: Any) -> None:
        """Print a result. If it is wrong, this run with other values of some options repeats it."""
        if is_right:
            self.say(text)
        else:
            self.is_wrong(text, self.repeat(**changed))

    def repeat(self, **changed: Any) -> str:
        """The command that repeats this run, with other values of some options."""
        return f"{REPEAT} {self._given(**changed)}"

    def record(self, *tables: str) -> None:
        """Put tables into the document that `--record` names, between the marks with the laboratory's name."""
        document: Path | None = self.options.record
        if document:
            begin, end = f"<!-- {self.name} -->\n", f"\n<!-- /{self.name} -->"
            head, _, rest = document.read_text().partition(begin)
            _, found, tail = rest.partition(end)
            if not found:
                raise SystemExit(f"--record {document}: it has no {begin.strip()} … {end.strip()}")
            texts = "\n\n".join([f"`python -m laboratory {self._given()}`:", *tables])
            document.write_text(f"{head}{begin}\n{texts}\n{end}{tail}")

    @contextmanager
    def progress(self, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        """Show how much is done, as a bar on a terminal, else in lines: yields a function that takes what was added."""
        from tqdm import tqdm

        done, began, said = 0, time.monotonic(), time.monotonic()

        def add(count: int) -> None:
            nonlocal done, said
            done += count
            bar.update(count)
            if bar.disable and (now := time.monotonic()) > said + 60:
                said = now
                self.say(f"{done:,} of {total:,} {unit} in {now - began:,.0f} s, {self.wrong} wrong")

        with tqdm(total=total, unit=f" {unit}", dynamic_ncols=True, disable=None) as bar:
            self._print = bar.write
            yield add

    def _given(self, **changed: Any) -> str:
        """The name and the options, some of them changed. What has its default is left out."""
        words = [self.name]
        for option in self._known:
            value = changed.get(option.name, getattr(self.options, option.name))
            if option.name in changed or (option not in ASIDE and value != option.default):
                words += option.words(value)
        return shlex.join(words)


Work = Callable[[Run], str]
#: The laboratories that were imported, by name, and their options.
LABORATORIES: dict[str, tuple[Work, Sequence[Option]]] = {}


def laboratory(*options: Option) -> Callable[[Work], Work]:
    """Make a function a laboratory, with these options."""

    def decorate(work: Work) -> Work:
        LABORATORIES[work.__name__.replace("_", "-")] = (work, options)
        return work

    return decorate
