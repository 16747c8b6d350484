"""The name of a write, for exactly once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.errors import ConfigError

__all__ = ["Transaction", "check_integer"]


@dataclass(frozen=True)
class Transaction:
    """The name of a write. A write that is repeated under the same name writes no row twice.

    Attributes:
        app_id: The application, or the ID of a streaming query.
        version: The number of the write, or of the micro-batch.
    """

    app_id: str
    version: int

    @classmethod
    def from_options(cls, app_id: Any, version: Any, exactly_once: str | None) -> Transaction | None:
        """Check `txn_app_id` and `txn_version` together with `exactly_once`; each is None if it was not given.

        Raises:
            ConfigError: One of the two is missing or wrong, or `exactly_once` contradicts them.
        """
        if app_id is None and version is None:
            if exactly_once not in (None, "off"):
                text = "exactly_once needs txn_app_id and txn_version in a batch write: they name its rows"
                raise ConfigError(text, option="exactly_once")
            return None
        if app_id is None or version is None:
            given, missing = ("txn_version", "txn_app_id") if app_id is None else ("txn_app_id", "txn_version")
            raise ConfigError(f"{given} needs {missing}: together they name the write", option=given)
        if exactly_once == "off":
            raise ConfigError("exactly_once='off' and txn_app_id are mutually exclusive", option="exactly_once")
        if not isinstance(app_id, str) or not app_id:
            raise ConfigError(f"txn_app_id must be a non-empty str, got {app_id!r}", option="txn_app_id")
        check_integer("txn_version", version)
        return cls(app_id, version)

    def token(self, partition: int, *, by_message_id: bool) -> str:
        """The token of a partition's batch. Rows are numbered per partition; a message ID is the same in each."""
        return self.app_id if by_message_id else f"{self.app_id}:{partition}"


def check_integer(option: str, value: Any) -> None:
    """Raise a ConfigError unless `value` is an integer of at least 0 that fits 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ConfigError(f"{option} must be an integer of at least 0, got {value!r}", option=option)
