"""Masters that sentinels watch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace import Endpoint
from headrace.testing import LocalSentinel

#: Starts a group: takes the arguments of `LocalSentinel`.
StartGroup = Callable[..., LocalSentinel]


def endpoint_of(group: LocalSentinel, **options: Any) -> Endpoint:
    """The endpoint of a group's stream `s`."""
    options = {"nodes": group.nodes, "sentinel_master": group.master_name, "stream_key": "s", **options}
    return Endpoint(**options)
