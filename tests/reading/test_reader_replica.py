"""A reader of a replica: entries that it has not got yet are waited for, as long as it is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace import Endpoint, Reader, RetryPolicy, StreamReplacedError
from headrace.testing import LocalServer
from support.patience import NEVER, PATIENCE
from support.processes import wait_until

PATIENT = RetryPolicy(initial_backoff=0.005, max_backoff=0.02, deadline=NEVER)


def fill(client: redis.Redis, first: int, last: int, key: str = "s") -> None:
    for number in range(first, last + 1):
        client.xadd(key, {"n": str(number)}, id=f"{number}-0")


def read_all(reader: Reader) -> list[int]:
    return [int(n) for batch in reader for n in pa.record_batch(batch)["n"].to_pylist()]


@dataclass
class Behind:
    """A replica that has 1-0 to 100-0 of the stream, of which its master has twice as many."""

    master: redis.Redis
    replica: redis.Redis
    endpoint: Endpoint
    #: Behind entry 200-0.
    position: str
    pool: ThreadPoolExecutor
    port: int

    def read(self, **options: Any) -> Future[list[int]]:
        """Read in a thread, which waits for the replica when this returns."""
        future = self.pool.submit(self._read, options)
        wait_until(lambda: future.done() or self._waits() >= 3)
        return future

    def _read(self, options: dict[str, Any]) -> list[int]:
        with Reader(self.endpoint, start=self.position, fields=["n"], block=0.01, retry=PATIENT, **options) as reader:
            return read_all(reader)

    def _waits(self) -> int:
        return int(self.replica.info("commandstats").get("cmdstat_xread", {}).get("calls", 0))

    def attach(self) -> None:
        self.replica.replicaof("127.0.0.1", self.port)


@pytest.fixture
def behind(
    replicated: tuple[LocalServer, LocalServer], connect: Callable[..., redis.Redis], closed_port: int
) -> Iterator[Behind]:
    master, replica = map(connect, replicated)
    fill(master, 1, 100)
    assert master.wait(1, 10_000) == 1
    replica.replicaof("127.0.0.1", closed_port)
    fill(master, 101, 200)
    with Reader(Endpoint.from_url(replicated[0].url, stream_key="s"), end="latest") as reader:
        assert sum(batch.num_rows for batch in reader) == 200
        position = reader.position
    endpoint = Endpoint.from_url(replicated[1].url, stream_key="s")
    with ThreadPoolExecutor(1) as pool:
        yield Behind(master, replica, endpoint, position, pool, replicated[0].port or 0)


def test_a_lagging_replica_is_waited_for(behind: Behind) -> None:
    future = behind.read(limit=3)
    assert not future.done()
    behind.attach()
    fill(behind.master, 201, 203)
    assert future.result() == [201, 202, 203]


def test_end_latest_is_the_tail_of_a_replica_that_has_caught_up(behind: Behind) -> None:
    future = behind.read(end="latest")
    behind.attach()
    assert future.result() == []


def test_a_replica_promoted_without_the_latest_entries_is_refused(behind: Behind) -> None:
    future = behind.read()
    behind.replica.replicaof("NO", "ONE")
    with pytest.raises(StreamReplacedError, match="its server lost its latest entries"):
        future.result()


def test_a_lagging_stream_does_not_block_another_stream(
    server: LocalServer, connect: Callable[..., redis.Redis], closed_port: int
) -> None:
    """Another connection leads to a replica that is behind in one of two streams."""
    client = connect(server)
    client.replicaof("127.0.0.1", closed_port)
    client.config_set("replica-read-only", "no")
    fill(client, 1, 20)
    fill(client, 1, 2, key="t")
    endpoint = Endpoint.from_url(server.url, stream_key="s")
    with Reader(endpoint, ["s", "t"], fields=["n"], block=0.01, linger=0, retry=PATIENT) as reader:

        def read(count: int) -> list[tuple[bytes, int]]:
            found: list[tuple[bytes, int]] = []
            while len(found) < count:
                batch = reader.read(timeout=PATIENCE)
                assert batch is not None
                found += [(batch.stream, int(n)) for n in pa.record_batch(batch)["n"].to_pylist()]
            return found

        assert len(read(22)) == 22
        client.delete("s")
        fill(client, 1, 10)
        client.client_kill_filter(_type="normal", skipme=True)
        fill(client, 3, 4, key="t")
        assert read(2) == [(b"t", 3), (b"t", 4)]
        fill(client, 5, 6, key="t")
        assert read(2) == [(b"t", 5), (b"t", 6)]
        fill(client, 11, 22)
        assert read(2) == [(b"s", 21), (b"s", 22)]
