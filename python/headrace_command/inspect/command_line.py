"""The command lines of remedies, which can be pasted into a shell. Names of streams and groups are untrusted there."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from headrace_command.escape import printable
from headrace_command.inspect.address import Address
from headrace_command.inspect.finding import Remedy

if TYPE_CHECKING:
    from headrace import Endpoint

__all__ = ["CommandLine", "quoted"]


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
    words = ["--tls"]
    # The endpoint has no property for this option, which may hold the key itself.
    key = endpoint._state()[0].get("tls_key")
    for option, value in (("--cacert", endpoint.tls_ca_cert), ("--cert", endpoint.tls_cert), ("--key", key)):
        if value is not None and "-----BEGIN" not in str(value):
            words += [option, str(value)]
    if endpoint.tls_server_name is not None:
        words += ["--sni", str(endpoint.tls_server_name)]
    if endpoint.tls_insecure_skip_verify:
        words.append("--insecure")
    return words
