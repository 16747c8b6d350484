"""Writes rows of the Spark writer that have no payload; the library makes their entries."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.admin import DeadLetter
from headrace_command.usage_error import UsageError

if TYPE_CHECKING:
    from headrace import Dispatcher, Endpoint, Failure

__all__ = ["RowWriter"]


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
