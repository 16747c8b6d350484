"""The stream of rows that could not be written, with everything needed to write them again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark import worker
from headrace.spark.commit import PartitionCommit, delivery_error
from headrace.spark.failures import failed_rows
from headrace.spark.shards import numbers_of

if TYPE_CHECKING:
    from headrace.dispatcher import Dispatcher
    from headrace.report import DeliveryReport
    from headrace.spark.layout import ColumnLayout
    from headrace.spark.settings import WriteSettings

__all__ = ["DeadLetters"]

#: The dispatcher's options that dead letters share. Those about the form of an entry do not apply to them.
INHERITED = ("classify", "error_overrides", "window_max_entries", "window_max_bytes")


class DeadLetters:
    """Writes the dead letters of one task. Connects when the first one is written.

    An entry has the fields

    - `payload`, the value of the payload column; with any other layout `row`, an Arrow IPC stream of the row with the
      columns of the entry, which `headrace.unpack_arrow(fields, "row")` reads back;
    - `stream_key` (with shards, that of the shard) and `entry_id`, the intended destination, `shard_key`, if that
      column exists, and `message_id`, if the row has its own;
    - `kind`, `code`, `message` and `written`, as in `headrace.Failure`;
    - `partition` and `ordinal` of the row, `batch_id` of a streaming query, and `ts`.

    Null values are left out, and so is a `payload` or `row` that is too large for the server.

    Args:
        settings: Where and how to write.
        layout: The columns of the record batches.
        batch_id: The micro-batch of a streaming query.
        resources: Receives the dispatcher, to close it.
        first: The number of the partition's first row among the messages of its batch, which determines the shards of
            rows without a shard key.
    """

    def __init__(
        self,
        settings: WriteSettings,
        layout: ColumnLayout,
        batch_id: int | None,
        resources: ExitStack,
        first: int,
    ) -> None:
        options = settings.dispatcher.items()
        self._endpoint = settings.dead_letters
        self._options = {name: value for name, value in options if name in INHERITED or name.startswith("retry")}
        if self._options.get("retry") == "true":
            self._options["retry_unknown"] = "true"  # a duplicate dead letter is better than a lost one
        self._layout = layout
        self._target = settings.endpoint
        self._first = first
        self._batch_id = batch_id
        self._resources = resources
        self._dispatcher: Dispatcher | None = None

    def write(self, failed: pa.Table, batches: Sequence[pa.RecordBatch]) -> None:
        """Write a dead letter for each failure, and wait for their outcomes.

        Args:
            failed: A table of `failed_rows`; `place` is the index of the row in `batches`.
            batches: The record batches that were produced since the last flush.

        Raises:
            DeliveryError: A dead letter cannot be written.
        """
        if self._dispatcher is None:
            self._dispatcher = self._resources.enter_context(
                worker.dispatcher(self._endpoint, self._options, text=True)
            )
        rows = pa.Table.from_batches(batches).take(failed["place"])
        letters = self._letters(failed, rows)
        commit = PartitionCommit()
        while True:
            report = self._produce(self._dispatcher, letters)
            if not report.failed_by_code:
                return
            refused = pa.concat_tables(failed_rows(report, failed["partition"][0].as_py(), 0, named=True))
            letters, failed = letters.take(refused["place"]), failed.take(refused["place"])
            too_large = pc.and_(pc.equal(refused["code"], "TOO_LARGE"), pc.is_valid(letters[self._content]))
            if not pc.any(too_large).as_py():
                break
            # Each of these ended the connection, so other letters may be in the stream twice now.
            letters = self._without_content(letters, too_large)
            commit.delivered += report.delivered
        commit.add(report)
        commit.add_first(_with(refused, "ordinal", failed["ordinal"]))
        raise delivery_error(commit, self._endpoint, "these are dead letters; without them rows would be lost")

    def _produce(self, dispatcher: Dispatcher, letters: pa.Table) -> DeliveryReport:
        fields = [name for name in letters.column_names if name != "message_id" or self._layout.message_id is not None]
        for batch in letters.to_batches():
            dispatcher.produce_batch(batch, fields=fields, message_id="message_id")
        return dispatcher.flush()

    @property
    def _content(self) -> str:
        """The field that holds the row."""
        return "row" if self._layout.payload is None else "payload"

    def _without_content(self, letters: pa.Table, which: pa.ChunkedArray) -> pa.Table:
        places = pc.if_else(which, None, pa.array(range(len(letters)), pa.int64()))
        why = pc.if_else(which, "; the letter has no row, which is too large for the server", "")
        messages = pc.binary_join_element_wise(letters["message"], why, "")
        letters = _with(letters, self._content, letters[self._content].take(places))
        return _with(letters, "message", messages)

    def _letters(self, failed: pa.Table, rows: pa.Table) -> pa.Table:
        arguments = self._layout.arguments
        if self._layout.payload is not None:
            content = rows[self._layout.payload]
        else:
            content = _as_ipc(rows.select(list(self._layout.columns)))
        letters: dict[str, object] = {self._content: content}
        letters["stream_key"] = self._stream_keys(failed, rows)
        if "shard_key" in arguments:
            letters["shard_key"] = rows[arguments["shard_key"]]
        if "entry_id" in arguments:
            letters["entry_id"] = rows[arguments["entry_id"]]
        names = ("message_id", "kind", "code", "message", "written", "partition", "ordinal")
        letters |= {name: failed[name] for name in names}
        if self._batch_id is not None:
            letters["batch_id"] = pa.repeat(pa.scalar(self._batch_id), len(failed))
        return pa.table(letters)

    def _stream_keys(self, failed: pa.Table, rows: pa.Table) -> pa.Array | pa.ChunkedArray:
        if self._target.shards is not None:
            return pa.array(self._target.stream_keys, pa.binary()).take(self._shards(failed, rows))
        own = self._target.stream_key
        key = own.encode() if isinstance(own, str) else own
        if (column := self._layout.arguments.get("stream_key")) is None:
            return pa.repeat(pa.scalar(key), len(rows))
        return pc.coalesce(pc.cast(rows[column], pa.binary()), pa.scalar(key))

    def _shards(self, failed: pa.Table, rows: pa.Table) -> pa.Array:
        """The shard of each row: that of its key or, without a key, the one whose turn it was."""
        count = self._target.shards or 1
        turns = pa.array([(self._first + ordinal) % count for ordinal in failed["ordinal"].to_pylist()], pa.int32())
        if (column := self._layout.arguments.get("shard_key")) is None:
            return turns
        return pc.coalesce(numbers_of(rows[column].combine_chunks(), count, self._target.shard_hash), turns)


def _as_ipc(rows: pa.Table) -> pa.Array:
    """Each row as an Arrow IPC stream of its own."""
    streams = []
    for batch in rows.to_batches():
        for place in range(batch.num_rows):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch.slice(place, 1))
            streams.append(sink.getvalue().to_pybytes())
    return pa.array(streams, pa.binary())


def _with(table: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    """The table with other values in a column."""
    return table.set_column(table.schema.get_field_index(name), name, column)
