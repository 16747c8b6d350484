"""The tables of options and of error codes, as the native core has them: nothing of them is written in Python again."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from headrace import _headrace

__all__ = ["AWAY_CODES", "CODES", "CONNECTION_CODES", "OWN_CODES", "Code"]


class Code(NamedTuple):
    """An error code.

    Attributes:
        name: The code.
        is_own: Whether it is headrace's own. All others are the first word of a server's error reply.
        kinds: Whether it is permanent or retryable, by mode of `classify`.
        passes: Whether it passes by itself, so that a `RetryPolicy` sends the message again.
        is_of_connection: Whether the server was not reached, or the connection to it was lost.
        written: What `Failure.written` can be, outside of batches with a token.
        advice: What to do about it.
        text: When it occurs.
    """

    name: str
    is_own: bool
    kinds: dict[str, Literal["permanent", "retryable"]]
    passes: bool
    is_of_connection: bool
    written: list[Literal["no", "unknown"]]
    advice: str | None
    text: str


#: Every code that headrace knows. A server's code that is not here is retryable, and does not pass by itself.
CODES: Final = {row[0]: Code(*row) for row in _headrace.code_table()}

#: The codes that no reply of a server can have.
OWN_CODES: Final = [code.name for code in CODES.values() if code.is_own]

#: The server was not reached, or the connection to it was lost.
CONNECTION_CODES: Final = frozenset(code.name for code in CODES.values() if code.is_of_connection)

#: The server was not reached or was lost, and may be back soon.
AWAY_CODES: Final = frozenset(name for name in CONNECTION_CODES if CODES[name].passes)
