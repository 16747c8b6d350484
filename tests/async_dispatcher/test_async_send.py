"""What `send`, `produce`, `produce_batch` and `flush` of an `AsyncDispatcher` return and raise, on each loop."""

from __future__ import annotations

import asyncio
import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import redis

import headrace
from headrace import (
    AsyncDispatcher,
    ClosedError,
    ConfigError,
    ConnectionFailedError,
    Delivered,
    DeliveryError,
    Dispatcher,
    Endpoint,
    MessageError,
    Reader,
    ReaderError,
    RetryPolicy,
    SchemaError,
)
from headrace.testing import LocalCluster, LocalServer
from support import Certs, programs_with
from support.paths import ROOT
from support.patience import NEVER
from support.pipelines import KEY, connections, endpoint_to, outcomes, stored
from support.processes import kill_and_restart, stopped

from .conftest import Run
from .waiting import turns_until

Connect = Callable[..., Any]


def test_importing_headrace_does_not_import_asyncio() -> None:
    code = (
        "import sys, headrace; print('asyncio' in sys.modules); "
        "headrace.AsyncDispatcher; print('asyncio' in sys.modules)"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["False", "True"]
    with pytest.raises(AttributeError, match="has no attribute 'AsyncDispatchers'"):
        _ = headrace.AsyncDispatchers  # type: ignore[attr-defined]


def test_rows_without_a_key_are_distributed_over_the_shards_in_turn(
    run: Run, any_server: LocalServer, client: redis.Redis
) -> None:
    """Also across record batches, and across the parts in which a large one is accepted."""

    def rows(first: int, count: int) -> pa.Table:
        return pa.table({"payload": [b"%d" % row for row in range(first, first + count)]})

    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server, shards=3)) as dispatcher:
            await dispatcher.produce_batch(rows(0, 5))
            await dispatcher.produce(b"5")
            await dispatcher.produce_batch(rows(6, 3_000))
            await dispatcher.send(b"3006")
            await dispatcher.produce_batch(rows(3_007, 2))

    run(main())
    for shard in range(3):
        stored_numbers = [int(payload) for _, payload in stored(client, f"{KEY}:{shard}")]
        assert stored_numbers == list(range(shard, 3_009, 3))


def test_send_returns_the_entry_id(run: Run, any_server: LocalServer, client: redis.Redis) -> None:
    async def main() -> list[Delivered]:
        async with AsyncDispatcher(endpoint_to(any_server)) as dispatcher:
            first = await dispatcher.send(b"0")
            return [first, *await asyncio.gather(*(dispatcher.send(b"%d" % number) for number in range(1, 3_000)))]

    sent = run(main())
    assert [(delivered.entry_id, delivered.deduplicated) for delivered in sent] == [
        (entry_id, False) for entry_id, _ in stored(client)
    ]
    assert [payload for _, payload in stored(client)] == [b"%d" % number for number in range(3_000)]
    assert len(connections(client)) == 0


def test_delivered_is_a_value_object() -> None:
    one = Delivered("1-0")
    assert (one.entry_id, one.deduplicated, repr(one)) == (
        "1-0",
        False,
        "Delivered(entry_id='1-0', deduplicated=False)",
    )
    assert one == Delivered("1-0", False) != Delivered("1-1")
    assert Delivered(None, True) != one != "1-0"
    assert {one, Delivered("1-0")} == {one}
    assert pickle.loads(pickle.dumps(one)) == copy.copy(one) == one
    match one:
        case Delivered(entry_id, deduplicated):
            assert (entry_id, deduplicated) == ("1-0", False)
    with pytest.raises(MessageError, match='an entry ID has the form ms-seq, got "1"'):
        Delivered("1")


