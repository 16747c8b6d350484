"""Tells of what a program forgot: messages, outcomes, acknowledgements."""

import sys
import warnings

from headrace.wording import counted

__all__ = ["ForgottenWarning"]


class ForgottenWarning(UserWarning):
    """A dispatcher or consumer is gone, and what it had to do was not finished.

    Messages of a dispatcher have no outcome, or failures in its reports were not read; or entries of a consumer were
    acknowledged, failed or released, and the server may not know of it. Nothing is sent at that moment, because that
    may wait for a server. The text says how many messages or entries, which stream of which server, and what to do.
    Python shows the warning on stderr; where the program has set up `logging`, the logger `headrace` gets the text as
    well.

    ```python
    warnings.simplefilter("ignore", headrace.ForgottenWarning)
    ```
    """


def tell(text: str) -> None:
    """Warn of what was forgotten."""
    # Without its import there is no handler.
    if logging := sys.modules.get("logging"):
        logger = logging.getLogger("headrace")
        if logger.hasHandlers():
            logger.warning(text)
    warnings.warn(text, ForgottenWarning, stacklevel=4)


def without_outcome(count: int, endpoint: object) -> str:
    """What there is to say of messages that will have none."""
    return f"{counted(count)} to {endpoint} will have no outcome"
