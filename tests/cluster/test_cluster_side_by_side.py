"""Connections to nodes that are opened side by side: one that takes long does not stop what goes to other nodes."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace import (
    ConnectionFailedError,
    Consumer,
    ConsumerBatch,
    DeliveryReport,
    Dispatcher,
    Endpoint,
    ForgottenWarning,
    ReadBatch,
    Reader,
    RetryPolicy,
)
from headrace.testing import LocalCluster
from support.clusters import StartCluster, rows_of
from support.interrupts import interrupted
from support.patience import NEVER
from support.processes import in_child, resume, stop, wait_until

STREAMS = 12

Read = Callable[[float], ReadBatch | ConsumerBatch | None]

pytestmark = pytest.mark.needs("redis-8.6")


class Still:
    """A cluster with one master that stands still, to which there is no connection."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.keys = [f"s{number}" for number in range(STREAMS)]
        self.owners = {key: cluster.owner(key) for key in self.keys}
        self.server = self.owners["s0"]
        self.there = [key for key in self.keys if self.owners[key] is self.server]
        self.elsewhere = [key for key in self.keys if key not in self.there]

    @contextmanager
    def stopped(self) -> Iterator[None]:
        stop(self.server)
        try:
            yield
        finally:
            resume(self.server)

    def endpoint(self, **options: Any) -> Endpoint:
        """It leads to the other nodes, so that the cluster is found."""
        nodes = [f"127.0.0.1:{server.port}" for server in self.cluster.servers if server is not self.server]
        given = {"stream_key": self.elsewhere[0], "nodes": nodes, "connect_timeout": NEVER, **options}
        return Endpoint(**given)

    def rows(self, rows: range) -> pa.Table:
        """Row n goes to stream n, with 500 bytes."""
        return pa.table({"payload": [b"%0500d" % n for n in rows], "key": [self.keys[n % STREAMS] for n in rows]})

    def produce(self, dispatcher: Dispatcher, rows: range) -> None:
        dispatcher.produce_batch(self.rows(rows), payload="payload", stream_key="key")

    def begin_to_connect(self, dispatcher: Dispatcher) -> int:
        """Produce until a connection to the node that stands still is being opened. Returns how many rows there are."""
        rows = 0
        while not self.sockets():
            assert rows < 100_000
            self.produce(dispatcher, range(rows, rows + 600))
            rows += 600
        return rows

    def add(self, key: str) -> None:
        with redis.Redis(unix_socket_path=self.cluster.owner(key).unix_socket) as client:
            client.xadd(key, {"payload": b"x"})

    def drop_connections(self) -> None:
        """Those of all clients to the node that stands still later."""
        with redis.Redis(unix_socket_path=self.server.unix_socket) as client:
            client.client_kill_filter(_type="normal", skipme=True)

    def lengths(self) -> set[int]:
        """How many rows the streams of the others have."""
        found = set()
        for key in self.elsewhere:
            with redis.Redis(unix_socket_path=self.owners[key].unix_socket) as client:
                found.add(client.xlen(key))
        return found

    def sockets(self) -> set[str]:
        """The sockets of this process that lead to the node that stands still, as the system lists them."""
        ours = set()
        for entry in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # that of this list
                ours.add(str(entry.readlink()))
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        port = f":{self.server.port:04X}"
        return {socket for line in lines if line[2].endswith(port) and (socket := f"socket:[{line[9]}]") in ours}


@pytest.fixture
def still(start_cluster: StartCluster) -> Still:
    return Still(start_cluster(replicas=0, node_timeout=NEVER))


def let_pass(seconds: float) -> None:
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > seconds)


