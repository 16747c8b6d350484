"""Lag and loss after random histories: the library, the command, a reader and Spark's planning beside what is true.

No Spark runs here.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace import DataLossError, Endpoint, Reader
from headrace._headrace import Commands, StreamInfo, Survey
from headrace.spark.source.bounds import Bound, Bounds, start_place
from headrace.spark.source.entry_ids import LOWEST, Id, show
from headrace.spark.source.offset import StreamOffset
from headrace.spark.source.paging import read_page
from headrace.spark.source.place import Place
from headrace.spark.source.planning import find_news
from headrace.testing import LocalServer
from headrace_command.inspect.diagnosis import diagnose
from headrace_command.inspect.facts import Group, compare
from headrace_command.inspect.look import look
from support import Program
from support.fixture_types import BySize
from support.groups import rows
from support.source import settings
from support.stream_history import KEY, History

Connect = Callable[..., Any]

STEPS = 25


@dataclass
class Query:
    """Where a query of Spark has read to, and what had been removed by then."""

    place: Place
    removed: set[Id]


@pytest.mark.parametrize("deletes", [False, True])
def test_lag_and_loss_after_random_histories(
    server: LocalServer, program: Program, connect: Connect, deletes: bool, by_size: BySize
) -> None:
    """Never below the truth; equal to it where said to be exact; null where the server cannot know it."""
    client = connect(server)
    endpoint = Endpoint(unix_socket=server.unix_socket, stream_key=KEY)
    commands, survey = Commands(endpoint), Survey(endpoint)
    for seed in range(by_size(6, 25)):
        client.flushall()
        choices = random.Random(f"{seed} {deletes}")
        history = History(client, choices, program.counts_entries, deletes)
        steps = [history.add()]
        queries: list[Query] = []
        try:
            for _ in range(STEPS):
                steps.append(history.step())
                (info,) = survey.streams([KEY.encode()])
                check_groups(endpoint, commands, survey, history, has_old_counts(program))
                for query in queries:
                    check_query(server, query, info, history, choices)
                if len(queries) < 4 and choices.random() < 0.2:
                    queries.append(begin(info, history, choices))
        except Exception as error:
            error.add_note(f"seed {seed} after: {'; '.join(steps)}")
            raise


def has_old_counts(program: Program) -> bool:
    """Whether the server counts on from an old number after a loss."""
    return program.is_redis and program.numbers < (7, 2)


def check_groups(
    endpoint: Endpoint, commands: Commands, survey: Survey, history: History, has_old_counts: bool
) -> None:
    found = {row["name"]: row for row in rows(headrace.inspect(endpoint).groups)}
    seen = look(commands, survey, KEY.encode(), None, b"dead")
    assert seen is not None
    of_command = compare(None, seen)
    assert found.keys() == history.groups.keys() == {group.name.decode() for group in of_command.groups}
    alarms = {finding.group for finding in diagnose(of_command, 60) if finding.code == "TRIMMED_UNREAD"}
    entries = history.entries
    for group in of_command.groups:
        name = group.name.decode()
        row, truth = found[name], history.groups[name]
        check_command(group, row, history)
        assert (group.name in alarms) == bool(row["trimmed_unread"])
        is_exact = not history.deleted and not (has_old_counts and truth.has_skipped)
        lag, unread = history.lag(truth), history.unread(truth, history.trimmed)
        is_within = bool(entries) and entries[0] <= truth.position < entries[-1]
        if row["lag"] is None:
            assert is_within, name
        else:
            assert row["lag"] >= lag, name
            assert row["lag"] == lag or not is_exact, name
        if row["trimmed_unread"] is None:
            assert not entries or entries[0] > truth.position, name
            is_unknown = row["entries_read"] is None and truth.position > LOWEST and history.removed
            assert is_unknown or not history.counts, name
        else:
            assert unread <= row["trimmed_unread"], name
            assert row["trimmed_unread"] == unread or not is_exact, name


def check_command(group: Group, row: dict[str, Any], history: History) -> None:
    """The command says what the library says, and more only if it has counted."""
    assert group.trimmed_unread == row["trimmed_unread"]
    assert group.entries_read == row["entries_read"]
    if row["lag"] is not None:
        assert (group.lag, group.lag_unknown) == (row["lag"], None)
        return
    lag = history.lag(history.groups[group.name.decode()])
    if history.counts:
        assert group.lag is None
        assert group.lag_unknown == f"{row['lag_unknown_reason']}; {lag:,} were counted"
    else:
        assert (group.lag, group.lag_unknown) == (lag, None)


def begin(info: StreamInfo, history: History, choices: random.Random) -> Query:
    """A query that begins at any place of the stream."""
    bounds: list[Bound] = ["earliest", "latest", choices.choice(history.ids)]
    place = start_place(Bounds("starting", choices.choice(bounds)), KEY, info, past_end="error")
    return Query(place, history.removed)


def check_query(server: LocalServer, query: Query, info: StreamInfo, history: History, choices: random.Random) -> None:
    """What was lost since the last micro-batch; then the next one, whole or capped."""
    place = query.place
    lost = sum(one > place.id for one in history.trimmed - query.removed)
    loss = place.loss(info)
    if loss is None:
        assert not history.counts
    else:
        assert loss[0] >= lost
        assert loss[0] == lost or not loss[1]
        assert history.deleted or place.added is None or loss[1]
        assert planned(place, info) == loss
        read, is_exact = read_on(server, place)
        assert read == loss[0]
        # A reader does not know that no entry can be added below a start between two entries.
        assert is_exact == loss[1] or not (place.id in history.ids or place.id == LOWEST)
    news = find_news(KEY, StreamOffset(place), info, fails=False)
    if news is None:
        return
    assert news.lost == (loss[0] if loss else 0)
    query.place, query.removed = news.end, history.removed
    if history.counts and choices.random() < 0.5 and news.start.id < news.end.id:
        query.place = read_page(settings(server), KEY, news, choices.randint(1, 5)).end


def planned(place: Place, info: StreamInfo) -> tuple[int, bool]:
    """The loss that ends a query."""
    try:
        find_news(KEY, StreamOffset(place), info, fails=True)
    except DataLossError as error:
        return error.lost, error.exact
    return 0, True


def read_on(server: LocalServer, place: Place) -> tuple[int, bool]:
    """The loss that ends a reader at the same place."""
    counts = {"n": place.added, "removed": place.removed}
    at = {"id": show(place.id), **{name: count for name, count in counts.items() if count is not None}}
    start = json.dumps({"v": 1, "streams": {KEY: at}})
    endpoint = Endpoint(unix_socket=server.unix_socket, stream_key=KEY)
    with Reader(endpoint, start=start, end="latest", on_loss="fail", limit=1) as reader:
        try:
            for batch in reader:
                pa.record_batch(batch)
        except DataLossError as error:
            return error.lost, error.exact
    return 0, True
