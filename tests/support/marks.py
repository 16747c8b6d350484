"""Markers that several test files share."""

from __future__ import annotations

from typing import Any

import pytest

__all__ = ["refuses_long_strings", "thorough"]

#: Redis 8.6 can leave a command without a reply if one of its strings is too long and the command arrives in several
#: reads (redis/redis#15795).
refuses_long_strings = pytest.mark.needs("valkey")


def thorough(*values: Any) -> list[Any]:
    """Values that only `--all` tries: they show the same as the others.

    A tuple is one value for each of several parameters.
    """
    given = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*each, marks=pytest.mark.thorough) for each in given]
