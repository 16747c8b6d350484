"""Forks, threads, Ctrl-C and the end of the process."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import types
import warnings
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace import ClosedError, ConcurrentUseError, DeliveryError, Dispatcher, Endpoint, ForgottenWarning
from headrace.testing import LocalServer
from support.patience import NEVER
from support.pipelines import DELIVERED, KEY, connections, endpoint_to, labels, outcomes, produce_all, stored
from support.processes import after_ticks, in_child, resume, stop, stopped, wait_until

Connect = Callable[..., Any]


def payloads_of(name: str, count: int) -> list[bytes]:
    return [f"{name}-{number}".encode() for number in range(count)]


# --- fork


def test_fork_in_mid_pipeline(reached: tuple[LocalServer, Endpoint], connect: Connect) -> None:
    """At the fork some messages are in flight, and some were not sent. They belong to the parent alone."""
    server, endpoint = reached
    client, server_pid = connect(server), server.pid
    before, during, after = payloads_of("before", 100), payloads_of("sent", 200), payloads_of("buffered", 300)
    mine, its = payloads_of("parent", 400), payloads_of("child", 500)
    with Dispatcher(endpoint) as dispatcher:
        produce_all(dispatcher, before)
        reported = outcomes(dispatcher.flush())
        stop(server)
        produce_all(dispatcher, during)
        dispatcher.poll()
        produce_all(dispatcher, after)

        def child() -> tuple[int, list[Any], list[Any], int]:
            left = dispatcher.unreported
            resume(server_pid)
            produce_all(dispatcher, its[:300])
            first = outcomes(dispatcher.flush())
            produce_all(dispatcher, its[300:])
            second = outcomes(dispatcher.flush())
            dispatcher.close()
            return left, first, second, os.getpid()

        left, first, second, pid = in_child(child)
        assert pid != os.getpid()
        assert left == 0
        assert [outcome.message_id for outcome in first] == [str(number) for number in range(300)]
        assert [outcome.message_id for outcome in second] == [str(number) for number in range(200)]
        assert dispatcher.unreported == 500
        produce_all(dispatcher, mine)
        later = outcomes(dispatcher.flush())
        assert [outcome.message_id for outcome in later] == [str(number) for number in range(900)]
    reported += later + first + second
    assert {outcome.label for outcome in reported} == {DELIVERED}
    kept = dict(stored(client))
    sent = before + during + after + mine + its
    assert sorted(kept.values()) == sorted(sent)
    assert [kept[outcome.entry_id or ""] for outcome in reported] == sent


@pytest.mark.parametrize("end", ["close", "with", "drop", "exit", "use and exit"])
def test_a_child_does_not_disturb_the_parent(reached: tuple[LocalServer, Endpoint], connect: Connect, end: str) -> None:
    """However the child ends, the parent's connection stays open and receives its replies."""
    server, endpoint = reached
    client, server_pid = connect(server), server.pid
    dispatcher = Dispatcher(endpoint)
    dispatcher.produce(b"first")
    assert dispatcher.flush().ok
    (connection,) = connections(client)
    stop(server)
    dispatcher.produce(b"in flight")
    dispatcher.poll()
    dispatcher.produce(b"not sent")

    def child() -> list[str]:
        nonlocal dispatcher
        resume(server_pid)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")  # an error in `__del__` would be lost
            if end == "close":
                dispatcher.close()
            elif end == "with":
                with dispatcher:
                    pass
            elif end == "drop":
                del dispatcher
                gc.collect()
            elif end == "use and exit":
                assert dispatcher.dispatch(b"child")
        return [str(warning.message) for warning in seen]

    assert in_child(child) == []
    with dispatcher:
        assert labels(dispatcher.flush()) == [DELIVERED] * 2
        assert connection in connections(client)
        assert dispatcher.dispatch(b"last")
        assert connection in connections(client)
    kept = [payload for _, payload in stored(client)]
    assert [payload for payload in kept if payload != b"child"] == [b"first", b"in flight", b"not sent", b"last"]


def test_a_grandchild_can_use_the_dispatcher(any_server: LocalServer, connect: Connect) -> None:
    with Dispatcher(endpoint_to(any_server)) as dispatcher:
        dispatcher.produce(b"parent")

        def child() -> int:
            dispatcher.produce(b"child")
            in_child(lambda: dispatcher.dispatch(b"grandchild"))
            return dispatcher.flush().delivered

        assert in_child(child) == 1
        assert dispatcher.flush().delivered == 1
    assert sorted(payload for _, payload in stored(connect(any_server))) == [b"child", b"grandchild", b"parent"]


