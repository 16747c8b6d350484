"""The floor for tasks that each await one message: the cost of asyncio itself, with Python that does nothing else."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

from benches.async_calls import Loop, called, run
from benches.contenders.common import now, packed, payloads
from benches.turns import Run, Target

__all__ = ["prepared"]


def prepared(target: Target, tasks: int, loop: Loop) -> Run:
    """A task writes prepared bytes and awaits a future, which the protocol resolves only by counting replies."""
    ts, head = now(), ("XADD", target.stream_key, "MAXLEN", "~", target.maxlen, "*")
    commands = {payload: packed(*head, "payload", payload, "ts", ts) for payload in payloads(target)}

    async def main() -> int:
        running = asyncio.get_running_loop()
        if target.unix_socket:
            _, bare = await running.create_unix_connection(_Bare, target.unix_socket)
        else:
            _, bare = await running.create_connection(_Bare, target.host, target.port)
        # A single task has nothing to collect, and does not need to wait for the end of the turn.
        send = bare.send if tasks == 1 else bare.collect
        try:
            return await called(lambda payload: send(commands[payload]), target, tasks)
        finally:
            bare.close()

    return lambda: run(main, loop)


class _Bare(asyncio.Protocol):
    """Knows only that a reply begins with a dollar sign."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._loop = asyncio.get_running_loop()
        self._futures: deque[asyncio.Future[None]] = deque()
        self._collected: list[bytes] = []

    def send(self, command: bytes) -> asyncio.Future[None]:
        future = self._loop.create_future()
        self._futures.append(future)
        self._transport.write(command)
        return future

    def collect(self, command: bytes) -> asyncio.Future[None]:
        """Send it with all others of this turn of the loop."""
        future = self._loop.create_future()
        self._futures.append(future)
        if not self._collected:
            self._loop.call_soon(self._send_collected)
        self._collected.append(command)
        return future

    def data_received(self, data: bytes) -> None:
        popleft = self._futures.popleft
        for _ in range(data.count(b"$")):
            popleft().set_result(None)

    def close(self) -> None:
        self._transport.close()

    def _send_collected(self) -> None:
        self._transport.write(b"".join(self._collected))
        self._collected.clear()
