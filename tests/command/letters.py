"""Dead letters in both formats, as the Consumer and the Spark writer make them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

__all__ = ["MOST_FIELDS", "consumer_letter", "row_letter", "spark_letter"]

#: Of an entry with more fields a letter has one value, and a transaction in place of a script replays it.
MOST_FIELDS = 3_500


def consumer_letter(
    client: Any, number: int, *, dead: str = "dead", stream: str = "orders", reason: str = "bad", others: int = 0
) -> str:
    """Add a letter of a consumer, of an entry with one payload and other fields. Returns its ID."""
    fields = {"payload": f"order {number}", **{f"field {other}": "" for other in range(others)}}
    tail = {"dead:stream": stream, "dead:id": f"5-{number}", "dead:reason": reason, "dead:failures": 3}
    letter = {**fields, **tail}
    if len(fields) > MOST_FIELDS:
        parts = [part for pair in fields.items() for part in pair]
        letter = {**tail, "dead:fields": "".join(f"{len(part)}:{part}" for part in parts)}
    return str(client.xadd(dead, letter).decode())


def spark_letter(
    client: Any, content: dict[str, bytes], *, dead: str = "dead", code: str = "OOM", written: str = "no"
) -> str:
    """Add a letter of the Spark writer. Returns its ID."""
    fields = {"stream_key": "orders", "kind": "permanent", "code": code, "message": "why", "written": written}
    numbers = {"partition": 0, "ordinal": 7, "ts": "2026-04-14T12:00:00Z"}
    return str(client.xadd(dead, {**content, **fields, **numbers}).decode())


def row_letter(client: Any, row: dict[str, object], **options: str) -> str:
    """The same with a row that has no payload."""
    batch = pa.RecordBatch.from_pylist([row])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return spark_letter(client, {"row": sink.getvalue().to_pybytes()}, **options)
