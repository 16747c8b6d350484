"""A master with two replicas and three sentinels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from headrace.testing import LocalSentinel
from support import Program
from support.sentinels import StartGroup


@pytest.fixture
def start_group(program: Program) -> Iterator[StartGroup]:
    """Start a group: `start_group(**arguments of LocalSentinel)`."""
    with ExitStack() as stack:

        def start(**arguments: Any) -> LocalSentinel:
            return stack.enter_context(LocalSentinel(program.path, **arguments))

        yield start


@pytest.fixture
def group(start_group: StartGroup) -> LocalSentinel:
    """A fresh group, without passwords."""
    return start_group()