@pytest.mark.parametrize("report", ["held", "dropped", "none"])
def test_a_child_does_not_report_failures_of_the_parent(closed_port: int, report: str) -> None:
    """Neither those in a report, nor those in none."""
    dispatcher = Dispatcher(Endpoint(host="127.0.0.1", port=closed_port, stream_key=KEY))
    produce_all(dispatcher, payloads_of("x", 10))
    held = None if report == "none" else dispatcher.flush()
    if report == "dropped":
        held = None

    def child() -> tuple[int, list[Any]]:
        left = dispatcher.unreported
        dispatcher.produce(b"mine")
        reported = labels(dispatcher.flush())
        dispatcher.close()
        return left, reported

    assert in_child(child) == (0, [("retryable", "CONNECT", "no")])
    with pytest.raises(DeliveryError, match=r"^10 messages were not delivered"):
        dispatcher.close()
    del held


# --- threads


def test_a_signal_handler_is_refused_as_a_second_caller(any_server: LocalServer) -> None:
    refused: list[ConcurrentUseError] = []

    def handler() -> None:
        try:
            dispatcher.produce(b"x")
        except ConcurrentUseError as error:
            refused.append(error)
        resume(any_server)

    with Dispatcher(endpoint_to(any_server, command_timeout=NEVER)) as dispatcher:
        dispatcher.produce(b"first")
        assert dispatcher.flush().ok
        stop(any_server)
        dispatcher.produce(b"second")
        with after_ticks(2, handler):
            assert labels(dispatcher.flush()) == [DELIVERED]
    assert len(refused) == 1


def test_the_gil_is_released_while_a_record_batch_is_encoded(any_server: LocalServer) -> None:
    times: list[float] = []
    done = threading.Event()

    def other() -> None:
        while not done.is_set():
            times.append(time.monotonic())

    batch = pa.record_batch({"payload": pa.array([b"x" * 100] * 200_000)})
    thread = threading.Thread(target=other)
    with Dispatcher(endpoint_to(any_server)) as dispatcher:
        thread.start()
        try:
            wait_until(lambda: times)
            started = time.monotonic()
            dispatcher.produce_batch(batch)
            ended = time.monotonic()
        finally:
            done.set()
            thread.join()
        assert dispatcher.flush().ok
    tenth = (ended - started) / 10
    ran = {int((at - started) / tenth) for at in times if started < at < ended}
    assert len(ran & set(range(1, 9))) >= 5, "the other thread stood still for most of the call"


def test_threads_may_use_a_dispatcher_in_turn(any_server: LocalServer) -> None:
    with Dispatcher(endpoint_to(any_server)) as dispatcher:
        for _ in range(5):
            thread = threading.Thread(target=produce_all, args=(dispatcher, payloads_of("x", 100)))
            thread.start()
            thread.join()
        assert dispatcher.flush().delivered == 500


# --- use after close, pickling, dropping


def test_use_after_close_is_refused(any_server: LocalServer) -> None:
    dispatcher = Dispatcher(endpoint_to(any_server))
    before = dispatcher.closed
    dispatcher.close()
    dispatcher.close()
    assert (before, dispatcher.closed) == (False, True)
    calls: list[Callable[[], object]] = [
        lambda: dispatcher.produce(b"x"),
        lambda: dispatcher.produce_batch(pa.record_batch({"payload": ["x"]})),
        dispatcher.poll,
        dispatcher.flush,
        lambda: dispatcher.dispatch(b"x"),
    ]
    for call in calls:
        with pytest.raises(ClosedError, match=r"^the dispatcher is closed; make a new one$"):
            call()


def test_a_dispatcher_cannot_be_pickled(any_server: LocalServer) -> None:
    with Dispatcher(endpoint_to(any_server)) as dispatcher:
        with pytest.raises(TypeError, match=r"a dispatcher cannot be pickled: .*pickle the endpoint"):
            pickle.dumps(dispatcher)
        with Dispatcher(pickle.loads(pickle.dumps(dispatcher.endpoint))) as other:
            assert other.dispatch(b"x")


