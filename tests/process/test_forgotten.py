"""What a program forgets is on stderr, by default and at once."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from headrace import Dispatcher, ForgottenWarning
from headrace.testing import LocalServer
from support.pipelines import endpoint_to


def stderr_of(server: LocalServer, code: str) -> list[str]:
    """The lines that a program without any option of Python writes to stderr."""
    prelude = f"""
import asyncio, gc, logging
from headrace import AsyncDispatcher, Consumer, Dispatcher, Endpoint

endpoint = Endpoint(unix_socket={server.unix_socket!r}, stream_key="orders")
away = Endpoint(unix_socket="/nonexistent", stream_key="orders")
"""
    command = [sys.executable, "-c", prelude + textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line for line in done.stderr.splitlines() if "debug build" not in line]


def test_a_flush_that_was_forgotten_is_told(any_server: LocalServer) -> None:
    code = """
        dispatcher = Dispatcher(endpoint)
        dispatcher.produce(b"x")
        """
    (line,) = stderr_of(any_server, code)
    assert line == (
        f"sys:1: ForgottenWarning: 1 message to unix://{any_server.unix_socket} stream key orders will have no "
        "outcome, and may not have been sent: call flush(), or use `with Dispatcher(…) as dispatcher:`"
    )


def test_a_flush_that_was_forgotten_in_a_function_is_told_before_the_program_goes_on(any_server: LocalServer) -> None:
    code = """
        import sys

        def write():
            dispatcher = Dispatcher(endpoint)
            for _ in range(1_234):
                dispatcher.produce(b"x")

        write()
        print("the next line", file=sys.stderr)
        """
    first, *_, last = stderr_of(any_server, code)
    assert "ForgottenWarning: 1,234 messages to unix:" in first
    assert last == "the next line"


def test_failures_in_a_report_that_was_not_read_are_shown(any_server: LocalServer) -> None:
    code = """
        dispatcher = Dispatcher(away)
        dispatcher.produce(b"x")
        dispatcher.flush()
        """
    (line,) = stderr_of(any_server, code)
    assert "ForgottenWarning: 1 message was not delivered to unix:///nonexistent stream key orders (CONNECT 1)" in line
    assert "; message ID 0: CONNECT (retryable, " in line
    assert line.endswith("; the report of <Dispatcher: unix:///nonexistent stream key orders> was not read")


def test_a_report_that_is_read_after_its_dispatcher_is_gone_is_not_told_of(any_server: LocalServer) -> None:
    code = """
        def send():
            dispatcher = Dispatcher(away)
            dispatcher.produce(b"x")
            return dispatcher.flush()

        assert len(send().failed) == 1
        """
    assert stderr_of(any_server, code) == []


def test_a_report_that_was_kept_and_not_read_is_shown_at_exit(any_server: LocalServer) -> None:
    code = """
        dispatcher = Dispatcher(away)
        dispatcher.produce(b"x")
        report = dispatcher.flush()
        """
    (line,) = stderr_of(any_server, code)
    assert "ForgottenWarning: 1 message was not delivered to " in line


@pytest.mark.parametrize("reads", ["report.failed", "assert not report.ok", "report.to_arrow()"])
def test_a_report_that_was_read_is_not_told_of(any_server: LocalServer, reads: str) -> None:
    code = f"""
        dispatcher = Dispatcher(away)
        dispatcher.produce(b"x")
        report = dispatcher.flush()
        {reads}
        """
    assert stderr_of(any_server, code) == []


def test_messages_without_an_outcome_are_told_by_an_async_dispatcher(any_server: LocalServer) -> None:
    code = """
        import socket, tempfile

        async def main(silent):
            await AsyncDispatcher(Endpoint(unix_socket=silent, stream_key="orders")).produce(b"x")

        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{folder}/socket")
            listener.listen()
            asyncio.run(main(f"{folder}/socket"))
        """
    (line,) = [line for line in stderr_of(any_server, code) if "Warning" in line]
    assert "ForgottenWarning: 1 message to unix:" in line
    assert "because their event loop ended, and may not have been sent: await flush(), or use `async with" in line


@pytest.mark.parametrize("flushes", ["await dispatcher.flush()", "await asyncio.sleep(0.1)"])
def test_failures_that_were_not_read_are_shown_by_an_async_dispatcher(any_server: LocalServer, flushes: str) -> None:
    code = f"""
        async def main():
            dispatcher = AsyncDispatcher(away)
            await dispatcher.produce(b"x")
            {flushes}

        asyncio.run(main())
        """
    (line,) = [line for line in stderr_of(any_server, code) if "Warning" in line]
    assert "ForgottenWarning: 1 message was not delivered to " in line


@pytest.fixture
def suspended(any_server: LocalServer) -> Iterator[str]:
    """The start of a program that takes 1,234 entries as a consumer from a server that is suspended afterwards."""
    yield f"""
        import os, signal

        with Dispatcher(endpoint) as dispatcher:
            for _ in range(1_234):
                dispatcher.produce(b"x")
            dispatcher.flush()

        consumer = Consumer(endpoint, group="g", consumer="c", batch_rows=10_000)
        batch = consumer.poll()
        assert batch.num_rows == 1_234
        os.kill({any_server.pid}, signal.SIGSTOP)
        """
    os.kill(any_server.pid, signal.SIGCONT)


@pytest.mark.parametrize("ends", ["del consumer", "held = consumer", "consumer.itself = consumer"])
@pytest.mark.parametrize(
    "settles", ["consumer.ack(batch)", "consumer.release(batch)", "consumer.fail(batch, 'bad')", "settle_ids()"]
)
def test_acknowledgements_that_were_not_sent_are_told(
    any_server: LocalServer, suspended: str, settles: str, ends: str
) -> None:
    code = f"""
        def settle_ids():
            consumer.ack_ids("orders", batch.entry_ids)

        {settles}
        {ends}
        """
    (line,) = [line for line in stderr_of(any_server, suspended + code) if "Warning" in line]
    _, _, text = line.partition("ForgottenWarning: ")
    assert text == (
        "1,234 entries were acknowledged, failed or released by <Consumer: 'c' of group 'g', stream 'orders' of "
        f"unix://{any_server.unix_socket}>, and the server may not know of it, so that it delivers them again: call "
        "flush(), or use `with Consumer(…) as consumer:`"
    )


@pytest.mark.parametrize("ends", ["pass", "consumer.ack(batch); os.kill(server, signal.SIGCONT); consumer.flush()"])
def test_a_consumer_that_has_nothing_to_send_tells_nothing(any_server: LocalServer, suspended: str, ends: str) -> None:
    code = f"""
        server = {any_server.pid}
        {ends}
        """
    assert stderr_of(any_server, suspended + code) == []


@pytest.mark.parametrize("ends", ["consumer.close(0.1)", "os.fork()"])
def test_nothing_is_told_of_a_consumer_that_was_closed_or_is_another_process_s(
    any_server: LocalServer, suspended: str, ends: str
) -> None:
    code = f"""
        consumer.ack(batch)
        {ends}
        """
    told = stderr_of(any_server, suspended + code)
    assert sum("ForgottenWarning" in line for line in told) == ("fork" in ends)


def test_a_program_with_a_log_finds_it_there(any_server: LocalServer) -> None:
    code = """
        logging.basicConfig(format="LOG %(name)s %(levelname)s %(message)s")
        Dispatcher(endpoint).produce(b"x")
        """
    lines = stderr_of(any_server, code)
    assert sum(line.startswith("LOG headrace WARNING 1 message to unix:") for line in lines) == 1
    assert sum("ForgottenWarning" in line for line in lines) == 1


def test_a_filter_silences_it(any_server: LocalServer) -> None:
    code = """
        import warnings, headrace
        warnings.simplefilter("ignore", headrace.ForgottenWarning)
        Dispatcher(endpoint).produce(b"x")
        """
    assert stderr_of(any_server, code) == []


def test_it_is_told_once(any_server: LocalServer) -> None:
    dispatcher = Dispatcher(endpoint_to(any_server))
    dispatcher.produce(b"x")
    dispatcher.itself = dispatcher  # type: ignore[attr-defined]
    held = [dispatcher]
    del dispatcher
    with pytest.warns(ForgottenWarning) as told:
        forget(held)
    assert len(told) == 1


def forget(held: list[Dispatcher]) -> None:
    held.clear()
    gc.collect()
    gc.collect()
