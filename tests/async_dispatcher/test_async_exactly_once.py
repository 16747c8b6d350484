"""Exactly once on an event loop: what is refused, and that a failure does not block what follows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import redis

from faults.proxy import Pair, Proxy
from headrace import AsyncDispatcher, ConfigError, Delivered, DeliveryError, Endpoint, RetryPolicy, StateError
from headrace.testing import LocalServer
from support.fixture_types import StartServer
from support.patience import NEVER
from support.pipelines import KEY, endpoint_to, stored
from support.processes import stopped
from support.servers import DURABLE

from .conftest import Run


@pytest.mark.parametrize("mode", ["script", "auto"])
def test_begin_is_refused_without_idmp(any_server: LocalServer, mode: Any) -> None:
    dispatcher = AsyncDispatcher(endpoint_to(any_server), exactly_once=mode)
    with pytest.raises(ConfigError, match="begin needs exactly_once 'idmp' on an event loop, got 'script'") as caught:
        dispatcher.begin("token")
    assert caught.value.option == "exactly_once"
    with pytest.raises(ConfigError, match="begin needs exactly_once"):
        AsyncDispatcher(endpoint_to(any_server)).begin("token")


def test_a_failed_message_does_not_block_later_messages(run: Run, any_server: LocalServer, client: redis.Redis) -> None:
    """Without that, all later messages of the stream fail as BLOCKED."""

    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server), exactly_once="script") as dispatcher:
            await dispatcher.send(b"0")
            client.rename(KEY, "aside")
            client.set(KEY, "no stream")
            with pytest.raises(DeliveryError, match="WRONGTYPE"):
                await dispatcher.send(b"1")
            await dispatcher.produce(b"2")
            assert [failure.code for failure in (await dispatcher.flush()).failed] == ["WRONGTYPE"]
            client.rename("aside", KEY)
            sent = await asyncio.gather(*(dispatcher.send(b"%d" % number) for number in range(3, 1_000)))
            assert all(delivered.entry_id for delivered in sent)

    run(main())
    assert [payload for _, payload in stored(client)] == [b"0", *(b"%d" % number for number in range(3, 1_000))]


def test_messages_waiting_while_a_failure_is_skipped_are_sent(
    run: Run, any_server: LocalServer, client: redis.Redis
) -> None:
    async def main() -> None:
        options: Any = {"exactly_once": "script", "window_max_entries": 1, "script_run_rows": 1}
        async with AsyncDispatcher(endpoint_to(any_server), **options) as dispatcher:
            await dispatcher.send(b"0")
            client.rename(KEY, "aside")
            client.set(KEY, "no stream")

            async def send(number: int) -> Delivered:
                try:
                    return await dispatcher.send(b"%d" % number)
                except DeliveryError:
                    client.delete(KEY)
                    raise

            results = await asyncio.gather(*(send(number) for number in range(50)), return_exceptions=True)
            failed = [result for result in results if isinstance(result, DeliveryError)]
            assert {error.failures[0].code for error in failed} == {"WRONGTYPE"}
            # The server may refuse all of them before the first task runs again.
            assert sum(isinstance(result, Delivered) for result in results) == 50 - len(failed)
            assert (await dispatcher.send(b"behind")).entry_id is not None

    run(main())


@pytest.mark.parametrize("is_batch", [False, True], ids=["message", "batch"])
def test_a_failure_is_skipped_after_the_reply_to_waitaof(
    run: Run, start_server: StartServer, connect: Callable[..., redis.Redis], is_batch: bool
) -> None:
    """Every message has its outcome before; `run` fails if the loop reports an exception."""
    server = start_server(transport="tcp", config=DURABLE)
    client = connect(server)
    client.set(KEY, "no stream")
    stalled: list[Pair] = []

    def stall(pair: Pair) -> None:
        pair.stall("replies")
        stalled.append(pair)

    async def main(port: int) -> None:
        endpoint = Endpoint(host="127.0.0.1", port=port, stream_key=KEY)
        async with AsyncDispatcher(endpoint, exactly_once="script", wait_aof=True) as dispatcher:
            with pytest.raises(DeliveryError, match="WRONGTYPE"):
                await dispatcher.send(b"0")
            client.delete(KEY)
            rows = pa.table({"payload": [b"1"]})
            next_one = asyncio.create_task(dispatcher.produce_batch(rows) if is_batch else dispatcher.produce(b"1"))
            await asyncio.sleep(0.1)
            assert not next_one.done()
            proxy.after(0.0, lambda: stalled[0].resume("replies"))
            await next_one
            assert (await dispatcher.flush()).delivered == 1

    assert server.port is not None
    with Proxy(server.port) as proxy:
        proxy.within("replies", rb"WRONGTYPE[^\r]*\r\n:0\r\n", 1.0, stall)
        run(main(proxy.port))
        assert stalled


def test_idmp_needs_message_ids(any_server: LocalServer) -> None:
    keys: list[Any] = [{}, {"exactly_once_key": "row"}]
    for key in keys:
        with pytest.raises(
            ConfigError, match="exactly_once_key must be 'message_id' with exactly_once 'idmp'"
        ) as caught:
            AsyncDispatcher(endpoint_to(any_server), exactly_once="idmp", **key)
        assert caught.value.option == "exactly_once_key"


@pytest.mark.needs("idmp")
def test_idmp_writes_each_message_id_once(run: Run, any_server: LocalServer, client: redis.Redis) -> None:
    async def attempt() -> set[str | None]:
        options: Any = {"exactly_once": "idmp", "exactly_once_key": "message_id", "retry": RetryPolicy(deadline=NEVER)}
        async with AsyncDispatcher(endpoint_to(any_server), **options) as dispatcher:
            dispatcher.begin("import-7")
            sent = await asyncio.gather(*(dispatcher.send(b"%d" % n, message_id=n) for n in range(100)))
            with pytest.raises(DeliveryError, match="NULL_MESSAGE_ID"):
                await dispatcher.send(b"without")
            with stopped(any_server):
                task = asyncio.create_task(dispatcher.send(b"x", message_id="x"))
                await asyncio.sleep(0)
                with pytest.raises(StateError, match="flush before begin"):
                    dispatcher.begin("import-8")
            await task
            return {delivered.entry_id for delivered in sent}

    assert run(attempt()) == run(attempt())
    assert len(stored(client)) == 101
