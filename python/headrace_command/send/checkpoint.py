"""The position of a resumable import, stored on the server next to the marker of its rows."""

from __future__ import annotations

import json
import time
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace_command.exit_code import UsageError

if TYPE_CHECKING:
    from headrace import Endpoint

__all__ = ["Checkpoint", "Checkpoints"]

#: How many seconds a checkpoint outlives its marker, so that a late resume gets a clear error.
_LONGER = 30 * 86_400
#: How long an unreachable server is tried again, in seconds.
_PATIENCE = 120.0
_PAUSE = 0.25


class Checkpoint(NamedTuple):
    """The block that was sent last, or was about to be.

    Attributes:
        version: Its number, which is also the version of its batch.
        first: The number of rows before it.
        last: The number of rows up to its end.
        sha256: The hash of all input up to there.
        options: How the input is read.
        stored: When it was stored, in seconds since 1970 by the server's clock.
    """

    version: int
    first: int
    last: int
    sha256: str
    options: dict[str, object]
    stored: int


class Checkpoints:
    """Reads and writes the checkpoint of an import.

    Args:
        endpoint: The stream.
        stream: Its key.
        name: The name of the import, which is the token of its batches.
        options: How the input is read.
        ttl: How long it can be resumed, in seconds.
    """

    def __init__(self, endpoint: Endpoint, stream: bytes, name: str, options: dict[str, object], ttl: int) -> None:
        from headrace.admin import Commands, marker_key

        self._commands = Commands(endpoint)
        self._marker = marker_key(stream, name)
        self._key = self._marker + b":import"
        self._name = name
        self._options = options
        self._ttl = ttl
        self._script = files(__package__).joinpath("advance.lua").read_bytes()
        self._version = 0
        #: The marker as it must be when the next block begins.
        self._expected = b""

    def load(self) -> tuple[Checkpoint | None, int]:
        """Find where the import stopped.

        Returns:
            The checkpoint (None if there is none), and how many rows of its block were written.

        Raises:
            UsageError: It cannot continue: the options differ, the marker has expired, or the token is in use
                elsewhere.
        """
        stored, marker, now = self._call(
            [
                (self._key, [b"GET", self._key]),
                (self._marker, [b"GET", self._marker]),
                (self._marker, [b"TIME"]),
            ],
            writes=False,
        )
        if stored is None:
            if marker is not None:
                raise UsageError(f"--exactly-once {self._name}: the name is the token of another batch of this stream")
            return None, 0
        found = Checkpoint(**json.loads(stored))
        seconds = int(now[0])
        if marker is None or seconds >= found.stored + self._ttl_of(found):
            since = _time(found.stored + self._ttl_of(found))
            raise UsageError(
                f"--exactly-once {self._name}: the import could be resumed until {since}; at least {found.first:,} "
                f"rows are in the stream, and at most {found.last:,}. Send the others under another name"
            )
        version, _, written = marker.partition(b" ")
        if int(version) != found.version:
            raise UsageError(f"--exactly-once {self._name}: the name is the token of another batch of this stream")
        if different := sorted(
            name for name, value in found.options.items() if name != "token_ttl" and value != self._options.get(name)
        ):
            given = ", ".join(
                f"{name}={self._options.get(name)!r} instead of {found.options[name]!r}" for name in different
            )
            raise UsageError(f"--exactly-once {self._name}: the import was started with other options: {given}")
        self._version, self._expected = found.version, marker
        return found, int(written)

    def advance(self, first: int, last: int, sha256: str, written: int = 0) -> int:
        """Store the checkpoint of the next block, before its first row is sent.

        Args:
            first: The number of rows before it.
            last: The number of rows up to its end. If the block has no rows, all before it are done.
            sha256: The hash of all input up to there.
            written: How many of its rows an earlier run wrote.

        Returns:
            The version of its batch.

        Raises:
            UsageError: Another process has taken the import over.
        """
        version = self._version + 1
        marker = b"%d %d" % (version, written)
        state = Checkpoint(version, first, last, sha256, {**self._options, "token_ttl": self._ttl}, self._now())
        words = [b"EVAL", self._script, b"2", self._marker, self._key, self._expected, marker]
        words += [str(self._ttl).encode(), json.dumps(state._asdict()).encode(), str(self._ttl + _LONGER).encode()]
        (found,) = self._call([(self._marker, words)], writes=True)
        if found is not None and found != marker:
            raise UsageError(f"--exactly-once {self._name}: another process has taken over the import")
        self._version, self._expected = version, b"%d " % version
        return version

    @property
    def until(self) -> str:
        """The time until which an import that stops now can be resumed."""
        return _time(self._now() + self._ttl)

    def close(self) -> None:
        """Close the connection."""
        self._commands.close()

    def _now(self) -> int:
        (now,) = self._call([(self._marker, [b"TIME"])], writes=False)
        return int(now[0])

    @staticmethod
    def _ttl_of(found: Checkpoint) -> int:
        return int(found.options["token_ttl"])  # type: ignore[call-overload, no-any-return]

    def _call(self, commands: list[tuple[bytes | None, list[bytes]]], *, writes: bool) -> list[Any]:
        """Send commands, repeatedly while the server is unreachable: each of them may be sent twice."""
        from headrace import CommandError, ConnectionFailedError

        began = time.monotonic()
        while True:
            try:
                answers: list[Any] = list(self._commands.call(commands, writes))
                if refused := next((answer for answer in answers if isinstance(answer, CommandError)), None):
                    raise refused
                return answers
            except (ConnectionFailedError, CommandError) as error:
                passes = isinstance(error, ConnectionFailedError) or error.kind == "retryable"
                if not passes or time.monotonic() - began > _PATIENCE:
                    raise
                time.sleep(_PAUSE)


def _time(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
