"""The dispatchers that a Python worker keeps: lent, given back, dropped. Runs without Spark."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Generator, Iterator

import pyarrow as pa
import pytest
import redis

from headrace import ClosedError, Dispatcher, Endpoint
from headrace.spark import worker, xadd
from headrace.testing import LocalServer
from support.pipelines import connections

Connect = Callable[..., redis.Redis]


@pytest.fixture(autouse=True)
def empty_cache() -> Iterator[None]:
    worker._idle.clear()
    yield
    for lent in worker._idle.values():
        lent.close()
    worker._idle.clear()


def ours(client: redis.Redis) -> int:
    """The number of connections that headrace has to the server."""
    return len(connections(client))


def test_equal_endpoints_and_options_share_a_dispatcher(client: redis.Redis, endpoint: Endpoint) -> None:
    # Each task unpickles an endpoint of its own.
    with worker.dispatcher(pickle.loads(pickle.dumps(endpoint)), {"classify": "strict", "ts_field": None}) as first:
        first.dispatch(b"one")
    with worker.dispatcher(pickle.loads(pickle.dumps(endpoint)), {"ts_field": None, "classify": "strict"}) as second:
        second.dispatch(b"two")
    assert second is first
    assert ours(client) == 1
    with worker.dispatcher(endpoint, {"classify": "strict"}) as other:
        assert other is not first
    with worker.dispatcher(Endpoint(host="elsewhere", stream_key="events"), {}) as other:
        assert other is not first


def test_a_dispatcher_in_use_is_not_lent_again(endpoint: Endpoint) -> None:
    with worker.dispatcher(endpoint, {}) as first:
        pass
    with worker.dispatcher(endpoint, {}) as again, worker.dispatcher(endpoint, {}) as second:
        assert again is first
        assert second is not first


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, GeneratorExit])
def test_a_dispatcher_is_closed_after_a_failure(
    client: redis.Redis, endpoint: Endpoint, error: type[BaseException]
) -> None:
    with pytest.raises(error), worker.dispatcher(endpoint, {}) as first:  # noqa: PT012 (the block is what is tested)
        first.produce(b"handed over before")
        raise error
    assert first.closed
    assert ours(client) == 0
    assert client.xlen("events") == 1
    assert not worker._idle
    with pytest.raises(ClosedError):
        first.produce(b"after")
    with worker.dispatcher(endpoint, {}) as second:
        second.dispatch(b"again")


def test_rows_taken_before_a_partition_ends_early_are_written(client: redis.Redis, endpoint: Endpoint) -> None:
    taken = 0

    def without_end() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        while True:
            taken += 1
            yield pa.RecordBatch.from_pydict({"payload": ["x" * 1_000] * 100})

    outcomes = xadd(endpoint)(without_end())
    assert next(outcomes).num_rows
    assert isinstance(outcomes, Generator)
    outcomes.close()  # what Spark does under a limit
    assert ours(client) == 0
    assert client.xlen("events") == 100 * taken


def test_a_forked_worker_gets_its_own_dispatcher(client: redis.Redis, endpoint: Endpoint) -> None:
    with worker.dispatcher(endpoint, {}) as parents:
        parents.dispatch(b"parent")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with worker.dispatcher(endpoint, {}) as childs:
                childs.dispatch(b"child")
                status = 0 if childs is not parents else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with worker.dispatcher(endpoint, {}) as again:
        assert again is parents
        again.dispatch(b"parent")
    assert client.xlen("events") == 3


def test_the_least_recently_used_dispatcher_is_dropped(client: redis.Redis, any_server: LocalServer) -> None:
    def lend(number: int) -> Dispatcher:
        endpoint = Endpoint(unix_socket=any_server.unix_socket, stream_key=f"stream-{number}")
        with worker.dispatcher(endpoint, {}) as lent:
            lent.dispatch(b"x")
        return lent

    lent = [lend(number) for number in range(worker.MAX_DISPATCHERS)]
    assert lend(0) is lent[0]  # used just now, so the next to go is 1
    lend(worker.MAX_DISPATCHERS)
    assert [dispatcher.closed for dispatcher in lent] == [number == 1 for number in range(worker.MAX_DISPATCHERS)]
    assert ours(client) == worker.MAX_DISPATCHERS
