"""A few kills of each example that passes entries on; the laboratory `read-kills` does many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from headrace.testing import LocalServer
from read_kills.handoffs import HANDOFFS
from read_kills.run import run

pytestmark = pytest.mark.thorough

KILLS = 8


@pytest.mark.parametrize("name", HANDOFFS)
def test_each_entry_arrives_once_and_in_order(
    name: str, any_server: LocalServer, connect: Callable[..., redis.Redis], tmp_path: Path
) -> None:
    outcome = run(HANDOFFS[name], any_server, connect(any_server), KILLS, 1, tmp_path)
    assert outcome.is_exact, str(outcome)
    assert outcome.kills == KILLS
