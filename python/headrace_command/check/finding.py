"""What a check found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Finding", "State"]

State = Literal["ok", "warn", "fail", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One step.

    Attributes:
        name: The step.
        state: "unknown" if it could not be determined.
        text: A sentence; for a failure, also what to do.
        seconds: How long it took.
        node: The server, unless it is the one with the stream.
        passes: Whether a failure may be temporary.
        code: The error code of a failure.
        details: Numbers and names for programs.
    """

    name: str
    state: State
    text: str
    seconds: float | None = None
    node: str | None = None
    passes: bool = False
    code: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_mode(self) -> bool:
        """Whether it concerns a mode rather than a connection or a server."""
        return self.name.startswith("mode ")
