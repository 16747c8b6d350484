"""The shard consumer: the entries of streams in order, each stream with one owner among the members of a group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from headrace._headrace import ShardBatch
from headrace.run_options import OnShardError, Per, RunOptions
from headrace.shard_consumer_base import ShardConsumerBase, ShardConsumerOptions
from headrace.stats import ShardReport
from headrace.tables import SHARD_CONSUMER, documented, signature

__all__ = ["ShardBatch", "ShardConsumer", "ShardConsumerOptions", "ShardReport"]


class ShardConsumer(ShardConsumerBase):
    """Reads streams as a member of a group in which each stream has one owner, so that its entries are in order.

    ```python
    endpoint = Endpoint(host="localhost", stream_key="order-events", shards=12)
    with ShardConsumer(endpoint, group="billing", member="pod-3") as consumer:
        for batch in consumer:
            save([(entry.stream, entry.id, entry["payload"]) for entry in batch])
            consumer.commit(batch)
    ```

    The members of a group share the streams: with shards, entries of equal keys are in one stream, so that one member
    at a time has them, in their order. Members come and go as they like; each takes its share, gives up what is above
    it, and takes over what a member that died had. Nobody takes a stream from a member that is alive.

    **Commits.** `commit` stores the place up to which a stream is done: the next owner begins there. After a crash, the
    entries since the last commit are returned again: at least once. A commit that comes too late, because another
    member owns the stream by then, has no effect, and counts as `fenced`. `ShardBatch.epoch` is a fencing token: a
    database that stores it can refuse what an earlier owner writes, and then has each entry once.

    **Leases.** A thread renews them, every third of `lease`. A member that could not do that for `lease`, because it
    was stopped or the server was away, may have lost its streams: `ShardBatch.check` raises `LeaseLostError`. Times
    are those of the server.

    **Coming and going.** When a member has more than its share, it returns no further batch of a stream that it gives
    up; what it has returned may be committed for as long as `lease`, and as soon as it is, the next owner has the
    stream. The end of the `with` block gives everything up at once.

    **Threads and processes.** `poll`, `flush` and `close` take one caller at a time. Any thread may call the other
    methods at any time, because they do not wait for a server. The GIL is released while a call waits; Ctrl-C is
    noticed within 0.1 s. A consumer belongs to the process that created it.

    Args:
        endpoint: The server, and the stream if `streams` is not given.
        streams: The keys of the streams, str or bytes, the same for all members of the group. Default: the stream of
            the endpoint, or its shards.
        on_assigned: Called with the keys of streams that this member has got, before their first batch, by the thread
            that polls. An exception ends that call.
        on_revoked: Called with the keys of streams that it gives up or has lost, by the thread that polls: commit what
            is done.
        schema: The fields that become columns, with their types, as for `Reader`. Mutually exclusive with `fields`.
        {options}
        retry: A `RetryPolicy` that states whether, how often and for how long a server that is unreachable, starting or
            busy is tried again. Default None: a lost connection is replaced immediately, but only once between two
            replies.

    Raises:
        ConfigError: An option is unknown or invalid.
        ConnectionFailedError: The server could not be reached.
        CommandError: The server refused a command.
    """

    def __iter__(self) -> Iterator[ShardBatch]:
        return self

    def __next__(self) -> ShardBatch:
        if (batch := self.poll()) is None:
            raise StopIteration
        return batch

    def poll(self, timeout: float | None = None) -> ShardBatch | None:
        """Return the next batch, or None after `timeout` seconds or once `stop` was called.

        Default None: wait for as long as it takes. A member without a stream waits until it gets one.

        Raises:
            DataLossError: Entries were trimmed before they were read, and `on_loss` is `"fail"`.
            FieldError: A value does not fit its column or a payload cannot be unpacked, and `on_bad_field` is `"fail"`.
            StreamReplacedError: A stream is not the one that was committed before. The next call continues with the
                others.
            ConnectionFailedError: The server could not be reached, or the connection to it was lost. The next call
                continues.
            CommandError: The server refused a command, perhaps one for a lease or a commit. The next call continues.
            ClosedError: The consumer is closed.
        """
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            what, value = self._native.poll(timeout)
            if what == "batch":
                return value  # type: ignore[no-any-return]
            if what == "nothing":
                return None
            if (call := self._calls[what]) is not None:
                call(value)
            if ends is not None:
                timeout = max(0.0, ends - time.monotonic())

    def flush(self, timeout: float | None = None) -> ShardReport:
        """Wait until the server has processed every commit, for at most `timeout` seconds, and return the counts.

        Raises:
            CommandError: The server refused a commit. It is tried again.
        """
        return ShardReport(**self._native.flush(timeout))

    def close(self, timeout: float = 10.0) -> ShardReport:
        """Close the consumer, and return the counts.

        Commits are sent, and all streams are given up, so that other members have them immediately. If that is not
        possible within `timeout` seconds, they have them when the leases end: see `ShardReport.unknown`.

        Raises:
            CommandError: The server refused a commit.
        """
        return ShardReport(**self._native.close(timeout))

    def run(
        self,
        handle: Callable[[Any], object],
        *,
        per: Per = "batch",
        key_field: str | bytes | None = None,
        concurrency: int = 8,
        timeout: float | None = None,
        on_error: OnShardError = "fail",
        grace: float = 10.0,
    ) -> ShardReport:
        """Call a function in threads for what is read, until `stop`, SIGTERM or SIGINT, and return the counts.

        ```python
        def handle(entries):
            for entry in entries:
                save(entry.stream, entry.id, entry["payload"])

        with ShardConsumer(endpoint, group="billing", member="pod-3") as consumer:
            consumer.run(handle, per="key", key_field="customer", concurrency=8, timeout=30)
        ```

        **Commits.** A call that returns None commits its entries, as soon as everything before them in their stream is
        done. The handler itself calls neither `commit` nor `fail`.

        **Failures.** After an exception no call of the stream begins any more, except with what comes before. When all
        have ended, what is before is committed, and `fail` is called with the entry or the batch: the stream comes
        again from there on, and with `per="key"` what was done after it comes twice. Entries of a call that fails with
        several are handled again one by one before that. Other streams go on.

        **Leases.** No call begins once another member may own the stream (see `ShardBatch.check`): it gets what is not
        committed. What is in hand of a stream that is given up is handled, as long as its lease lasts.

        **The end.** After `stop` or a signal nothing more is read, and no call begins. Calls that run may go on for
        `grace` seconds, or until a second signal, and the server is waited for, for at most 10 s. What is not done by
        then is not committed. The same follows an error of reading, which is raised then. After it the consumer returns
        nothing more: close it, and the streams come again from the last commits. Signals count in the main thread, if
        the program has no handler of its own for them: let that call `stop`.

        **Memory.** What was read and is not committed is at most twice `concurrency` batches, or 100 times as many
        entries if batches are small: so a call that hangs holds up all streams in the end, unless there is a `timeout`.

        Args:
            handle: Called with a `ShardBatch`, an `Entry`, or a list of entries, in a context of its own
                (`contextvars`). It must return None: anything else, such as a coroutine, ends the run by a `TypeError`.
            per: `"batch"`; `"entry"`; or `"key"`: entries of a batch that have the same value of `key_field`, in their
                order, at most 250 of them. Batches and entries of a stream are handled one after the other, with
                `"key"` those of each key. An entry without the field is handled alone in its stream: after all
                before it, and before all after it. Streams do not wait for each other.
            key_field: The field with the key, of the type of the names (`names`), for `per="key"`.
            concurrency: The number of threads, from 1 to 10,000.
            timeout: Seconds, at most 86,400, after which a call counts as failed. A thread cannot be stopped: its
                result is of no use, and another thread takes its place; but its stream waits until it returns, or
                until the run ends. Up to `concurrency` calls are replaced so at a time; further ones keep their place
                until they return. If all have been taken, the run ends by a `StateError`. Default None: no limit.
            on_error: What follows an exception: `"fail"`: see above, with its type and text as the reason, at most 200
                characters, in which `***` replaces user and password of a URL, values named as passwords, and the
                passwords of the endpoint that it was given or has from a variable; or `"stop"`: the run ends and
                raises the exception. `SystemExit` and `KeyboardInterrupt` always do the last.
            grace: Seconds, from 0 to 86,400. What runs after that is not waited for.

        Raises:
            ConfigError: An option is invalid, or `handle` is not a function or is a coroutine function.
            TypeError: `handle` has returned something.
            StateError: Too many calls run on after their `timeout`, or the consumer has run before.
            ConcurrentUseError: The consumer is in use by another `run` or `poll`.
            ClosedError: The consumer is closed.
            DataLossError, FieldError, StreamReplacedError, ConnectionFailedError, CommandError: As for `poll`.
        """
        options = RunOptions(per, key_field, concurrency, timeout, on_error, grace, ("fail", "stop"))
        from headrace.run_threads import ThreadRun
        from headrace.shard_pieces import ShardPieces

        with self._only_run():
            report: ShardReport = ThreadRun(self, ShardPieces(self, options), handle, options).run()
        return report

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


ShardConsumer.__doc__ = documented(ShardConsumer.__doc__, SHARD_CONSUMER)
ShardConsumer.__signature__ = signature(  # type: ignore[attr-defined]
    ShardConsumer, SHARD_CONSUMER.values(), required=("group", "member")
)
