"""A fork in the middle of exactly once, and pools of processes: no child uses its parent's state."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from headrace import ClosedError, Dispatcher, Endpoint
from headrace.testing import LocalServer
from support.marks import thorough
from support.pipelines import DELIVERED, connections, endpoint_to, labels, outcomes, stored
from support.processes import in_child, resume, stop, wait_until

Connect = Callable[..., Any]
Mode = Literal["off", "script", "idmp"]
Reached = tuple[LocalServer, Endpoint]

IDMP = pytest.param("idmp", marks=pytest.mark.needs("idmp"))


@contextlib.contextmanager
def quiet_forks() -> Iterator[None]:
    """Python 3.12 warns of a fork with threads; other tests of this process may have left some."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("mode", ["script", IDMP])
def test_a_child_gets_its_own_token(reached: Reached, connect: Connect, mode: Mode, begun: bool) -> None:
    """With the parent's token and row numbers, the server would take the child's rows for duplicates."""
    server, endpoint = reached
    client, server_pid = connect(server), server.pid
    with Dispatcher(endpoint, exactly_once=mode) as dispatcher:
        if begun:
            dispatcher.begin("batch-1")
        for number in range(100):
            dispatcher.produce(b"before-%d" % number)
        reported = outcomes(dispatcher.flush())
        (connection,) = connections(client)
        stop(server)
        for number in range(200):
            dispatcher.produce(b"in flight-%d" % number)
        dispatcher.poll()
        for number in range(50):
            dispatcher.produce(b"kept-%d" % number)

        def child() -> tuple[int, list[Any], int]:
            left = dispatcher.unreported
            resume(server_pid)
            for number in range(400):
                dispatcher.produce(b"child-%d" % number)
            report = dispatcher.flush()
            dispatcher.close()
            return left, outcomes(report), report.deduplicated

        left, its, deduplicated = in_child(child)
        assert (left, deduplicated) == (0, 0)
        report = dispatcher.flush()
        assert (report.deduplicated, report.possible_duplicates, report.retries) == (0, 0, 0)
        reported += outcomes(report)
        dispatcher.produce(b"last")
        reported += outcomes(dispatcher.flush())
        assert connections(client) == {connection}, "the parent lost its connection"
    assert {outcome.label for outcome in reported + its} == {DELIVERED}
    mine = [b"before-%d" % n for n in range(100)] + [b"in flight-%d" % n for n in range(200)]
    mine += [b"kept-%d" % n for n in range(50)] + [b"last"]
    kept = dict(stored(client))
    assert [kept[outcome.entry_id or ""] for outcome in reported] == mine
    assert [kept[outcome.entry_id or ""] for outcome in its] == [b"child-%d" % n for n in range(400)]
    assert len(kept) == len(reported) + len(its)


@pytest.mark.parametrize("mode", ["off", "script", IDMP])
@pytest.mark.parametrize("end", ["dropped", "os._exit", "killed", "exec"])
def test_the_end_of_a_child_does_not_affect_the_parent(
    reached: Reached, connect: Connect, mode: Mode, end: str
) -> None:
    """However a child ends that did not use the dispatcher, nothing is sent and no connection is closed."""
    server, endpoint = reached
    client = connect(server)
    dispatcher = Dispatcher(endpoint, exactly_once=mode)
    dispatcher.produce(b"first")
    assert dispatcher.flush().ok
    (connection,) = connections(client)
    stop(server)
    dispatcher.produce(b"in flight")
    dispatcher.poll()
    dispatcher.produce(b"kept")
    with quiet_forks():
        pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        if end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if end == "exec":
            os.execv(sys.executable, [sys.executable, "-c", "raise SystemExit(7)"])
        if end == "dropped":
            gone = weakref.ref(dispatcher)
            del dispatcher
            os._exit(7 if gone() is None else 8)
        os._exit(7)
    status = os.waitpid(pid, 0)[1]
    assert os.waitstatus_to_exitcode(status) == (-signal.SIGKILL if end == "killed" else 7)
    resume(server)
    with dispatcher:
        assert labels(dispatcher.flush()) == [DELIVERED] * 2
        dispatcher.produce(b"last")
        assert labels(dispatcher.flush()) == [DELIVERED]
        assert connections(client) == {connection}
    assert [payload for _, payload in stored(client)] == [b"first", b"in flight", b"kept", b"last"]


