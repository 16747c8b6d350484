"""The fixtures that take a turn and record its figures.

A benchmark is a test for each turn:

    BENCH = Bench("throughput", "…", columns=(RATE, CLIENT_CPU, SERVER_CPU), ratios=((OURS.name, FLOOR.name),))

    @pytest.mark.parametrize(("number", "program", "contender"), interleaved(programs(), CONTENDERS, label=…))
    def test_throughput(number, program, contender, server_of, take_turn):
        server = server_of(program)
        with ServerWatch(server) as watch:
            target = Target.at(server, contender.rows())
            take_turn(BENCH, contender, target, group=title(program), number=number, watch=watch)

`interleaved` makes the contenders take turns, so that a temporary slowdown of the machine affects all of them.
Tests that cannot use a worker process measure on their own, and pass a `Turn` to the fixture `record`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import pytest
from benches.servers import Watch
from benches.tables import Bench
from benches.turns import ROUNDS, Contender, Target, Turn
from benches.worker import Worker
from pytest_benchmark.fixture import BenchmarkFixture

G = TypeVar("G")


class Record(Protocol):
    """The fixture `record`: records a turn for the tables, the pictures and the JSON."""

    def __call__(self, bench: Bench, turn: Turn) -> None: ...


class TakeTurn(Protocol):
    """The fixture `take_turn`: runs, measures, checks and records one turn of a contender in a separate process.

    Args:
        bench: The benchmark.
        contender: The client under test.
        target: The destination of its rows.
        group: The name of its table, such as the server; ratios are computed within a group.
        number: The round, from 1.
        watch: The server, for its totals (CPU, bytes received) and to check what is stored.
        entries: The number of entries that the stream must hold at the end. Default: one per row.
        warm_up: Whether the worker sends one batch into another stream before its turn, off the clock.
        check: Called after the turn, off the clock, before the stream is deleted.

    Figures: `seconds`, `client_cpu`, `rss`, `peak_rss`, with `watch` also its totals, and those of the contender.
    """

    def __call__(
        self,
        bench: Bench,
        contender: Contender,
        target: Target,
        *,
        group: str,
        number: int,
        watch: Watch | None = None,
        entries: int | None = None,
        warm_up: bool = True,
        check: Callable[[], None] | None = None,
    ) -> Turn: ...


def turn_taker(benchmark: BenchmarkFixture, record: Record) -> TakeTurn:
    """Make the fixture `take_turn`."""

    def take_turn(
        bench: Bench,
        contender: Contender,
        target: Target,
        *,
        group: str,
        number: int,
        watch: Watch | None = None,
        entries: int | None = None,
        warm_up: bool = True,
        check: Callable[[], None] | None = None,
    ) -> Turn:
        with Worker(contender, target, warm_up=warm_up) as worker:
            if watch:
                watch.fresh()
            before = watch.totals() if watch else {}
            done = benchmark.pedantic(worker.go)  # type: ignore[no-untyped-call]
            after = watch.totals() if watch else {}
        assert done.rows == target.rows, f"{contender.name} saw {done.rows:,} of {target.rows:,} rows confirmed"
        if watch:
            stored, expected = watch.entries_added(target.stream_key), target.rows if entries is None else entries
            assert stored == expected, f"{contender.name} left {stored:,} entries instead of {expected:,}"
        if check:
            check()
        assert benchmark.stats is not None
        server = {name: total - before[name] for name, total in after.items()}
        figures = {"seconds": benchmark.stats.stats.total, **server, **done.figures}
        turn = Turn(bench.name, group, contender.name, number, target.rows, figures)
        record(bench, turn)
        benchmark.group = f"{bench.name}: {group}"
        benchmark.extra_info |= {"contender": contender.name, "round": number, "rows": target.rows, **figures}
        return turn

    return take_turn


def interleaved(
    groups: Sequence[G], contenders: Sequence[Contender], label: Callable[[G], str] = str, rounds: int = ROUNDS
) -> list[Any]:
    """Return the parameters (number, group, contender) of every turn, in the order in which they are taken."""
    turns = []
    for number in range(rounds):
        # Each round begins with a different contender, so that none always follows the same one.
        first = number % len(contenders)
        for group in groups:
            for contender in (*contenders[first:], *contenders[:first]):
                # The text of the progress line.
                text = f"round {number + 1} of {rounds}, {label(group)}, {contender.name}"
                turns.append(pytest.param(number + 1, group, contender, id=text))
    return turns
