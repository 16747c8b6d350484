"""The two sizes of the tests: every behaviour once, and with `--all` each on every server and in every way."""

from __future__ import annotations

import zlib
from collections import defaultdict
from typing import Any

import pytest

#: The parameters whose values are ways to do the same: of each test the usual size has one of them, by the test's name.
#: A parameter that changes what is expected has another name.
WAYS = ("mode", "connections")


def usual_size(items: list[pytest.Item]) -> list[pytest.Item]:
    """Leave out the tests marked `thorough`, and of those that differ only in their ways all but one."""
    usual = [item for item in items if not item.get_closest_marker("thorough")]
    alike: dict[Any, list[pytest.Item]] = defaultdict(list)
    for item in usual:
        alike[_behaviour(item)].append(item)
    chosen = {min(ways, key=lambda item: zlib.crc32(item.nodeid.encode())) for ways in alike.values()}
    return [item for item in usual if item in chosen]


def _behaviour(item: pytest.Item) -> Any:
    """What tests that differ only in their ways have in common."""
    spec = getattr(item, "callspec", None)
    if spec is None or not any(way in spec.params for way in WAYS):
        return item
    # The values are the same objects in each test.
    others = sorted((name, id(value)) for name, value in spec.params.items() if name not in WAYS)
    return item.nodeid.partition("[")[0], *others
