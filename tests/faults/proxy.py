"""A TCP proxy that simulates network faults: cuts, stalls, late, slow or injected bytes."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import re
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self

Direction = Literal["requests", "replies"]
Act = Callable[["Pair"], object]

#: Bytes read at once, and bytes that one direction may hold before its sender has to wait.
CHUNK = 65_536
HELD = 1 << 20

_RESET = struct.pack("ii", 1, 0)


class _Trigger:
    def __init__(self, direction: Direction, count: int, act: Act, pair: Pair | None = None) -> None:
        self.direction = direction
        self.left = count
        self.act = act
        self.pair = pair
        """Only bytes of this connection count. None: of each."""

    def counts(self, direction: Direction, pair: Pair) -> bool:
        return self.direction == direction and self.pair in (None, pair)


class _Watch:
    def __init__(self, direction: Direction, pattern: re.Pattern[bytes], share: float, act: Act) -> None:
        self.direction = direction
        self.pattern = pattern
        self.share = share
        self.act = act


class _Flow:
    """One direction of a connection."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.held = b""
        self.ended = False
        """The source has ended; the held bytes still go out."""
        self.closed = False
        """The sink is shut down; further bytes are discarded."""
        self.reading = True
        self.not_before = 0.0
        """Nothing goes out before this time."""
        self.segment = 0
        """Bytes sent at once; 0: all."""
        self.pause = 0.0
        """Seconds after each segment."""

    @property
    def wants_to_read(self) -> bool:
        return self.reading and not self.ended and (self.closed or len(self.held) < HELD)

    def may_write(self, now: float) -> bool:
        return bool(self.held) and not self.closed and now >= self.not_before


class Pair:
    """A client's connection, and the proxy's own connection to the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.flows: dict[Direction, _Flow] = {
            "requests": _Flow(client, server),
            "replies": _Flow(server, client),
        }
        self.over = False

    def reset(self) -> None:
        """End both connections with an RST."""
        for each in (self.client, self.server):
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.close()

    def finish(self) -> None:
        """End both directions with a FIN after the bytes sent so far."""
        self.end("requests")
        self.end("replies")

    def end(self, direction: Direction) -> None:
        """End one direction with a FIN; the other continues."""
        flow = self.flows[direction]
        flow.held, flow.closed = b"", True
        # Closing a socket with unread bytes sends an RST, so further bytes are read and discarded.
        with contextlib.suppress(OSError):
            flow.sink.shutdown(socket.SHUT_WR)

    def stall(self, direction: Direction) -> None:
        """Stop reading and writing: bytes in flight stay in the sender's kernel."""
        self.flows[direction].reading = False
        self.flows[direction].not_before = float("inf")

    def resume(self, direction: Direction) -> None:
        """End a stall."""
        self.flows[direction].reading = True
        self.flows[direction].not_before = 0.0

    def hold(self, direction: Direction, seconds: float) -> None:
        """Read everything and deliver it later, even if the sender is gone by then."""
        self.flows[direction].not_before = time.monotonic() + seconds

    def slow(self, segment: int, pause: float) -> None:
        """Send at most `segment` bytes at once (0: no limit), with `pause` seconds in between."""
        for flow in self.flows.values():
            flow.segment, flow.pause = segment, pause

    def inject(self, direction: Direction, data: bytes) -> None:
        """Send bytes that do not come from the sender."""
        with contextlib.suppress(OSError):
            self.flows[direction].sink.sendall(data)

    def close(self) -> None:
        self.over = True
        self.client.close()
        self.server.close()


