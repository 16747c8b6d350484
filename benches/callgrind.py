"""Read the output of callgrind: instructions by function, and allocations by caller."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

#: Functions of the C library that allocate or grow memory.
ALLOCATORS = {"malloc", "calloc", "realloc", "reallocarray", "posix_memalign", "aligned_alloc", "memalign"}

_NAME = re.compile(r"(c?)(fn|ob)=(\(\d+\))(?: (.*))?$")


@dataclass(frozen=True)
class Counts:
    """The counts of one dump. The name of a function includes the file from which it was loaded."""

    instructions: int
    by_function: Counter[str]
    allocations_by_caller: Counter[str]

    @property
    def allocations(self) -> int:
        return self.allocations_by_caller.total()


def read(dump: Path) -> Counts:
    """Read a dump; its format is in the Callgrind Format Specification of valgrind's manual.

    Raises:
        ValueError: It has no counts, or they do not add up to its total.
    """
    names: dict[tuple[str, str], str] = {}
    by_function: Counter[str] = Counter()
    allocations: Counter[str] = Counter()
    # What the following lines belong to; `cob=` applies to one call only.
    file = function = callee = ""
    of_call = False
    total = 0
    with dump.open(encoding="utf-8", errors="replace") as text:
        for line in text:
            if found := _NAME.match(line):
                called, kind, number, name = found.groups()
                name = names.setdefault((kind, number), name or "")
                if kind == "ob":
                    file = file if called else Path(name).name
                elif called:
                    callee = name
                else:
                    function = f"{name} [{file}]"
            elif found := re.match(r"calls=(\d+)", line):
                # A name may include its version or its depth: `malloc'2`.
                if re.split(r"['@]", callee)[0] in ALLOCATORS:
                    allocations[function] += int(found[1])
                of_call = True
            elif found := re.match(r"(?:\d+|[+-]\d+|\*) (\d+)$", line):
                # The line after `calls=` counts what happened inside the call.
                if not of_call:
                    by_function[function] += int(found[1])
                of_call = False
            elif found := re.match(r"totals: (\d+)$", line):
                total = int(found[1])
    if not total or by_function.total() != total:
        raise ValueError(f"{dump}: {by_function.total():,} instructions in functions, {total:,} in all")
    return Counts(total, by_function, allocations)
