"""The reason of a failed entry: the text of an exception, without secrets."""

from __future__ import annotations

import os
import re

from headrace.endpoint import Endpoint

__all__ = ["reason_of"]

#: The longest reason of a failed entry, in characters.
_LONGEST_REASON = 200
_HIDDEN = "***"
#: The value after a name of a password, as in `password=x`, `"password": "x"` and `?password=x&`.
_NAMED = re.compile(r"""(?i)(pass(?:word|wd|phrase)?|pwd|secret)(["']?\s?[=:]\s?)(b?"[^"]*"|b?'[^']*'|[^\s,;&)}\]]+)""")


def reason_of(error: BaseException, endpoint: Endpoint) -> str:
    """Return the reason of a failed entry: type and text of an exception, in one line of at most 200 characters.

    The user and the password of URLs, values that are named as passwords, and the passwords of the endpoint are
    replaced by `***`, except those that only the server's connection reads: from a file or a callable.
    """
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:
        return name
    for secret in _passwords(endpoint):
        text = text.replace(secret, _HIDDEN)
    text = " ".join(_without_user(word) for word in text.split())
    text = _NAMED.sub(rf"\1\2{_HIDDEN}", text)
    # A reason is stored as UTF-8.
    text = text.encode(errors="backslashreplace").decode()
    reason = f"{name}: {text}" if text else name
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[: _LONGEST_REASON - 1]}…"


def _passwords(endpoint: Endpoint) -> list[str]:
    """Return the passwords of an endpoint that are at hand, the longest first: one may contain the other."""
    options, inherited = endpoint._state()
    found = []
    for name in ("password", "sentinel_password"):
        for given in (options, inherited):
            value = given.get(name)
            found.append(value.decode(errors="replace") if isinstance(value, bytes) else value)
            found.append(os.environ.get(str(given.get(f"{name}_env"))))
    return sorted({value for value in found if isinstance(value, str) and value}, key=len, reverse=True)


def _without_user(word: str) -> str:
    """Replace user and password of a URL. A password that is not percent-encoded may contain any other character."""
    scheme, separator, rest = word.partition("://")
    if not separator or "@" not in rest:
        return word
    return f"{scheme}://{_HIDDEN}@{rest.rpartition('@')[2]}"
