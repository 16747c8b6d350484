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
        state: "unknown" is what could not be asked.
        text: A sentence; for a failure also what to do.
        seconds: How long it took.
        node: The server, unless it is the one that has the stream.
        passes: Whether a failure may pass by itself.
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
        """Whether it is about a mode, and not about a connection or a server."""
        return self.name.startswith("mode ")