def test_send_raises_the_server_error(run: Run, any_server: LocalServer, client: redis.Redis) -> None:
    client.set(KEY, "no stream")

    async def main() -> DeliveryError:
        async with AsyncDispatcher(endpoint_to(any_server)) as dispatcher:
            with pytest.raises(DeliveryError, match=r"was not delivered to \S+ stream key \S+: WRONGTYPE") as caught:
                await dispatcher.send(b"x", message_id="mine")
            assert len(await dispatcher.flush()) == 0
            return caught.value

    (failure,) = run(main()).failures
    assert (failure.message_id, failure.code, failure.written) == ("mine", "WRONGTYPE", "no")


def test_an_unreachable_server_is_tried_again(run: Run, any_server: LocalServer, client: redis.Redis) -> None:
    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server)) as dispatcher:
            any_server.kill()
            for _ in range(2):
                with pytest.raises(ConnectionFailedError) as caught:
                    await dispatcher.send(b"x")
                assert caught.value.failures[0].written == "no"
            any_server.restart()
            assert (await dispatcher.send(b"y")).entry_id

    run(main())


def test_retries_outlast_a_restart(run: Run, tcp_server: LocalServer, connect: Connect) -> None:
    async def main() -> None:
        retry = RetryPolicy(deadline=NEVER, initial_backoff=0.01)
        async with AsyncDispatcher(endpoint_to(tcp_server), retry=retry) as dispatcher:
            await dispatcher.send(b"0")
            kill_and_restart(tcp_server)
            sent = await asyncio.gather(*(dispatcher.send(b"%d" % number) for number in range(100)))
            assert len({delivered.entry_id for delivered in sent}) == 100

    run(main())
    assert [payload for _, payload in stored(connect(tcp_server))] == [b"%d" % number for number in range(100)]


def test_a_connection_closed_while_idle_is_replaced(run: Run, any_server: LocalServer, client: redis.Redis) -> None:
    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server)) as dispatcher:
            await dispatcher.send(b"0")
            (old,) = connections(client)
            client.client_kill_filter(_id=old)
            await turns_until(lambda: not dispatcher._watch._sockets)
            await dispatcher.send(b"1")
            assert connections(client) != {old}

    run(main())


def test_each_message_is_awaited_or_in_the_report(run: Run, any_server: LocalServer) -> None:
    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server)) as dispatcher:
            tasks = []
            for number in range(100):
                await dispatcher.produce(b"x", message_id=f"produced-{number}")
                tasks.append(asyncio.create_task(dispatcher.send(b"y", message_id=f"sent-{number}")))
                await asyncio.sleep(0)
            rows = pa.record_batch({"payload": ["a", None], "id": ["row-0", "row-1"]})
            await dispatcher.produce_batch(rows, message_id="id")
            report = await dispatcher.flush()
            assert all(delivered.entry_id for delivered in await asyncio.gather(*tasks))
            ids = [outcome.message_id for outcome in outcomes(report)]
            assert ids == [*(f"produced-{number}" for number in range(100)), "row-0", "row-1"]
            assert report.failed_ids == ["row-1"]
            assert len(await dispatcher.flush()) == 0

    run(main())


def test_messages_without_an_id_are_numbered_between_flushes(run: Run, any_server: LocalServer) -> None:
    nulls = pa.record_batch({"payload": pa.array([None], pa.string())})

    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server)) as dispatcher:
            for _ in range(2):
                await dispatcher.send(b"0")
                await dispatcher.produce(b"1")
                await dispatcher.produce_batch(nulls)
                await dispatcher.send(b"3")
                await dispatcher.produce_batch(nulls)
                assert (await dispatcher.flush()).failed_ids == [2, 4]

    run(main())


def test_unread_failures_are_raised_at_the_end_of_the_block(
    run: Run, any_server: LocalServer, client: redis.Redis
) -> None:
    client.set(KEY, "no stream")

    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server)) as dispatcher:
            with pytest.raises(DeliveryError):
                await dispatcher.send(b"seen by its caller")
            await dispatcher.produce(b"a")
            report = await dispatcher.flush()
            assert not report.ok
            await dispatcher.produce(b"b")
            await dispatcher.flush()
            await dispatcher.produce(b"c")

    with pytest.raises(DeliveryError, match=r"^2 messages were not delivered to \S+ stream key \S+ \(WRONGTYPE 2\)"):
        run(main())


