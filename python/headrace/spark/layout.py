"""The role of each column, by option or else by convention. A column without a role is an error."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.sql.types import BinaryType, StringType

from headrace.errors import ConfigError, SchemaError
from headrace.spark.names import hint, listed
from headrace.spark.settings import COLUMN_OPTIONS, ColumnOptions, WriteSettings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["ColumnLayout", "arrow_schema", "resolve"]

EVERY = ("*",)

#: The columns of a read without options. A SQL view that names no columns has them too, so it is read-only.
OF_A_READ: Final = ["stream", "entry_id", "timestamp", "fields"]

Role = Literal["payload", "fields_from", "message_id", "stream_key", "shard_key", "entry_id"]

#: The options that each name one column, and the mutually exclusive ones that define what an entry holds.
ROLES: Final[tuple[Role, ...]] = ("payload", "fields_from", "message_id", "stream_key", "shard_key", "entry_id")
BODIES: Final = ("payload", "fields", "fields_from", "json")

#: The options that are resolved here. All others are passed on.
RESOLVED: Final = frozenset({*ROLES, *BODIES, "arrow_ipc"})


@dataclass(frozen=True)
class ColumnLayout:
    """How the columns of a DataFrame become entries.

    Attributes:
        arguments: Keyword arguments of `Dispatcher.produce_batch`, the same for every record batch.
        columns: The columns that an entry holds.
    """

    arguments: dict[str, Any]
    columns: tuple[str, ...]

    @property
    def payload(self) -> str | None:
        """The column whose values are the payloads."""
        column: str | None = self.arguments.get("payload")
        return column

    @property
    def message_id(self) -> str | None:
        """The column with the message IDs."""
        column: str | None = self.arguments.get("message_id")
        return column


def resolve(settings: WriteSettings, schema: StructType) -> ColumnLayout:
    """Find the role of each column of a DataFrame, and check its type.

    Raises:
        ConfigError: An option names an unknown column, or contradicts another option.
        SchemaError: A column has no role, or a type that cannot be written.
    """
    layout = _Columns(settings.columns, schema).layout()
    if settings.exactly_once and (packing := _packing(layout.arguments)):
        text = f"{packing} and exactly_once are mutually exclusive: set exactly_once='off', which is at least once"
        raise ConfigError(text, option=packing)
    _check_types(settings, layout, schema)
    return layout


class _Columns:
    def __init__(self, asked: ColumnOptions, schema: StructType) -> None:
        self.asked = asked.layout
        self.ignore_columns = asked.ignore_columns
        self.all = schema.fieldNames()
        self.payloads = {field.name for field in schema if isinstance(field.dataType, StringType | BinaryType)}
        fields, json = self.asked.get("fields"), self.asked.get("json")
        self.fields = None if fields is None else tuple(fields)
        self.json = json if json is None or isinstance(json, bool) else list(json)
        if not self.all:
            raise SchemaError("the DataFrame has no columns")
        self._check_names()
        self.ignored = set() if self.ignore_columns == EVERY else set(self.ignore_columns)
        self.message_id = self._role("message_id")
        self.stream_key = self._role("stream_key")
        self.entry_id = self._role("entry_id")
        self.shard_key = self._role("shard_key")

    def layout(self) -> ColumnLayout:
        arguments, columns = self._body()
        roles = {
            "message_id": self.message_id,
            "stream_key": self.stream_key,
            "shard_key": self.shard_key,
            "entry_id": self.entry_id,
        }
        arguments |= {name: value for name, value in self.asked.items() if name not in RESOLVED and value is not None}
        self._check_packing(arguments)
        left = [name for name in self.all if name not in {*columns, *roles.values(), *self.ignored}]
        if left and self.ignore_columns != EVERY:
            listed = ", ".join(map(repr, left))
            raise SchemaError(
                f"these columns would not be written: {listed}; name them in ignore_columns ('*': all such columns), "
                "or choose another layout with fields or json"
            )
        arguments.update({role: name for role, name in roles.items() if name is not None})
        return ColumnLayout(arguments, tuple(columns))

    def _body(self) -> tuple[dict[str, Any], Sequence[str]]:
        """The arguments for the contents of an entry, and the columns that it holds."""
        # Entry ID and stream key are stored with the entry anyway; the message ID and the shard key are not.
        rest = [name for name in self.all if name not in {*self.ignored, self.stream_key, self.entry_id}]
        if self.ignore_columns == EVERY:
            rest = [name for name in rest if name != self.message_id] or rest
        if self.asked.get("arrow_ipc"):
            columns = list(self.fields or rest)
            return {"arrow_ipc": True, "fields": columns}, columns
        if self.fields is not None:
            return {"fields": list(self.fields)}, self.fields
        if (column := self.asked.get("fields_from")) is not None:
            return {"fields_from": column}, [column]
        if self.json:
            columns = rest if self.json is True else self.json
            return {"json": columns}, columns
        if self.all == OF_A_READ:
            raise SchemaError(
                "these are the columns of a read: fields_from='fields' with ignore_columns='stream, entry_id, "
                "timestamp' copies the entries; a SQL view for INSERT names its columns"
            )
        payload = self.asked.get("payload") or ("payload" if "payload" in rest else None)
        others = [name for name in rest if name != self.message_id]
        if payload is None and len(others) == 1 and others[0] in self.payloads:
            payload = others[0]
        if payload is not None:
            return {"payload": payload}, [payload]
        if not rest:
            raise SchemaError("no column is left for the entry: each is ignored, the stream key or the entry ID")
        return {"json": rest}, rest

    def _role(self, role: Role) -> str | None:
        """The column of that role: the one that an option names, else the one with the role's name.

        Entry ID and shard key have no such convention: rows that were read from a stream have IDs that it does not
        accept again, and most streams have no shards.
        """
        if (asked := self.asked.get(role)) is not None or role in {"entry_id", "shard_key"}:
            return asked
        others = {*self.ignored, self.asked.get("payload"), self.asked.get("fields_from")}
        return role if role in self.all and role not in others else None

    def _named(self) -> Iterator[tuple[str, str]]:
        """Each option that names a column, with the column."""
        for option in ROLES:
            if (column := self.asked.get(option)) is not None:
                yield COLUMN_OPTIONS.get(option, option), column
        yield from (("fields", column) for column in self.fields or ())
        if isinstance(self.json, list):
            yield from (("json", column) for column in self.json)

    def _check_names(self) -> None:
        bodies = [name for name in BODIES if self.asked.get(name)]
        arrow_ipc = self.asked.get("arrow_ipc")
        if arrow_ipc and "fields" in bodies:
            bodies.remove("fields")
        if arrow_ipc:
            bodies.insert(0, "arrow_ipc")
        if len(bodies) > 1:
            text = f"{bodies[1]} and {bodies[0]} are mutually exclusive"
            raise ConfigError(text, option=bodies[1])
        ignored = () if self.ignore_columns == EVERY else self.ignore_columns
        for option, column in [*self._named(), *(("ignore_columns", column) for column in ignored)]:
            if column not in self.all:
                near, columns = hint(column, self.all), listed(self.all)
                text = f"{option} names an unknown column {column!r}{near} (columns: {columns})"
                raise ConfigError(text, option=option)
        for option, column in self._named():
            if column in ignored:
                text = f"ignore_columns and {option} both name the column {column!r}"
                raise ConfigError(text, option="ignore_columns")

    def _check_packing(self, arguments: dict[str, Any]) -> None:
        """Refuse entry IDs, stream keys and shard keys per row where several rows share an entry."""
        packing = _packing(arguments)
        own = (("stream key", self.stream_key), ("entry ID", self.entry_id), ("key of a shard", self.shard_key))
        for role, column in own:
            if packing and column is not None:
                raise SchemaError(
                    f"{packing} puts several rows into one entry, but column {column!r} gives each row its own {role}: "
                    "leave one of them out (ignore_columns)"
                )


def _packing(arguments: dict[str, Any]) -> str | None:
    """The option that puts several rows into an entry, if any."""
    if "arrow_ipc" in arguments:
        return "arrow_ipc"
    return "rows_per_entry" if arguments.get("rows_per_entry", 1) > 1 else None


def _check_types(settings: WriteSettings, layout: ColumnLayout, schema: StructType) -> None:
    """Pass the dispatcher a record batch without rows: it refuses types that it cannot write, and does not connect."""
    import pyarrow as pa

    arrow = arrow_schema(schema)
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in arrow], schema=arrow)
    dispatcher = settings.make_dispatcher()
    dispatcher.produce_batch(empty, **layout.arguments)
    dispatcher.close()


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark's record batches will have."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # Required since Spark 4.2; it has no effect on a schema without values.
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone)