def check_order(still: Still, rows: int) -> None:
    for number, key in enumerate(still.keys):
        assert rows_of(still.cluster, key) == list(range(number, rows, STREAMS))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"retry": RetryPolicy(initial_backoff=0.01, max_backoff=0.1, deadline=NEVER)},
        {"exactly_once": "script"},
    ],
    ids=["plain", "policy", "script"],
)
def test_rows_reach_other_nodes_while_one_node_is_connecting(still: Still, options: dict[str, Any]) -> None:
    """With more bytes for the one that stands still than are encoded before they are sent."""
    rows = 2_400
    # A run of the script takes the room of 400 entries, as does each row that waits for the outcome of one before it.
    dispatcher = Dispatcher(still.endpoint(), window_max_entries=1_000_000, **options)
    with dispatcher, ThreadPoolExecutor() as pool:
        with still.stopped():

            def send() -> DeliveryReport:
                for first in range(0, rows, 600):
                    still.produce(dispatcher, range(first, first + 600))
                return dispatcher.flush()

            sending = pool.submit(send)
            wait_until(lambda: still.lengths() == {rows // STREAMS})
            assert not sending.done()
        report = sending.result()
        assert (report.delivered, list(report.failed)) == (rows, [])
    check_order(still, rows)


@pytest.mark.needs("idmp")
def test_an_idmp_message_waits_for_its_unresponsive_node(still: Still) -> None:
    """With IDMP all rows are of one stream, whose connection may take as long as it may."""
    endpoint = still.endpoint(stream_key=still.there[0])
    with Dispatcher(endpoint, exactly_once="idmp") as dispatcher, ThreadPoolExecutor() as pool:
        with still.stopped():
            dispatcher.produce(b"0")
            sending = pool.submit(dispatcher.flush)
            wait_until(still.sockets)
        assert sending.result().delivered == 1


@pytest.mark.parametrize(
    "retry", [None, RetryPolicy(initial_backoff=0.01, max_backoff=0.1, deadline=6)], ids=["plain", "policy"]
)
def test_only_rows_for_an_unresponsive_node_time_out(still: Still, retry: RetryPolicy | None) -> None:
    """For a whole batch; the rows of other nodes do not wait for it."""
    with Dispatcher(still.endpoint(connect_timeout=3.0), retry=retry) as dispatcher, still.stopped():
        rows = still.rows(range(2_400))
        began = time.monotonic()
        for batch in rows.to_batches(max_chunksize=600):
            dispatcher.produce_batch(batch, payload="payload", stream_key="key")
        report = dispatcher.flush()
        took = time.monotonic() - began
        failed = {int(failure.message_id) for failure in report.failed}
        assert failed == {row for row in range(2_400) if still.keys[row % STREAMS] in still.there}
        assert {(failure.code, failure.kind, failure.written) for failure in report.failed} == {
            ("TIMEOUT", "retryable", "no")
        }
        assert all("timed out while waiting for the reply to CLIENT SETINFO" in it.message for it in report.failed)
        assert report.delivered == 2_400 - len(failed)
        # One try to connect, for all record batches; or the policy's deadline and a last try.
        assert took < 2 * 3.0 if retry is None else took < 6 + 2 * 3.0


def end_with_a_timeout(dispatcher: Dispatcher) -> None:
    report = dispatcher.flush(timeout=0.3)
    assert {failure.code for failure in report.failed} == {"TIMEOUT"}


def end_with_ctrl_c(dispatcher: Dispatcher) -> None:
    with interrupted():
        dispatcher.flush()


def end_with_an_exception(dispatcher: Dispatcher) -> None:
    """It closes the dispatcher, after it has waited for 5 s."""
    with pytest.raises(LookupError), dispatcher:
        raise LookupError


@pytest.mark.parametrize("end", [end_with_a_timeout, end_with_ctrl_c, end_with_an_exception])
def test_an_interrupted_call_leaves_no_open_socket(still: Still, end: Callable[[Dispatcher], None]) -> None:
    dispatcher = Dispatcher(still.endpoint())
    try:
        with still.stopped():
            still.begin_to_connect(dispatcher)
            end(dispatcher)
            assert not still.sockets()
    finally:
        if not dispatcher.closed:
            _ = dispatcher.flush().ok  # failures count as seen
            dispatcher.close()


def test_a_dropped_dispatcher_leaves_no_open_socket(still: Still) -> None:
    with still.stopped():
        dispatcher = Dispatcher(still.endpoint())
        still.begin_to_connect(dispatcher)
        with pytest.warns(ForgottenWarning, match="will have no outcome"):
            del dispatcher
        gc.collect()
        assert not still.sockets()


def test_a_forked_child_does_not_inherit_a_connection_attempt(still: Still) -> None:
    with Dispatcher(still.endpoint()) as dispatcher:
        with still.stopped():
            rows = still.begin_to_connect(dispatcher)
            before = still.sockets()

            def child() -> tuple[int, set[str]]:
                dispatcher.produce(b"0")
                return dispatcher.flush().delivered, still.sockets()

            assert in_child(child) == (1, set())
            assert still.sockets() == before, "the parent's goes on"
        assert dispatcher.flush().delivered == rows


def test_time_between_calls_does_not_count_as_connect_time(still: Still) -> None:
    """A connect that a call has begun is begun again by the next one, if its time is over by then."""
    with Dispatcher(still.endpoint(connect_timeout=10.0)) as dispatcher:
        with still.stopped():
            rows = still.begin_to_connect(dispatcher)
            let_pass(5.5)
        report = dispatcher.flush()
        assert (report.delivered, list(report.failed)) == (rows, [])


@contextmanager
def reader_of(endpoint: Endpoint, keys: list[str], **options: Any) -> Iterator[Read]:
    with Reader(endpoint, streams=keys, start="latest", **options) as reader:
        yield reader.read


@contextmanager
def consumer_of(endpoint: Endpoint, keys: list[str], **options: Any) -> Iterator[Read]:
    with Consumer(endpoint, keys, group="group", consumer="one", **options) as consumer:

        def poll(timeout: float) -> ConsumerBatch | None:
            if batch := consumer.poll(timeout):
                consumer.ack(batch)
            return batch

        yield poll


def rows_in(batch: ReadBatch | ConsumerBatch | None) -> int:
    return 0 if batch is None else pa.record_batch(batch).num_rows


def read_one_of_each(still: Still, read: Read) -> None:
    for key in still.keys:
        still.add(key)
    rows = 0
    while rows < len(still.keys):
        rows += rows_in(read(NEVER))


both = pytest.mark.parametrize("made", [reader_of, consumer_of], ids=["reader", "consumer"])


@both
@pytest.mark.parametrize("connections", [None, 1])
def test_entries_of_other_nodes_are_read_while_one_node_is_connecting(
    still: Still, made: Any, connections: int | None
) -> None:
    with made(still.endpoint(), still.keys, connections=connections) as read:
        read_one_of_each(still, read)
        still.drop_connections()
        with still.stopped():
            for key in [*still.elsewhere, *still.elsewhere]:
                still.add(key)
                assert rows_in(read(NEVER)) == 1, "the others go on"
            wait_until(lambda: read(0.01) is None and bool(still.sockets()))
        still.add("s0")
        assert rows_in(read(NEVER)) == 1, "the attempt goes on"


def test_few_connections_to_a_node_are_opened_at_a_time(still: Still) -> None:
    """A reader of a thousand slots must not run out of descriptors."""
    keys = [f"s{number}" for number in range(60)]
    there = [key for key in keys if still.cluster.owner(key) is still.server]
    assert len(there) > 8
    with reader_of(still.endpoint(), keys) as read:
        wait_until(lambda: read(0.01) is None and len(still.sockets()) == len(there))
        still.drop_connections()
        with still.stopped():
            wait_until(lambda: read(0.01) is None and len(still.sockets()) == 8)
            assert read(0.1) is None
            assert len(still.sockets()) == 8
        still.add(there[-1])
        assert rows_in(read(NEVER)) == 1


@both
def test_time_between_calls_does_not_count_against_a_node_that_is_read(still: Still, made: Any) -> None:
    """A call that is too short for a connection leaves the rest to the next ones."""
    with made(still.endpoint(connect_timeout=2.0), still.keys) as read:
        read_one_of_each(still, read)
        still.drop_connections()
        with still.stopped():
            wait_until(lambda: read(0) is None and bool(still.sockets()))
            let_pass(2.5)
        still.add("s0")
        while read(0) is None:
            let_pass(0.3)


@both
def test_a_silent_node_is_reported_to_a_caller_that_is_busy_between_its_calls(still: Still, made: Any) -> None:
    with made(still.endpoint(connect_timeout=0.3), still.keys) as read:
        read_one_of_each(still, read)
        still.drop_connections()

        def call_rarely() -> None:
            for _ in range(100):
                read(0.02)
                let_pass(0.15)

        with still.stopped(), pytest.raises(ConnectionFailedError, match="timed out"):
            call_rarely()