def test_flush_waits_for_messages_produced_before_it(run: Run, any_server: LocalServer) -> None:
    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server), window_max_entries=10) as dispatcher:
            tasks = [asyncio.create_task(dispatcher.produce(b"x")) for _ in range(100)]
            await asyncio.sleep(0)
            assert dispatcher._line
            assert (await dispatcher.flush()).delivered == 100
            assert all(task.done() for task in tasks)

    run(main())


def test_flush_returns_while_other_tasks_keep_sending(run: Run, any_server: LocalServer) -> None:
    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server)) as dispatcher:

            async def go_on() -> None:
                while True:
                    await dispatcher.send(b"y")

            others = [asyncio.create_task(go_on()) for _ in range(20)]
            for _ in range(10):
                await dispatcher.produce(b"x")
                assert (await dispatcher.flush()).delivered >= 1
            for other in others:
                other.cancel()

    run(main())


def test_flush_gives_up_at_its_timeout(run: Run, any_server: LocalServer, client: redis.Redis) -> None:
    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server)) as dispatcher:
            await dispatcher.send(b"0")
            with stopped(any_server):
                await dispatcher.produce(b"1", message_id="one")
                awaited = asyncio.create_task(dispatcher.send(b"2"))
                await asyncio.sleep(0)
                report = await dispatcher.flush(timeout=0.1)
                (failure,) = report.failed
                assert (failure.message_id, failure.code, failure.written) == ("one", "TIMEOUT", "unknown")
                with pytest.raises(ConnectionFailedError, match="TIMEOUT"):
                    await awaited
            await dispatcher.send(b"3")
            for wrong in (-1, float("nan")):
                with pytest.raises(ConfigError, match="timeout must be a number of seconds of at least 0") as caught:
                    await dispatcher.flush(wrong)
                assert caught.value.option == "timeout"

    run(main())


def test_a_silent_server_fails_messages_at_the_deadline(run: Run, any_server: LocalServer) -> None:
    async def main() -> None:
        endpoint = endpoint_to(any_server, command_timeout=0.2)
        async with AsyncDispatcher(endpoint) as dispatcher:
            await dispatcher.send(b"0")
            with stopped(any_server), pytest.raises(ConnectionFailedError, match="TIMEOUT"):
                await dispatcher.send(b"1")
            await dispatcher.send(b"2")

    run(main())


def test_the_event_loop_keeps_running_while_the_server_is_suspended(run: Run, any_server: LocalServer) -> None:
    """No call waits for the server, though more is to be sent than the socket takes."""

    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server, command_timeout=NEVER)) as dispatcher:
            await dispatcher.send(b"0")
            with stopped(any_server):
                sends = [asyncio.create_task(dispatcher.send(b"x" * 500_000)) for _ in range(20)]
                await turns_until(lambda: any(dispatcher._watch._sockets.values()))
                for _ in range(300):
                    await asyncio.sleep(0.001)
            assert len({delivered.entry_id for delivered in await asyncio.gather(*sends)}) == 20

    run(main())


def test_produce_batch_lets_other_tasks_run(run: Run, any_server: LocalServer, client: redis.Redis) -> None:
    """A message of another task is accepted behind the last row, and gets its own outcome."""
    rows = 50_000
    table = pa.table({"payload": pa.array(range(rows)).cast(pa.string())})

    async def main() -> tuple[int, str | None]:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with AsyncDispatcher(endpoint_to(any_server)) as dispatcher:
            counting = asyncio.create_task(count())
            batch = asyncio.create_task(dispatcher.produce_batch(table))
            await asyncio.sleep(0)
            last = await dispatcher.send(b"last")
            assert batch.done()
            assert (await dispatcher.flush()).delivered == rows
            counting.cancel()
            return turns, last.entry_id

    turns, last_id = run(main())
    assert turns > rows / 1024
    entries = stored(client)
    assert entries[-1][0] == last_id
    assert [payload for _, payload in entries] == [*(b"%d" % number for number in range(rows)), b"last"]


