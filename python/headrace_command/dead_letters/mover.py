"""Writes the entries of letters again and deletes the letters."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from headrace import CommandError, ConnectionFailedError, HeadraceError
from headrace.admin import Commands, DeadLetter
from headrace_command.dead_letters.entry_command import EntryCommand
from headrace_command.dead_letters.selection import Destination
from headrace_command.dead_letters.tally import Tally
from headrace_command.exit_code import UsageError

if TYPE_CHECKING:
    from headrace import Dispatcher, Endpoint, Failure

__all__ = ["Mover", "RowWriter"]

#: Letters whose commands are sent in one round trip.
_PIPELINE = 100

Item = tuple[DeadLetter, bytes]

_NO_STREAM = CommandError("the stream does not exist, and nomkstream is on", code="NO_STREAM")


class Mover:
    """Moves letters, in order.

    Where one script can reach both streams, it adds the entry and deletes the letter in one step: the entry is added
    once, whatever fails. An entry with too many fields for a script is moved by a transaction. Elsewhere, and for Spark
    rows, the entry is added and then the letter is deleted: a failure in between leaves both, and the next run adds the
    entry again.

    Args:
        commands: A connection.
        letters: The key of the stream of letters.
        entry: Makes the commands.
        destination: Which entries can be moved in one step.
        rows: Makes the writer of Spark rows.
        tally: Receives the outcomes.
    """

    def __init__(
        self,
        commands: Commands,
        letters: bytes,
        entry: EntryCommand,
        destination: Destination,
        rows: Callable[[], RowWriter],
        tally: Tally,
    ) -> None:
        self._commands = commands
        self._letters = letters
        self._entry = entry
        self._destination = destination
        self._make_rows = rows
        self._rows: RowWriter | None = None
        self._tally = tally

    def check(self) -> None:
        """Check that letters may be deleted.

        Raises:
            CommandError: The server refuses it.
        """
        (reply,) = self._commands.call([(self._letters, self._entry.check())], writes=True)
        if isinstance(reply, CommandError):
            raise reply

    def move(self, items: Iterable[Item]) -> None:
        """Move these letters to these streams.

        Raises:
            ConnectionFailedError: The connection was lost. The letters in flight are noted as unknown.
        """
        for kind, group in groupby(items, self._kind):
            members = list(group)
            for part in (members[at : at + _PIPELINE] for at in range(0, len(members), _PIPELINE)):
                {
                    "empty": self._refuse,
                    "row": self._write_rows,
                    "script": self._move,
                    "wide": self._move_wide,
                    "apart": self._copy,
                }[kind](part)

    def close(self) -> None:
        """Close the writer of rows."""
        if self._rows is not None:
            self._rows.close()

    def _kind(self, item: Item) -> str:
        letter, to = item
        if not self._entry.has_fields(letter):
            return "empty"
        if letter.row is not None:
            return "row"
        is_wide = self._entry.is_wide(letter)
        if not self._destination.is_beside(to, is_wide=is_wide):
            return "apart"
        return "wide" if is_wide else "script"

    def _refuse(self, items: Sequence[Item]) -> None:
        for letter, to in items:
            self._tally.add(
                letter,
                "failed",
                to=to,
                error="the letter has no field of its entry: its payload was null, or too large",
            )

    def _move(self, items: Sequence[Item]) -> None:
        for item, reply in self._call(items, (self._entry.move(letter, to) for letter, to in items), by_target=False):
            self._note(item, reply)

    def _move_wide(self, items: Sequence[Item]) -> None:
        for item in items:
            letter, to = item
            result = self._replies(item, self._entry.rights(to))
            if not isinstance(result, CommandError):
                result = self._replies(item, self._entry.move_wide(letter, to, newest=result[-1]))
            if not isinstance(result, CommandError):
                added, moved = result[-1]
                result = _NO_STREAM if added is None else added if isinstance(added, CommandError) else moved
            self._note(item, result)

    def _replies(self, item: Item, commands: Sequence[list[bytes]]) -> list[Any] | CommandError:
        """The replies to commands for one letter, or the first refusal."""
        replies = self._ask([item], [(self._letters, words) for words in commands])
        for reply in replies:
            if isinstance(reply, CommandError):
                # The connection may be in a transaction that could not be ended.
                self._commands.close()
                return reply
        return replies

    def _copy(self, items: Sequence[Item]) -> None:
        added: list[tuple[Item, bytes]] = []
        for item, reply in self._call(items, (self._entry.add(letter, to) for letter, to in items), by_target=True):
            if isinstance(reply, bytes):
                added.append((item, reply))
            elif reply is None:
                self._note(item, _NO_STREAM)
            else:
                self._note(item, reply)
        self._delete(added)

    def _write_rows(self, items: Sequence[Item]) -> None:
        if self._rows is None:
            self._rows = self._make_rows()
        for letter, to in items:
            try:
                failure = self._rows.write(letter, to)
            except ConnectionFailedError:
                self._tally.add(letter, "unknown", to=to)
                raise
            except HeadraceError as error:
                self._tally.add(letter, "failed", to=to, error=str(error))
                continue
            if failure is None:
                self._delete([((letter, to), None)])
            else:
                outcome = "failed" if failure.written == "no" else "unknown"
                self._tally.add(letter, outcome, to=to, error=f"{failure.code}: {failure.message}")

    def _delete(self, added: Sequence[tuple[Item, bytes | None]]) -> None:
        """Delete the letters of entries that were added."""
        words = (self._entry.delete(letter) for (letter, _), _ in added)
        replies = self._call([item for item, _ in added], words, by_target=False)
        for (item, reply), (_, entry_id) in zip(replies, added, strict=True):
            self._note(item, reply if isinstance(reply, CommandError) else entry_id or b"")

    def _note(self, item: Item, reply: Any) -> None:
        letter, to = item
        if isinstance(reply, CommandError):
            self._tally.add(letter, "failed", to=to, error=_explained(reply))
        elif reply is None:
            self._tally.add(letter, "gone", to=to)
        else:
            self._tally.add(letter, "done", to=to, entry_id=reply or None)

    def _call(
        self, items: Sequence[Item], commands: Iterable[list[bytes]], *, by_target: bool
    ) -> Iterator[tuple[Item, Any]]:
        requests = [(to if by_target else self._letters, words) for (_, to), words in zip(items, commands, strict=True)]
        return zip(items, self._ask(items, requests), strict=True)

    def _ask(self, items: Sequence[Item], requests: list[tuple[bytes, list[bytes]]]) -> list[Any]:
        if not requests:
            return []
        try:
            return self._commands.call(requests, writes=True)
        except (ConnectionFailedError, KeyboardInterrupt):
            for letter, to in items:
                self._tally.add(letter, "unknown", to=to)
            raise


def _explained(error: CommandError) -> str:
    """Add the rights that replay needs if one is missing: some servers do not name it when a script fails."""
    text = str(error)
    if error.code == "NOPERM" or "can't run this command" in text or "ACL failure in script" in text:
        return f"{text.rstrip('.')}: replay needs +eval +xrange +xrevrange +xadd +xdel +multi +exec and both keys"
    return text


class RowWriter:
    """Writes one row at a time, as `produce_batch` does, so that values are converted to text by the library.

    Args:
        arguments: Those of the verb.
        endpoint_of: Returns the endpoint of a stream, with the options of XADD.
    """

    def __init__(self, arguments: Namespace, endpoint_of: Callable[[bytes], Endpoint]) -> None:
        self._payload: str | None = arguments.payload
        self._fields: str | None = arguments.fields
        self._endpoint_of = endpoint_of
        self._options: dict[str, Any] = {"payload_field": arguments.payload_field, "ts_field": arguments.ts_field}
        self._dispatchers: dict[bytes, Dispatcher] = {}
        try:
            import pyarrow as pa
        except ImportError:
            raise UsageError(
                "rows of Spark are read with pyarrow, which is not installed: pip install pyarrow"
            ) from None
        self._table = pa.table

    def write(self, letter: DeadLetter, to: bytes) -> Failure | None:
        """Write the row of a letter, and return why it failed, or None."""
        from headrace import Dispatcher, unpack_arrow

        row = self._table(unpack_arrow(dict(letter.own), "row"))
        if to not in self._dispatchers:
            self._dispatchers[to] = Dispatcher(self._endpoint_of(to), **self._options)
        dispatcher = self._dispatchers[to]
        dispatcher.produce_batch(row, **self._layout(row.column_names))
        report = dispatcher.flush()
        return None if report.ok else report.failed[0]

    def close(self) -> None:
        """Close the connections."""
        for dispatcher in self._dispatchers.values():
            dispatcher.close()

    def _layout(self, columns: list[str]) -> dict[str, Any]:
        if self._payload is not None:
            return {"payload": self._payload}
        if self._fields is None:
            return {"json": columns}
        return {"fields": columns if self._fields == "all" else self._fields.split(",")}
