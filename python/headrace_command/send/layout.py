"""Which part of an Arrow row becomes the entry."""

from __future__ import annotations

from typing import Any

__all__ = ["Layout"]


class Layout:
    """The arguments of `Dispatcher.produce_batch` for rows of columns. By default each column is a field.

    Args:
        payload: The column that is the payload.
        fields: The columns that become fields; empty: all.
        json: The columns of the payload, which is the row as JSON; empty: all.
        shard_key: The column that determines the shard.
    """

    def __init__(
        self,
        payload: str | None = None,
        fields: list[str] | None = None,
        json: list[str] | None = None,
        shard_key: str | None = None,
    ) -> None:
        self._payload = payload
        self._fields = fields
        self._json = json
        self._shard_key = shard_key

    @property
    def is_json(self) -> bool:
        """Whether the payload is JSON, for which binary columns are not accepted as text."""
        return self._json is not None

    def arguments(self, schema: Any) -> dict[str, Any]:
        """Return the arguments for rows of this schema."""
        if self._payload is not None:
            arguments: dict[str, Any] = {"payload": self._payload}
        elif self._json is not None:
            arguments = {"json": self._json or True}
        else:
            arguments = {"fields": self._fields or list(schema.names)}
        return arguments if self._shard_key is None else {**arguments, "shard_key": self._shard_key}
