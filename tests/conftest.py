"""Real servers for every test: which ones there are, and fixtures that start them."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import redis

import headrace
from headrace import Endpoint
from headrace.testing import LocalServer
from support import Certs, Program, find_programs, jvm, make_certs, missing_in_ci, programs_with
from support.emptied import EmptiedServer
from support.fixture_types import BySize, Replicate, StartServer
from support.leaks import find_leaks, kill_all
from support.paths import TESTS
from support.patience import PATIENCE
from support.processes import wait_until
from support.servers import HOW_TO_GET_SERVERS, IN_CI, absent, newest, one_of
from support.sizes import usual_size

_folder = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all", action="store_true", help="each test on every server and in every way, and the `thorough` ones"
    )


def pytest_configure(config: pytest.Config) -> None:
    if IN_CI and (missing := missing_in_ci()):
        raise pytest.UsageError(f"CI is set and these servers are missing: {', '.join(missing)}")
    # One short folder for every server of this run and of the processes it starts: what is still at work in it at the
    # end was left behind. pytest's own temporary folders are kept for a look after a failure.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix="hr-")).resolve()
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    config.stash[_folder] = folder
    # Spark's workers: this Python, and functions of test files, which are pickled by their module's name.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # numpy starts a thread for each processor, in each of the many processes that import pyarrow: a tenth of a second.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if not config.getoption("--all"):
        from hypothesis import settings  # other environments run the larger size, and not all of them have it

        settings.register_profile("usual", settings.get_profile("default"), max_examples=25)
        settings.load_profile("usual")
    os.environ.setdefault("SPARK_SUBMIT_OPTS", jvm.options(is_interpreted=not config.getoption("--all")))


def pytest_unconfigure(config: pytest.Config) -> None:
    if folder := config.stash.get(_folder, None):
        if not is_worker(config):
            kill_all(folder)  # what an interrupted test had started, or a worker that was killed
        shutil.rmtree(folder, ignore_errors=True)


def pytest_report_header() -> list[str]:
    servers = ", ".join(f"{program.name} {program.version}" for program in find_programs()) or "none"
    missing = [f"MISSING: {', '.join(missing_in_ci())}"] * bool(missing_in_ci())
    return [f"headrace: {Path(headrace.__file__).parent}", f"servers: {servers}", *missing]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if is_worker(session.config):
        return  # its folder is in that of the controller, which looks there when all workers have ended
    if leaks := find_leaks(session.config.stash[_folder]):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        for leak in leaks:
            if reporter:
                reporter.write_line(f"\nserver left running: {leak.pid} {leak.command} in {leak.folder}", red=True)
            os.kill(leak.pid, signal.SIGKILL)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if missing := missing_in_ci():
        terminalreporter.section("servers that were missing: tests that need them were skipped", yellow=True)
        for line in (*missing, HOW_TO_GET_SERVERS):
            terminalreporter.write_line(line)


def is_worker(config: pytest.Config) -> bool:
    """Whether this is one of the processes of `pytest --numprocesses`."""
    return hasattr(config, "workerinput")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Needs `--no-loadscope-reorder`, which keeps what takes longest at the beginning."""
    from support.workers import FileScheduling  # not every environment has pytest-xdist

    return FileScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--all"):
        usual = usual_size(items)
        kept = set(usual)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = usual
    if is_worker(config):
        from support.workers import sort

        sort(items)


def pytest_collection_finish() -> None:
    """Leave the thousands of tests out of each collection of garbage, which takes a tenth of the processor time."""
    gc.collect()
    gc.freeze()


