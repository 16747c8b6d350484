"""Deadlines, in every state in which a call waits. The laboratory `bounds` measures how exact they are."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import get_args

import pytest

from bounds import dns, waits
from support import Certs
from support.fixture_types import StartServer
from support.interrupts import interrupted
from support.patience import LATE
from support.pipelines import labels
from support.stalls import STALLS, WAITING, Stall, Surroundings

#: How long a dispatcher has waited for replies.
SILENT = re.compile(r" sent no complete reply for ([0-9.]+) s")


@pytest.fixture
def around(tmp_path: Path, certs: Certs, start_server: StartServer) -> Surroundings:
    return Surroundings(tmp_path, certs, start_server)


@pytest.fixture(params=STALLS)
def stall(request: pytest.FixtureRequest) -> Stall:
    return STALLS[request.param]


@pytest.mark.parametrize("timeout", [0, 0.2])
def test_flush_ends_at_its_timeout(around: Surroundings, stall: Stall, timeout: float) -> None:
    seconds, report = waits.flush(around, stall, timeout)
    assert timeout <= seconds < timeout + LATE
    reported = labels(report)
    assert len(reported) in (1, WAITING)
    assert {(kind, written) for kind, _, written in reported} <= {("retryable", "no"), ("retryable", stall.written)}


@pytest.mark.parametrize("name", waits.named("connect_timeout"))
def test_a_connect_ends_at_its_timeout(around: Surroundings, name: str) -> None:
    """The timeout covers name resolution, socket, TLS, authentication and preflight, however slow each step is."""
    seconds, report = waits.connect(around, name, 0.5)
    assert 0.5 <= seconds < 0.5 + LATE
    assert set(labels(report)) == {("retryable", "TIMEOUT", "no")}


@pytest.mark.parametrize("name", waits.named("command_timeout"))
def test_command_timeout_bounds_a_silent_connection(around: Surroundings, name: str) -> None:
    seconds, report = waits.silence(around, name, 0.5)
    assert seconds < 0.5 + LATE
    assert {(kind, code) for kind, code, _ in labels(report)} == {("retryable", "TIMEOUT")}
    (silence,) = {float(found[1]) for failure in report.failed if (found := SILENT.search(failure.message))}
    assert 0.5 <= silence < 0.5 + LATE


@pytest.mark.parametrize("progress", get_args(waits.Progress))
def test_progress_extends_the_deadline(progress: waits.Progress) -> None:
    """command_timeout counts from the last reply, not from a byte of a reply that never ends."""
    began = time.monotonic()
    seconds, report = waits.after_progress(progress, 2)
    replies = 5 if progress == "5 replies" else 0
    # Each reply comes after 0.8 s, and then nothing for the timeout.
    assert time.monotonic() - began >= replies * 0.8 + 2
    assert seconds < 2 + LATE
    assert report.delivered == replies
    assert set(labels(report)[report.delivered :]) == {("retryable", "TIMEOUT", "unknown")}


def test_connect_timeout_bounds_a_resolver_that_never_answers() -> None:
    """Needs namespaces of the system; the wait for the resolver has its own test in Rust."""
    reported = dns.measure(1)
    if reported is None:
        pytest.skip("this system allows no namespaces")
    assert 1 <= reported["connect_timeout 1"][0] < 1 + LATE
    assert 0.3 <= reported["flush(timeout=0.3)"][0] < 0.3 + LATE
    assert reported["Ctrl-C"][0] < LATE


def test_ctrl_c_loses_no_message(around: Surroundings, stall: Stall) -> None:
    """Each message has its outcome in the next report."""
    with stall.enter(around) as dispatcher:
        waiting = dispatcher.unreported
        with interrupted():
            dispatcher.flush()
        assert dispatcher.unreported == waiting > 0
        assert len(labels(dispatcher.flush(timeout=0))) == waiting
