"""The stream of rows that are bad or were refused by the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from headrace_command.send.rows import Block

if TYPE_CHECKING:
    from headrace import DeliveryReport, Dispatcher, Endpoint
    from headrace_command.send.tally import Tally

__all__ = ["Letters"]

_MOST_ROWS = 4_096

#: The fields, one of which holds the row.
_ROW_FIELDS = ("payload", "row")

#: The names and values of its fields.
_Letter: TypeAlias = list[tuple[str, bytes]]


class Letters:
    """Writes dead letters, with the same fields as those of `headrace.spark`.

    `payload` is the row as it was read; an Arrow row is in `row` instead, as an Arrow IPC stream. A row that is too
    large for the server is left out. `ordinal` is the number of the row in its file, `source` the file.

    Args:
        endpoint: The stream of dead letters.
        stream: Where the rows were to go.
        tally: Counts the letters.
    """

    def __init__(self, endpoint: Endpoint, stream: bytes, tally: Tally) -> None:
        self._endpoint = endpoint
        self._stream = stream
        self._tally = tally
        self._dispatcher: Dispatcher | None = None
        self._letters: list[_Letter] = []

    def add(self, block: Block, at: int, **failure: str) -> None:
        """Add the letter of a row."""
        row = block.rows[at] if isinstance(block.rows, list) else _as_ipc(block.rows.slice(at, 1))
        fields = {"payload" if isinstance(block.rows, list) else "row": row, "stream_key": self._stream}
        fields |= {name: value.encode() for name, value in failure.items()}
        # Every Spark letter has a partition, by which readers recognise letters.
        fields |= {"partition": b"0", "ordinal": b"%d" % (block.first + at)}
        fields |= {"source": block.file.encode("utf-8", "surrogateescape")}
        self._letters.append(list(fields.items()))
        if len(self._letters) >= _MOST_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the letters. One that is too large for the server is written without its row.

        Raises:
            DeliveryError: A letter cannot be written.
        """
        letters, self._letters = self._letters, []
        if not letters:
            return
        from headrace import Dispatcher

        if self._dispatcher is None:
            self._dispatcher = Dispatcher(self._endpoint)
        while True:
            report = self._write(self._dispatcher, letters)
            refused = [(letters[int(failure.message_id)], failure.code == "TOO_LARGE") for failure in report.failed]
            if not any(is_large and _has_row(letter) for letter, is_large in refused):
                break
            # Each of these ended the connection, so other letters may be in the stream twice now.
            letters = [_without_row(letter) if is_large else letter for letter, is_large in refused]
        report.raise_for_failures()

    def close(self) -> None:
        """Close the connection."""
        if self._dispatcher is not None:
            self._dispatcher.close()

    def _write(self, dispatcher: Dispatcher, letters: list[_Letter]) -> DeliveryReport:
        from headrace_command.send.inputs import pyarrow_for

        pa = pyarrow_for("--on-bad-row dead-letter")
        table = pa.table({"fields": pa.array(letters, pa.map_(pa.string(), pa.binary()))})
        dispatcher.produce_batch(table, fields_from="fields")
        report = dispatcher.flush()
        self._tally.dead_letters += report.delivered
        return report


def _has_row(letter: _Letter) -> bool:
    return any(name in _ROW_FIELDS for name, _ in letter)


def _without_row(letter: _Letter) -> _Letter:
    """The letter without its row."""
    why = b"; the letter has no row, which is too large for the server"
    return [(name, value + why if name == "message" else value) for name, value in letter if name not in _ROW_FIELDS]


def _as_ipc(row: Any) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_batch(row)
    return bytes(sink.getvalue())
