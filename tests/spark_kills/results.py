"""The results of runs, and a table of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

from .plan import KINDS
from .run import Outcome


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of one run."""

    #: The identity of the run: the seed, the server, the versions, the options.
    run: dict[str, Any]
    faults: dict[str, int]
    restarts: int
    entries: int
    lost: int
    duplicated: int
    foreign: int
    out_of_order: int
    reported: dict[str, int]
    seconds: float
    #: Why there is no result (the run hung); empty otherwise.
    error: str = ""
    #: Rows of a stream that were trimmed before the query could read them, and how many the query reported.
    trimmed: int = 0
    reported_trimmed: int = 0
    #: How often a task reported `MARKER_LOST`.
    markers_lost: int = 0

    @classmethod
    def of(cls, run: dict[str, Any], outcome: Outcome) -> Self:
        verdict = outcome.verdict
        return cls(
            run=run,
            faults=dict(outcome.faults),
            restarts=outcome.restarts,
            entries=verdict.entries,
            lost=verdict.lost,
            duplicated=verdict.duplicated,
            foreign=verdict.foreign,
            out_of_order=verdict.out_of_order,
            reported=outcome.reported,
            seconds=round(outcome.seconds, 1),
            trimmed=outcome.trimmed,
            reported_trimmed=outcome.reported_trimmed,
            markers_lost=outcome.markers_lost,
        )

    @classmethod
    def hung(cls, run: dict[str, Any], error: str) -> Self:
        return cls(run, {}, 0, 0, 0, 0, 0, 0, {}, 0.0, error)

    @property
    def well(self) -> bool:
        """Whether the guarantee holds: each row once and in order, or at least once without unreported duplicates.

        A micro-batch that is repeated as a whole, because its driver was killed or its query failed, does not know its
        first run: without `exactly_once` its duplicates are not reported.
        """
        if self.error or self.lost or self.foreign or self.trimmed != self.reported_trimmed:
            return False
        if self.run["exactly_once"] != "off":
            return not (self.duplicated or self.out_of_order)
        replayed = self.restarts or self.faults.get("driver")
        return bool(
            replayed or "possible_duplicates" not in self.reported or self.duplicated <= self.possible_duplicates
        )

    @property
    def mode(self) -> str:
        wait = self.run.get("wait_replicas")
        return str(self.run["exactly_once"]) + (f", wait {wait}" if wait else "")

    @property
    def possible_duplicates(self) -> int:
        """The possible duplicates that the commit messages reported."""
        return self.reported.get("possible_duplicates", 0)

    def __str__(self) -> str:
        if self.error:
            return self.error
        faults = ", ".join(f"{kind} {self.faults[kind]}" for kind in KINDS if kind in self.faults)
        return (
            f"{faults or 'no faults'}; lost {self.lost}, duplicated {self.duplicated}"
            f"{f' (reported {self.possible_duplicates})' * bool(self.reported)}, out of order {self.out_of_order}"
            f"{f', trimmed {self.trimmed} (reported {self.reported_trimmed})' * bool(self.trimmed)}"
            f"{f', markers lost {self.markers_lost}' * bool(self.markers_lost)}"
            f"{f', foreign {self.foreign}' * bool(self.foreign)}; {self.seconds} s"
        )


COLUMNS = (
    "server", "mode", "runs", *(f"{kind}s" for kind in KINDS),
    "restarts", "lost", "duplicated", "reported", "out of order", "trimmed", "reported trimmed", "markers lost", "hung",
)  # fmt: skip


def table(results: Sequence[Result]) -> str:
    """A row for each server and mode: runs, faults by kind, and the counts of rows."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.run["server"], result.mode), []).append(result)
    lines = [COLUMNS, *(_row(*key, group) for key, group in sorted(groups.items()))]
    if len(groups) > 1:
        lines.append(_row("all", "", results))
    texts = [[f"{cell:,}" if isinstance(cell, int) else cell for cell in cells] for cells in lines]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join("  ".join(map(str.rjust, cells, widths)) for cells in texts)


def _row(server: str, mode: str, results: Sequence[Result]) -> tuple[str | int, ...]:
    def total(name: str) -> int:
        return sum(getattr(result, name) for result in results)

    faults = [sum(result.faults.get(kind, 0) for result in results) for kind in KINDS]
    hung = sum(bool(result.error) for result in results)
    ends = (
        total("restarts"),
        total("lost"),
        total("duplicated"),
        total("possible_duplicates"),
        total("out_of_order"),
        total("trimmed"),
        total("reported_trimmed"),
        total("markers_lost"),
        hung,
    )
    return (server, mode, len(results), *faults, *ends)
