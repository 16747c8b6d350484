"""The sender that is an `AsyncDispatcher`: tasks that call it at the same time, and are cancelled at random."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import random
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pyarrow
import uvloop

from headrace import AsyncDispatcher, DeliveryError, MessageError
from headrace.stats import Stats
from support.pipelines import Outcome

from .calls import Call, account
from .checker import Message, Promise, Stored, Violation
from .fault_kinds import TIMEOUT, FaultKind
from .senders import ModeSender
from .testbed import FaultTestbed

#: Seconds within which every task must have ended: no fault lasts longer than two.
ENDLESS = 90.0

#: How messages are sent: each by a task of its own, all by one task, as a record batch, or by a group of tasks.
FORMS = ("send", "send", "produce", "in turn", "batch", "group", "wait_for")


class AsyncHeadrace(ModeSender):
    """An `AsyncDispatcher` on a loop in its own thread, which continues to run while faults start and end.

    With `is_calm` no call is cancelled and no flush times out, so that without faults each message is delivered.
    """

    def __init__(
        self, testbed: FaultTestbed, mode: str, key: str, rng: random.Random, token: str, is_calm: bool
    ) -> None:
        super().__init__(testbed, mode, key, rng)
        # In script mode `begin` is refused.
        self.replays = mode == "idmp"
        self.calls: list[Call] = []
        self._is_calm = is_calm
        self._cancelled = 0.0 if is_calm else rng.choice([0.0, 0.02, 0.2, 0.6])
        self._tasks: list[asyncio.Task[None]] = []
        self._surprises: list[str] = []
        self._early: list[str] = []
        self._has_timed_out = self._is_closed = False
        if self.replays:
            self._options["exactly_once_key"] = "message_id"
        self._dispatcher = AsyncDispatcher(self._endpoint, **self._options)
        if self.replays:
            self._dispatcher.begin(token)
        is_uvloop = rng.random() < 0.5
        self.reported.calls[f"senders on {'uvloop' if is_uvloop else 'asyncio'}"] += 1
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop() if is_uvloop else asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self._surprises.append(f"loop: {context}"))
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop", daemon=True)
        self._thread.start()

    def stats(self) -> Stats:
        return self._dispatcher.stats()

    def send(self, messages: Sequence[Message]) -> None:
        """Let tasks send messages, and wait for some of them, or for some time."""
        self._run(self._send(messages))

    def flush(self) -> None:
        self._run(self._flush(math.inf))

    def finish(self) -> None:
        self._run(self._finish())

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._run(self._abandon())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def promise(self, kinds: Sequence[FaultKind], again: bool) -> Promise:
        promise = super().promise(kinds, again)
        if self.mode != "script" and self._has_timed_out:
            # Messages that a flush gave up on are not sent again, and may arrive after later ones.
            promise = dataclasses.replace(promise, unknown_ordered=False)
        if again:
            # Repeated tasks do not call in the same order.
            promise = dataclasses.replace(promise, ordered=False)
        return promise

    def account(self, messages: Sequence[Message], stored: Stored) -> tuple[Sequence[Message], list[Violation]]:
        done = account(self.calls, self.reported.outcomes, stored, self.stats().messages)
        called = {message.message_id for call in self.calls for message in call.messages}
        never_called = [message for message in messages if message.message_id not in called]
        self.reported.calls["never called"] += len(never_called)
        self.reported.calls["cancelled before acceptance"] += len(done.withdrawn)
        cancelled = sum(len(call.messages) for call in self.calls if call.cancelled)
        self.reported.calls["cancelled after acceptance"] += cancelled - len(done.withdrawn)
        wrong = list(done.violations)
        if self._surprises:
            wrong.append(Violation("unexpected exceptions", tuple(self._surprises)))
        if self._early:
            wrong.append(Violation("messages without an outcome at the end of their flush", tuple(self._early)))
        return done.accepted, wrong

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(2 * ENDLESS)

    # Tasks.

    async def _send(self, messages: Sequence[Message]) -> None:
        tasks = []
        while messages:
            piece, messages = self._piece(messages)
            tasks += [self._begin(coroutine) for coroutine in self._coroutines(piece)]
            if self._rng.random() < 0.1:
                tasks.append(self._begin(self._flush(self._timeout())))
            if self._rng.random() < 0.1:
                tasks.append(self._begin(self._mistake()))
        # Waiting tasks continue after the next call.
        for_seconds = self._rng.choice([0.0, 0.001, 0.05, ENDLESS])
        if tasks and for_seconds:
            await asyncio.wait(tasks, timeout=for_seconds)

    def _piece(self, messages: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
        count = self._rng.choice([1, 1, 5, 20, 100])
        return messages[:count], messages[count:]

    def _coroutines(self, messages: Sequence[Message]) -> list[Coroutine[Any, Any, None]]:
        form = self._rng.choice(FORMS)
        if form == "batch" or any(message.key != self._endpoint.stream_key for message in messages):
            return [self._call_batch(messages, *self.columns(messages))]
        if form == "in turn":
            sends = [self._rng.random() < 0.5 for _ in messages]
            return [self._in_turn(messages, sends)]
        if form == "group":
            return [self._group(messages)]
        if form == "wait_for":
            seconds = [math.inf if self._is_calm else self._rng.expovariate(1 / 0.05) for _ in messages]
            return [self._wait_for(*each) for each in zip(messages, seconds, strict=True)]
        return [self._call(message, form == "send") for message in messages]

    def _begin(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Make a task, and choose whether and when it is cancelled."""
        task = self._loop.create_task(coroutine)
        self._tasks.append(task)
        if self._rng.random() < self._cancelled:
            how = self._rng.choice(["with another", "after some turns", "at a time"])
            if how == "at a time":
                self._loop.call_later(self._rng.expovariate(1 / 0.03), task.cancel)
            elif how == "after some turns":
                self._after_turns(self._rng.randint(0, 8), task.cancel)
            elif len(self._tasks) > 1:
                # In the same turn both may have an outcome that they have not received.
                self._tasks[-2].add_done_callback(lambda _: task.cancel())
        return task

    def _after_turns(self, count: int, act: Callable[[], object]) -> None:
        if count:
            self._loop.call_soon(self._after_turns, count - 1, act)
        else:
            act()

    # Calls.

    async def _call(self, message: Message, is_awaited: bool, *, raises: bool = False) -> None:
        """Send or produce one message."""
        call = Call("send" if is_awaited else "produce", [message])
        self.calls.append(call)
        name = message.message_id
        try:
            if is_awaited:
                delivered = await self._dispatcher.send(message.payload, name)
                self._receive(Outcome(name, delivered.entry_id, None, None, None, None))
            else:
                await self._dispatcher.produce(message.payload, name)
        except asyncio.CancelledError:
            call.cancelled, call.taken = True, self.stats().messages
            raise
        except DeliveryError as error:
            (failure,) = error.failures
            self._receive(
                Outcome(str(failure.message_id), None, failure.kind, failure.code, failure.message, failure.written)
            )
            call.ended = True
            if raises:
                raise
        else:
            call.ended = True

    def _receive(self, outcome: Outcome) -> None:
        self.reported.outcomes.append(outcome)
        self.reported.calls["received by tasks"] += 1

    async def _call_batch(
        self, messages: Sequence[Message], record_batch: pyarrow.RecordBatch, layout: dict[str, Any]
    ) -> None:
        call = Call("produce_batch", messages)
        self.calls.append(call)
        try:
            await self._dispatcher.produce_batch(record_batch, **layout)
        except asyncio.CancelledError:
            call.cancelled, call.taken = True, self.stats().messages
            raise
        call.ended = True

    async def _in_turn(self, messages: Sequence[Message], sends: Sequence[bool]) -> None:
        for message, is_awaited in zip(messages, sends, strict=True):
            await self._call(message, is_awaited)

    async def _group(self, messages: Sequence[Message]) -> None:
        """Send messages in a group, in which the first failure cancels the others."""
        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                for message in messages:
                    group.create_task(self._call(message, True, raises=not self._is_calm))

    async def _wait_for(self, message: Message, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._call(message, True), None if seconds == math.inf else seconds)

    async def _mistake(self) -> None:
        """Make a call that raises before its message is accepted."""
        wrong: Any = object()
        try:
            await self._dispatcher.send(wrong, "a mistake")
        except MessageError:
            self.reported.calls["refused calls"] += 1
        else:
            self._surprises.append("a payload that is no bytes was sent")

    # Reports.

    def _timeout(self) -> float:
        return math.inf if self._is_calm else self._rng.choice([math.inf, 0.0, 0.005, 0.05, TIMEOUT])

    async def _flush(self, timeout: float) -> None:
        before = list(self.calls)
        has_end = timeout < math.inf
        self._has_timed_out |= has_end
        report = await self._dispatcher.flush(timeout if has_end else None)
        self.reported.calls["in reports"] += len(self._collect(report))
        self.reported.calls["flushes"] += 1
        self.reported.calls["flushes with a timeout"] += has_end
        if not has_end:
            known = {outcome.message_id for outcome in self.reported.outcomes}
            self._early += [
                message.message_id
                for call in before
                if call.form != "send" and not call.cancelled
                for message in call.messages
                if message.message_id not in known
            ]

    async def _finish(self) -> None:
        """Wait for every task, then flush and close, so that nothing is left."""
        if self._tasks:
            _, endless = await asyncio.wait(self._tasks, timeout=ENDLESS)
            for task in endless:
                self._surprises.append(f"endless: {task}")
                task.cancel()
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()):
                self._surprises.append(repr(error))
        self._tasks.clear()
        try:
            async with asyncio.timeout(ENDLESS):
                await self._flush(math.inf)
                await self._dispatcher.close()
        except Exception as error:
            self._surprises.append(f"at the end: {error!r}")

    async def _abandon(self) -> None:
        """Abandon everything: messages that are waiting for an outcome get none."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if not self._dispatcher.closed:
            self._dispatcher._loop, self._dispatcher._is_closed = None, True
            self._dispatcher._shut()
