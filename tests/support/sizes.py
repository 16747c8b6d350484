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
    """Leave out the tests marked `thorough`, and of those that differ in their ways only all but one."""
    usual = [item for item in items if not item.get_closest_marker("thorough")]
    ways: dict[Any, set[str]] = defaultdict(set)
    for item in usual:
        ways[_behaviour(item)].add(_way(item))
    return [item for item in usual if _way(item) == _chosen(_behaviour(item), ways[_behaviour(item)])]


def _behaviour(item: pytest.Item) -> tuple[str, ...]:
    """The test and its parameters without the ways."""
    function, _, _ = item.nodeid.partition("[")
    return (function, *(f"{name}={_text(item, name)}" for name in sorted(_parameters(item)) if name not in WAYS))


def _way(item: pytest.Item) -> str:
    return " ".join(_text(item, name) for name in WAYS if name in _parameters(item))


def _chosen(behaviour: tuple[str, ...], ways: set[str]) -> str:
    return min(ways, key=lambda way: zlib.crc32(f"{way} {behaviour}".encode()))


def _parameters(item: pytest.Item) -> dict[str, Any]:
    spec = getattr(item, "callspec", None)
    return spec.params if spec else {}


def _text(item: pytest.Item, name: str) -> str:
    """The position of a value among those of its parameter: equal in each worker, unlike the text of most objects."""
    return str(item.callspec.indices[name])  # type: ignore[attr-defined]
