"""The retry policy: when failed messages are sent again, and when a server that is read from is tried again."""

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
    """How often, how soon and for how long failed messages are sent again, or a server to read from is tried again.

    ```python
    Dispatcher(endpoint, retry=RetryPolicy(deadline=30))
    Reader(endpoint, retry=RetryPolicy(deadline=3600))
    ```

    What passes without intervention is retried: a server that is unreachable, starting, failing over or busy.
    docs/outcomes.md marks their codes, and `error_overrides` adds those that it makes retryable. Other failures are
    reported immediately.

    **A dispatcher.** `produce`, `produce_batch`, `flush` and `dispatch` wait for the retries; `poll` never does.
    Messages are sent again in their order and before new ones; but a message that was refused by an error reply may be
    overtaken by those that were in flight after it. Messages that wait for a retry take up room in the window, so
    memory stays bounded. After the deadline the rest of the batch, up to the next flush, fails without another attempt.

    **A reader or a consumer.** A server that is unreachable or busy is tried again until it answers, including while a
    `Reader` or `Consumer` is created. `read` and `poll` return None if their timeout ends first; later calls continue
    the same outage. After `max_attempts` or `deadline` the call raises the last error, and the next call starts over.
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
    """Return the options, with those of the policy in place of `retry`."""
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