class Proxy:
    """Listens on a port of 127.0.0.1 and forwards to another port, in one thread.

    `at` runs an act once a number of bytes has been forwarded in a direction. It runs in the proxy's thread, while
    nothing moves, so it strikes at exactly this byte.
    """

    def __init__(self, port: int, receive_buffer: int | None = None) -> None:
        self._target = port
        self._triggers: list[_Trigger] = []
        self._watches: list[_Watch] = []
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._pairs: list[Pair] = []
        self._lock = threading.RLock()
        self._wake_reader, self._wake_writer = os.pipe()
        self._closing = False
        self._failure: BaseException | None = None
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        if receive_buffer is not None:
            # Accepted connections inherit it: unread bytes beyond this size stay with the sender.
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.port: int = self._listener.getsockname()[1]
        self.accepts = True
        """False: connections are established in the kernel's backlog and never served."""
        self.refuses = False
        """True: connections are reset as soon as they are accepted."""
        self._first: Act | None = None
        self.passed: dict[Direction, int] = {"requests": 0, "replies": 0}
        """Bytes sent so far."""
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def at(self, direction: Direction, count: int, act: Act, pair: Pair | None = None) -> None:
        """Act after `count` more bytes were forwarded in this direction, on any connection or on that of `pair`."""
        with self._lock:
            self._triggers.append(_Trigger(direction, count, act, pair))
        self._wake()

    def within(self, direction: Direction, pattern: bytes, share: float, act: Act) -> None:
        """Act on the first connection with bytes that match the regular expression `pattern`, after `share` of them.

        Only bytes that arrive together can match, and no bytes of a connection with TLS.
        """
        with self._lock:
            self._watches.append(_Watch(direction, re.compile(pattern, re.DOTALL), share, act))

    @property
    def in_use(self) -> bool:
        """Whether a connection is open. One that its client left stays open until the server has received its bytes."""
        return bool(self._pairs)

    def each(self, act: Act) -> None:
        """Act on each connection: the open ones now, others as soon as they are accepted."""
        with self._lock:
            self._first = act
            for pair in self._pairs:
                act(pair)
        self._wake()

    def disarm(self) -> None:
        """Drop the pending triggers."""
        with self._lock:
            self._triggers.clear()
            self._watches.clear()

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        """Act after `seconds`, in the proxy's thread."""
        with self._lock:
            heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), act))
        self._wake()

    def rest(self, seconds: float = 30.0) -> None:
        """Wait until no timers remain."""
        deadline = time.monotonic() + seconds
        while self._timers:
            assert self._failure is None, self._failure
            assert time.monotonic() < deadline, "a timer did not fire"
            time.sleep(0.002)

    def close(self) -> None:
        """Stop the proxy. Raises any error that occurred in its thread."""
        self._closing = True
        self._wake()
        self._thread.join(30.0)
        assert not self._thread.is_alive(), "the proxy hangs"
        os.close(self._wake_reader)
        os.close(self._wake_writer)
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _wake(self) -> None:
        if threading.current_thread() is not self._thread:
            os.write(self._wake_writer, b"x")

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        except BaseException as failure:
            self._failure = failure
        finally:
            for pair in self._pairs:
                pair.reset()
            self._listener.close()

    def _turn(self) -> None:
        """Run one round of the loop: wait for bytes, a connection or a time, and handle everything that is due."""
        with self._lock:
            now = time.monotonic()
            flows = [flow for pair in self._pairs for flow in pair.flows.values()]
            readers: list[socket.socket | int] = [flow.source for flow in flows if flow.wants_to_read]
            readers.append(self._wake_reader)
            if self.accepts:
                readers.append(self._listener)
            writers = [flow.sink for flow in flows if flow.may_write(now)]
            times = [flow.not_before for flow in flows if flow.held and not flow.closed and flow.not_before > now]
            times += [self._timers[0][0]] if self._timers else []
        wait = max(0.0, min(times) - now) if times else None
        try:
            readable, writable, _ = select.select(readers, writers, [], None if wait == float("inf") else wait)
        except (ValueError, OSError):
            if any(end.fileno() < 0 for flow in flows for end in (flow.source, flow.sink)):
                return  # another thread has closed a socket since the lock was released
            raise
        with self._lock:
            if self._wake_reader in readable:
                os.read(self._wake_reader, 4096)
            if self._listener in readable and self.accepts:
                self._accept()
            for pair in list(self._pairs):
                self._serve(pair, readable, writable)
            self._pairs = [pair for pair in self._pairs if not pair.over]
            while self._timers and self._timers[0][0] <= time.monotonic():
                timer = self._timers[0]
                timer[2]()
                # Removed after it ran, because `rest` waits for its effect.
                self._timers.remove(timer)
                heapq.heapify(self._timers)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            if self.refuses:
                raise ConnectionRefusedError
            server = socket.create_connection(("127.0.0.1", self._target), timeout=5)
        except OSError:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            client.close()
            return
        for each in (client, server):
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = Pair(client, server)
        self._pairs.append(pair)
        if self._first is not None:
            self._first(pair)

    def _serve(self, pair: Pair, readable: list[socket.socket | int], writable: list[socket.socket]) -> None:
        for direction, flow in pair.flows.items():
            if not pair.over and flow.source in readable and flow.wants_to_read:
                self._read(pair, direction, flow)
            if not pair.over and flow.held and not flow.closed and (flow.sink in writable or flow.source in readable):
                self._write(pair, direction, flow)
            if not pair.over and flow.ended and not flow.held and not flow.closed:
                pair.end(direction)
        if not pair.over and all(flow.ended and flow.closed for flow in pair.flows.values()):
            pair.close()

    def _read(self, pair: Pair, direction: Direction, flow: _Flow) -> None:
        try:
            received = flow.source.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            # Reset by its sender. Bytes held for later are still delivered; otherwise the reset is passed on.
            if not (flow.held and flow.not_before > time.monotonic()):
                pair.reset()
                return
            flow.ended = True
            pair.end("replies" if direction == "requests" else "requests")
            return
        if not received:
            flow.ended = True
        elif not flow.closed:
            flow.held += received

    def _write(self, pair: Pair, direction: Direction, flow: _Flow) -> None:
        while flow.held and not flow.closed and not pair.over and time.monotonic() >= flow.not_before:
            self._find(pair, direction, flow.held)
            triggers = [trigger for trigger in self._triggers if trigger.counts(direction, pair)]
            trigger = min(triggers, key=lambda trigger: trigger.left, default=None)
            if trigger is not None and trigger.left <= 0:
                self._triggers.remove(trigger)
                trigger.act(pair)
                continue
            count = min(flow.segment or CHUNK, trigger.left if trigger else CHUNK)
            try:
                sent = flow.sink.send(flow.held[:count])
            except BlockingIOError:
                return
            except OSError:
                pair.reset()
                return
            flow.held = flow.held[sent:]
            self.passed[direction] += sent
            for each in self._triggers:
                if each.counts(direction, pair):
                    each.left -= sent
            if flow.pause:
                flow.not_before = time.monotonic() + flow.pause
        # An act after the last byte runs although no further byte follows.
        for trigger in [t for t in self._triggers if t.counts(direction, pair) and t.left <= 0]:
            if not pair.over:
                self._triggers.remove(trigger)
                trigger.act(pair)

    def _find(self, pair: Pair, direction: Direction, held: bytes) -> None:
        for watch in [watch for watch in self._watches if watch.direction == direction]:
            if found := watch.pattern.search(held):
                self._watches.remove(watch)
                count = found.start() + round(watch.share * (found.end() - found.start()))
                self._triggers.append(_Trigger(direction, count, watch.act, pair))
