"""The retry policy: when failed messages are sent again."""

from __future__ import annotations

from dataclasses import asdict, dataclass

__all__ = ["RetryPolicy"]


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
        max_attempts: Tries of one message, the first included; 1 and up. Default None: as many as `deadline` allows.
        initial_backoff: Seconds before the second try, 0 to 3600. Default 0.05.
        max_backoff: Seconds that a pause may last, 0 to 3600. Default 0.5.
        multiplier: By what a pause is longer than the one before, 1 to 100. Default 2.
        jitter: The random part of a pause, 0 to 1. Default 0.5.
        deadline: Seconds after its first failure in which a message is tried again, 0 to 86,400. Default 120.
        retry_unknown: Whether a message that may be written already (`written` unknown) is sent again, and may then be
            there twice; `DeliveryReport.possible_duplicates` counts those. Default False.
    """

    max_attempts: int | None = None
    initial_backoff: float = 0.05
    max_backoff: float = 0.5
    multiplier: float = 2.0
    jitter: float = 0.5
    deadline: float = 120.0
    retry_unknown: bool = False

    def _options(self) -> dict[str, object]:
        """Name the dispatcher's options that say the same."""
        named = {f"retry_{name.removeprefix('retry_')}": value for name, value in asdict(self).items()}
        return {"retry": True, **named}
