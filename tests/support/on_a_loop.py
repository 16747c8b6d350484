"""An asynchronous reader or consumer, called from a thread as the blocking one is, with calls that are cancelled."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Self

import uvloop

#: Of the calls, the part that is cancelled. It is made again.
_CANCELLED = 0.3


class OnALoop:
    """Looks like a `Reader` or a `Consumer`. Its loop, asyncio's or uvloop's, has a thread of its own.

    Calls that wait are cancelled at random moments, and made again; others are made in the thread of the caller.
    """

    def __init__(self, made: Any, rng: random.Random) -> None:
        self._made = made
        self._rng = random.Random(rng.random())
        self._loop = rng.choice([asyncio.new_event_loop, uvloop.new_event_loop])()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._call(self._open)
        except BaseException:
            self._await(made.close())
            self._end()
            raise

    def read(self, timeout: float | None = None) -> Any:
        return self._call(lambda: self._made.read(timeout))

    def poll(self, timeout: float | None = None) -> Any:
        return self._call(lambda: self._made.poll(timeout))

    def flush(self, timeout: float | None = None) -> Any:
        return self._call(lambda: self._made.flush(timeout))

    def close(self, **options: Any) -> Any:
        try:
            # A second call of a cancelled one would have no report of the first.
            return self._await(self._made.close(**options))
        finally:
            self._end()

    def __iter__(self) -> Iterator[Any]:
        while (batch := self.poll()) is not None:
            yield batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self._await(self._made.__aexit__(*error))
        finally:
            self._end()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)

    async def _open(self) -> None:
        # A block that cannot open ends what it is of.
        self._made._enter()
        await self._made._open()

    def _await(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _call(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return self._await(self._insisting(make))

    async def _insisting(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        while True:
            call = asyncio.ensure_future(make())
            if self._rng.random() < _CANCELLED:
                for _ in range(self._rng.randrange(6)):
                    await asyncio.sleep(0)
                if self._rng.random() < 0.5:
                    await asyncio.sleep(self._rng.random() * 0.003)
                call.cancel()
            try:
                return await call
            except asyncio.CancelledError:
                continue

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
