"""A message that was not delivered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace import _headrace

__all__ = ["Failure"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A message that was not delivered.

    Attributes:
        message_id: The caller's name for the message, as passed to `produce`; otherwise its ordinal since the last
            flush.
        kind: `"permanent"`: waiting does not help; `"retryable"`: the same message may be delivered later.
        code: The first word of the server's error reply (`"OOM"`), or one of headrace's own codes (`"TIMEOUT"`).
        message: The reason, in a sentence of at most 256 characters, without secrets or payloads.
        written: `"no"`: the message is not in the stream; `"unknown"`: it may be.
    """

    message_id: int | str
    kind: Literal["permanent", "retryable"]
    code: str
    message: str
    written: Literal["no", "unknown"]

    @property
    def advice(self) -> str | None:
        """What to do about the failure, if headrace knows."""
        return _headrace.advice(self.code, self.message)

    def explained(self) -> str:
        """The code, the reason and the advice, as errors show them."""
        text = f"{self.code} ({self.kind}, written: {self.written}): {_headrace.advised(self.code, self.message)}"
        if self.written == "unknown" and self.kind == "retryable":
            return f"{text}; exactly_once lets you send it again without a duplicate"
        return text
