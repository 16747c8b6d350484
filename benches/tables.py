"""The tables: medians of the rounds, and the ratios, which transfer to other machines better than the figures.

A `Bench` describes its tables; each benchmark file has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from benches.turns import Turn

#: With fewer rows, a turn is too short to measure.
MEANINGFUL_ROWS = 1_000_000


@dataclass(frozen=True)
class Column:
    """A column of a table. `of` returns None for a turn without the figure."""

    head: str
    of: Callable[[Turn], float | None]
    form: str = ",.2f"

    @classmethod
    def per_row(cls, head: str, figure: str, scale: float = 1.0, form: str = ",.2f") -> Column:
        """A total of the turn per row, times `scale`."""

        def of(turn: Turn) -> float | None:
            return turn.figures[figure] / turn.rows * scale if figure in turn.figures else None

        return cls(head, of, form)

    @classmethod
    def figure(cls, head: str, figure: str, scale: float = 1.0, form: str = ",.2f") -> Column:
        """A figure as it was measured, times `scale`."""

        def of(turn: Turn) -> float | None:
            return turn.figures[figure] * scale if figure in turn.figures else None

        return cls(head, of, form)


RATE = Column("entries/s", lambda turn: turn.rows / turn.figures["seconds"], ",.0f")
ROW_RATE = Column("rows/s", RATE.of, ",.0f")
CLIENT_CPU = Column.per_row("client CPU, s per million", "client_cpu", 1e6)
SERVER_CPU = Column.per_row("server CPU, µs per entry", "server_cpu", 1e6)


@dataclass(frozen=True)
class Bench:
    """One benchmark file: its name in figures, the heading of its tables, and what they show.

    There is one table per group, followed by the `ratios` of contenders (ours, other) in each of `compared`; with
    `flat`, one table with the group as its first column.
    """

    name: str
    title: str
    columns: Sequence[Column]
    ratios: Sequence[tuple[str, str]] = ()
    compared: Sequence[Column] = (RATE, CLIENT_CPU)
    flat: str = ""


def tables(bench: Bench, turns: Sequence[Turn]) -> Iterator[str]:
    """Yield the lines of Markdown."""
    rounds = max(turn.number for turn in turns)
    yield f"{rounds} rounds, taken in turns: median (lowest-highest)." if rounds > 1 else "One round."
    groups = {name: [turn for turn in turns if turn.group == name] for name in dict.fromkeys(t.group for t in turns)}
    if bench.flat:
        yield ""
        lines = [line for name, members in groups.items() for line in body(bench, members, [name])]
        yield from aligned([(bench.flat, "contender", *heads(bench)), *lines], left=2)
        yield ""
        for name, members in groups.items():
            yield from (f"- {name}: {line}" for line in ratio_lines(bench, members))
        return
    for name, members in groups.items():
        yield ""
        yield from aligned([(name, *heads(bench)), *body(bench, members, [])])
        yield ""
        yield from (f"- {line}" for line in ratio_lines(bench, members))


def heads(bench: Bench) -> list[str]:
    return [*(column.head for column in bench.columns), "rows a turn"]


def body(bench: Bench, turns: Sequence[Turn], first: list[str]) -> Iterator[tuple[str, ...]]:
    for contender in in_order(turns):
        of_it = [turn for turn in turns if turn.contender == contender]
        cells = (spread(values(column, of_it), column.form) for column in bench.columns)
        yield (*first, contender, *cells, f"{of_it[0].rows:,}")


def in_order(turns: Sequence[Turn]) -> list[str]:
    """Return the contenders in the order of the first round."""
    return list(dict.fromkeys(turn.contender for turn in sorted(turns, key=lambda turn: turn.number)))


def values(column: Column, turns: Sequence[Turn]) -> list[float]:
    return [value for turn in turns if (value := column.of(turn)) is not None]


def ratio_lines(bench: Bench, turns: Sequence[Turn]) -> Iterator[str]:
    for ours, other in bench.ratios:
        parts = [
            f"{column.head.partition(',')[0]} {spread(found, '.2f')}"
            for column in bench.compared
            if (found := ratios(turns, column, ours, other))
        ]
        if parts:
            yield f"{ours} / {other}: {', '.join(parts)}"


def ratios(turns: Sequence[Turn], column: Column, ours: str, other: str) -> list[float]:
    """Return the ratio of each round: a temporary slowdown of the machine affects both figures."""
    found = {(turn.contender, turn.number): column.of(turn) for turn in turns}
    pairs = [(found.get((ours, number)), found.get((other, number))) for number in sorted({t.number for t in turns})]
    # With very few rows the CPU clock may show no time.
    return [mine / theirs for mine, theirs in pairs if mine is not None and theirs]


def spread(values: Sequence[float], form: str) -> str:
    """Format the median, the lowest and the highest."""
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:{form}}"
    return f"{median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def aligned(lines: Sequence[tuple[str, ...]], left: int = 1) -> Iterator[str]:
    """Yield a Markdown table that is readable as text; the first `left` columns are words."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for number, line in enumerate(lines):
        cells = list(zip(line, widths, strict=True))
        texts = [text.ljust(width) for text, width in cells[:left]] + [text.rjust(w) for text, w in cells[left:]]
        yield f"| {' | '.join(texts)} |"
        if number == 0:
            rules = ["-" * (width + 2) for width in widths[:left]] + [
                "-" * (width + 1) + ":" for width in widths[left:]
            ]
            yield f"|{'|'.join(rules)}|"
