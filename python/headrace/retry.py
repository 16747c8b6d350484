"""The retry policy: when failed messages are sent again, or a server is read from again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headrace.errors import ConfigError
from headrace.tables import RETRY, documented

__all__ = ["RetryPolicy"]


def _default(name: str) -> Any:
    return RETRY[name].default


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Say how often, how soon and for how long failed messages are sent again, or a server is tried that is read from.

    ```python
    Dispatcher(endpoint, retry=RetryPolicy(deadline=30))
    Reader(endpoint, retry=RetryPolicy(deadline=3600))
    ```

    Retried is what passes without intervention: a server that is away, starts, fails over or is busy. docs/outcomes.md
    marks these codes; `error_overrides` adds to them what it calls retryable. Other failures are reported at once.

    **A dispatcher.** `produce`, `produce_batch`, `flush` and `dispatch` wait for the retries; `poll` never does.
    Messages go out again in their order and before new ones; but one that was refused by an error reply may be
    overtaken by those that were in flight behind it. What waits for a retry takes room in the window, so memory stays
    bounded. After the deadline the rest of the batch, up to the next flush, fails without another try.

    **A reader or a consumer.** A server that is away or busy is tried again until it answers, also while a `Reader` or
    `Consumer` is made. `read` and `poll` return None if their timeout is over before that; later calls go on with the
    same outage. After `max_attempts` or `deadline` the call raises the last error, and the next one begins anew.
    `RetryPolicy(max_attempts=1)` reports each lost connection. `retry_unknown` has no effect.

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


def resolved(given: dict[str, object]) -> dict[str, object]:
    """The options with those of the policy in the place of `retry`."""
    for name in given:
        if name.startswith("retry_"):  # an option of Spark: here it is a field of a RetryPolicy
            raise ConfigError(f"unknown option {name!r}; did you mean 'retry'?", option=name)
    policy = given.pop("retry", None)
    if policy is None:
        return given
    if not isinstance(policy, RetryPolicy):
        raise ConfigError(f"retry must be a RetryPolicy or None, got {policy!r}", option="retry")
    return given | policy._options()


RetryPolicy.__doc__ = documented(RetryPolicy.__doc__, RETRY)
