"""`Consumer.run` and `AsyncConsumer.run`: every entry is handled once, fails with a reason, or goes back."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis

from headrace import (
    AsyncConsumer,
    ClosedError,
    ConcurrentUseError,
    ConfigError,
    ConnectionFailedError,
    Consumer,
    Endpoint,
    Entry,
    StateError,
)
from headrace.reasons import reason_of
from headrace.testing import LocalServer
from support.fixture_types import StartServer
from support.groups import GROUP, add, pending_of
from support.handlers import KINDS, ONCE, Handlers
from support.loops import Run
from support.marks import thorough
from support.patience import NEVER, PATIENCE
from support.pipelines import KEY, endpoint_to
from support.processes import in_child, wait_until


@pytest.fixture(params=KINDS)
def handlers(request: pytest.FixtureRequest, any_server: LocalServer) -> Handlers:
    """Each kind of handlers, over an empty server."""
    return Handlers(request.param, any_server)


@pytest.fixture
def in_threads(any_server: LocalServer) -> Handlers:
    """Handlers in threads, over an empty server."""
    return Handlers("threads", any_server)


def _add_keys(client: redis.Redis, keys: list[bytes]) -> dict[bytes, list[int]]:
    """Add an entry for each key, with its number. Returns the numbers of each key, in order."""
    order: dict[bytes, list[int]] = {}
    pipeline = client.pipeline(transaction=False)
    for number, key in enumerate(keys):
        order.setdefault(key, []).append(number)
        pipeline.xadd(KEY, {"key": key, "number": number})
    pipeline.execute()
    return order


@pytest.mark.parametrize("concurrency", [1, 8, *thorough(64)])
def test_every_entry_is_handled_once_or_becomes_a_dead_letter(
    handlers: Handlers, client: redis.Redis, concurrency: int
) -> None:
    ids = add(client, 2_000)
    bad = set(random.Random(1).sample(ids, 20))
    handled: Counter[str] = Counter()

    def handle(entry: Entry) -> None:
        handled[entry.id] += 1
        if len(handled) == 2_000:
            handlers.stop()
        if entry.id in bad:
            raise ValueError(f"bad\n{entry.id}")

    report = handlers.run(handle, {**ONCE, "batch_rows": 300}, per="entry", concurrency=concurrency)
    assert handled == Counter(ids)
    assert (report.acked, report.dead, report.pending) == (1_980, 20, 0)
    assert pending_of(client) == {}
    reasons = {letter["original_id"]: letter["reason"] for letter in handlers.dead_letters()}
    assert reasons == {entry_id: f"ValueError: bad {entry_id}" for entry_id in bad}


# Of 5,000 rows a batch is cut several times.
@pytest.mark.parametrize("batch_rows", [50, 5_000])
def test_the_entries_of_a_key_are_handled_in_their_order(
    handlers: Handlers, client: redis.Redis, batch_rows: int
) -> None:
    rng = random.Random(1)
    # Most entries have one key: while a call has it, others are handled.
    order = _add_keys(client, [b"hot" if rng.random() < 0.5 else b"%d" % rng.randrange(20) for _ in range(5_000)])
    failing = {of_key[len(of_key) // 2] for of_key in order.values()}
    got: dict[bytes, list[int]] = {}
    working: set[bytes] = set()
    lock, overlaps, total = threading.Lock(), [], 0

    def handle(entries: list[Entry]) -> Any:
        nonlocal total
        (key,) = {entry["key"] for entry in entries}
        numbers = [int(entry["number"]) for entry in entries]
        with lock:
            if key in working:
                overlaps.append(key)
            working.add(key)
            got.setdefault(key, []).extend(numbers)
            total += len(entries)
        os.sched_yield()
        with lock:
            working.remove(key)
        if total == 5_000:
            handlers.stop()
        if failing & set(numbers):
            raise ValueError("fails")

    options = {**ONCE, "batch_rows": batch_rows}
    report = handlers.run(handle, options, per="key", key_field="key")
    assert overlaps == []
    # The entries of a call that fails fail together, and those of its key that come later are handled.
    assert got == order
    assert report.dead >= len(failing)
    assert (report.acked + report.dead, report.pending) == (5_000, 0)


def test_a_field_that_no_entry_has_is_noted(
    handlers: Handlers, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, 10)
    handled: list[str] = []

    def handle(entries: list[Entry]) -> None:
        handled.extend(entry.id for entry in entries)
        if len(handled) == 10:
            handlers.stop()

    assert handlers.run(handle, per="key", key_field="kye").acked == 10
    assert "none of the first 10 entries has the field 'kye'" in caplog.text


def test_a_call_with_a_batch_may_fail_single_entries(handlers: Handlers, client: redis.Redis) -> None:
    ids = add(client, 500)
    rows: list[str] = []

    def handle(batch: Any) -> None:
        rows.extend(entry.id for entry in batch)
        for entry in batch:
            if entry.id.endswith("7-0"):
                handlers.consumer.fail(entry, "seven")
        if len(rows) == 500:
            handlers.stop()

    report = handlers.run(handle, {**ONCE, "batch_rows": 50})
    assert sorted(rows) == sorted(ids)
    assert (report.acked, report.dead, report.pending) == (450, 50, 0)
    assert {letter["reason"] for letter in handlers.dead_letters()} == {"seven"}


def test_a_call_that_takes_too_long_fails(handlers: Handlers, client: redis.Redis) -> None:
    ids = add(client, 50)
    hangs, ends = set(ids[::5]), threading.Event()
    seen: set[str] = set()

    def handle(entry: Entry) -> Any:
        seen.add(entry.id)
        if entry.id not in hangs:
            return None
        return handlers.wait(ends)

    def stop_when_dead() -> None:
        wait_until(lambda: client.xlen("dead") == len(hangs) and len(seen) == len(ids))
        handlers.stop()

    watch = threading.Thread(target=stop_when_dead)
    watch.start()
    report = handlers.run(handle, ONCE, per="entry", concurrency=10, timeout=1.5)
    watch.join()
    ends.set()
    assert (report.acked, report.dead, report.pending) == (40, 10, 0)
    assert {letter["reason"] for letter in handlers.dead_letters()} == {"TimeoutError: no result within 1.5 s"}


def test_a_task_that_catches_its_cancellation_fails_and_is_left_behind_in_the_end(
    run: Run, any_server: LocalServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr("headrace.run_tasks._CANCEL_SECONDS", 0.1)
    add(client, 2)

    async def main() -> None:
        ends = asyncio.Event()

        async def handle(entry: Entry) -> None:
            if entry.id == "2-0":
                consumer.stop()
            while True:
                try:
                    await ends.wait()
                except asyncio.CancelledError:
                    if entry.id == "2-0":
                        continue
                return

        options: dict[str, Any] = {**ONCE, "group": GROUP, "consumer": "c", "start": "0-0", "block": 0.1}
        async with AsyncConsumer(endpoint_to(any_server), **options) as consumer:
            report = await consumer.run(handle, per="entry", concurrency=1, timeout=0.2, grace=0)
            # Both were cancelled: one returned None, and its work may be half done; the other one runs on.
            assert (report.acked, report.dead, report.released) == (0, 1, 1)
            assert "1 call of the handler of <AsyncConsumer: 'c'" in caplog.text
            ends.set()

    run(main())
    assert client.xlen("dead") == 1


def test_threads_that_hang_are_bounded(in_threads: Handlers, client: redis.Redis) -> None:
    add(client, 100)
    ends, most, handled = threading.Event(), 0, 0
    before = set(threading.enumerate())  # some of other tests may still hang

    def handle(_: Entry) -> None:
        nonlocal most, handled
        handled += 1
        most = max(most, sum(thread.name == "headrace-run" for thread in {*threading.enumerate()} - before))
        ends.wait(PATIENCE)

    with pytest.raises(StateError) as caught:
        in_threads.run(handle, ONCE, per="entry", concurrency=3, timeout=0.05)
    ends.set()
    assert str(caught.value).startswith("6 calls of the handler run on after their timeout of 0.05 s, and a thread")
    assert (most, handled) == (6, 6)
    # What no call had was given back, and is not failed.
    assert client.xlen("dead") == 6


def test_calls_that_end_after_their_timeout_make_room_again(in_threads: Handlers, client: redis.Redis) -> None:
    add(client, 3)
    ends, both = threading.Event(), threading.Barrier(2)

    def handle(entry: Entry) -> None:
        if entry["field"] == b"value":
            ends.wait()
            return
        # One of the two threads is there, until one of those that hang returns.
        ends.set()
        both.wait(PATIENCE)
        in_threads.stop()

    def add_two() -> None:
        wait_until(lambda: client.xlen("dead") == 3)
        for _ in range(2):
            client.xadd(KEY, {"field": "later"})

    watch = threading.Thread(target=add_two)
    watch.start()
    report = in_threads.run(handle, ONCE, per="entry", concurrency=2, timeout=1.0)
    watch.join()
    assert not both.broken
    assert report.acked == 2


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_ends_it_and_what_was_not_handled_goes_back(
    handlers: Handlers, client: redis.Redis, number: signal.Signals
) -> None:
    add(client, 1_000)

    def body() -> tuple[int, int]:
        handled = 0
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored

        def handle(_: Entry) -> None:
            nonlocal handled
            handled += 1
            if handled == 100:
                os.kill(os.getpid(), number)
                # In a thread: the main one has to notice it.
                wait_until(lambda: handlers.consumer._native.is_stopped)

        # The pieces in hand are not handled first.
        report = handlers.run(handle, {"batch_rows": 1_000}, per="entry", concurrency=1)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert handled == report.acked
        return report.acked, report.released

    acked, released = in_child(body)
    assert (acked, released) == (100, 900)
    # As if they had not been delivered.
    assert {count for _, count in pending_of(client).values()} == {0}
    assert len(pending_of(client)) == 900


def test_a_handler_of_the_program_keeps_its_signal(handlers: Handlers, client: redis.Redis) -> None:
    """As that of a web server."""
    add(client, 1)

    def body() -> tuple[int, int]:
        seen: list[int] = []

        def stop(number: int, _: object) -> None:
            seen.append(number)
            handlers.stop()

        signal.signal(signal.SIGTERM, stop)
        report = handlers.run(lambda _: os.kill(os.getpid(), signal.SIGTERM), per="entry")
        assert seen == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is stop
        return report.acked, report.pending

    assert in_child(body) == (1, 0)


def test_a_signal_stops_every_run_of_a_loop(run: Run, any_server: LocalServer, client: redis.Redis) -> None:
    add(client, 2)

    def body() -> int:
        seen: list[str] = []

        async def handle(entry: Entry) -> None:
            seen.append(entry.id)
            if len(seen) == 2:
                os.kill(os.getpid(), signal.SIGTERM)

        async def one(name: str) -> int:
            options: dict[str, Any] = {"group": GROUP, "consumer": name, "start": "0-0", "batch_rows": 1, "block": 0.1}
            async with AsyncConsumer(endpoint_to(any_server), **options) as consumer:
                return (await consumer.run(handle, per="entry", concurrency=1)).acked

        async def main() -> int:
            return sum(await asyncio.gather(one("a"), one("b")))

        acked: int = run(main())
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        return acked

    assert in_child(body) == 2


@pytest.mark.parametrize("signals", [1, 2])
def test_what_runs_may_end_within_the_grace_unless_a_second_signal_comes(
    handlers: Handlers, client: redis.Redis, signals: int
) -> None:
    add(client, 1)

    def body() -> tuple[int, int]:
        ends = threading.Event()

        def handle(_: Entry) -> Any:
            threading.Thread(target=kill).start()
            return handlers.wait(ends)

        def kill() -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(lambda: handlers.consumer._native.is_stopped)
            time.sleep(0.1)  # two signals at once are one; or for the grace, which should last
            if signals == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                ends.set()

        report = handlers.run(handle, per="entry", grace=NEVER)
        return report.acked, report.released

    assert in_child(body) == ((1, 0) if signals == 1 else (0, 1))


def test_stop_ends_it_at_once_without_a_grace(handlers: Handlers, client: redis.Redis) -> None:
    """Also while all calls run, and nothing is read."""
    ends = threading.Event()
    add(client, 100)

    def handle(_: Entry) -> Any:
        threading.Thread(target=handlers.stop).start()
        return handlers.wait(ends)

    report = handlers.run(handle, per="entry", concurrency=2, grace=0)
    ends.set()
    assert (report.acked, report.released, report.pending) == (0, 100, 0)


HANGS = """
import sys, threading
from headrace import Consumer, Endpoint

