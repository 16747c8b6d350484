"""Many nodes: their cost for the client, a comparison with other clients, a stopped node, and a slot that moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from benches.clusters import ClusterWatch, Probe, longest_pause, target_at
from benches.contenders import (
    CLUSTER_FLOOR,
    REDIS_PY_CLUSTER,
    REDIS_RS_CLUSTER,
    SHARDS_OF_CLUSTER,
    STREAMS_OF_CLUSTER,
)
from benches.contenders.common import payloads
from benches.contenders.streams import STREAMS, keys_of_rows, stream_keys
from benches.counting import CountingServer
from benches.driver import Record, TakeTurn, interleaved
from benches.servers import newest_program, title
from benches.tables import CLIENT_CPU, MEANINGFUL_ROWS, RATE, SERVER_CPU, Bench, Column
from benches.turns import ROUNDS, ROWS, Contender, Target, Turn
from benches.worker import Worker
from pytest_benchmark.fixture import BenchmarkFixture

from headrace import Dispatcher, Endpoint
from headrace.testing import LocalCluster
from support.clusters import another_master, move_as_one, moves_as_one
from support.processes import stopped

#: Long enough that no node counts as dead while it is stopped or while the machine is busy.
NODE_TIMEOUT = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Start three masters without replicas, which would take cores from them."""
    with LocalCluster(newest_program().path, replicas=0, node_timeout=NODE_TIMEOUT) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def counting_servers() -> Iterator[Callable[[int], CountingServer]]:
    """Return the counting server with a number of nodes; it is idle while another one is measured."""
    with ExitStack() as stack:
        servers: dict[int, CountingServer] = {}

        def of(nodes: int) -> CountingServer:
            if nodes not in servers:
                servers[nodes] = stack.enter_context(CountingServer(nodes))
            return servers[nodes]

        yield of


# How much one more node costs.

NODES = (1, 2, 4, 8)
NO_CLUSTER = Contender("a server without cluster", STREAMS_OF_CLUSTER.call)


def on_nodes(nodes: int) -> Contender:
    name = f"{nodes} {'node' if nodes == 1 else 'nodes'}"
    return Contender(name, STREAMS_OF_CLUSTER.call, STREAMS_OF_CLUSTER.options)


ON_NODES = [NO_CLUSTER, *map(on_nodes, NODES)]
#: The nodes of each contender, by its name.
NODES_OF = {contender.name: nodes for contender, nodes in zip(ON_NODES, (0, *NODES), strict=True)}
COUNTING = "counting server"
NODES_BENCH = Bench(
    "cluster_nodes",
    "nodes: produce_batch for 64 streams, on servers that only count, over TCP on this machine",
    columns=(RATE, CLIENT_CPU, SERVER_CPU),
    ratios=tuple((name, on_nodes(1).name) for name, nodes in NODES_OF.items() if nodes != 1),
)


@pytest.mark.parametrize(("number", "group", "contender"), interleaved([COUNTING], ON_NODES))
def test_cluster_nodes(
    number: int,
    group: str,
    contender: Contender,
    counting_servers: Callable[[int], CountingServer],
    take_turn: TakeTurn,
) -> None:
    server = counting_servers(NODES_OF[contender.name])
    # A turn of one million takes only a fifth of a second here.
    take_turn(NODES_BENCH, contender, server.target(5 * ROWS), group=group, number=number, watch=server)


POLLED = Contender("poll() after each record batch", "benches.memory_runs:streams", {"polls": True})
ONE_REPORT = Contender("one report of all rows", "benches.memory_runs:streams", {"polls": False})
TIMES = 10
#: The factor by which the peak may grow with that many times the rows.
TOLERANCE = 1.1


MEMORY_BENCH = Bench(
    "cluster_memory",
    f"memory with 8 nodes: the same work with {TIMES} times the rows",
    columns=(
        Column.figure("peak memory of the process, MB", "peak_rss", 1e-6, ",.1f"),
        Column.figure("before the first row, MB", "rss", 1e-6, ",.1f"),
        RATE,
    ),
    compared=(Column.figure("peak memory", "peak_rss"),),
    flat="rows",
)