def test_a_dropped_dispatcher_warns_of_lost_messages(any_server: LocalServer) -> None:
    dispatcher = Dispatcher(endpoint_to(any_server))
    produce_all(dispatcher, payloads_of("x", 1_234))
    with pytest.warns(ForgottenWarning, match=r"^1,234 messages to unix:.* will have no outcome, .*: call flush\(\)"):
        del dispatcher
    gc.collect()


@pytest.mark.parametrize("state", ["new", "flushed", "closed"])
def test_a_dropped_dispatcher_without_messages_does_not_warn(any_server: LocalServer, state: str) -> None:
    dispatcher = Dispatcher(endpoint_to(any_server))
    if state != "new":
        dispatcher.produce(b"x")
        assert dispatcher.flush().ok
    if state == "closed":
        dispatcher.close()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        del dispatcher
        gc.collect()
    assert [str(warning.message) for warning in seen] == []


def script(code: str, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """A separate Python process."""
    command = [sys.executable, *options, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("held", ["module", "cycle"])
def test_the_interpreter_exits_with_messages_in_flight(any_server: LocalServer, held: str) -> None:
    """It does not wait for a silent server."""
    code = """
        import sys
        from headrace import Dispatcher, Endpoint
        dispatcher = Dispatcher(Endpoint(unix_socket=sys.argv[1], stream_key="s", command_timeout=3600))
        dispatcher.produce(b"x")
        assert dispatcher.flush().ok
        input_ = sys.stdin
        print("stop", flush=True)
        sys.stdin.readline()
        for _ in range(100):
            dispatcher.produce(b"x")
        dispatcher.poll()
        if sys.argv[2] == "cycle":
            dispatcher.cycle = dispatcher
            del dispatcher
        print("end", flush=True)
        """
    command = [sys.executable, "-X", "dev", "-c", textwrap.dedent(code), any_server.unix_socket, held]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stop\n"
        with stopped(any_server):
            _, errors = process.communicate("go\n")
    assert process.returncode == 0, errors
    assert "ForgottenWarning: 100 messages to unix:" in errors
    assert "Traceback" not in errors


def imported_by(statement: str) -> set[str]:
    """The modules that a statement imports."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    done = script(code, options=("-W", "ignore"))  # a debug build warns, which imports what shows a warning
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_headrace_loads_only_the_native_module() -> None:
    assert imported_by("import headrace") - {"warnings"} == {"headrace", "headrace._headrace"}


def test_importing_the_dispatcher_loads_no_unneeded_modules() -> None:
    modules = imported_by("from headrace import Dispatcher, Endpoint")
    assert "headrace.dispatcher" in modules
    assert not modules & {f"headrace.{name}" for name in ("async_dispatcher", "consumer", "group", "reader", "testing")}
    assert not modules & {"asyncio", "datetime", "logging", "socket", "ssl", "subprocess", "tempfile"}


def test_importing_everything_loads_no_large_module() -> None:
    modules = imported_by("from headrace import *; import headrace.testing, headrace.metrics")
    assert {"headrace.consumer", "headrace.testing", "headrace.metrics"} <= modules
    assert not modules & {"pyspark", "pandas", "pyarrow", "numpy", "polars", "redis", "py4j"}


def test_each_public_name_is_resolved_listed_and_cached() -> None:
    assert len(headrace.__all__) > 30
    for name in headrace.__all__:
        assert getattr(headrace, name) is vars(headrace)[name]
        module = getattr(headrace, name) if name != "__version__" else None
        assert not isinstance(module, types.ModuleType), name
    listed = {name for name in dir(headrace) if not (name.startswith("__") and name.endswith("__"))}
    assert listed == set(headrace.__all__) - {"__version__"}
    # Whichever of its modules was imported first.
    code = (
        "import headrace.inspection, headrace.unpacking, headrace; print(callable(headrace.inspect), headrace.errors)"
    )
    assert script(code, options=("-W", "ignore")).stdout.startswith("True <module 'headrace.errors'")
    with pytest.raises(AttributeError, match="module 'headrace' has no attribute 'Producer'"):
        _ = headrace.Producer  # type: ignore[attr-defined]


def test_help_shows_the_public_names() -> None:
    text = script("help('headrace')", options=("-W", "ignore")).stdout
    assert "class Dispatcher(headrace._headrace.Dispatcher, headrace.dispatcher_base.DispatcherBase)" in text
    assert "class AsyncDispatcher(" in text
    assert "inspect(endpoint" in text