def handle(entry):
    print("handles", flush=True)
    threading.Event().wait()

with Consumer(Endpoint.from_url(sys.argv[1]), group="g", consumer="c", start="0-0") as consumer:
    print(consumer.run(handle, per="entry", concurrency=1, grace=0.1).released)
"""


def test_a_process_ends_although_a_handler_hangs(tcp_server: LocalServer, connect: Callable[..., redis.Redis]) -> None:
    add(connect(tcp_server), 3)
    command = [sys.executable, "-c", HANGS, f"{tcp_server.url}?stream_key={KEY}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "handles\n"
            process.terminate()
            assert process.communicate(timeout=PATIENCE)[0] == "3\n"
        finally:
            process.kill()
    assert process.returncode == 0


def test_a_run_that_is_cancelled_gives_its_entries_back(run: Run, any_server: LocalServer, client: redis.Redis) -> None:
    add(client, 50)

    async def main() -> None:
        begun = asyncio.Event()

        async def handle(_: Entry) -> None:
            begun.set()
            await asyncio.sleep(NEVER)

        async with AsyncConsumer(endpoint_to(any_server), group=GROUP, consumer="c", start="0-0") as consumer:
            running = asyncio.create_task(consumer.run(handle, per="entry"))
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert (await consumer.flush()).released == 50
            assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())


# --- exceptions and mistakes ------------------------------------------------------------------------------------------


def test_entries_are_released_after_an_exception_if_that_is_wanted(handlers: Handlers, client: redis.Redis) -> None:
    add(client, 10)

    def handle(entry: Entry) -> None:
        if entry.id == "10-0":
            handlers.stop()
        raise LookupError(entry.id)

    report = handlers.run(handle, ONCE, per="entry", concurrency=1, on_error="release")
    assert (report.acked, report.dead, report.released) == (0, 0, 10)


@pytest.mark.parametrize(
    ("error", "options"), [(LookupError("10-0"), {"on_error": "stop"}), (SystemExit(3), {}), (KeyboardInterrupt(), {})]
)
def test_an_exception_stops_it(
    handlers: Handlers, client: redis.Redis, error: BaseException, options: dict[str, Any]
) -> None:
    add(client, 100)

    def handle(entry: Entry) -> None:
        if entry.id == "10-0":
            raise error

    with pytest.raises(type(error)) as caught:
        handlers.run(handle, {**ONCE, "batch_rows": 20}, per="entry", concurrency=1, **options)
    assert caught.value is error
    # Nine are acknowledged, and the others of the batch given back.
    pending = {entry_id: count for entry_id, (_, count) in pending_of(client).items()}
    assert {entry_id: pending.get(entry_id) for entry_id in ("9-0", "10-0", "20-0")} == {
        "9-0": None,
        "10-0": 0,
        "20-0": 0,
    }
    assert client.xlen("dead") == 0


def test_a_handler_that_cancels_itself_fails(handlers: Handlers, client: redis.Redis) -> None:
    add(client, 1)

    def handle(_: Entry) -> None:
        handlers.stop()
        raise asyncio.CancelledError

    assert handlers.run(handle, ONCE, per="entry").dead == 1
    assert handlers.dead_letters()[0]["reason"] == "CancelledError"


@pytest.mark.parametrize("per", ["batch", "entry"])
def test_a_handler_that_returns_something_is_refused(handlers: Handlers, client: redis.Redis, per: str) -> None:
    add(client, 10)
    with pytest.raises(TypeError, match=r"^handle must return None, which acknowledges its entries, got False$"):
        handlers.run(lambda _: False, ONCE, per=per)
    assert {count for _, count in pending_of(client).values()} == {0}
    assert len(pending_of(client)) == 10


def test_what_is_no_function_or_one_of_the_other_kind_is_refused(any_server: LocalServer, client: redis.Redis) -> None:
    add(client, 10)

    async def coroutine(_: object) -> None: ...

    class Object:
        async def __call__(self, _: object) -> None: ...

    options: dict[str, Any] = {"endpoint": endpoint_to(any_server), "group": GROUP, "consumer": "c", "start": "0-0"}
    with Consumer(**options) as consumer:
        for no_function in (None, "print"):
            with pytest.raises(ConfigError, match=r"^handle must be a function of one argument \(per='batch'\), got "):
                consumer.run(no_function)  # type: ignore[arg-type]
        for refused in (coroutine, Object()):
            with pytest.raises(ConfigError, match=r"^handle must be a function, got the coroutine function <"):
                consumer.run(refused)
        assert consumer.report().handed_over == 0
        with pytest.raises(TypeError, match=r"^handle must return None, .* got <coroutine object"):
            consumer.run(lambda batch: coroutine(batch))
        assert consumer.flush().released == 10

    async def main() -> None:
        async with AsyncConsumer(**{**options, "group": "h"}) as consumer:
            with pytest.raises(TypeError, match=r"^handle must be a coroutine function, got <function"):
                await consumer.run(lambda _: None)  # type: ignore[arg-type,return-value]
            assert (await consumer.flush()).released == 10

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"per": "row"}, "per must be one of 'batch', 'entry', 'key', got 'row'"),
        ({"per": "key"}, "key_field must be the field with the key if per is 'key', and None otherwise, got None"),
        ({"key_field": "k"}, "key_field must be the field with the key if per is 'key', and None otherwise, got 'k'"),
        ({"concurrency": 0}, "concurrency must be an integer from 1 to 10,000, got 0"),
        ({"concurrency": True}, "concurrency must be an integer from 1 to 10,000, got True"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0, at most 86,400, or None, got 0"),
        ({"timeout": float("nan")}, "timeout must be a number of seconds above 0, at most 86,400, or None, got nan"),
        ({"grace": -1}, "grace must be a number of seconds from 0 to 86,400, got -1"),
        ({"on_error": "retry"}, "on_error must be one of 'fail', 'release', 'stop', got 'retry'"),
    ],
)
def test_wrong_options_are_refused(handlers: Handlers, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        handlers.run(print, {}, **options)
    assert str(caught.value) == named
    assert named.startswith(caught.value.option)


def test_a_consumer_that_acknowledges_at_once_is_refused(handlers: Handlers) -> None:
    with pytest.raises(ConfigError, match=r"^run needs a consumer with ack='explicit'"):
        handlers.run(print, {"ack": "none"})


def test_one_run_at_a_time(handlers: Handlers, client: redis.Redis) -> None:
    add(client, 1)
    refused: list[str] = []

    async def again() -> None:
        try:
            await handlers.consumer.run(print)
        except ConcurrentUseError as error:
            refused.append(str(error))
        handlers.stop()

    def handle(_: Entry) -> Any:
        if handlers.kind != "threads":
            return again()
        with pytest.raises(ConcurrentUseError) as caught:
            handlers.consumer.run(print)
        refused.append(str(caught.value))
        handlers.stop()
        return None

    assert handlers.run(handle, per="entry").acked == 1
    assert refused == ["the consumer is in use by another run: it takes one at a time"]
    run = handlers.consumer.run
    with pytest.raises(ClosedError):
        run(print) if handlers.kind == "threads" else asyncio.run(run(print))


def test_calls_may_end_after_reading_has_failed(handlers: Handlers, start_server: StartServer) -> None:
    handlers.server = server = start_server()
    with redis.Redis(unix_socket_path=server.unix_socket, protocol=2) as client:
        add(client, 1)
    ends, has_ended = threading.Event(), False

    def handle(_: Entry) -> Any:
        server.kill()
        threading.Timer(0.3, end).start()  # by then reading has failed
        return handlers.wait(ends)

    def end() -> None:
        nonlocal has_ended
        has_ended = True
        ends.set()

    with pytest.raises(ConnectionFailedError):
        handlers.run(handle, per="entry", grace=NEVER)
    assert has_ended


# --- leases, memory, context ------------------------------------------------------------------------------------------


def test_what_another_consumer_has_taken_over_is_stale(handlers: Handlers, client: redis.Redis) -> None:
    add(client, 2)

    def handle(entry: Entry) -> None:
        if entry.id == "1-0":
            client.xclaim(KEY, GROUP, "other", 0, ["1-0"])
        else:
            handlers.stop()

    report = handlers.run(handle, {"min_idle": 60.0}, per="entry", concurrency=1)
    assert (report.acked, report.stale) == (1, 1)
    assert pending_of(client) == {"1-0": (b"other", 2)}


def test_no_call_begins_after_its_lease(handlers: Handlers, client: redis.Redis) -> None:
    add(client, 3)
    returned: dict[str, int] = {}

    def handle(entry: Entry) -> None:
        if not returned:
            time.sleep(0.6)
        returned[entry.id] = handlers.consumer.report().handed_over
        if len(returned) == 3:
            handlers.stop()

    options = {"min_idle": 0.5, "renew": False, "claim_interval": 0.05}
    handlers.run(handle, options, per="entry", concurrency=1)
    # The first call was late. The other entries were given back, and came again, before they were handled.
    assert returned["1-0"] == 3
    assert min(returned["2-0"], returned["3-0"]) >= 4


@pytest.mark.parametrize(
    ("per", "most"),
    [({}, 4), ({"per": "entry"}, 4), ({"per": "key", "key_field": "key"}, 3)],
    ids=["batch", "entry", "key"],
)
def test_what_is_in_hand_is_bounded(handlers: Handlers, client: redis.Redis, per: dict[str, Any], most: int) -> None:
    """The pieces of a key that are behind each other count too."""
    _add_keys(client, [b"hot"] * 100)
    begun, ends, counts = threading.Event(), threading.Event(), []

    def handle(_: Any) -> Any:
        begun.set()
        return handlers.wait(ends)

    def stop() -> None:
        begun.wait()
        wait_until(lambda: handlers.consumer.report().handed_over >= most)
        time.sleep(0.1)  # for more, which should not be read
        counts.append(handlers.consumer.report().handed_over)
        handlers.stop()
        ends.set()

    watch = threading.Thread(target=stop)
    watch.start()
    handlers.run(handle, {"batch_rows": 1}, concurrency=2, **per)
    watch.join()
    assert counts == [most]


def test_threads_have_the_context_of_the_caller(in_threads: Handlers, client: redis.Redis) -> None:
    add(client, 1)
    request = contextvars.ContextVar("request", default="none")
    request.set("r1")
    seen: list[str] = []

    def handle(_: Entry) -> None:
        seen.append(request.get())
        request.set("changed")
        in_threads.stop()

    in_threads.run(handle, per="entry")
    assert (seen, request.get()) == (["r1"], "r1")
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-run"]


class _Tracked(LookupError):  # noqa: N818
    """Builtin ones have no weak references."""


def test_exceptions_are_freed_at_once(handlers: Handlers, client: redis.Redis) -> None:
    """Without the garbage collector: their tracebacks hold what the handler had."""
    add(client, 20)
    raised: list[weakref.ref[BaseException]] = []
    alive: list[int] = []

    def handle(entry: Entry) -> None:
        alive.append(sum(reference() is not None for reference in raised))
        if len(alive) == 20:
            handlers.stop()
        error = _Tracked(entry.id)
        raised.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    gc.disable()
    try:
        handlers.run(handle, ONCE, per="entry", concurrency=1)
    finally:
        gc.enable()
    assert len(raised) == 20
    assert max(alive) <= 1
    assert not any(reference() for reference in raised)


# --- reasons ----------------------------------------------------------------------------------------------------------


class _Speechless(Exception):  # noqa: N818, the reason is its name
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("a\n  b"), "ValueError: a b"),
        (ValueError(), "ValueError"),
        (_Speechless(), "_Speechless"),
        (ValueError("a\udc80"), "ValueError: a\\udc80"),
        (ExceptionGroup("2 levels", [ExceptionGroup("1", [KeyError("k")])]), "KeyError: 'k'"),
        (OSError("no redis://app:hunter2@db:6379/0"), "OSError: no redis://***@db:6379/0"),
        (OSError("no redis://app:hun/t@er2@db"), "OSError: no redis://***@db"),
        (OSError("hunter2 is refused"), "OSError: *** is refused"),
        (OSError("hunter3 is refused"), "OSError: *** is refused"),
        (OSError("no {'host': 'db', 'password': 'x y'}"), "OSError: no {'host': 'db', 'password': ***}"),
        (OSError("no host=db password=xy dbname=d"), "OSError: no host=db password=*** dbname=d"),
        # Cut only after that.
        (OSError("x" * 180 + " hunter2"), f"OSError: {'x' * 180} ***"),
    ],
)
def test_a_reason_is_one_short_line_without_secrets(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, reason: str
) -> None:
    monkeypatch.setenv("SENTINELS", "hunter3")
    endpoint = Endpoint(
        nodes=["db"], sentinel_master="m", password="hunter2", sentinel_password_env="SENTINELS", stream_key="k"
    )
    assert reason_of(error, endpoint) == reason
    assert len(reason_of(ValueError("x" * 1_000), endpoint)) == 200


def test_no_secret_reaches_the_dead_letters(handlers: Handlers, client: redis.Redis) -> None:
    add(client, 1)

    def handle(_: Entry) -> None:
        handlers.stop()
        raise OSError("cannot connect to redis://app:hunter2@db:6379/0")

    handlers.run(handle, ONCE, per="entry")
    assert handlers.dead_letters()[0]["reason"] == "OSError: cannot connect to redis://***@db:6379/0"


# --- all of it --------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("per", ["entry", "key"])
@pytest.mark.parametrize("concurrency", [1, 8, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_20_000_entries_are_handled_once_over_failures_hanging_calls_and_a_signal(
    kind: str, concurrency: int, per: str, server: LocalServer, connect: Callable[..., redis.Redis]
) -> None:
    rng, client, total = random.Random(concurrency), connect(server), 20_000
    order = _add_keys(client, [b"%d" % rng.randrange(300) for _ in range(total)])
    last = client.xinfo_stream(KEY)["last-generated-id"]
    special = rng.sample(range(total), 210)
    failing, hanging = set(special[10:]), set(special[:10])
    timeout = 1.0
    handlers = Handlers(kind, server)

    def run(signal_after: int) -> tuple[dict[bytes, list[int]], int, int]:
        """The numbers that were handled, and how many entries were acknowledged and are dead."""
        handled: dict[bytes, list[int]] = {}
        lock, count = threading.Lock(), 0

        def handle(given: Any) -> Any:
            nonlocal count
            entries = given if per == "key" else [given]
            numbers = [int(entry["number"]) for entry in entries]
            with lock:
                handled.setdefault(entries[0]["key"], []).extend(numbers)
                is_now = count < signal_after <= count + len(numbers)
                count += len(numbers)
            if is_now:
                os.kill(os.getpid(), signal.SIGTERM)
            if hanging & set(numbers):
                if kind != "threads":
                    return asyncio.sleep(NEVER)
                time.sleep(1.5 * timeout)
            if failing & set(numbers):
                raise ValueError(f"fails {numbers}")
            return None

        key_field = "key" if per == "key" else None
        options = {**ONCE, "batch_rows": 500}
        report = handlers.run(
            handle, options, per=per, key_field=key_field, concurrency=concurrency, timeout=timeout, grace=PATIENCE
        )
        assert report.pending == 0 or signal_after <= total
        assert (report.stale, report.unknown, report.lost) == (0, 0, 0)
        return handled, report.acked, report.dead

    def stop_when_done() -> None:
        def is_done() -> bool:
            (group,) = client.xinfo_groups(KEY)
            return bool(group["last-delivered-id"] == last and group["pending"] == 0)

        wait_until(is_done)
        handlers.stop()

    first, *counts = in_child(lambda: run(total // 2))
    begun = sum(map(len, first.values()))
    assert total // 2 <= begun < total
    watch = threading.Thread(target=stop_when_done)
    watch.start()
    second, *more = run(2 * total)
    watch.join()
    # Each entry was handled once, and those of a key in their order, over both runs; with `entry` in any order.
    both = {key: first.get(key, []) + second.get(key, []) for key in order}
    assert (both if per == "key" else {key: sorted(numbers) for key, numbers in both.items()}) == order
    acked, dead = (a + b for a, b in zip(counts, more, strict=True))
    letters = [int(dict(letter["fields"])[b"number"]) for letter in handlers.dead_letters()]
    assert len(letters) == len(set(letters)) == dead
    assert acked == total - dead
    # With `key`, what came with a failure fails too.
    assert (set(letters) >= failing | hanging) if per == "key" else (set(letters) == failing | hanging)
    reasons = Counter(letter["reason"].split(":")[0] for letter in handlers.dead_letters())
    assert reasons["TimeoutError"] >= 10
    assert per == "key" or reasons == {"ValueError": 200, "TimeoutError": 10}
