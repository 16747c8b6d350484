"""The columns of a read: its schema, the arguments of its `Reader`, and record batches of exactly Spark's types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace._headrace import ReadBatch
from headrace.errors import ConfigError, SchemaError
from headrace.spark.layout import arrow_schema
from headrace.spark.source.options import ReadSettings

__all__ = ["MAX_ROWS", "Columns", "read_schema"]

#: Larger record batches slow Spark down.
MAX_ROWS: Final = 10_000

#: The entries that do not fit, with on_bad_field="keep".
RAW: Final = "raw"
#: The column of all fields, if none is named.
ALL_FIELDS: Final = "fields"
#: The type of a column with all fields of an entry, by the option `fields_as`.
FIELDS_AS: Final[dict[str, DataType]] = {
    "map": MapType(StringType(), BinaryType()),
    "list": ArrayType(StructType().add("name", StringType()).add("value", BinaryType())),
}
#: The other metadata columns of a reader, with their Spark types. A sequence number has 64 unsigned bits.
METADATA: Final[dict[str, DataType]] = {
    "stream": StringType(),
    "entry_id": StringType(),
    "entry_ms": LongType(),
    "entry_seq": DecimalType(20, 0),
    "timestamp": TimestampType(),
    "row_in_entry": IntegerType(),
}
#: The metadata columns of a read without `fields` or a schema.
USUAL: Final = ("stream", "entry_id", "timestamp")

#: The last millisecond whose number of microseconds fits 63 bits.
LAST_MS: Final = (2**63 - 1) // 1000


def read_schema(settings: ReadSettings) -> StructType:
    """Return the columns of a read for which the user gives no schema.

    Raises:
        ConfigError: A metadata column is unknown, or has the name of a field.
    """
    metadata = settings.metadata
    if metadata is None:
        metadata = {name: name for name in USUAL} if settings.fields is None else {}
    if settings.fields is not None and settings.keeps_raw and RAW not in metadata:
        metadata = {**metadata, RAW: RAW}
    columns = [StructField(column, _type_of(settings, name)) for name, column in metadata.items()]
    if settings.fields is None:
        if "unpack" in settings.reader:
            raise ConfigError("unpack needs fields or a schema, which name the columns of the rows", option="unpack")
        if ALL_FIELDS in metadata.values():
            text = f"metadata gives a column the name {ALL_FIELDS!r}, which the column of all fields has"
            raise ConfigError(text, option="metadata")
        return StructType([*columns, StructField(ALL_FIELDS, FIELDS_AS[settings.reader["fields_as"]])])
    if twice := next((name for name in settings.fields if name in metadata.values()), None):
        raise ConfigError(f"metadata and fields both name the column {twice!r}", option="fields")
    return StructType([*columns, *(StructField(name, StringType()) for name in settings.fields)])


def _type_of(settings: ReadSettings, name: str) -> DataType:
    """The type of a metadata column."""
    types = {**METADATA, RAW: FIELDS_AS[settings.reader["fields_as"]]}
    if name not in types:
        raise ConfigError(f"metadata must be some of {', '.join(types)}, got {name!r}", option="metadata")
    return types[name]


class Columns:
    """The columns of a read, checked.

    With a schema from the user, each column is the field of the same name, unless the option `metadata` names it.

    Attributes:
        arguments: Keyword arguments of `Reader`.

    Raises:
        ConfigError: An option contradicts the schema.
        SchemaError: A metadata column has the wrong type.
    """

    def __init__(self, settings: ReadSettings, schema: StructType) -> None:
        self._target = arrow_schema(schema)
        self._metadata = settings.metadata or {}
        if _is_own(settings, schema):
            self.arguments: dict[str, Any] = {"metadata": settings.metadata}
            if settings.fields is not None:
                self.arguments["fields"] = list(settings.fields)
            return
        if settings.fields is not None:
            text = "fields and a schema are mutually exclusive: a schema names its fields"
            raise ConfigError(text, option="fields")
        if settings.keeps_raw and RAW not in self._metadata:
            kind = _type_of(settings, RAW).simpleString()
            text = f"on_bad_field='keep' needs the column {RAW} in metadata, and as {kind} in the schema"
            raise ConfigError(text, option="on_bad_field")
        self._check(settings, schema)
        fields = [field for field in self._target if field.name not in self._metadata.values()]
        if not fields:
            raise SchemaError("the schema has metadata columns only: leave it out, or add a field")
        self.arguments = {"metadata": self._metadata, "schema": pa.schema(fields)}

    def _check(self, settings: ReadSettings, schema: StructType) -> None:
        types = {field.name: field.dataType for field in schema}
        for name, column in self._metadata.items():
            wanted = _type_of(settings, name)
            if column not in types:
                raise ConfigError(f"metadata names {column!r}, which is not a column of the schema", option="metadata")
            if types[column] != wanted:
                shown, got = wanted.simpleString(), types[column].simpleString()
                raise SchemaError(f"the metadata column {column!r} must be {shown}, got {got}")

    def convert(self, batch: ReadBatch) -> Iterator[pa.RecordBatch]:
        """Convert to record batches for Spark, which compares each type with its own."""
        read = pa.record_batch(batch)
        arrays = [_cast(read.column(field.name), field.type) for field in self._target]
        whole = pa.RecordBatch.from_arrays(arrays, schema=self._target)
        for first in range(0, whole.num_rows, MAX_ROWS):
            yield whole.slice(first, MAX_ROWS)


def _is_own(settings: ReadSettings, schema: StructType) -> bool:
    """Whether the schema is the one that follows from the options alone."""
    if settings.fields is None and "unpack" in settings.reader:
        return False
    names = schema.fieldNames()
    own = settings.fields is not None or names[-1:] == [ALL_FIELDS]
    return own and schema == read_schema(settings)


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if array.type == wanted:
        return array
    if pa.types.is_timestamp(array.type) or pa.types.is_uint64(array.type):
        # What does not fit becomes null: an entry's milliseconds can be any 64 bits.
        numbers = array.view(pa.int64()) if pa.types.is_timestamp(array.type) else array
        limit = LAST_MS if pa.types.is_timestamp(wanted) else 2**63 - 1
        if not pa.types.is_decimal(wanted) and len(array) and (pc.max(numbers).as_py() or 0) > limit:
            array = pc.if_else(
                pc.less_equal(numbers, pa.scalar(limit, numbers.type)), array, pa.scalar(None, array.type)
            )
    return array.cast(wanted)
