"""The retry policy: when failed messages are sent again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headrace.tables import RETRY, documented

__all__ = ["RetryPolicy"]


def _default(name: str) -> Any:
    return RETRY[name].default


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Say how often, how soon and for how long a dispatcher sends failed messages again.

    ```python
    Dispatcher(endpoint, retry=RetryPolicy(deadline=30))
    ```

    Retried is what passes without intervention: a server that is away, starts, fails over or is busy. docs/outcomes.md
    marks these codes; `error_overrides` adds to them what it calls retryable. Other failures are reported at once.

    `produce`, `produce_batch`, `flush` and `dispatch` wait for the retries; `poll` never does. Messages go out again in
    their order and before new ones; but one that was refused by an error reply may be overtaken by those that were in
    flight behind it. What waits for a retry takes room in the window, so memory stays bounded. After the deadline the
    rest of the batch, up to the next flush, fails without another try.

    Args:
        {options}
    """

    max_attempts: int | None = _default("max_attempts")
    initial_backoff: float = _default("initial_backoff")
    max_backoff: float = _default("max_backoff")
    multiplier: float = _default("multiplier")
    jitter: float = _default("jitter")
    deadline: float = _default("deadline")
    retry_unknown: bool = _default("retry_unknown")

    def _options(self) -> dict[str, object]:
        """Return the dispatcher's options with the same meaning."""
        named = {f"retry_{name.removeprefix('retry_')}": value for name, value in asdict(self).items()}
        return {"retry": True, **named}


RetryPolicy.__doc__ = documented(RetryPolicy.__doc__, RETRY)