@pytest.mark.parametrize("layout", [{"rows_per_entry": 3}, {"arrow_ipc": True, "rows_per_entry": 2_000}])
def test_a_batch_is_split_at_entry_boundaries(
    run: Run, any_server: LocalServer, client: redis.Redis, layout: dict[str, Any]
) -> None:
    table = pa.table({"payload": pa.array(range(6_000)).cast(pa.string())})

    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server)) as dispatcher:
            await dispatcher.produce_batch(table, **layout)
            assert (await dispatcher.flush()).delivered == 6_000

    run(main())
    assert client.xlen(KEY) == 6_000 // layout["rows_per_entry"]


def test_produce_lets_other_tasks_run(run: Run, any_server: LocalServer) -> None:
    async def main() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with AsyncDispatcher(endpoint_to(any_server)) as dispatcher:
            counting = asyncio.create_task(count())
            for _ in range(20_000):
                await dispatcher.produce(b"x")
            counting.cancel()
            return turns

    assert run(main()) > 10


def test_invalid_arguments_are_refused(run: Run, any_server: LocalServer) -> None:
    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server)) as dispatcher:
            with pytest.raises(MessageError, match="a payload must be bytes-like or a str: got int"):
                await dispatcher.send(1)  # type: ignore[arg-type]
            with pytest.raises(MessageError, match="a message ID must be a str or an int: got float"):
                await dispatcher.produce(b"x", message_id=1.5)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="key needs the option shards") as caught:
                await dispatcher.send(b"x", key=b"k")
            assert caught.value.option == "key"
            with pytest.raises(SchemaError, match="payload"):
                await dispatcher.produce_batch(pa.record_batch({"other": [1]}))
            with pytest.raises(TypeError, match="unexpected keyword argument"):
                await dispatcher.produce_batch(pa.record_batch({"payload": ["a"]}), codecs="lz4")  # type: ignore[call-arg]
            assert await dispatcher.send(bytearray(b"x")) != await dispatcher.send("x")

    run(main())
    with pytest.raises(ConfigError, match="window_max_entries"):
        AsyncDispatcher(endpoint_to(any_server), window_max_entries=0)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(AsyncDispatcher(endpoint_to(any_server)))


def test_the_wrong_kind_of_block_is_named(run: Run, any_server: LocalServer) -> None:
    dispatcher: Any = AsyncDispatcher(endpoint_to(any_server))
    with pytest.raises(TypeError) as caught, dispatcher:
        pass
    assert str(caught.value) == "an AsyncDispatcher needs `async with`"
    other: Any = Dispatcher(endpoint_to(any_server))

    async def main() -> None:
        async with other:
            pass

    with pytest.raises(TypeError) as caught:
        run(main())
    assert str(caught.value) == "a Dispatcher needs `with`; `async with` is for an AsyncDispatcher"
    assert "## Reading" in (ROOT / "docs" / "async.md").read_text()
    reader: Any = Reader(endpoint_to(any_server), end="latest")

    async def read() -> None:
        async for _ in reader:
            pass

    with pytest.raises(TypeError) as caught:
        run(read())
    assert str(caught.value) == "a Reader needs `for`; an AsyncReader is read with `async for` (docs/async.md#reading)"


def test_rows_before_a_reader_failure_are_delivered(run: Run, any_server: LocalServer) -> None:
    schema = pa.schema([("payload", pa.string())])

    def batches() -> Any:
        yield pa.record_batch({"payload": ["a", "b"]})
        raise OSError("the disk")

    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server)) as dispatcher:
            with pytest.raises(ReaderError, match="the disk"):
                await dispatcher.produce_batch(pa.RecordBatchReader.from_batches(schema, batches()))
            assert (await dispatcher.flush()).delivered == 2

    run(main())


