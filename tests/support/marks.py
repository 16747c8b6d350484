"""Markers that several test files share."""

from __future__ import annotations

import pytest

__all__ = ["refuses_long_strings"]

#: Redis 8.6 can leave a command without a reply if one of its strings is too long and the command arrives in several
#: reads (redis/redis#15795).
refuses_long_strings = pytest.mark.needs("valkey")
