"""The tables: medians of the rounds, and the ratios, which carry over to another machine better than the figures."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import hiredis
import redis
from benches.contenders import BATCH, CONTENDERS, FLOOR, MAXLEN, PAYLOAD_BYTES, PRODUCE, PRODUCE_BATCH, REDIS_PY

import headrace

#: With fewer, a round is over before it is under way.
MEANINGFUL_ROWS = 1_000_000


@dataclass(frozen=True)
class Round:
    """One contender's turn."""

    server: str
    contender: str
    number: int
    rows: int
    seconds: float
    #: CPU seconds, user and system.
    client_cpu: float
    server_cpu: float


Figure = Callable[[Round], float]


def entries_per_second(turn: Round) -> float:
    return turn.rows / turn.seconds


def client_cpu_per_million(turn: Round) -> float:
    return turn.client_cpu / turn.rows * 1e6


def server_cpu_us_per_entry(turn: Round) -> float:
    return turn.server_cpu / turn.rows * 1e6


def tables(rounds: list[Round]) -> Iterator[str]:
    """Lines of Markdown: a table for each server, and the ratios below it."""
    packages = f"headrace {headrace.__version__}, redis-py {redis.__version__}, hiredis {hiredis.__version__}"
    system = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    yield f"{system}, {packages}."
    yield (
        f"XADD MAXLEN ~ {MAXLEN:,} with payload ({PAYLOAD_BYTES} bytes) and ts over TCP on this machine; "
        f"record batches of {BATCH:,} rows."
    )
    yield f"{max(turn.number for turn in rounds)} rounds, taken in turns: median (lowest-highest)."
    if max(turn.rows for turn in rounds) < MEANINGFUL_ROWS:
        yield f"Fewer than {MEANINGFUL_ROWS:,} rows a round: this shows that it runs, not how fast it is."
    for server in dict.fromkeys(turn.server for turn in rounds):
        yield ""
        yield from table([turn for turn in rounds if turn.server == server])


def table(rounds: list[Round]) -> Iterator[str]:
    heads = (rounds[0].server, "entries/s", "client CPU, s per million", "server CPU, µs per entry", "rows a round")
    turns_of = {contender: [turn for turn in rounds if turn.contender == contender.name] for contender in CONTENDERS}
    yield from aligned(
        [
            heads,
            *(
                (
                    contender.name,
                    spread([entries_per_second(turn) for turn in turns], ",.0f"),
                    spread([client_cpu_per_million(turn) for turn in turns], ".2f"),
                    spread([server_cpu_us_per_entry(turn) for turn in turns], ".2f"),
                    f"{turns[0].rows:,}",
                )
                for contender, turns in turns_of.items()
                if turns
            ),
        ]
    )
    yield ""
    for ours in (PRODUCE_BATCH, PRODUCE):
        for other in (REDIS_PY, FLOOR):
            rates = ratios(rounds, entries_per_second, ours.name, other.name)
            cpu = ratios(rounds, client_cpu_per_million, ours.name, other.name)
            if rates:
                yield f"{ours.name} / {other.name}: entries/s {spread(rates, '.2f')}, client CPU {spread(cpu, '.2f')}"


def ratios(rounds: list[Round], figure: Figure, ours: str, other: str) -> list[float]:
    """One for each round: what slowed down the machine for a while is in both of its figures."""
    values = {(turn.contender, turn.number): figure(turn) for turn in rounds}
    numbers = sorted({turn.number for turn in rounds})
    # Of very few rows the clock of the CPU may see nothing.
    pairs = [(values.get((ours, number)), values.get((other, number))) for number in numbers]
    return [mine / theirs for mine, theirs in pairs if mine is not None and theirs]


def spread(values: list[float], form: str) -> str:
    """The median, and the lowest and the highest."""
    if not values:
        return "-"
    return f"{median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def aligned(lines: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """A table of Markdown that can be read as it is."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for number, line in enumerate(lines):
        first, *others = zip(line, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)]
        yield f"| {' | '.join(cells)} |"
        if number == 0:
            yield f"|{'-' * (widths[0] + 2)}|{'|'.join('-' * (width + 1) + ':' for width in widths[1:])}|"
