"""A dispatcher that another thread is using: leaving `with`, and a fork."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from headrace import ConcurrentUseError, DeliveryReport, Dispatcher
from headrace.testing import LocalServer
from support.patience import NEVER
from support.pipelines import endpoint_to
from support.processes import in_child, resume, stopped, wait_until


@pytest.fixture
def in_flush(any_server: LocalServer) -> Iterator[Dispatcher]:
    """A dispatcher that another thread flushes until the suspended server resumes."""
    reports: list[DeliveryReport] = []
    with Dispatcher(endpoint_to(any_server, command_timeout=NEVER)) as dispatcher:
        assert dispatcher.dispatch(b"first")
        thread = threading.Thread(target=lambda: reports.append(dispatcher.flush()))
        with stopped(any_server):
            dispatcher.produce(b"in flight")
            sent = dispatcher.stats().bytes_sent
            thread.start()
            # What it has sent, it has sent with the lock, which it keeps as long as no other call comes.
            wait_until(lambda: dispatcher.stats().bytes_sent > sent)
            yield dispatcher
        thread.join()


def test_an_exception_in_the_block_is_raised(in_flush: Dispatcher, any_server: LocalServer) -> None:
    """Leaving the block waits for the messages of the other thread, and takes them."""

    def work() -> None:
        with in_flush:
            threading.Timer(0.1, resume, (any_server.pid,)).start()
            raise LookupError("of the block")

    with pytest.raises(LookupError, match="of the block"):
        work()


def test_a_forked_child_can_close_its_copy(in_flush: Dispatcher, any_server: LocalServer) -> None:
    """The child has no such thread, so its copy must not stay locked."""
    server_pid = any_server.pid

    def child() -> tuple[list[str], bool, int, list[str], str]:
        calls: list[Callable[[], object]] = [
            lambda: in_flush.produce(b"x"),
            lambda: in_flush.produce_batch(pa.record_batch({"payload": ["x"]})),
            in_flush.poll,
            in_flush.flush,
            lambda: in_flush.dispatch(b"x"),
        ]
        refused = []
        for call in calls:
            try:
                call()
            except ConcurrentUseError as error:
                refused.append(str(error))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            in_flush.close()
            with in_flush:
                pass
            in_flush.__del__()
        resume(server_pid)
        with Dispatcher(in_flush.endpoint) as its_own:
            entry = its_own.dispatch(b"child")
        return refused, in_flush.closed, in_flush.unreported, [str(warning.message) for warning in seen], entry

    refused, closed, unreported, warned, entry = in_child(child)
    assert refused == ["the process was forked while a thread used the dispatcher: create a new one in the child"] * 5
    assert (closed, unreported, warned) == (True, 0, [])
    assert entry