@pytest.fixture(scope="module")
def peaks() -> dict[str, float]:
    """The peaks of the turns with fewer rows."""
    return {}


@pytest.mark.parametrize("rows", [ROWS, TIMES * ROWS])
@pytest.mark.parametrize("contender", [POLLED, ONE_REPORT], ids=lambda contender: str(contender.name))
def test_cluster_memory(
    contender: Contender,
    rows: int,
    counting_servers: Callable[[int], CountingServer],
    take_turn: TakeTurn,
    peaks: dict[str, float],
) -> None:
    server = counting_servers(max(NODES))
    turn = take_turn(MEMORY_BENCH, contender, server.target(rows), group=f"{rows:,}", number=1, watch=server)
    if "rss" not in turn.figures:
        pytest.skip("the peak memory of a process is available on Linux only")
    peak = turn.figures["peak_rss"]
    if contender is POLLED and peaks.setdefault(contender.name, peak) < peak and ROWS >= MEANINGFUL_ROWS:
        assert peak <= TOLERANCE * peaks[contender.name], f"{peak:,.0f} instead of {peaks[contender.name]:,.0f}"


# Comparison with other clients.

OTHER_CLIENTS = (CLUSTER_FLOOR, REDIS_RS_CLUSTER, REDIS_PY_CLUSTER)
CLIENTS = (CLUSTER_FLOOR, STREAMS_OF_CLUSTER, SHARDS_OF_CLUSTER, REDIS_RS_CLUSTER, REDIS_PY_CLUSTER)
CLIENTS_BENCH = Bench(
    "cluster",
    "64 streams of three masters: XADD MAXLEN ~ 100,000 with payload (120 bytes) and ts, over TCP on this machine",
    columns=(RATE, CLIENT_CPU, SERVER_CPU),
    ratios=tuple((own.name, other.name) for own in (STREAMS_OF_CLUSTER, SHARDS_OF_CLUSTER) for other in OTHER_CLIENTS),
)


@pytest.mark.parametrize(("number", "group", "contender"), interleaved([title(newest_program())], CLIENTS))
def test_cluster_clients(
    number: int, group: str, contender: Contender, cluster: LocalCluster, take_turn: TakeTurn
) -> None:
    with ClusterWatch(cluster.servers) as watch:
        target = target_at(cluster, contender.rows())
        take_turn(CLIENTS_BENCH, contender, target, group=group, number=number, watch=watch)


# One node is stopped.

#: Rows that a window holds in this test: the rate of the other nodes is measured until it is full.
WINDOW = min(ROWS, 400_000)
ALL_RUN, ONE_STOPPED = "all nodes run", "one node is stopped"
STOPPED_BENCH = Bench(
    "cluster_stopped",
    f"a node that stands still: entries of the two others, until a window of {WINDOW:,} is full",
    columns=(RATE,),
    ratios=((ONE_STOPPED, ALL_RUN),),
    compared=(RATE,),
)


