"""What a client other than headrace says of its rows, in the form of a delivery report."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Failed:
    """A row whose command raised: whether it was written, the client does not say."""

    message_id: int
    code: str
    written: str = "unknown"


@dataclass
class Report:
    """What became of the rows of a pipeline."""

    delivered: int = 0
    failed: list[Failed] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.failed
