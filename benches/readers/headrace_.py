"""headrace: batches of the reader, passed to pyarrow."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from benches.contenders.headrace_ import endpoint
from benches.turns import Run, Target

from headrace import Reader


def prepare(target: Target, fields: list[str] | None = None, **options: Any) -> Run:
    """`options` are those of a reader."""
    if fields is not None:
        options |= {"fields": fields, "metadata": ["entry_id"]}

    def run() -> int:
        rows = 0
        with Reader(endpoint(target), end="latest", limit=target.rows, **options) as reader:
            for batch in reader:
                rows += pa.record_batch(batch).num_rows
        return rows

    return run


def prepare_rows(target: Target, typed: bool, unpack: str | None) -> Run:
    """Read rows as they were written: the six typed columns, or the payload alone."""
    from benches.prepared_bytes import TYPED
    from benches.typed_batches import typed_batch

    schema = pa.schema([pa.field("payload", pa.binary())])
    if typed:
        schema = typed_batch(target).select(list(TYPED)).schema
    return prepare(target, schema=schema, unpack=unpack)
