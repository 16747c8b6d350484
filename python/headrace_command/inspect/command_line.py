"""The command lines of remedies, which can be pasted into a shell. Names of streams and groups are untrusted there."""

from __future__ import annotations

import os
import shlex
from argparse import Namespace
from typing import TYPE_CHECKING, NamedTuple

from headrace_command.inspect.diagnosis import Remedy
from headrace_command.option_rows import SERVER, STREAM
from headrace_command.options import connection_options
from headrace_command.text import printable

if TYPE_CHECKING:
    from headrace import Endpoint
    from headrace.admin import Commands

__all__ = ["Address", "CommandLine", "address_of", "own_options", "quoted"]


def quoted(word: bytes) -> str:
    r"""Quote a word for bash, zsh and ksh: as it is, in quotes, or as `$'\x1b'`, without control characters."""
    shown = printable(word)
    if shown.encode() == word:
        return shlex.quote(shown)
    # Three octal digits mean the same in each of these shells.
    inner = "".join(chr(byte) if 0x20 <= byte < 0x7F and byte not in b"'\\" else f"\\{byte:03o}" for byte in word)
    return f"$'{inner}'"


class CommandLine:
    """Writes command lines for a server, without any password.

    Args:
        endpoint: The endpoint.
        server: Where redis-cli connects to.
        own: The connection options given to this command.
    """

    def __init__(self, endpoint: Endpoint, server: Address, own: list[str]) -> None:
        self._redis_cli = [*_password(endpoint), "redis-cli", *map(_quoted_text, _connection(endpoint, server))]
        self._own = list(map(_quoted_text, own))

    def of(self, remedy: Remedy) -> str | None:
        """Return the line, or None where no command helps."""
        if remedy.program is None:
            return None
        line = self._line(remedy.program, remedy.words)
        return f"{line} && {self._line('redis-cli', remedy.more)}" if remedy.more else line

    def _line(self, program: str, words: tuple[bytes, ...]) -> str:
        if program == "redis-cli":
            return " ".join([*self._redis_cli, *map(quoted, words)])
        verb, *others = words
        return " ".join(["headrace", quoted(verb), *self._own, *map(quoted, others)])


def _quoted_text(word: str) -> str:
    return quoted(os.fsencode(word))


def _password(endpoint: Endpoint) -> list[str]:
    """Where redis-cli finds the password, if the place is not secret."""
    name, file = endpoint.password_env, endpoint.password_file
    if name is not None and name.isidentifier() and name.isascii():
        return [f'REDISCLI_AUTH="${name}"']
    return [] if file is None else [f'REDISCLI_AUTH="$(cat {_quoted_text(str(file))})"']


def _connection(endpoint: Endpoint, server: Address) -> list[str]:
    words: list[str] = []
    if endpoint.unix_socket is not None:
        words += ["-s", str(endpoint.unix_socket)]
    if server.host not in (None, "localhost"):
        words += ["-h", str(server.host)]
    if server.port not in (None, 6379):
        words += ["-p", str(server.port)]
    if server.is_cluster:
        words.append("-c")
    if endpoint.db:
        words += ["-n", str(endpoint.db)]
    if endpoint.username is not None:
        words += ["--user", str(endpoint.username)]
    return words + (_tls(endpoint) if endpoint.tls else [])


def _tls(endpoint: Endpoint) -> list[str]:
    from headrace.admin import given_options

    words = ["--tls"]
    # The endpoint has no property for this option, which may hold the key itself.
    key = given_options(endpoint).get("tls_key")
    for option, value in (("--cacert", endpoint.tls_ca_cert), ("--cert", endpoint.tls_cert), ("--key", key)):
        if value is not None and "-----BEGIN" not in str(value):
            words += [option, str(value)]
    if endpoint.tls_server_name is not None:
        words += ["--sni", str(endpoint.tls_server_name)]
    if endpoint.tls_insecure_skip_verify:
        words.append("--insecure")
    return words


class Address(NamedTuple):
    """A server, or one of the nodes of a cluster, from which redis-cli is redirected.

    Attributes:
        host: Its host; None for a Unix socket, or if no sentinel knows the master.
        port: Its port.
        is_cluster: Whether it is a node of a cluster, or may be one.
    """

    host: str | None
    port: int | None
    is_cluster: bool


def address_of(endpoint: Endpoint, commands: Commands) -> Address:
    """Return the address of the server. Asks the sentinels for it, or asks the server whether it is a cluster node.

    Args:
        endpoint: The endpoint.
        commands: Those of the endpoint.

    Raises:
        ConnectionFailedError: The server is unreachable.
    """
    if endpoint.unix_socket is not None:
        return Address(None, None, is_cluster=False)
    if endpoint.sentinel_master is not None:
        return _master(endpoint, endpoint.sentinel_master)
    if endpoint.nodes:
        return Address(*_split(str(endpoint.nodes[0])), is_cluster=True)
    is_cluster = endpoint.topology != "single" and _is_cluster(commands)
    return Address(endpoint.host, endpoint.port, is_cluster)


def _master(endpoint: Endpoint, name: str) -> Address:
    from headrace import ConnectionFailedError
    from headrace.admin import Commands

    words = [b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", name.encode()]
    for place in range(len(endpoint.nodes or ())):
        sentinel = Commands(endpoint, sentinel=place)
        try:
            (answer,) = sentinel.call([(None, words)], writes=False)
        except ConnectionFailedError:
            continue
        finally:
            sentinel.close()
        if isinstance(answer, list):
            host, port = (part.decode() for part in answer if isinstance(part, bytes))
            return Address(host, int(port), is_cluster=False)
    return Address(None, None, is_cluster=False)


def _is_cluster(commands: Commands) -> bool:
    """Whether the server reports that it is a node of a cluster; also true if the user may not ask."""
    (answer,) = commands.call([(None, [b"HELLO"])], writes=False)
    if not isinstance(answer, list):
        return True
    return dict(zip(answer[::2], answer[1::2], strict=True)).get(b"mode") == b"cluster"


def _split(node: str) -> tuple[str, int]:
    host, _, port = node.rpartition(":")
    return host.strip("[]"), int(port)


def own_options(arguments: Namespace, endpoint: Endpoint) -> list[str]:
    """Return the connection options that were given, for other runs of this command, without any password."""
    words = []
    given = connection_options(arguments)
    if arguments.url is not None:
        if "@" not in arguments.url and "?" not in arguments.url:
            words += ["-u", arguments.url]
        else:  # it may hold passwords, so its other parts become options
            from headrace.admin import given_options

            state = given_options(endpoint)
            given = {name: _text(state[name]) for name, _, _, _ in SERVER + STREAM if name in state}
    for name, value in given.items():
        flag = "--" + name.replace("_", "-")
        if "-----BEGIN" in value:
            continue
        if value in ("true", "false"):
            words.append(flag if value == "true" else "--no-" + name.replace("_", "-"))
        else:
            words += [flag, value]
    return words


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ",".join(f"{key}={other}" for key, other in value.items())
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
