"""The end of a process that still has messages: it does not hang, and it says how many nobody will hear of."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.testing import LocalServer
from support.pipelines import stored
from support.processes import stopped

Connect = Callable[..., Any]

PRELUDE = """
import atexit, contextvars, faulthandler, functools, gc, os, signal, sys, threading, time, types
from headrace import Dispatcher, Endpoint, RetryPolicy

endpoint = Endpoint(unix_socket=sys.argv[1], stream_key="events", connect_timeout=300, command_timeout=300)

def make(count=7):
    made = Dispatcher(endpoint)
    for _ in range(count):
        made.produce(b"x")
    return made
"""


def run(server: LocalServer, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, and what it leaves on stderr."""
    program = PRELUDE + textwrap.dedent(code)
    command = [sys.executable, *options, "-c", program, server.unix_socket]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert time.monotonic() - started < 30, "it waited for something"
    assert "Fatal Python error" not in done.stderr
    return done


#: Where a dispatcher with 7 messages is held as the interpreter ends.
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
assert ready.wait(30)
""",
    "a global beside a daemon thread": """
def work():
    time.sleep(600)
held = make()
threading.Thread(target=work, daemon=True).start()
""",
}


@pytest.mark.parametrize("place", HELD)
def test_what_is_held_at_the_end_is_told(any_server: LocalServer, place: str) -> None:
    """Also where the interpreter collects nothing, as with everything that a daemon thread can reach. Once."""
    done = run(any_server, HELD[place], "-X", "dev")
    assert done.returncode == (3 if "SystemExit" in HELD[place] or "main()" in HELD[place] else 0), done.stderr
    assert done.stderr.count("ResourceWarning: 7 messages were dropped with <Dispatcher to unix:") == 1, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("state", ["flushed", "closed", "handed over in a report", "flushed by an atexit handler"])
def test_nothing_is_said_where_nothing_is_lost(any_server: LocalServer, connect: Connect, state: str) -> None:
    code = {
        "flushed": "held = make()\nassert held.flush().ok",
        "closed": "held = make()\nheld.close()",
        "handed over in a report": "held = make()\nreport = held.flush()",
        "flushed by an atexit handler": "held = make()\natexit.register(held.flush)",
    }[state]
    done = run(any_server, code, "-X", "dev")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(stored(connect(any_server))) == 7


def test_atexit_handlers_that_close(any_server: LocalServer, connect: Connect) -> None:
    """Everything works in them, also with failures to be told."""
    code = """
        refused = Dispatcher(Endpoint(unix_socket="/nonexistent", stream_key="events"))
        refused.produce(b"x")
        atexit.register(refused.close)
        held = make()
        atexit.register(held.close)
        """
    done = run(any_server, code, "-X", "dev")
    assert "headrace.errors.DeliveryError: 1 messages were not delivered" in done.stderr
    assert "ResourceWarning" not in done.stderr
    assert len(stored(connect(any_server))) == 7


#: What a daemon thread does as the interpreter ends; it comes back to Python when there is none any more.
CALLS = {
    "flush": "held.flush()",
    "flush with a timeout": "held.flush(1)",
    "dispatch": "held.dispatch(b'x')",
    "produce": "while True: held.produce(b'x' * 1_000)",
    "retries": """
        refused = Dispatcher(Endpoint(unix_socket='/nonexistent', stream_key='s'), retry=RetryPolicy(deadline=600))
        refused.produce(b'x')
        refused.flush()
    """,
    "many calls": "while True: held.flush(0), held.produce(b'x')",
}


@pytest.mark.parametrize("call", CALLS)
def test_a_daemon_thread_is_in_a_call_at_the_end(any_server: LocalServer, call: str) -> None:
    """It finds no interpreter to come back to: no crash, no hang, whatever the interpreter still does then."""
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

running = threading.Event()
threading.Thread(target=work, daemon=True).start()
assert running.wait(30)
time.sleep(0.2)  # into the call, which nothing shows from outside
sys.modules["builtins"].slow = Slow()
"""
    with stopped(any_server):
        done = run(any_server, code, "-X", "dev")
    assert (done.returncode, done.stdout) == (0, "late"), done.stderr
    if call != "many calls":  # there may be none just then
        assert " messages were dropped with <Dispatcher to unix:" in done.stderr


def test_threads_are_waited_for_as_python_does(any_server: LocalServer, connect: Connect) -> None:
    """One that is no daemon ends its work, after the main thread has ended by `sys.exit` or an exception."""
    code = """
        def work():
            with make(100) as held:
                main_is_over.wait(30)
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
def test_an_end_without_ceremony(any_server: LocalServer, end: str) -> None:
    """Nothing runs then, in headrace neither; a server that stands still delays nothing."""
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


def test_a_child_of_a_fork_that_ends_like_a_program(any_server: LocalServer, connect: Connect) -> None:
    """`sys.exit` in a child runs all of the interpreter's end, with its copy of the dispatcher, and atexit handlers."""
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
    """Its watchdog and its signal work while a call waits without the GIL, and the call goes on."""
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
