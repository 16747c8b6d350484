"""The same entries through every reader, round by round: on this machine, and over a line with a delay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from benches.delay import DelayProxy
from benches.driver import TakeTurn, interleaved
from benches.filled import FIELDS, FilledWatch
from benches.readers import (
    CONSUMER,
    CONSUMER_FIELDS,
    CONSUMER_UNACKED,
    CONSUMERS,
    FLOOR,
    FLOOR_SCRIPT,
    FLOOR_XACK,
    OTHERS,
    OURS,
    READER,
    READER_1000,
    READERS,
    REDIS_PY,
    REDIS_PY_GROUP,
    with_fields,
)
from benches.servers import programs, title
from benches.tables import RATE, SERVER_CPU, Bench, Column
from benches.turns import ROWS, Contender, Target

from headrace.testing import LocalServer
from support import Program

CLIENT_CPU = Column.per_row("client CPU, µs per entry", "client_cpu", 1e6, ",.3f")
COLUMNS = (RATE, CLIENT_CPU, SERVER_CPU)
BENCH = Bench(
    "reading",
    "entries out of a Redis stream, over TCP on this machine",
    columns=COLUMNS,
    # The others relative to ours: how many times more they need.
    ratios=(
        *((ours.name, FLOOR.name) for ours in OURS),
        *((other.name, ours.name) for ours in OURS for other in OTHERS),
    ),
    compared=(RATE, CLIENT_CPU),
)
DISTANT = Bench(
    "reading_distance",
    "entries out of a Redis stream, over a line with a round trip of 1 ms",
    columns=COLUMNS,
    ratios=tuple((READER.name, other.name) for other in (READER_1000, FLOOR, REDIS_PY)),
    compared=(RATE, CLIENT_CPU),
)
CONSUMING = Bench(
    "reading_group",
    "entries through a consumer group, acknowledged, over TCP on this machine",
    columns=COLUMNS,
    ratios=(
        *((ours.name, floor.name) for ours in (CONSUMER, CONSUMER_FIELDS) for floor in (FLOOR_SCRIPT, FLOOR_XACK)),
        (CONSUMER_UNACKED.name, CONSUMER.name),
        (REDIS_PY_GROUP.name, CONSUMER_FIELDS.name),
    ),
    compared=(RATE, CLIENT_CPU),
)
ROUND_TRIP = 0.001
DISTANT_READERS = (FLOOR, READER, READER_1000, REDIS_PY)

Group = tuple[Program, int]
GROUPS: list[Group] = [(program, fields) for fields in FIELDS for program in programs() if program.is_redis]


def name_of(group: Group) -> str:
    program, fields = group
    return f"{title(program)}, {fields} fields"


def target_of(server: LocalServer, fields: int, rows: int) -> Target:
    return replace(Target.at(server, rows), stream_key=f"fields-{fields}")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("number", "group", "contender"), interleaved(GROUPS, READERS, name_of))
def test_reading(
    number: int,
    group: Group,
    contender: Contender,
    server_of: Callable[[Program], LocalServer],
    take_turn: TakeTurn,
) -> None:
    run_turn(BENCH, number, group, contender, server_of, take_turn)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("number", "group", "contender"), interleaved(GROUPS, CONSUMERS, name_of))
def test_reading_group(
    number: int,
    group: Group,
    contender: Contender,
    server_of: Callable[[Program], LocalServer],
    take_turn: TakeTurn,
) -> None:
    run_turn(CONSUMING, number, group, contender, server_of, take_turn)


def run_turn(
    bench: Bench,
    number: int,
    group: Group,
    contender: Contender,
    server_of: Callable[[Program], LocalServer],
    take_turn: TakeTurn,
) -> None:
    program, fields = group
    server = server_of(program)
    with FilledWatch(server) as watch:
        watch.fill(target_of(server, fields, ROWS), fields)
        take_turn(
            bench,
            with_fields(contender, FIELDS[fields]),
            target_of(server, fields, contender.rows()),
            group=name_of(group),
            number=number,
            watch=watch,
            entries=ROWS,
        )


@pytest.fixture(scope="module")
def proxy_of(server_of: Callable[[Program], LocalServer]) -> Iterator[Callable[[Program], DelayProxy]]:
    """Return the line to a server; it is idle while another one is measured."""
    with ExitStack() as stack:
        proxies: dict[Program, DelayProxy] = {}

        def proxy_of(program: Program) -> DelayProxy:
            if program not in proxies:
                proxies[program] = stack.enter_context(DelayProxy(server_of(program), ROUND_TRIP))
            return proxies[program]

        yield proxy_of


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("number", "group", "contender"), interleaved(GROUPS, DISTANT_READERS, name_of))
def test_reading_distance(
    number: int,
    group: Group,
    contender: Contender,
    server_of: Callable[[Program], LocalServer],
    proxy_of: Callable[[Program], DelayProxy],
    take_turn: TakeTurn,
) -> None:
    """The others read pages of 1,000 entries; the reader requests more where they are slow to arrive."""
    program, fields = group
    server = server_of(program)
    with FilledWatch(server) as watch:
        watch.fill(target_of(server, fields, ROWS), fields)
        take_turn(
            DISTANT,
            with_fields(contender, FIELDS[fields]),
            replace(target_of(server, fields, contender.rows()), port=proxy_of(program).port),
            group=name_of(group),
            number=number,
            watch=watch,
            entries=ROWS,
        )
