"""Record batches of the six typed columns of `benches.prepared_bytes.TYPED`, for contenders without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
from benches.prepared_bytes import TYPED
from benches.turns import Target

_START = datetime(2026, 4, 14, 12, tzinfo=UTC)
_TYPES = (pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.timestamp("us", "UTC"), pa.decimal128(18, 2))


def typed_batch(target: Target, null_share: float = 0.0) -> pa.RecordBatch:
    """Make `target.batch` rows with a column `id`; a share `null_share` of each typed column is null (fixed seed)."""
    random = Random(target.batch)
    rows = [typed_row(number) for number in range(target.batch)]
    columns: dict[str, Any] = {"id": pa.array(range(target.batch), pa.int64())}
    for at, (name, type_) in enumerate(zip(TYPED, _TYPES, strict=True)):
        columns[name] = pa.array([None if random.random() < null_share else row[at] for row in rows], type_)
    return pa.record_batch(columns)


def typed_row(number: int) -> tuple[Any, ...]:
    return (
        500_000 + number,
        185_000 + number * 0.37,
        f"customer-{number % 9973}",
        number % 3 == 0,
        _START + timedelta(microseconds=number * 1_234_567),
        Decimal(number * 100 + number % 100) / 100,
    )