def test_a_closed_dispatcher_stays_closed_in_a_child(any_server: LocalServer) -> None:
    dispatcher = Dispatcher(endpoint_to(any_server))
    dispatcher.close()

    def child() -> str:
        with pytest.raises(ClosedError) as caught:
            dispatcher.produce(b"x")
        return str(caught.value)

    assert in_child(child).startswith("the dispatcher is closed")


def test_subprocesses_inherit_no_connection(reached: Reached) -> None:
    """Even with `close_fds=False`: a copy of the socket could keep a dead connection open."""
    _, endpoint = reached
    list_sockets = (
        "import os; print([fd for fd in os.listdir('/proc/self/fd') if int(fd) > 2 and 'socket' in fd_of(fd)])"
    )
    code = f"""
import os
def fd_of(fd):
    try:
        return os.readlink(f'/proc/self/fd/{{fd}}')
    except OSError:
        return ''
{list_sockets}
"""
    with Dispatcher(endpoint) as dispatcher:
        assert dispatcher.dispatch(b"x")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, close_fds=False, check=True)
    assert done.stdout == "[]\n"


# --- pools

#: Two workers, eight tasks of 100 messages: with the endpoint, or with the parent's dispatcher in forked workers.
POOL = """
import concurrent.futures, multiprocessing, os, sys
from headrace import Dispatcher, Endpoint

dispatcher = None

def produce(endpoint, task):
    global dispatcher
    if dispatcher is None:  # one for each process, as long as that lives
        dispatcher = Dispatcher(endpoint)
    for number in range(100):
        dispatcher.produce(f"{task}-{number}")
    return os.getpid(), dispatcher.flush().raise_for_failures().delivered

if __name__ == "__main__":
    method, executor, socket, inherited = sys.argv[1:]
    endpoint = Endpoint(unix_socket=socket, stream_key="events")
    if inherited == "inherited":
        dispatcher = Dispatcher(endpoint)
        assert dispatcher.dispatch(b"first")
        dispatcher.produce(b"the parent's")
    context = multiprocessing.get_context(method)
    if executor == "pool":
        with context.Pool(2) as pool:
            counts = pool.starmap(produce, [(endpoint, task) for task in range(8)], chunksize=1)
            pool.close()
            pool.join()
    else:
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
            counts = [future.result() for future in [pool.submit(produce, endpoint, task) for task in range(8)]]
    assert [count for _, count in counts] == [100] * 8, counts
    assert os.getpid() not in {pid for pid, _ in counts}, counts
    if dispatcher is not None:
        assert dispatcher.unreported == 1
        with dispatcher:
            assert dispatcher.flush().delivered == 1
"""


@pytest.mark.parametrize("inherited", ["own", "inherited"])
@pytest.mark.parametrize(
    ("method", "executor"),
    [
        ("fork", "pool"),
        ("spawn", "futures"),
        *thorough(("fork", "futures"), ("spawn", "pool"), ("forkserver", "futures")),
    ],
)
def test_process_pools_deliver_each_message_once(
    any_server: LocalServer, connect: Connect, tmp_path: Path, method: str, executor: str, inherited: str
) -> None:
    """Workers that are not forked get only the endpoint, whatever the parent has."""
    program = tmp_path / "pool.py"
    program.write_text(POOL)
    options = ["-X", "dev", "-W", "ignore::DeprecationWarning"]  # Python 3.12 and newer warn of a fork with threads
    command = [sys.executable, *options, str(program), method, executor, any_server.unix_socket, inherited]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    kept = [payload for _, payload in stored(connect(any_server))]
    expected = [f"{task}-{number}".encode() for task in range(8) for number in range(100)]
    assert sorted(kept) == sorted(expected + [b"first", b"the parent's"] * (inherited == "inherited"))


def test_forks_during_a_flush_in_another_thread_lose_no_message(any_server: LocalServer, connect: Connect) -> None:
    """A fork copies the dispatcher of another thread at any point; the child does not use that copy."""
    over = threading.Event()
    delivered: list[int] = []

    def work() -> None:
        with Dispatcher(endpoint_to(any_server)) as busy:
            while not over.is_set():
                for _ in range(500):
                    busy.produce(b"busy")
                delivered.append(busy.flush().raise_for_failures().delivered)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        wait_until(lambda: delivered)
        entries = [in_child(lambda: Dispatcher(endpoint_to(any_server)).dispatch(b"child")) for _ in range(20)]
    finally:
        over.set()
        thread.join()
    assert len(set(entries)) == 20
    kept = [payload for _, payload in stored(connect(any_server))]
    assert kept.count(b"child") == 20
    assert kept.count(b"busy") == sum(delivered)
