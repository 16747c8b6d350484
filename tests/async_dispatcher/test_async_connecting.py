"""Connections that an `AsyncDispatcher` opens: the loop goes on meanwhile, because it is the loop that answers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace import (
    AsyncDispatcher,
    ClosedError,
    ConnectionFailedError,
    Delivered,
    DeliveryError,
    Dispatcher,
    Endpoint,
    StateError,
)
from headrace.testing import LocalCluster, LocalSentinel, LocalServer
from support import Certs, programs_with
from support.fixture_types import StartServer
from support.patience import NEVER, PATIENCE
from support.pipelines import KEY, connections, endpoint_to, outcomes, stored
from support.processes import stopped
from support.shards import key_of

from .conftest import Run
from .relays import relay, silence
from .waiting import turns_until

PASSWORD = "open sesame"


@pytest.fixture
def guarded_server(start_server: StartServer) -> LocalServer:
    """A server on a port that wants a password."""
    return start_server(transport="tcp", config={"requirepass": f'"{PASSWORD}"'})


def send_through_relay(run: Run, server: LocalServer, endpoint_options: dict[str, Any], **options: Any) -> Delivered:
    async def main() -> Delivered:
        assert server.port is not None
        async with relay("127.0.0.1", server.port) as port:
            endpoint = endpoint_to(server, host="127.0.0.1", **{"port": port, **endpoint_options})
            async with asyncio.timeout(PATIENCE), AsyncDispatcher(endpoint, **options) as dispatcher:
                return await dispatcher.send(b"x", message_id="one")

    sent: Delivered = run(main())
    return sent


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"exactly_once": "script"},
        {"wait_aof": True, "wait_timeout": 30},
        {"exactly_once": "idmp", "exactly_once_key": "message_id"},
    ],
    ids=["off", "script", "wait", "idmp"],
)
@pytest.mark.needs("idmp", "waitaof")
def test_connecting_does_not_block_the_event_loop(run: Run, start_server: StartServer, options: dict[str, Any]) -> None:
    server = start_server(transport="tcp", config={"requirepass": f'"{PASSWORD}"', "appendonly": "yes"})
    settings = {"password": PASSWORD, "db": 3, "consumer_group": "readers"}
    assert not send_through_relay(run, server, settings, **options).deduplicated


def test_a_tls_handshake_does_not_block_the_event_loop(run: Run, tls_server: LocalServer, certs: Certs) -> None:
    assert send_through_relay(run, tls_server, {"tls_ca_cert": str(certs.ca)}).entry_id


def test_a_password_file_is_read_at_connect(run: Run, guarded_server: LocalServer, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    file.chmod(0o600)
    assert send_through_relay(run, guarded_server, {"password_file": str(file)}).entry_id


def test_a_password_callable_runs_in_a_thread(run: Run, guarded_server: LocalServer) -> None:
    async def main() -> Delivered:
        asked, go_on = threading.Event(), threading.Event()

        def password() -> str:
            asked.set()
            assert go_on.wait(10)
            return PASSWORD

        async with AsyncDispatcher(endpoint_to(guarded_server, password=password)) as dispatcher:
            task = asyncio.get_running_loop().create_task(dispatcher.send(b"x"))
            await turns_until(asked.is_set)
            go_on.set()
            return await task

    assert run(main()).entry_id


def test_a_callable_that_raises_fails_the_message(run: Run, guarded_server: LocalServer) -> None:
    def password() -> str:
        raise LookupError("no such secret")

    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(guarded_server, password=password)) as dispatcher:
            with pytest.raises(DeliveryError, match="raised LookupError"):
                await dispatcher.send(b"x")

    run(main())


def test_sentinel_queries_do_not_block_the_event_loop(run: Run) -> None:
    (program, *_) = sorted(programs_with([]), reverse=True)
    with LocalSentinel(program.path) as group:

        async def main() -> Delivered:
            async with contextlib.AsyncExitStack() as stack:
                ports = []
                for node in group.nodes:
                    host, port = node.rsplit(":", 1)
                    ports.append(await stack.enter_async_context(relay(host, int(port))))
                nodes = [f"127.0.0.1:{port}" for port in ports]
                endpoint = Endpoint(nodes=nodes, sentinel_master=group.master_name, stream_key="s")
                async with asyncio.timeout(PATIENCE), AsyncDispatcher(endpoint) as dispatcher:
                    return await dispatcher.send(b"x")

        assert run(main()).entry_id


def test_connecting_to_cluster_nodes_does_not_block_the_event_loop(run: Run) -> None:
    (program, *_) = sorted(programs_with([]), reverse=True)
    with LocalCluster(program.path) as cluster:

        async def main() -> list[Delivered]:
            async with contextlib.AsyncExitStack() as stack:
                node_map = {}
                for node in cluster.nodes:
                    host, port = node.rsplit(":", 1)
                    node_map[node] = f"127.0.0.1:{await stack.enter_async_context(relay(host, int(port)))}"
                options: dict[str, Any] = {"shards": 8, "stream_key": "s", "connect_timeout": NEVER}
                endpoint = Endpoint(nodes=cluster.nodes, node_map=node_map, **options)
                async with asyncio.timeout(PATIENCE), AsyncDispatcher(endpoint) as dispatcher:
                    return await asyncio.gather(*(dispatcher.send(b"x", key=b"%d" % key) for key in range(200)))

        assert len({delivered.entry_id for delivered in run(main())}) > 1


def test_connecting_to_one_node_does_not_delay_other_nodes(run: Run) -> None:
    """Outcomes come in the order of the messages: the one before it has its own, and those behind it are sent."""
    (program, *_) = sorted(programs_with([]), reverse=True)
    with LocalCluster(program.path, replicas=0, node_timeout=NEVER) as cluster:
        home = cluster.owner("s")
        endpoint = Endpoint(
            nodes=[f"127.0.0.1:{home.port}"], shards=8, shard_names="spread", stream_key="s", connect_timeout=NEVER
        )
        owners = [cluster.owner(name.decode()) for name in endpoint.stream_keys]
        still = next(owner for owner in owners if owner is not home)
        here, there = owners.index(home), owners.index(still)
        with Dispatcher(endpoint) as dispatcher:
            # Before it writes the registry of shards, a producer looks at all of them.
            assert dispatcher.dispatch(b"x", key=key_of(here, 8))

        async def main() -> None:
            send = asyncio.get_running_loop().create_task
            async with asyncio.timeout(PATIENCE), AsyncDispatcher(endpoint) as dispatcher:
                with stopped(still), redis.Redis(port=home.port or 0) as client:
                    first = send(dispatcher.send(b"x", key=key_of(here, 8)))
                    waiting = send(dispatcher.send(b"x", key=key_of(there, 8)))
                    assert (await first).entry_id
                    behind = [send(dispatcher.send(b"x", key=key_of(here, 8))) for _ in range(100)]
                    await turns_until(lambda: client.xlen(endpoint.stream_keys[here]) == 102)
                    assert not waiting.done()
                await asyncio.gather(waiting, *behind)

        run(main())


def test_messages_wait_in_line_while_a_connection_is_opened(run: Run, tcp_server: LocalServer, connect: Any) -> None:
    async def main() -> None:
        assert tcp_server.port is not None
        async with (
            relay("127.0.0.1", tcp_server.port) as port,
            AsyncDispatcher(endpoint_to(tcp_server, port=port)) as dispatcher,
        ):
            tasks = [asyncio.get_running_loop().create_task(dispatcher.send(b"first"))]
            await turns_until(lambda: dispatcher._watch._sockets)
            tasks += [asyncio.get_running_loop().create_task(dispatcher.send(b"%d" % n)) for n in range(100)]
            await turns_until(lambda: len(dispatcher._line) == 100)
            tasks[50].cancel()
            sent = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(sent.pop(50), asyncio.CancelledError)
            assert not any(isinstance(outcome, BaseException) for outcome in sent)
            assert (await dispatcher.flush()).delivered == 0

    run(main())
    assert [payload for _, payload in stored(connect(tcp_server))] == [
        b"first",
        *(b"%d" % number for number in range(100) if number != 49),
    ]


def test_rows_of_a_batch_wait_while_a_connection_is_opened(run: Run, tcp_server: LocalServer, connect: Any) -> None:
    import pyarrow as pa

    async def main() -> None:
        assert tcp_server.port is not None
        async with (
            relay("127.0.0.1", tcp_server.port) as port,
            AsyncDispatcher(endpoint_to(tcp_server, port=port, connect_timeout=NEVER)) as dispatcher,
        ):
            await dispatcher.produce(b"first")
            await turns_until(lambda: dispatcher._watch._sockets)
            await dispatcher.produce_batch(pa.table({"p": [b"%d" % n for n in range(5_000)]}), payload="p")
            assert (await dispatcher.flush()).delivered == 5_001

    run(main())
    assert [payload for _, payload in stored(connect(tcp_server))] == [b"first", *(b"%d" % n for n in range(5_000))]


def test_a_flush_that_times_out_abandons_the_connection(run: Run) -> None:
    async def main() -> None:
        async with silence() as (port, accepted):
            endpoint = Endpoint(host="127.0.0.1", port=port, stream_key=KEY, password="x", connect_timeout=NEVER)
            async with AsyncDispatcher(endpoint) as dispatcher:
                await dispatcher.produce(b"x")
                await turns_until(lambda: accepted)
                report = await dispatcher.flush(timeout=0.1)
                assert [(outcome.code, outcome.written) for outcome in outcomes(report)] == [("TIMEOUT", "no")]
                assert not dispatcher._watch._sockets

    run(main())


def test_a_cancelled_close_ends_a_connect_without_a_reply(run: Run) -> None:
    async def main() -> None:
        async with silence() as (port, accepted):
            endpoint = Endpoint(host="127.0.0.1", port=port, stream_key=KEY, password="x", connect_timeout=NEVER)
            dispatcher = AsyncDispatcher(endpoint)
            await dispatcher.produce(b"x")
            await turns_until(lambda: accepted)
            closing = asyncio.get_running_loop().create_task(dispatcher.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            with pytest.raises(ClosedError):
                await dispatcher.send(b"y")

    run(main())


def test_begin_is_refused_while_a_connection_is_opened(run: Run) -> None:
    async def main() -> None:
        async with silence() as (port, accepted):
            endpoint = Endpoint(host="127.0.0.1", port=port, stream_key=KEY, password="x", connect_timeout=NEVER)
            options: Any = {"exactly_once": "idmp", "exactly_once_key": "message_id"}
            async with AsyncDispatcher(endpoint, **options) as dispatcher:
                await dispatcher.produce(b"x", message_id="x")
                await turns_until(lambda: accepted)
                with pytest.raises(StateError, match="flush before begin"):
                    dispatcher.begin("import-8")
                assert [outcome.code for outcome in outcomes(await dispatcher.flush(timeout=0.1))] == ["TIMEOUT"]

    run(main())


def test_a_failed_connect_is_tried_again_by_the_next_message(run: Run, tcp_server: LocalServer, connect: Any) -> None:
    async def main() -> None:
        async with silence() as (port, _):
            endpoint = Endpoint(host="127.0.0.1", port=port, stream_key=KEY, connect_timeout=0.2)
            async with AsyncDispatcher(endpoint) as dispatcher:
                for _ in range(2):
                    with pytest.raises(ConnectionFailedError, match="CLIENT SETINFO"):
                        await dispatcher.send(b"x")

    run(main())


def test_a_lost_connection_is_reopened(run: Run, tcp_server: LocalServer, connect: Any) -> None:
    client: redis.Redis = connect(tcp_server)

    async def main() -> None:
        assert tcp_server.port is not None
        async with (
            relay("127.0.0.1", tcp_server.port) as port,
            AsyncDispatcher(endpoint_to(tcp_server, port=port)) as dispatcher,
        ):
            for number in range(5):
                await dispatcher.send(b"%d" % number)
                for connection in connections(client):
                    client.client_kill_filter(_id=connection)
                await turns_until(lambda: not dispatcher._watch._sockets)

    run(main())
    assert len(stored(client)) == 5
