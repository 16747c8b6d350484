"""The end of a process that still has messages: it does not hang, and it warns how many are lost."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.testing import LocalServer
from support.patience import LATE
from support.pipelines import stored
from support.processes import stopped

Connect = Callable[..., Any]

PRELUDE = """
import atexit, contextvars, faulthandler, functools, gc, logging, os, signal, sys, threading, time, types
from headrace import Dispatcher, Endpoint, RetryPolicy

endpoint = Endpoint(unix_socket=sys.argv[1], stream_key="events", connect_timeout=3600, command_timeout=3600)

def make(count=7):
    made = Dispatcher(endpoint)
    for _ in range(count):
        made.produce(b"x")
    return made
"""


def run(server: LocalServer, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a separate process; returns its stderr."""
    program = PRELUDE + textwrap.dedent(code)
    command = [sys.executable, *options, "-c", program, server.unix_socket]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert time.monotonic() - started < LATE, "it waited for something"
    assert "Fatal Python error" not in done.stderr
    return done


#: Code that keeps a dispatcher with 7 messages alive until the interpreter ends.
HELD = {
    "a global": "held = make()",
    "another module": "sys.modules['other'] = types.ModuleType('other'); sys.modules['other'].held = make()",
    "an attribute of sys": "sys.held = make()",
    "a class": "class Holder:\n    held = make()",
    "a cache": "made = functools.cache(make)\nmade()",
    "a cycle": "held = make()\nheld.itself = held\ndel held",
    "a context variable": "contextvars.ContextVar('variable').set(make())",
    "a local variable": "def main():\n    held = make()\n    sys.exit(3)\nmain()",
    "an exception": "raise SystemExit(3) from LookupError(make())",
    "an atexit handler": "atexit.register(make().__repr__)",
    "a thread that ended": "thread = threading.Thread(target=lambda: make() and sys.exit(3))\nthread.start()",
    "a daemon thread": """
def work():
    held = make()
    ready.set()
    time.sleep(600)
ready = threading.Event()
threading.Thread(target=work, daemon=True).start()
ready.wait()
""",
    "a global beside a daemon thread": """
def work():
    time.sleep(600)
held = make()
threading.Thread(target=work, daemon=True).start()
""",
}


@pytest.mark.parametrize("place", HELD)
def test_lost_messages_are_reported_at_exit(any_server: LocalServer, place: str) -> None:
    """Once, and also for objects that the interpreter never collects, such as those of a daemon thread."""
    done = run(any_server, HELD[place])
    assert done.returncode == (3 if "SystemExit" in HELD[place] or "main()" in HELD[place] else 0), done.stderr
    assert done.stderr.count("ForgottenWarning: 7 messages to unix:") == 1, done.stderr
    assert " stream key events will have no outcome, and may not have been sent: call flush(), or use" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("state", ["flushed", "closed", "handed over in a report", "flushed by an atexit handler"])
def test_nothing_is_printed_if_nothing_is_lost(any_server: LocalServer, connect: Connect, state: str) -> None:
    code = {
        "flushed": "held = make()\nassert held.flush().ok",
        "closed": "held = make()\nheld.close()",
        "handed over in a report": "held = make()\nreport = held.flush()",
        "flushed by an atexit handler": "held = make()\natexit.register(held.flush)",
    }[state]
    done = run(any_server, code, "-X", "dev")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(stored(connect(any_server))) == 7


def test_atexit_handlers_can_close_dispatchers(any_server: LocalServer, connect: Connect) -> None:
    """All calls work in them, including the report of failures."""
    code = """
        refused = Dispatcher(Endpoint(unix_socket="/nonexistent", stream_key="events"))
        refused.produce(b"x")
        atexit.register(refused.close)
        held = make()
        atexit.register(held.close)
        """
    done = run(any_server, code, "-X", "dev")
    assert "headrace.errors.DeliveryError: 1 message was not delivered" in done.stderr
    assert "ForgottenWarning" not in done.stderr
    assert len(stored(connect(any_server))) == 7


#: Calls of a daemon thread as the interpreter ends; they return when there is no interpreter any more.
CALLS = {
    "flush": "held.flush()",
    "flush with a timeout": "held.flush(1)",
    "dispatch": "held.dispatch(b'x')",
    "produce": "while True: held.produce(b'x' * 1_000)",
    "retries": """
        logging.getLogger("headrace").addHandler(Waits())
        refused = Dispatcher(Endpoint(unix_socket='/nonexistent', stream_key='s'), retry=RetryPolicy(deadline=600))
        refused.produce(b'x')
        refused.flush()
    """,
    "many calls": "while True: held.flush(0), held.produce(b'x')",
}


