"""Entry IDs are pairs of 64 bits: their order, bounds and neighbours, compared with the server's."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from headrace import Reader
from headrace.testing import LocalServer
from support.consumers import consumer_of, take
from support.pipelines import KEY, endpoint_to

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]
EntryId = tuple[int, int]

MAX = 2**64 - 1
EDGES = [0, 1, 9, 10, 99, 100, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 8_640_000_000_000_001, MAX - 1, MAX]


def part(random: Random) -> int:
    return random.choice(EDGES) if random.random() < 0.7 else random.getrandbits(random.randrange(1, 65))


def text(entry: EntryId) -> str:
    return f"{entry[0]}-{entry[1]}"


def neighbour(random: Random, entry: EntryId) -> EntryId:
    """The entry, or the ID before or behind it."""
    number = entry[0] << 64 | entry[1]
    number = min(max(number + random.choice([-1, 0, 1]), 0), 2**128 - 1)
    return number >> 64, number & MAX


@pytest.mark.parametrize("seed", range(2))
def test_ranges_of_random_ids_match_the_server(server: LocalServer, connect: Connect, seed: int) -> None:
    random, client = Random(seed), connect(server)
    ids = sorted({(part(random), part(random)) for _ in range(120)} - {(0, 0)})
    for entry in ids:
        client.execute_command("XADD", KEY, text(entry), "n", "1")
    endpoint = endpoint_to(server)
    metadata = ["entry_id", "entry_ms", "entry_seq", "timestamp"]
    for _ in range(40):
        low, high = (neighbour(random, random.choice(ids)) for _ in range(2))
        # Without a sequence number it is the whole millisecond, at either end.
        start, end = (str(bound[0]) if random.random() < 0.3 else text(bound) for bound in (low, high))
        low, high = low if "-" in start else (low[0], 0), high if "-" in end else (high[0], MAX)
        expected = [text(entry) for entry in ids if low <= entry <= high]
        of_server = client.execute_command("XRANGE", KEY, text(low), text(high))
        assert expected == [entry.decode() for entry, _ in of_server]
        rows = random.choice([1, 7, 8_192])
        with Reader(endpoint, start=start, end=end, metadata=metadata, batch_rows=rows) as reader:
            table = pa.table(reader)
        assert table["entry_id"].to_pylist() == expected, (start, end)
        pairs = zip(table["entry_ms"].to_pylist(), table["entry_seq"].to_pylist(), strict=True)
        assert [text(pair) for pair in pairs] == expected
        with Reader(endpoint, start=end, end=start, reverse=True, metadata=metadata, batch_rows=rows) as reader:
            assert pa.table(reader)["entry_id"].to_pylist() == expected[::-1], (start, end)
        # Each position is the exclusive start of the next reader.
        found: list[str] = []
        with Reader(endpoint, start=start, end=end, metadata=["entry_id"], limit=3) as reader:
            found += pa.table(reader)["entry_id"].to_pylist()
            position = reader.position
        with Reader(endpoint, start=position, end=end, metadata=["entry_id"]) as reader:
            found += pa.table(reader)["entry_id"].to_pylist()
        assert found == expected, (start, end)


def test_random_ids_are_replayed_and_acknowledged(server: LocalServer, connect: Connect) -> None:
    random, client = Random(7), connect(server)
    ids = [text(entry) for entry in sorted({(part(random), part(random)) for _ in range(120)} - {(0, 0)})]
    for entry in ids:
        client.execute_command("XADD", KEY, entry, "n", "1")
    for _ in range(3):
        consumer = consumer_of(server, batch_rows=16, block=0.02, claim=False)
        assert take(consumer, len(ids)) == ids
        consumer.close(release=False)
    with consumer_of(server, batch_rows=16, block=0.02, claim=False) as consumer:
        assert take(consumer, len(ids), ack=True) == ids
        report = consumer.flush()
        assert (report.acked, report.stale, report.dead) == (len(ids), 0, 0)
    assert client.xpending(KEY, "g")["pending"] == 0
