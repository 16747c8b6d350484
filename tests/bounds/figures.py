"""Figures beside their bounds, as a table."""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """The measurements of one case, and their upper bound."""

    bound: str
    case: str
    unit: str
    at_most: float
    measured: list[float]

    @property
    def holds(self) -> bool:
        return bool(self.measured) and max(self.measured) <= self.at_most

    def __str__(self) -> str:
        digits = 0 if self.unit.startswith("file") or self.unit == "threads" else 3
        median, worst, bound = (
            f"{value:.{digits}f}" for value in (statistics.median(self.measured), max(self.measured), self.at_most)
        )
        mark = "" if self.holds else "  <-- EXCEEDED"
        return f"{self.bound:<34} {self.case:<56} {median:>8} {worst:>8} {bound:>8} {self.unit}{mark}"


HEADER = f"{'what':<34} {'case':<56} {'median':>8} {'worst':>8} {'at most':>8}"
