"""Runs of handlers over a consumer, in threads and in tasks of each loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import uvloop

from headrace import AsyncConsumer, AsyncShardConsumer, Consumer, ShardConsumer, read_dead_letters
from headrace.testing import LocalServer
from support.groups import GROUP
from support.patience import NEVER
from support.pipelines import endpoint_to

#: The stream of dead letters.
DEAD = "dead"
#: An entry that failed once is a dead letter.
ONCE: dict[str, Any] = {"max_failures": 1, "dead_letter_key": DEAD}
#: How handlers run.
KINDS = ("threads", "asyncio", "uvloop")


class Handlers:
    """Runs handlers of one kind: functions, which may return a coroutine in tasks."""

    #: The consumers of threads and of event loops, and their options.
    consumers: Any = (Consumer, AsyncConsumer)
    options: ClassVar[dict[str, Any]] = {"group": GROUP, "consumer": "c", "start": "0-0", "block": 0.1}

    def __init__(self, kind: str, server: LocalServer) -> None:
        self.kind = kind
        self.server = server
        #: That of the last run.
        self.consumer: Any = None

    def run(self, handle: Callable[[Any], Any], options: dict[str, Any] | None = None, **run: Any) -> Any:
        """Run a handler over a consumer with these options, until it is stopped. Its report."""
        given = {"endpoint": endpoint_to(self.server), **self.options, **(options or {})}
        in_threads, on_loop = self.consumers

        async def call(entries: Any) -> Any:
            await asyncio.sleep(0)
            result = handle(entries)
            return await result if inspect.isawaitable(result) else result

        async def main() -> Any:
            async with on_loop(**given) as self.consumer:
                return await self.consumer.run(call, **run)

        if self.kind == "threads":
            with in_threads(**given) as self.consumer:
                return self.consumer.run(handle, **run)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if self.kind == "uvloop" else None) as runner:
            return runner.run(main())

    def wait(self, event: threading.Event) -> Any:
        """What a handler returns that waits for an event. A task may be cancelled."""

        async def wait() -> None:
            while not event.is_set():
                await asyncio.sleep(0.01)

        if self.kind != "threads":
            return wait()
        event.wait()
        return None

    def stop(self) -> None:
        self.consumer.stop()

    def dead_letters(self) -> list[dict[str, Any]]:
        read = read_dead_letters(endpoint_to(self.server, stream_key=DEAD))
        return [letter for letters in read for letter in letters.to_pylist()]


class ShardHandlers(Handlers):
    """The same over a member of a group, which keeps its streams however busy the machine is."""

    consumers = (ShardConsumer, AsyncShardConsumer)
    options: ClassVar[dict[str, Any]] = {"group": GROUP, "member": "a", "linger": 0.0, "lease": NEVER, "block": 0.1}