def test_tls(run: Run, tls_server: LocalServer, certs: Certs) -> None:
    async def main() -> None:
        endpoint = endpoint_to(tls_server, tls_ca_cert=str(certs.ca))
        async with AsyncDispatcher(endpoint) as dispatcher:
            sent = await asyncio.gather(*(dispatcher.send(b"x" * 20_000) for _ in range(500)))
            assert len({delivered.entry_id for delivered in sent}) == 500

    run(main())


def test_a_cluster_with_shards(run: Run) -> None:
    (program, *_) = sorted(programs_with([]), reverse=True)
    with LocalCluster(program.path) as cluster:

        async def main() -> None:
            endpoint = Endpoint(nodes=cluster.nodes, shards=8, stream_key="s")
            async with AsyncDispatcher(endpoint) as dispatcher:
                sent = await asyncio.gather(*(dispatcher.send(b"x", key=b"%d" % number) for number in range(500)))
                assert all(delivered.entry_id for delivered in sent)
                assert len(dispatcher._watch._sockets) > 1

        run(main())


def test_calls_after_close_are_refused(run: Run, any_server: LocalServer) -> None:
    async def main() -> None:
        dispatcher = AsyncDispatcher(endpoint_to(any_server, password="canary"), retry=RetryPolicy(deadline=1))
        assert "canary" not in repr(dispatcher) + dispatcher._native._debug()
        await dispatcher.close()
        await dispatcher.close()
        assert dispatcher.closed
        for call in (dispatcher.send(b"x"), dispatcher.produce(b"x"), dispatcher.flush(), dispatcher.__aenter__()):
            with pytest.raises(ClosedError, match=r"^the dispatcher is closed; make a new one$"):
                await call

    run(main())


def test_metrics_include_the_counters_of_an_async_dispatcher(run: Run, any_server: LocalServer) -> None:
    from headrace.metrics import PrometheusCollector

    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server)) as dispatcher:
            collector = PrometheusCollector(dispatcher)
            await dispatcher.send(b"x")
            assert dispatcher.stats().delivered == 1
            samples = [sample for family in collector.collect() for sample in family.samples]
            assert [sample.value for sample in samples if sample.name == "headrace_delivered_total"] == [1]

    run(main())


def test_a_flush_that_times_out_stops_watching_its_connection(run: Run, any_server: LocalServer) -> None:
    """uvloop aborts the process where a descriptor is closed while it is watched."""

    async def main() -> None:
        async with AsyncDispatcher(endpoint_to(any_server, command_timeout=NEVER)) as dispatcher:
            await dispatcher.send(b"0")
            assert dispatcher._watch._sockets
            with stopped(any_server):
                await dispatcher.produce(b"1")
                (failure,) = (await dispatcher.flush(timeout=0)).failed
                assert failure.code == "TIMEOUT"
                assert not dispatcher._watch._sockets
            await dispatcher.send(b"2")

    run(main())


def test_a_report_counts_retries_that_began_before_its_outcomes(
    run: Run, any_server: LocalServer, client: redis.Redis
) -> None:
    async def main() -> None:
        policy = RetryPolicy(retry_unknown=True, initial_backoff=0.01, max_backoff=0.01, deadline=NEVER)
        async with AsyncDispatcher(endpoint_to(any_server, command_timeout=0.2), retry=policy) as dispatcher:
            await dispatcher.send(b"0")
            client.client_pause(60_000, all=False)
            await dispatcher.produce(b"1")
            await turns_until(lambda: dispatcher.stats().possible_duplicates)
            client.client_unpause()
            report = await dispatcher.flush()
            stats = dispatcher.stats()
            assert report.retries == stats.retries >= 1
            assert report.possible_duplicates == stats.possible_duplicates >= 1

    run(main())
