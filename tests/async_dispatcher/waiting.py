"""Tasks that wait for room, and the turns of a loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from headrace import AsyncDispatcher
from support.patience import PATIENCE


async def turns_until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Let the loop go on until something is so."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0)


async def fill(dispatcher: AsyncDispatcher, payload: bytes = b"before") -> int:
    """Produce until there is no room, for a server that does not answer. Returns how many messages there are."""
    count = turns = 0
    # There is room again as long as the socket takes what is to be sent.
    while turns < 3:
        if dispatcher._native.produce(payload):
            count, turns = count + 1, 0
        else:
            turns += 1
            dispatcher._advance()
            await asyncio.sleep(0)
    return count


@contextlib.contextmanager
def before_receipt(dispatcher: AsyncDispatcher, act: Callable[[], object]) -> Iterator[None]:
    """Act once, between the moment at which a future has its outcome and the next turn of its task."""
    original = dispatcher._do_advance
    is_over = False

    def advance(futures: Any) -> Any:
        nonlocal is_over
        first = futures[0] if futures else None
        result = original(futures)
        if first is not None and first.done() and not is_over:
            is_over = True
            act()
        return result

    dispatcher._do_advance = advance
    yield
    assert is_over, "no future had an outcome"