def test_cluster_stopped(cluster: LocalCluster, record: Record, benchmark: BenchmarkFixture) -> None:
    if benchmark.disabled:
        pytest.skip("it only measures: `make bench` turns it on")
    target = target_at(cluster, WINDOW)
    keys = keys_of_rows(target)
    batch = pa.record_batch({"payload": pa.array(payloads(target), pa.binary()), "key": keys})
    still, *others = cluster.servers
    of_still = {key for key in stream_keys(target) if cluster.owner(key) is still}
    expected = sum(key not in of_still for key in keys) * (WINDOW // target.batch)
    endpoint = Endpoint(
        host=target.host, port=target.port, topology="cluster", stream_key="bench", command_timeout=120.0
    )

    def fill() -> float:
        """Fill the window, and return the seconds until the other nodes have all of their entries."""
        before, began = watch.entries_added(), time.perf_counter()
        for _ in range(WINDOW // target.batch):
            dispatcher.produce_batch(batch, stream_key="key")
            dispatcher.poll()
        while watch.entries_added() < before + expected:
            dispatcher.poll()
            assert time.perf_counter() < began + 60, "the others did not go on"
        return time.perf_counter() - began

    def rounds() -> None:
        for number in range(1, ROUNDS + 1):
            for name in (ALL_RUN, ONE_STOPPED):
                with stopped(still) if name == ONE_STOPPED else ExitStack():
                    seconds = fill()
                dispatcher.flush().raise_for_failures()
                group = title(newest_program())
                record(STOPPED_BENCH, Turn(STOPPED_BENCH.name, group, name, number, expected, {"seconds": seconds}))

    with ClusterWatch(cluster.servers) as whole, ClusterWatch(tuple(others)) as watch:
        whole.fresh()
        with Dispatcher(endpoint, window_max_entries=WINDOW + 1, window_max_bytes=1 << 30) as dispatcher:
            dispatcher.produce_batch(batch, stream_key="key")
            dispatcher.flush().raise_for_failures()  # connections to all of them
            benchmark.pedantic(rounds)  # type: ignore[no-untyped-call]
        assert whole.entries_added() == 2 * ROUNDS * WINDOW + target.batch


# A slot moves.

#: Entries of the stream whose slot moves.
MOVED_ENTRIES = max(ROWS // 5, 10_000)
STAYS, BY_KEYS, AS_ONE = "no slot moves", "key by key", "as one"
MOVE_BENCH = Bench(
    "cluster_move",
    f"a slot with a stream of {MOVED_ENTRIES:,} entries moves to another master and back: pauses of the others",
    columns=(
        Column.figure("longest pause of another stream, ms", "pause", 1e3, ",.0f"),
        Column.figure("longest pause of a server, ms", "server_pause", 1e3, ",.0f"),
        Column.figure("beyond the server's, ms", "beyond", 1e3, ",.0f"),
    ),
)


@pytest.mark.parametrize("number", range(1, ROUNDS + 1))
@pytest.mark.parametrize("way", [STAYS, BY_KEYS, AS_ONE])
def test_cluster_move(
    way: str, number: int, cluster: LocalCluster, record: Record, benchmark: BenchmarkFixture, tmp_path: Path
) -> None:
    if benchmark.disabled:
        pytest.skip("it only measures: `make bench` turns it on")
    if way == AS_ONE and not moves_as_one(cluster):
        pytest.skip("these servers move slots key by key")
    target = target_at(cluster, 10_000)
    moved = stream_keys(target)[0]
    source, destination = cluster.owner(moved), another_master(cluster, moved)
    steady = Contender("32,000 rows/s", "benches.steady:prepare", {"until": str(tmp_path / "until")})
    with ClusterWatch(cluster.servers) as watch:
        watch.fresh()
        preload(target, moved)
        with Worker(steady, target, warm_up=False) as worker, ThreadPoolExecutor(1) as thread:
            before = watch.added_by_each()
            here, there = Probe(cluster, source), Probe(cluster, destination)

            def move() -> Turn:
                running = thread.submit(worker.go)
                # Connecting to a node does not count as a pause.
                while any(now < then + STREAMS for now, then in zip(watch.added_by_each(), before, strict=True)):
                    assert not running.done(), running.result()
                began = time.time()
                with here, there:
                    for server in (destination, source):
                        if way == BY_KEYS:
                            cluster.move_slot(moved, server)
                        elif way == AS_ONE:
                            move_as_one(cluster, moved, server)
                        time.sleep(0.2)
                ended = time.time()
                (tmp_path / "until").touch()
                rows = running.result().rows
                pause, own = longest_pause(target, moved, began, ended), max(here.longest, there.longest)
                figures = {"seconds": ended - began, "pause": pause, "server_pause": own}
                figures["beyond"] = max(0.0, pause - own)
                return Turn(MOVE_BENCH.name, title(newest_program()), way, number, rows, figures)

            record(MOVE_BENCH, benchmark.pedantic(move))  # type: ignore[no-untyped-call]


def preload(target: Target, key: str) -> None:
    endpoint = Endpoint(host=target.host, port=target.port, topology="cluster", stream_key=key)
    rows = payloads(target)
    with Dispatcher(endpoint) as dispatcher:
        for _ in range(MOVED_ENTRIES // len(rows)):
            dispatcher.produce_batch(pa.record_batch({"payload": pa.array(rows, pa.binary())}))
            dispatcher.poll()
        dispatcher.flush().raise_for_failures()