@pytest.mark.parametrize("call", CALLS)
def test_exit_with_a_daemon_thread_in_a_call_does_not_hang_or_crash(any_server: LocalServer, call: str) -> None:
    """It has no interpreter to return to: no crash and no hang, whatever the interpreter still does."""
    code = f"""
held = make()
late = time.sleep  # modules are empty by then

class Slow:
    def __del__(self):
        late(0.3)
        os_write(1, b"late")

os_write = os.write

def work():
    def call():
        {textwrap.indent(textwrap.dedent(CALLS[call]), " " * 8).strip()}
    running.set()
    call()

running, waits = threading.Event(), threading.Event()

class Waits(logging.Handler):
    def emit(self, record):
        waits.set()

threading.Thread(target=work, daemon=True).start()
{"waits" if call == "retries" else "running"}.wait()
time.sleep(0.2)  # into the call, which nothing shows from outside
sys.modules["builtins"].slow = Slow()
"""
    with stopped(any_server):
        done = run(any_server, code, "-X", "dev")
    assert (done.returncode, done.stdout) == (0, "late"), done.stderr
    if call != "many calls":  # there may be none at that moment
        assert " messages to unix:" in done.stderr


def test_python_waits_for_non_daemon_threads(any_server: LocalServer, connect: Connect) -> None:
    """A non-daemon thread finishes after the main thread has ended by `sys.exit` or an exception."""
    code = """
        def work():
            with make(100) as held:
                main_is_over.wait()
                time.sleep(0.05)
            sys.exit(5)

        main_is_over = threading.Event()
        threading._register_atexit(main_is_over.set)
        for _ in range(3):
            threading.Thread(target=work).start()
        raise SystemExit(4)
        """
    done = run(any_server, code, "-X", "dev")
    assert (done.returncode, done.stderr) == (4, "")
    assert len(stored(connect(any_server))) == 300


@pytest.mark.parametrize("end", ["os._exit(9)", "os.kill(os.getpid(), signal.SIGTERM)", "os.abort()"])
def test_os_exit_and_signals_end_the_process_immediately(any_server: LocalServer, end: str) -> None:
    """No handler runs, of headrace neither; a suspended server causes no delay."""
    code = f"""
        held = make(0)
        held.produce(b"first")
        assert held.flush().ok
        os.kill({any_server.pid}, signal.SIGSTOP)
        for _ in range(1_000):
            held.produce(b"x")
        held.poll()
        {end}
        """
    done = run(any_server, code)
    assert done.returncode in (9, -15, -6)
    assert done.stderr == ""


def test_a_forked_child_can_call_sys_exit(any_server: LocalServer, connect: Connect) -> None:
    """`sys.exit` in a child runs its atexit handlers and finalizes its copy of the dispatcher."""
    code = """
        held = make()
        assert held.flush().ok
        for _ in range(5):
            held.produce(b"parent")
        atexit.register(lambda: print(os.getpid() == parent, held.unreported, flush=True))
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            sys.exit(6)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 6
        assert held.flush().delivered == 5
        held.produce(b"last")
        held.close()
        """
    done = run(any_server, code, "-X", "dev")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "False 0\nTrue 0\n"
    assert len(stored(connect(any_server))) == 13


def test_faulthandler_shows_where_a_call_waits(any_server: LocalServer, connect: Connect) -> None:
    """Its watchdog and its signal work while a call waits without the GIL, and the call continues."""
    code = f"""
        held = make(0)
        held.produce(b"first")
        assert held.flush().ok
        faulthandler.register(signal.SIGUSR2, all_threads=False)
        os.kill({any_server.pid}, signal.SIGSTOP)
        held.produce(b"x")
        def nudge():
            time.sleep(0.3)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR2)
            os.kill({any_server.pid}, signal.SIGCONT)
        faulthandler.dump_traceback_later(0.1)
        threading.Thread(target=nudge).start()
        assert held.flush().delivered == 1
        held.close()
        """
    done = run(any_server, code)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("in flush\n") == 2, done.stderr
    assert "Timeout (0:00:00.1" in done.stderr
    assert len(stored(connect(any_server))) == 2
