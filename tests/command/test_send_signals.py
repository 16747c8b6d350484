"""Pipes that pause, signals, and a server that does not reply."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from command.conftest import HEADRACE
from headrace.testing import LocalServer
from support.processes import wait_until


@contextmanager
def sending(server: LocalServer, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`headrace send s` with a pipe as its input."""
    environment = {**os.environ, "HEADRACE_URL": server.url}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [HEADRACE, "send", "s", *arguments], stdin=pipe, stdout=pipe, stderr=pipe, env=environment
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def give(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(data)
    process.stdin.flush()


def test_rows_are_sent_while_the_pipe_is_open(any_server: LocalServer, client: Any) -> None:
    with sending(any_server) as process:
        for count in (1, 2, 3):
            give(process, b"row\n")
            wait_until(lambda count=count: client.xlen("s") == count)  # type: ignore[misc]
        give(process, b"no end")
        process.communicate()
        assert process.returncode == 0
    assert client.xlen("s") == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_send_waits_for_outcomes_after_a_signal(any_server: LocalServer, client: Any, number: signal.Signals) -> None:
    with sending(any_server) as process:
        give(process, b"row\n")
        wait_until(lambda: client.xlen("s") == 1)
        process.send_signal(number)
        _, error = process.communicate()
    assert process.returncode == 128 + number
    assert b"interrupted: waiting for the outcomes of" in error
    assert b"1 delivered in" in error
    assert b"Traceback" not in error


def test_outstanding_rows_are_counted_and_a_second_signal_exits_immediately(
    any_server: LocalServer, client: Any
) -> None:
    with sending(any_server) as process:
        give(process, b"row\n")
        wait_until(lambda: client.xlen("s") == 1)
        assert process.stderr is not None
        client.client_pause(60_000, all=False)
        give(process, b"row\n" * 3)
        # Rows of one read are sent together, when it waits for their outcomes.
        wait_until(lambda: any("b" in one["flags"] for one in client.client_list()))
        process.send_signal(signal.SIGINT)
        line = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait() == -signal.SIGINT
        client.client_unpause()
    assert b"interrupted: waiting for the outcomes of 3 rows; a second signal ends the command immediately" in line


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_rows_with_unknown_outcomes_are_counted(any_server: LocalServer, client: Any, is_interrupted: bool) -> None:
    with sending(any_server) as process:
        give(process, b"row\n")
        wait_until(lambda: client.xlen("s") == 1)
        client.client_pause(60_000, all=False)
        give(process, b"row\n")
        wait_until(lambda: any("b" in one["flags"] for one in client.client_list()))
        if is_interrupted:
            process.send_signal(signal.SIGTERM)
            assert process.stderr is not None
            assert b"waiting for the outcomes of 1 row" in process.stderr.readline()
        any_server.kill()
        _, error = process.communicate()
    assert b"1 of these may have been written" in error
    assert process.returncode == (128 + signal.SIGTERM if is_interrupted else 4)