def pytest_runtest_logstart(nodeid: str) -> None:
    """Let the tests of Spark's session, which take the longest, have the processor whenever they can use it."""
    if "PYTEST_XDIST_WORKER" in os.environ and os.nice(0) == 0 and not nodeid.startswith("tests/spark/session"):
        os.nice(2)  # little: beside other work they would hardly run


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for `program`, or for `server`, on one that has what it needs; with `--all` on each."""
    if "program" in metafunc.fixturenames:
        capabilities = _needs(metafunc.definition)
        # Without any, one run reports it: an empty list would be a silent skip.
        found = programs_with(capabilities)
        if not metafunc.config.getoption("--all"):
            found = one_of(found, metafunc.definition.nodeid)
        programs: list[Program | None] = [*found] or [None]
        ids = [program.label if program else "no server" for program in programs]
        metafunc.parametrize("program", programs, ids=ids, indirect=True)


def _needs(item: pytest.Item) -> list[str]:
    return [capability for mark in item.iter_markers("needs") for capability in mark.args]


@pytest.fixture
def by_size(request: pytest.FixtureRequest) -> BySize:
    """How often, or of how much: `by_size(usual, larger)` is the one for this size of the tests."""
    return lambda usual, larger: larger if request.config.getoption("--all") else usual


@pytest.fixture
def program(request: pytest.FixtureRequest) -> Program:
    """Each server program in turn (of those with what the marker `needs` names)."""
    found: Program | None = request.param
    return found or absent(_needs(request.node))


@pytest.fixture
def start_server(request: pytest.FixtureRequest) -> Iterator[StartServer]:
    """Start a server: `start_server(program=None, needs=(), **arguments of LocalServer)`.

    Without a program, the newest that has what the argument and the test's marker `needs` name: Redis before Valkey.
    """
    with ExitStack() as stack:

        def start(program: Program | None = None, *, needs: str | Iterable[str] = (), **arguments: Any) -> LocalServer:
            capabilities = [*_needs(request.node), *([needs] if isinstance(needs, str) else needs)]
            return stack.enter_context(LocalServer((program or newest(*capabilities)).path, **arguments))

        yield start


@pytest.fixture(scope="session")
def _emptied() -> Iterator[dict[Path, EmptiedServer]]:
    servers: dict[Path, EmptiedServer] = {}
    yield servers
    for server in servers.values():
        server.stop()


@pytest.fixture
def _start_empty(
    request: pytest.FixtureRequest, start_server: StartServer, _emptied: dict[Path, EmptiedServer]
) -> Callable[[Program], LocalServer]:
    """Start a server; in the usual size of the tests, empty the one that tests before have used."""
    taken: set[Path] = set()

    def start(program: Program) -> LocalServer:
        if request.config.getoption("--all") or program.path in taken:
            return start_server(program)
        taken.add(program.path)
        return _emptied.setdefault(program.path, EmptiedServer(program.path)).emptied()

    return start


@pytest.fixture
def server(_start_empty: Callable[[Program], LocalServer], program: Program) -> LocalServer:
    """A server on a Unix socket, without data; the test runs once on each server program."""
    return _start_empty(program)


@pytest.fixture
def any_server(request: pytest.FixtureRequest, _start_empty: Callable[[Program], LocalServer]) -> LocalServer:
    """A server on a Unix socket, without data: the newest."""
    return _start_empty(newest(*_needs(request.node)))


@pytest.fixture
def tcp_server(start_server: StartServer) -> LocalServer:
    """A fresh server on a port of 127.0.0.1: the newest."""
    return start_server(transport="tcp")


@pytest.fixture
def tls_server(start_server: StartServer, certs: Certs) -> LocalServer:
    """A fresh server that speaks TLS on a port of 127.0.0.1, with `certs.server`; it asks for no client certificate."""
    return start_server(needs="tls", transport="tls", tls_cert=certs.server.cert, tls_key=certs.server.key)


@pytest.fixture
def mtls_server(start_server: StartServer, certs: Certs) -> LocalServer:
    """As `tls_server`, but a client must show a certificate of `certs.ca`."""
    return start_server(
        needs="tls",
        transport="tls",
        tls_cert=certs.server.cert,
        tls_key=certs.server.key,
        tls_ca_cert=certs.ca,
        tls_client_auth=True,
    )


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certs:
    """The PEM files of the CAs, of server certificates good and bad, and of client certificates."""
    return make_certs(tmp_path_factory.mktemp("certs"))


@pytest.fixture
def connect() -> Iterator[Callable[..., redis.Redis]]:
    """Connect with redis-py, to look at what is stored: `connect(server, **options)`. Over the Unix socket, RESP2.

    After its own timeout, 5 s, redis-py would send a command again that a busy machine is slow to answer.
    """
    with ExitStack() as stack:

        def connect(server: LocalServer, **options: Any) -> redis.Redis:
            patient = {"socket_timeout": PATIENCE, "socket_connect_timeout": PATIENCE, **options}
            client = redis.Redis(unix_socket_path=server.unix_socket, protocol=2, **patient)
            stack.callback(client.close)
            return client

        yield connect


@pytest.fixture
def client(any_server: LocalServer, connect: Callable[..., redis.Redis]) -> redis.Redis:
    """A redis-py client of `any_server`."""
    return connect(any_server)


@pytest.fixture
def endpoint(any_server: LocalServer) -> Endpoint:
    """The stream `events` of `any_server`."""
    return Endpoint(unix_socket=any_server.unix_socket, stream_key="events")


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of 127.0.0.1 that refuses connections, and that no other process can take meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound and not listening
        yield bound.getsockname()[1]


@pytest.fixture
def replicate(start_server: StartServer, connect: Callable[..., Any]) -> Replicate:
    """Start a server and its replica: `replicate(program=None, config_of_the_replica, **config_of_the_server)`."""

    def replicate(
        program: Program | None = None, config: Mapping[str, Any] = MappingProxyType({}), **master_config: Any
    ) -> tuple[LocalServer, LocalServer]:
        master = start_server(program, transport="tcp", config={"repl-diskless-sync-delay": 0, **master_config})
        # The server finds the replica by its port when they swap roles.
        replica = start_server(program, transport="tcp", config=config)
        connect(replica).replicaof("127.0.0.1", master.port)
        client = connect(master)
        wait_until(lambda: client.info("replication").get("slave0", {}).get("state") == "online")
        # The first acknowledgement of a new replica may take a second.
        client.set("first", "write")
        assert client.wait(1, 20_000) == 1
        client.config_resetstat()
        return master, replica

    return replicate


@pytest.fixture
def replicated(replicate: Replicate, program: Program) -> tuple[LocalServer, LocalServer]:
    """A server and its replica, of each program."""
    return replicate(program)


@pytest.fixture
def any_replicated(replicate: Replicate) -> tuple[LocalServer, LocalServer]:
    """A server and its replica, of the newest program."""
    return replicate()
