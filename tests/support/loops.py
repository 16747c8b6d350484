"""Event loops: asyncio's and uvloop's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

Run = Callable[[Coroutine[Any, Any, Any]], Any]
NewLoop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> NewLoop:
    """Makes a loop of one of the two kinds; the test closes it."""
    made: NewLoop = request.param
    return made


@pytest.fixture
def run(new_loop: NewLoop) -> Run:
    """Runs a coroutine on a loop of its own. What the loop reports, and no task receives, is an error."""

    def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
        reported: list[Any] = []
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: reported.append(context))
            result = runner.run(coroutine)
        assert reported == []
        return result

    return run
