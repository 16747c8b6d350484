"""The options of `run`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from headrace.errors import ConfigError

__all__ = ["OnError", "OnShardError", "Per", "RunOptions"]

Per: TypeAlias = Literal["batch", "entry", "key"]
OnError: TypeAlias = Literal["fail", "release", "stop"]
OnShardError: TypeAlias = Literal["fail", "stop"]

_MOST_CALLS = 10_000
_DAY = 86_400


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `run`."""

    per: Per
    key_field: str | bytes | None
    concurrency: int
    timeout: float | None
    on_error: OnError
    grace: float
    #: What `on_error` may be.
    on_errors: tuple[OnError, ...] = ("fail", "release", "stop")

    def __post_init__(self) -> None:
        for option, value, allowed in (
            ("per", self.per, ("batch", "entry", "key")),
            ("on_error", self.on_error, self.on_errors),
        ):
            if value not in allowed:
                raise ConfigError(
                    f"{option} must be one of {', '.join(map(repr, allowed))}, got {value!r}", option=option
                )
        is_field = isinstance(self.key_field, str | bytes)
        if is_field != (self.per == "key") or not (is_field or self.key_field is None):
            message = (
                f"key_field must be the field with the key if per is 'key', and None otherwise, got {self.key_field!r}"
            )
            raise ConfigError(message, option="key_field")
        if not _is_number(self.concurrency, int) or not 1 <= self.concurrency <= _MOST_CALLS:
            message = f"concurrency must be an integer from 1 to {_MOST_CALLS:,}, got {self.concurrency!r}"
            raise ConfigError(message, option="concurrency")
        if self.timeout is not None and not (_is_number(self.timeout, int | float) and 0 < self.timeout <= _DAY):
            message = f"timeout must be a number of seconds above 0, at most {_DAY:,}, or None, got {self.timeout!r}"
            raise ConfigError(message, option="timeout")
        if not (_is_number(self.grace, int | float) and 0 <= self.grace <= _DAY):
            message = f"grace must be a number of seconds from 0 to {_DAY:,}, got {self.grace!r}"
            raise ConfigError(message, option="grace")


def _is_number(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
