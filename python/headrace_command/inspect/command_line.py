"""The command lines of remedies, which can be pasted into a shell. Names of streams and groups are untrusted there."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from headrace_command.escape import printable
from headrace_command.inspect.finding import Remedy

if TYPE_CHECKING:
    from headrace import Endpoint

__all__ = ["CommandLine", "quoted"]


def quoted(word: bytes) -> str:
    r"""A word for bash, zsh and ksh: as it is, in quotes, or as `$'\x1b'`, so that it has no control character."""
    shown = printable(word)
    if shown.encode() == word:
        return shlex.quote(shown)
    # Three octal digits are the same in each of these shells.
    inner = "".join(chr(byte) if 0x20 <= byte < 0x7F and byte not in b"'\\" else f"\\{byte:03o}" for byte in word)
    return f"$'{inner}'"


class CommandLine:
    """Writes command lines for a server.

    Args:
        endpoint: Where redis-cli connects to. No password is shown: redis-cli has `REDISCLI_AUTH`.
        own: The options of the connection that this command was given.
    """

    def __init__(self, endpoint: Endpoint, own: list[str]) -> None:
        self._redis_cli = ["redis-cli", *_connection(endpoint)]
        self._headrace = ["headrace"]
        self._own = own

    def of(self, remedy: Remedy) -> str | None:
        """The line, or None where no command helps."""
        if remedy.program is None:
            return None
        line = self._line(remedy.program, remedy.words)
        return f"{line} && {self._line('redis-cli', remedy.more)}" if remedy.more else line

    def _line(self, program: str, words: tuple[bytes, ...]) -> str:
        if program == "redis-cli":
            return " ".join([*map(shlex.quote, self._redis_cli), *map(quoted, words)])
        verb, *others = words
        return " ".join([*self._headrace, quoted(verb), *map(shlex.quote, self._own), *map(quoted, others)])


def _connection(endpoint: Endpoint) -> list[str]:
    words: list[str] = []
    if endpoint.unix_socket is not None:
        words += ["-s", str(endpoint.unix_socket)]
    else:
        nodes = endpoint.nodes
        host, port = (endpoint.host, endpoint.port) if not nodes else _host_and_port(str(nodes[0]))
        if host not in (None, "localhost"):
            words += ["-h", str(host)]
        if port not in (None, 6379, "6379"):
            words += ["-p", str(port)]
        if nodes:
            words.append("-c")
    if endpoint.db:
        words += ["-n", str(endpoint.db)]
    if endpoint.username is not None:
        words += ["--user", str(endpoint.username)]
    if endpoint.tls:
        words.append("--tls")
        for option, value in (("--cacert", endpoint.tls_ca_cert), ("--cert", endpoint.tls_cert)):
            if value is not None and "-----BEGIN" not in str(value):
                words += [option, str(value)]
    return words


def _host_and_port(node: str) -> tuple[str, str]:
    host, _, port = node.rpartition(":")
    return host.strip("[]"), port
