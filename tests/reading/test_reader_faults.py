"""The reader on connections that break at random bytes, beside trimming: each entry once, each loss counted."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pytest
import redis

from faults.proxy import Direction, Pair, Proxy
from headrace import ConcurrentUseError, ConfigError, ConnectionFailedError, DataLossError, Endpoint, Reader
from headrace.errors import ClosedError
from headrace.testing import LocalServer
from support.certs import Certs
from support.interrupts import interrupted
from support.monitor import Monitor

Connect = Callable[..., redis.Redis]

ROUNDS = 12


def add(client: redis.Redis, first: int, count: int, size: int) -> None:
    pipeline = client.pipeline(transaction=False)
    for number in range(first, first + count):
        pipeline.xadd("s", {"n": str(number), "v": "v" * size}, id=f"{number}-0")
    pipeline.execute()


def numbers(batch: Any) -> list[int]:
    return [int(dict(fields)["n"]) for fields in pa.record_batch(batch)["fields"].to_pylist()]


def break_at_random(proxy: Proxy, random: Random) -> None:
    """Break the connection within the next bytes, in one direction or the other."""
    acts: list[Callable[[Pair], object]] = [Pair.reset, Pair.finish]
    direction: Direction = random.choice(["requests", "replies"])
    proxy.at(direction, random.choice([1, 7, 60, 600, 9_000, 90_000]), random.choice(acts))


class Model:
    """What a reader handed out, checked as it comes: no entry twice, none missing that is not reported as lost.

    A loss may be reported with the batch before the gap, if its entries are trimmed as well by then.
    """

    def __init__(self) -> None:
        self.last = 0
        self.read = 0
        self.lost = 0

    def take(self, batch: Any) -> None:
        for number in numbers(batch):
            assert number > self.last, f"{number} came after {self.last}"
            self.last = number
            self.read += 1
        self.lost += batch.lost
        assert batch.is_lost_exact
        assert batch.last_id == f"{self.last}-0"
        # Entries have the numbers 1, 2, 3, …
        assert self.read + self.lost >= self.last


@pytest.mark.needs("redis-7.0")
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_broken_connections_neither_lose_nor_duplicate_entries(
    seed: int, start_server: Any, program: Any, connect: Connect
) -> None:
    random = Random(seed)
    server = start_server(program, transport="tcp")
    client = connect(server)
    model, added, failures = Model(), 0, 0
    # What is trimmed before the first reader begins is lost too.
    position = '{"v":1,"streams":{"s":{"id":"0-0","n":0}}}'
    with Proxy(server.port) as proxy:
        endpoint = Endpoint(host="127.0.0.1", port=proxy.port, stream_key="s")
        options: dict[str, Any] = {"on_loss": "report", "block": 0.02, "linger": random.choice([0.0, 0.002])}
        for _ in range(20):
            count = random.choice([0, 1, 50, 700])
            add(client, added + 1, count, random.choice([0, 100, 5_000]))
            added += count
            if random.random() < 0.3:
                client.xtrim("s", maxlen=random.choice([0, 10, 300]), approximate=False)
            break_at_random(proxy, random)
            try:
                with Reader(endpoint, start=position, batch_rows=random.choice([7, 100, 8_192]), **options) as reader:
                    while (batch := reader.read(timeout=0.05)) is not None:
                        model.take(batch)
                        position = batch.position
                        if random.random() < 0.1:
                            break_at_random(proxy, random)
            except ConnectionFailedError:
                failures += 1
        proxy.disarm()
        with Reader(endpoint, start=position, end="latest", on_loss="report") as reader:
            before = model.lost
            for batch in reader:
                model.take(batch)
            assert reader.is_lost_exact
            # What was trimmed behind the last entry is in no batch.
            model.lost = before + reader.lost
    assert model.read + model.lost == added
    assert failures > 0


def test_entries_trimmed_while_a_reader_reads_are_counted(any_server: LocalServer, connect: Connect) -> None:
    """A writer that trims to a few entries all the time: every entry is read or counted as lost."""
    client = connect(any_server)
    endpoint = Endpoint.from_url(any_server.url, stream_key="s")
    total, done = 20_000, threading.Event()

    def write() -> None:
        for first in range(1, total + 1, 100):
            pipeline = client.pipeline(transaction=False)
            for number in range(first, first + 100):
                pipeline.xadd("s", {"n": str(number)}, id=f"{number}-0", maxlen=50, approximate=False)
            pipeline.execute()
        done.set()

    model = Model()
    with Reader(endpoint, on_loss="report", linger=0.0, block=0.02) as reader:
        writer = threading.Thread(target=write)
        writer.start()
        while not done.is_set() or model.last < total:
            if (batch := reader.read(timeout=0.05)) is not None:
                model.take(batch)
        writer.join()
    assert model.lost > 0
    assert model.read + model.lost == model.last == total


def test_a_loss_is_raised_once_and_reading_continues(any_server: LocalServer, connect: Connect) -> None:
    client = connect(any_server)
    add(client, 1, 100, 0)
    with Reader(Endpoint.from_url(any_server.url, stream_key="s"), batch_rows=50, end="200") as reader:
        first = reader.read()
        assert first is not None
        add(client, 101, 100, 0)
        client.xtrim("s", maxlen=20, approximate=False)
        found = numbers(first)
        with pytest.raises(DataLossError):
            found.extend(number for batch in reader for number in numbers(batch))
        assert found == list(range(1, len(found) + 1))
        assert [number for batch in reader for number in numbers(batch)] == list(range(181, 201))


def test_ctrl_c_ends_a_wait_without_losing_entries(any_server: LocalServer, connect: Connect) -> None:
    client = connect(any_server)
    with Reader(Endpoint.from_url(any_server.url, stream_key="s"), block=5.0) as reader:
        with interrupted():
            reader.read()
        add(client, 1, 10, 0)
        batch = reader.read()
        assert batch is not None
        assert numbers(batch)[0] == 1


def test_concurrent_calls_are_refused(any_server: LocalServer) -> None:
    with Reader(Endpoint.from_url(any_server.url, stream_key="s"), block=0.05) as reader:
        errors: list[BaseException] = []
        thread = threading.Thread(target=reader.read, args=(2.0,))
        thread.start()
        while not errors and thread.is_alive():
            try:
                reader.read(0.0)
            except ConcurrentUseError as error:
                errors.append(error)
        thread.join()
    assert "one caller at a time" in str(errors[0])
    with pytest.raises(ClosedError):
        reader.read()


def test_a_forked_child_continues_reading_over_its_own_connection(tcp_server: LocalServer, connect: Connect) -> None:
    client = connect(tcp_server)
    add(client, 1, 300, 0)
    endpoint = Endpoint.from_url(tcp_server.url, stream_key="s")
    with Reader(endpoint, end="latest", batch_rows=100) as reader, Monitor(tcp_server) as seen:
        first = next(reader)
        assert numbers(first)[-1] <= 100
        of_the_parent = {command.client for command in seen.seen("XREAD", "XRANGE")}
        before = len(seen.seen())
        child = os.fork()
        if child == 0:
            status = 1
            try:
                found = [number for batch in reader for number in numbers(batch)]
                status = 0 if found == list(range(numbers(first)[-1] + 1, 301)) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        of_the_child = {command.client for command in seen.seen()[before:]}
        assert of_the_parent
        assert of_the_child
        assert not of_the_parent & of_the_child
        assert [number for batch in reader for number in numbers(batch)][-1] == 300


def test_a_reader_over_tls(tls_server: LocalServer, connect: Connect, certs: Certs) -> None:
    client = connect(tls_server)
    add(client, 1, 2_000, 200)
    endpoint = Endpoint.from_url(tls_server.url, stream_key="s", tls_ca_cert=str(certs.ca))
    with Reader(endpoint, end="latest") as reader:
        assert [number for batch in reader for number in numbers(batch)] == list(range(1, 2_001))


def test_an_invalid_timeout_is_refused(any_server: LocalServer) -> None:
    with (
        Reader(Endpoint.from_url(any_server.url, stream_key="s")) as reader,
        pytest.raises(ConfigError, match="timeout"),
    ):
        reader.read(timeout=-1.0)
