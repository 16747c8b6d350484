"""Deletes letters."""

from __future__ import annotations

from collections.abc import Sequence

from headrace import CommandError, ConnectionFailedError
from headrace.admin import Commands, DeadLetter
from headrace_command.dead_letters.tally import Tally

__all__ = ["Remover"]


class Remover:
    """Deletes letters of a stream.

    Args:
        commands: A connection.
        letters: The key of the stream of letters.
        tally: Receives the outcomes.
    """

    def __init__(self, commands: Commands, letters: bytes, tally: Tally) -> None:
        self._commands = commands
        self._letters = letters
        self._tally = tally

    def remove(self, letters: Sequence[DeadLetter]) -> None:
        """Delete these letters.

        Raises:
            ConnectionFailedError: The connection was lost. The letters in flight are noted as unknown.
        """
        requests = [(self._letters, [b"XDEL", self._letters, letter.entry_id]) for letter in letters]
        if not requests:
            return
        try:
            replies = self._commands.call(requests, writes=True)
        except (ConnectionFailedError, KeyboardInterrupt):
            for letter in letters:
                self._tally.add(letter, "unknown")
            raise
        for letter, reply in zip(letters, replies, strict=True):
            if isinstance(reply, CommandError):
                self._tally.add(letter, "failed", error=str(reply))
            else:
                self._tally.add(letter, "done" if reply else "gone")
