"""The campaign with a `Dispatcher` that threads share: a few faults on each server in each mode."""

from __future__ import annotations

import pytest

from faults.campaign import Share, run_share, thread_pairs

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(("number", "pair"), list(enumerate(thread_pairs(), 1)), ids=str)
def test_every_outcome_of_threads_is_correct_under_faults(number: int, pair: tuple[str, str]) -> None:
    """Every second pair uses TLS, on servers that support it."""
    label, mode = pair
    played = run_share(Share(1, label, mode, number, 3))
    assert not played.failures
    assert played.result.messages > 0
