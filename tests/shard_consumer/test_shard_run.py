"""`ShardConsumer.run` and `AsyncShardConsumer.run`: every entry is handled in order, and committed when it is done."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest
import redis

from headrace import AsyncShardConsumer, ConcurrentUseError, ConfigError, Dispatcher, Entry, StateError
from headrace.testing import LocalServer
from support.groups import GROUP, add
from support.handled import Handled, add_keys, place_of, until_committed
from support.handlers import KINDS, ONCE, ShardHandlers
from support.loops import Run
from support.marks import thorough
from support.patience import NEVER, PATIENCE
from support.pipelines import KEY, endpoint_to
from support.processes import in_child, killed_in_child, wait_until
from support.shard_consumers import lease_key, member_of, take, wait_for_shares

STREAMS = ["x", "y", "z"]
#: How `run` is called for each kind of call.
PER: dict[str, dict[str, Any]] = {
    "batch": {"per": "batch"},
    "entry": {"per": "entry"},
    "key": {"per": "key", "key_field": "key"},
}


@pytest.fixture(params=["threads", "asyncio", *thorough("uvloop")])
def handlers(request: pytest.FixtureRequest, server: LocalServer) -> ShardHandlers:
    """Each kind of handlers, over an empty server."""
    return ShardHandlers(request.param, server)


@pytest.fixture
def in_threads(server: LocalServer) -> ShardHandlers:
    """Handlers in threads, over an empty server."""
    return ShardHandlers("threads", server)


@pytest.fixture
def client(server: LocalServer, connect: Callable[..., redis.Redis]) -> redis.Redis:
    return connect(server)


def random_keys(count: int, kinds: int = 20) -> list[bytes]:
    """Keys of which half are the same: while a call has it, others are handled."""
    rng = random.Random(1)
    return [b"hot" if rng.random() < 0.5 else b"%d" % rng.randrange(kinds) for _ in range(count)]


# --- order and commits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per", PER)
@pytest.mark.parametrize("concurrency", [1, 8, *thorough(64)])
def test_every_entry_is_handled_once_and_in_order(
    handlers: ShardHandlers, client: redis.Redis, concurrency: int, per: str
) -> None:
    order = add_keys(client, STREAMS, random_keys(900))
    handled = Handled(handlers, per)
    options = {"streams": STREAMS, "batch_rows": 40}
    with until_committed(handlers, client, STREAMS):
        report = handlers.run(handled, options, **PER[per], concurrency=concurrency)
    assert (handled.overlaps, handled.first, max(handled.counts.values())) == ([], order, 1)
    assert (report.handed_over, report.committed, report.pending) == (900, 900, 0)


@pytest.mark.parametrize("per", ["batch", "entry"])
def test_streams_do_not_wait_for_each_other(handlers: ShardHandlers, client: redis.Redis, per: str) -> None:
    add_keys(client, STREAMS, [b"key"] * 60)
    begun: set[bytes] = set()
    both = threading.Event()

    def handle(given: Any) -> Any:
        stream = given.stream
        begun.add(stream)
        if begun == {b"x", b"y", b"z"}:
            both.set()
        return handlers.wait(both)

    with until_committed(handlers, client, STREAMS):
        assert handlers.run(handle, {"streams": STREAMS}, per=per, concurrency=3).committed == 60


def test_only_the_beginning_that_is_done_is_committed(handlers: ShardHandlers, client: redis.Redis) -> None:
    """The first key of x takes long; the other keys are handled meanwhile."""
    add_keys(client, ["x"], [b"slow", *(b"%d" % number for number in range(50))])
    others, ends = threading.Event(), threading.Event()
    places: list[bytes] = []

    def act(numbers: list[int]) -> Any:
        if numbers == [0]:
            return handlers.wait(ends)
        if len(handled.counts) >= 52:
            others.set()
        return None

    def watch() -> None:
        others.wait()
        # One thread sends all commits: when it has sent a later one, it has sent those of x.
        client.xadd("y", {"key": "y", "number": 100})
        wait_until(lambda: place_of(client, "y") not in (b"", b"0-0"))
        places.append(place_of(client, "x"))
        ends.set()

    handled = Handled(handlers, "key", act)
    client.xadd("y", {"key": "y", "number": 99}, id="1-1")
    watching = threading.Thread(target=watch)
    watching.start()
    with until_committed(handlers, client, ["x", "y"]):
        handlers.run(handled, {"streams": ["x", "y"], "batch_rows": 10}, **PER["key"])
    watching.join()
    assert places == [b"0-0"]


def test_an_entry_without_the_key_is_alone_in_its_stream(
    handlers: ShardHandlers, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    for number, key in enumerate(["a", "b", None, None, "a", "c"]):
        client.xadd("x", {"number": number} if key is None else {"number": number, "key": key})
    events: list[str] = []
    both = {group: threading.Event() for group in ("01", "45")}

    def handle(entries: list[Entry]) -> Any:
        (number,) = (entry["number"].decode() for entry in entries)
        events.append(f"begin {number}")
        for group, begun in both.items():
            if number in group:
                if {f"begin {each}" for each in group} <= {*events}:
                    begun.set()
                return end(number, begun)
        return end(number)

    def end(number: str, begun: threading.Event | None = None) -> Any:
        waits = None if begun is None else handlers.wait(begun)
        if waits is None:
            events.append(f"end {number}")
            return None

        async def later() -> None:
            await waits
            events.append(f"end {number}")

        return later()

    with until_committed(handlers, client, ["x"]):
        handlers.run(handle, {"streams": ["x"]}, **PER["key"])
    assert sorted(events[:4]) == ["begin 0", "begin 1", "end 0", "end 1"]
    assert events[4:8] == ["begin 2", "end 2", "begin 3", "end 3"]
    assert sorted(events[8:]) == ["begin 4", "begin 5", "end 4", "end 5"]
    assert "has the field" not in caplog.text


def test_a_field_that_no_entry_has_is_noted(
    handlers: ShardHandlers, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    ids = add(client, 10)
    handled: list[str] = []
    with until_committed(handlers, client, [KEY]):
        handlers.run(lambda entries: handled.extend(entry.id for entry in entries), per="key", key_field="kye")
    assert handled == ids
    assert "none of the first 10 entries has the field 'kye', whose order run keeps: those of a stream" in caplog.text


def test_an_entry_of_several_rows_is_committed_when_all_are_done(handlers: ShardHandlers, server: LocalServer) -> None:
    import pyarrow as pa

    rows = pa.table({"json": [f'{{"n": {number}}}' for number in range(9)]})
    with Dispatcher(endpoint_to(server)) as dispatcher:
        dispatcher.produce_batch(rows, json=["json"], rows_per_entry=3)
        dispatcher.flush().raise_for_failures()
    got: list[int] = []

    def handle(entry: Entry) -> None:
        got.append(len(got))
        if len(got) == 5:
            handlers.stop()

    options: dict[str, Any] = {"unpack": "json", "schema": {"json": "utf8"}, "metadata": ["entry_id"]}
    report = handlers.run(handle, options, per="entry")
    assert (got, report.committed) == ([0, 1, 2, 3, 4], 1)


@pytest.mark.parametrize("batch_rows", [2, 1_000])
def test_what_is_in_hand_is_bounded(handlers: ShardHandlers, client: redis.Redis, batch_rows: int) -> None:
    add(client, 6_000)
    most = {2: 2 * 100, 1_000: 2 * 2 * 1_000}[batch_rows]
    begun, ends = threading.Event(), threading.Event()
    counts: list[int] = []

    def handle(_: Entry) -> Any:
        begun.set()
        return handlers.wait(ends)

    def stop() -> None:
        begun.wait()
        wait_until(lambda: handlers.consumer.report().handed_over >= most)
        threading.Event().wait(0.1)  # for more, which should not be read
        counts.append(handlers.consumer.report().handed_over)
        handlers.stop()
        ends.set()

    watch = threading.Thread(target=stop)
    watch.start()
    handlers.run(handle, {"batch_rows": batch_rows}, per="entry", concurrency=2)
    watch.join()
    assert counts == [most]


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per", PER)
def test_a_signal_ends_it_and_the_rest_comes_again(handlers: ShardHandlers, client: redis.Redis, per: str) -> None:
    order = add_keys(client, STREAMS, random_keys(900))

    def body() -> tuple[Any, set[int], int]:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        done: set[int] = set()

        def act(numbers: list[int]) -> None:
            if len(done) < 200 <= len(done) + len(numbers):
                os.kill(os.getpid(), signal.SIGTERM)
            done.update(numbers)

        handled = Handled(handlers, per, act)
        report = handlers.run(handled, {"streams": STREAMS, "batch_rows": 40}, **PER[per], grace=PATIENCE)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert handled.overlaps == []
        return handled.first, done, report.committed

    first, done, committed = in_child(body)
    assert 200 <= len(done) < 900
    # All calls have ended: with keys, some are behind one that did not begin.
    assert committed <= len(done)
    assert per == "key" or committed == len(done)
    with member_of(endpoint_to(handlers.server), "a", STREAMS) as member:
        rest: dict[tuple[bytes, bytes], list[int]] = {}
        while sum(map(len, rest.values())) < 900 - committed:
            batch = member.poll(PATIENCE)
            assert batch is not None
            for entry in batch:
                rest.setdefault((entry.stream, entry["key"]), []).append(int(entry["number"]))
    again = [number for numbers in rest.values() for number in numbers]
    assert {*range(900)} - {*again} <= done
    for chain, numbers in order.items():
        was = first.get(chain, [])
        assert was == numbers[: len(was)]
        assert rest.get(chain, []) == numbers[len(numbers) - len(rest.get(chain, [])) :]


@pytest.mark.parametrize("signals", [1, 2])
def test_what_runs_may_end_within_the_grace_unless_a_second_signal_comes(
    handlers: ShardHandlers, client: redis.Redis, signals: int
) -> None:
    add(client, 1)

    def body() -> int:
        ends = threading.Event()

        def handle(_: Entry) -> Any:
            threading.Thread(target=kill).start()
            return handlers.wait(ends)

        def kill() -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(lambda: handlers.consumer._native.is_stopped)
            threading.Event().wait(0.1)  # two signals at once are one; or for the grace, which should last
            if signals == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                ends.set()

        return int(handlers.run(handle, per="entry", grace=NEVER).committed)

    assert in_child(body) == (1 if signals == 1 else 0)


def test_a_run_that_is_cancelled_commits_nothing_more(run: Run, server: LocalServer, client: redis.Redis) -> None:
    add(client, 50)

    async def main() -> None:
        begun = asyncio.Event()

        async def handle(_: Entry) -> None:
            if not begun.is_set():
                begun.set()
                return
            await asyncio.sleep(NEVER)

        async with AsyncShardConsumer(endpoint_to(server), group=GROUP, member="a") as consumer:
            running = asyncio.create_task(consumer.run(handle, per="entry"))
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert (await consumer.flush()).committed == 1
            assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())


@pytest.mark.parametrize("per", PER)
@pytest.mark.parametrize(("error", "options"), [(LookupError("10"), {"on_error": "stop"}), (SystemExit(3), {})])
def test_an_exception_stops_it_and_comes_again_first(
    handlers: ShardHandlers, client: redis.Redis, error: BaseException, options: dict[str, Any], per: str
) -> None:
    add_keys(client, ["x"], [b"%d" % number for number in range(20)])

    def act(numbers: list[int]) -> None:
        if 10 in numbers:
            raise error

    handled = Handled(handlers, per, act)
    with pytest.raises(type(error)) as caught:
        handlers.run(handled, {"streams": ["x"], "batch_rows": 5}, **PER[per], concurrency=4, **options)
    assert caught.value is error
    run = handlers.consumer.run
    with pytest.raises(StateError, match=r"^the consumer has run, and does not return again what"):
        run(print) if handlers.kind == "threads" else asyncio.run(run(print))
    with member_of(endpoint_to(handlers.server), "b", ["x"]) as member:
        batch = member.poll(PATIENCE)
        assert batch is not None
        assert int(batch[0]["number"]) == 10


def test_a_consumer_that_has_run_returns_nothing_more(in_threads: ShardHandlers, client: redis.Redis) -> None:
    """The batch in hand would be committed with the next one."""
    add(client, 20)
    with member_of(in_threads.server, batch_rows=5) as member:
        with pytest.raises(TypeError, match=r"^handle must return None, which commits its entries, got False$"):
            member.run(lambda _: False)
        assert member.poll(0) is None
        assert member.flush().committed == 0


# --- failures ---------------------------------------------------------------------------------------------------------


class Flaky:
    """Raises once for each of these numbers, or as often as said."""

    def __init__(self, numbers: Iterable[int], times: int = 1) -> None:
        self.left = dict.fromkeys(numbers, times)

    def __call__(self, numbers: list[int]) -> None:
        if bad := next((number for number in numbers if self.left.get(number)), None):
            self.left[bad] -= 1
            raise ValueError(f"bad {bad}")


@pytest.mark.parametrize("per", PER)
def test_what_fails_comes_again_before_what_follows(handlers: ShardHandlers, client: redis.Redis, per: str) -> None:
    """Nothing is skipped, whatever else of the stream is at work."""
    order = add_keys(client, STREAMS, random_keys(300))
    handled = Handled(handlers, per, Flaky(random.Random(2).sample(range(1, 300), 6)))
    with until_committed(handlers, client, STREAMS):
        report = handlers.run(handled, {"streams": STREAMS, "batch_rows": 20}, **PER[per])
    assert (handled.overlaps, handled.first) == ([], order)
    assert (report.committed, report.pending, report.fenced) == (300, 0, 0)
    if per == "entry":
        assert sum(handled.counts.values()) == 306


def test_an_entry_comes_again_until_it_is_done(handlers: ShardHandlers, client: redis.Redis) -> None:
    add_keys(client, ["x"], [b"key"] * 8)
    handled = Handled(handlers, "entry", Flaky([4], 2))
    with until_committed(handlers, client, ["x"]):
        handlers.run(handled, {"streams": ["x"]}, per="entry")
    assert handled.calls == [[number] for number in (0, 1, 2, 3, 4, 4, 4, 5, 6, 7)]


def test_the_entries_of_a_call_that_fails_are_handled_one_by_one(handlers: ShardHandlers, client: redis.Redis) -> None:
    add_keys(client, ["x"], [b"key"] * 5)
    handled = Handled(handlers, "key", Flaky([2], 2))
    with until_committed(handlers, client, ["x"]):
        handlers.run(handled, {"streams": ["x"]}, **PER["key"])
    assert handled.calls == [[0, 1, 2, 3, 4], [0], [1], [2], [2, 3, 4]]


def test_what_comes_before_a_failure_is_handled_first(handlers: ShardHandlers, client: redis.Redis) -> None:
    """A failure commits it."""
    add_keys(client, ["x"], [b"a", b"b", b"c", b"a", b"b", b"c"])
    has_failed = threading.Event()

    def act(numbers: list[int]) -> Any:
        if numbers == [4] and not has_failed.is_set():
            has_failed.set()
            raise ValueError("bad")
        return handlers.wait(has_failed) if numbers == [0] else None

    handled = Handled(handlers, "key", act)
    with until_committed(handlers, client, ["x"]):
        handlers.run(handled, {"streams": ["x"], "batch_rows": 3}, **PER["key"])
    assert [handled.counts[number] for number in range(5)] == [1, 1, 1, 1, 2]
    assert handled.calls.index([3]) < len(handled.calls) - 1 - handled.calls[::-1].index([4])


@pytest.mark.parametrize("per", PER)
def test_what_fails_too_often_becomes_a_dead_letter(handlers: ShardHandlers, client: redis.Redis, per: str) -> None:
    order = add_keys(client, STREAMS, random_keys(300))
    bad = set(random.Random(2).sample(range(1, 300), 3))
    handled = Handled(handlers, per, Flaky(bad, 100))
    with until_committed(handlers, client, STREAMS):
        report = handlers.run(handled, {**ONCE, "streams": STREAMS, "batch_rows": 20}, **PER[per])
    assert (handled.overlaps, handled.first) == ([], order)
    assert (report.committed, report.dead, report.pending) == (300, 3, 0)
    letters = {int(dict(letter["fields"])[b"number"]): letter["reason"] for letter in handlers.dead_letters()}
    assert letters == {number: f"ValueError: bad {number}" for number in bad}


def test_a_stream_waits_for_a_call_that_runs_on_after_its_timeout(handlers: ShardHandlers, client: redis.Redis) -> None:
    """A thread cannot be stopped. Other streams go on; a task is cancelled."""
    add_keys(client, ["x", "y"], [b"key"] * 40)
    ends, hung = threading.Event(), threading.Event()

    def act(numbers: list[int]) -> Any:
        if numbers == [0] and not hung.is_set():
            client.xadd("y", {"key": "key", "number": 40})
            hung.set()
            return handlers.wait(ends)
        if numbers == [40]:  # the only call at a time, so that the other one was given up
            ends.set()
        return None

    handled = Handled(handlers, "entry", act)
    with until_committed(handlers, client, ["x", "y"]):
        report = handlers.run(handled, {"streams": ["x", "y"]}, per="entry", concurrency=1, timeout=1.0)
    assert handled.overlaps == []
    assert handled.counts == Counter([0, *range(41)])
    assert (report.committed, report.pending) == (41, 0)


def test_the_entries_of_a_call_that_runs_on_come_again_in_order(in_threads: ShardHandlers, client: redis.Redis) -> None:
    """Which of them takes too long is not known."""
    add_keys(client, ["x"], [b"key"] * 8)
    ends = threading.Event()

    def act(numbers: list[int]) -> None:
        if 5 in numbers and not ends.is_set():
            threading.Timer(1.0, ends.set).start()  # after the timeout
            ends.wait()

    handled = Handled(in_threads, "key", act)
    with until_committed(in_threads, client, ["x"]):
        in_threads.run(handled, {"streams": ["x"]}, **PER["key"], timeout=0.3)
    assert handled.calls[0] == [*range(8)]
    assert [number for numbers in handled.calls[1:] for number in numbers] == [*range(8)]


def test_a_failure_in_the_end_is_reported(handlers: ShardHandlers, client: redis.Redis) -> None:
    """The next run finds that the entry has failed before, and moves it."""
    add_keys(client, ["x"], [b"key"] * 8)

    def act(numbers: list[int]) -> None:
        if numbers == [4]:
            handlers.stop()
            raise ValueError("bad")

    options: dict[str, Any] = {"streams": ["x"], "dead_letter_key": "dead", "max_failures": 2}
    assert handlers.run(Handled(handlers, "entry", act), options, per="entry").committed == 4
    assert client.xlen("dead") == 0
    report = handlers.run(Handled(handlers, "entry", act), options, per="entry")
    assert (report.committed, report.dead, client.xlen("dead")) == (1, 1, 1)


# --- leases -----------------------------------------------------------------------------------------------------------


def test_no_call_begins_with_what_another_member_has(handlers: ShardHandlers, client: redis.Redis) -> None:
    add(client, 10, key="x")
    is_lost = threading.Event()
    seen: list[tuple[bytes, str]] = []

    def watch() -> None:
        wait_until(lambda: handlers.consumer.assignment == [b"y"])
        client.xadd("y", {"field": "value"}, id="1-0")
        is_lost.set()

    def handle(entry: Entry) -> Any:
        seen.append((entry.stream, entry.id))
        if entry.stream == b"y":
            handlers.stop()
        elif entry.id == "1-0":
            client.hset(lease_key("x"), mapping={"owner": "b", "epoch": 2**52, "until": 2**52})
            watching.start()
        elif entry.id == "2-0":
            return handlers.wait(is_lost)
        return None

    watching = threading.Thread(target=watch)
    report = handlers.run(handle, {"streams": ["x", "y"]}, per="entry", concurrency=1)
    watching.join()
    assert seen == [(b"x", "1-0"), (b"x", "2-0"), (b"y", "1-0")]
    assert (report.committed, report.fenced, report.streams_lost) == (1, 2, 1)


def test_what_is_in_hand_of_a_stream_that_is_given_up_is_handled(handlers: ShardHandlers, client: redis.Redis) -> None:
    for key in ("x", "y"):
        add(client, 10, key=key)
    begun, ends = set[bytes](), threading.Event()
    seen: dict[bytes, list[str]] = {}
    taken: dict[str, list[str]] = {}

    def other() -> None:
        wait_until(lambda: len(begun) == 2)
        with member_of(endpoint_to(handlers.server), "b", ["x", "y"]) as member:
            wait_until(lambda: len(handlers.consumer.assignment) == 1)
            for key in ("x", "y"):
                add(client, 10, first=11, key=key)
            ends.set()
            wait_for_shares([handlers.consumer, member], [1, 1])
            taken.update(take(member, 10))
            wait_until(lambda: sum(map(len, seen.values())) == 30)
            handlers.stop()

    def handle(entry: Entry) -> Any:
        seen.setdefault(entry.stream, []).append(entry.id)
        begun.add(entry.stream)
        return handlers.wait(ends)

    thread = threading.Thread(target=other)
    thread.start()
    report = handlers.run(handle, {"streams": ["x", "y"]}, per="entry", concurrency=4)
    thread.join()
    ((given, after),) = taken.items()
    assert {key.decode(): len(ids) for key, ids in seen.items()} == {given: 10, "y" if given == "x" else "x": 20}
    for ids in ([*seen[given.encode()], *after], *seen.values()):
        assert ids == [f"{number}-0" for number in range(1, len(ids) + 1)]
    assert (report.committed, report.fenced) == (30, 0)


def test_a_killed_process_loses_nothing_and_keeps_the_order_of_each_key(
    handlers: ShardHandlers, client: redis.Redis
) -> None:
    order = add_keys(client, STREAMS, random_keys(900))

    def run(dies_at: int) -> None:
        def act(numbers: list[int]) -> None:
            # In one command: a process that dies has noted all of a call, or nothing.
            noted: Any = own.rpush("handled", *numbers)
            if noted - len(numbers) < dies_at <= noted:
                os.kill(os.getpid(), signal.SIGKILL)

        with redis.Redis(unix_socket_path=handlers.server.unix_socket, protocol=2) as own:
            handlers.run(Handled(handlers, "key", act), {"streams": STREAMS, "batch_rows": 40}, **PER["key"])

    killed_in_child(lambda: run(400))
    noted: Any = client.lrange("handled", 0, -1)
    before = len(noted)
    committed = sum(committed_of(client, stream) for stream in STREAMS)
    with until_committed(handlers, client, STREAMS):
        run(10_000)
    noted = [int(number) for number in [*cast("Any", client.lrange("handled", 0, -1))]]
    firsts = {number: at for at, number in reversed([*enumerate(noted)])}
    assert firsts.keys() == {*range(900)}
    for numbers in order.values():
        assert sorted(numbers, key=firsts.__getitem__) == numbers
    # Nothing that was committed came again.
    assert before + 900 - committed == len(noted)


def committed_of(client: redis.Redis, stream: str) -> int:
    """How many entries of a stream are committed."""
    place = place_of(client, stream)
    entries: Any = client.xrange(stream, max=place) if place else []
    return len(entries)


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"per": "row"}, "per must be one of 'batch', 'entry', 'key', got 'row'"),
        ({"per": "key"}, "key_field must be the field with the key if per is 'key', and None otherwise, got None"),
        ({"concurrency": 0}, "concurrency must be an integer from 1 to 10,000, got 0"),
        ({"on_error": "release"}, "on_error must be one of 'fail', 'stop', got 'release'"),
    ],
)
def test_wrong_options_are_refused(handlers: ShardHandlers, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        handlers.run(print, {}, **options)
    assert str(caught.value) == named


def test_what_is_no_function_or_one_of_the_other_kind_is_refused(server: LocalServer) -> None:
    async def coroutine(_: object) -> None: ...

    with member_of(server) as member:
        with pytest.raises(ConfigError, match=r"^handle must be a function of one argument \(per='batch'\), got None"):
            member.run(None)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r": AsyncShardConsumer.run takes it$"):
            member.run(coroutine)

    async def main() -> None:
        async with AsyncShardConsumer(endpoint_to(server), group=GROUP, member="b") as consumer:
            with pytest.raises(TypeError, match=r"^handle must be a coroutine function.*: ShardConsumer.run takes it$"):
                await consumer.run(lambda _: None)  # type: ignore[arg-type,return-value]

    with redis.Redis(unix_socket_path=server.unix_socket, protocol=2) as client:
        add(client, 1)
    asyncio.run(main())


def test_one_run_at_a_time(in_threads: ShardHandlers, client: redis.Redis) -> None:
    add(client, 1)
    refused: list[str] = []

    def handle(_: Entry) -> None:
        with pytest.raises(ConcurrentUseError) as caught:
            in_threads.consumer.run(print)
        refused.append(str(caught.value))
        in_threads.stop()

    assert in_threads.run(handle, per="entry").committed == 1
    assert refused == ["the consumer is in use by another run: it takes one at a time"]


@pytest.mark.parametrize("per", PER)
def test_an_entry_that_ends_its_process_becomes_a_dead_letter(
    handlers: ShardHandlers, client: redis.Redis, per: str
) -> None:
    """It is found by halves, although a run reads ahead."""
    add_keys(client, ["x"], [b"%d" % (number % 3) for number in range(40)])
    options: dict[str, Any] = {"streams": ["x"], "batch_rows": 8, "dead_letter_key": "dead", "max_failures": 2}

    def act(numbers: list[int]) -> None:
        if 21 in numbers:
            os.kill(os.getpid(), signal.SIGKILL)

    def run() -> None:
        with until_committed(handlers, client, ["x"]):
            handlers.run(Handled(handlers, per, act), options, **PER[per])
        os.kill(os.getpid(), signal.SIGKILL)

    rounds = 0
    while not client.xlen("dead"):
        assert (rounds := rounds + 1) < 12
        killed_in_child(run)
    letters = [int(dict(letter["fields"])[b"number"]) for letter in handlers.dead_letters()]
    assert letters == [21]


# --- all of it --------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("per", PER)
@pytest.mark.parametrize("concurrency", [1, 8, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_20_000_entries_are_done_over_failures_hanging_calls_and_a_signal(
    kind: str, concurrency: int, per: str, server: LocalServer, client: redis.Redis
) -> None:
    rng, total = random.Random(concurrency), 20_000
    order = add_keys(client, STREAMS, [b"%d" % rng.randrange(300) for _ in range(total)])
    special = rng.sample(range(1, total), 204)
    failing, hanging = special[4:], special[:4]
    timeout = 1.0
    handlers = ShardHandlers(kind, server)

    def run(signal_after: int) -> tuple[Any, Counter[int], int]:
        """The numbers that were handled, how often, and how many entries were committed."""
        fails, hangs, count, lock = Flaky(failing), {*hanging}, 0, threading.Lock()

        def act(numbers: list[int]) -> Any:
            nonlocal count
            with lock:
                is_now = count < signal_after <= count + len(numbers)
                count += len(numbers)
            if is_now:
                os.kill(os.getpid(), signal.SIGTERM)
            if hanging := hangs & {*numbers}:
                hangs.difference_update(hanging)
                if kind != "threads":
                    return asyncio.sleep(NEVER)
                threading.Event().wait(1.5 * timeout)
            fails(numbers)
            return None

        handled = Handled(handlers, per, act)
        options = {"streams": STREAMS, "batch_rows": 500}
        report = handlers.run(handled, options, **PER[per], concurrency=concurrency, timeout=timeout, grace=PATIENCE)
        assert handled.overlaps == []
        assert (report.fenced, report.unknown, report.lost) == (0, 0, 0)
        return handled.first, handled.counts, report.committed

    first, counts, committed = in_child(lambda: run(total // 2))
    assert committed <= len(counts) < total
    with until_committed(handlers, client, STREAMS):
        second, more, rest = run(10 * total)
    assert committed + rest == total
    assert (counts + more).keys() == {*range(total)}
    for chain, numbers in order.items():
        assert first.get(chain, []) == numbers[: len(first.get(chain, []))]
        assert second.get(chain, []) == numbers[len(numbers) - len(second.get(chain, [])) :]
