"""The consumer: entries of streams as Arrow record batches, through a consumer group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from headrace import _headrace
from headrace.consumer_base import ConsumerBase, ConsumerOptions
from headrace.run_options import OnError, Per, RunOptions
from headrace.stats import ReadReport
from headrace.tables import CONSUMER, documented, signature

__all__ = ["Consumer", "ConsumerBatch", "ConsumerOptions", "ReadReport"]

ConsumerBatch = _headrace.ConsumerBatch


class Consumer(ConsumerBase):
    """Reads entries of streams through a consumer group, which delivers each entry until it is acknowledged.

    ```python
    endpoint = Endpoint(host="localhost", stream_key="order-events")
    with Consumer(endpoint, group="billing", consumer="pod-3") as consumer:
        for batch in consumer:
            rows = [(entry.stream, entry.id, entry["payload"]) for entry in batch]
            save(rows)  # with (stream, id) as its key: an entry may come twice
            consumer.ack(batch)
    ```

    A batch holds entries of one stream, one row each. It is a sequence of `Entry` objects, and an Arrow record batch
    for pyarrow, polars, DuckDB and others. First come the entries that are pending under this consumer's name, as after
    a crash; then new ones; then those that other consumers have held for longer than `min_idle`. Acknowledge a batch
    after its rows are committed. After a crash in between the batch is delivered again: at least once.

    **Leases.** While entries are being processed, a thread renews their leases, so that no other consumer takes them
    over. `ConsumerBatch.check` before a commit raises `LeaseLostError` if no renewal succeeded for nine tenths of
    `min_idle`, as in a process that was suspended. Acknowledging an entry that another consumer has taken over by then
    has no effect, and counts as `stale`.

    **Entries that fail.** An entry that comes back after a crash is delivered with half as many others each time, and
    finally alone. With `max_failures`, an entry that has failed alone, or was passed to `fail`, that many times moves
    to `dead_letter_key`.

    **Closing.** The end of the `with` block closes the consumer: it sends outstanding acknowledgements, and gives all
    other entries back, so that other consumers get them immediately. After an exception the other entries stay pending.
    `stop` ends the loop, from any thread or signal handler.

    **Threads and processes.** `poll`, `flush`, `drop_stream` and `close` take one caller at a time. Any thread may call
    the other methods at any time, because they do not wait for a server. The GIL is released while a call waits; Ctrl-C
    is noticed within 0.1 s. A consumer belongs to the process that created it.

    Args:
        endpoint: The server, and the stream if `streams` is not given.
        streams: The keys of the streams, str or bytes. Default: the stream of the endpoint, or its shards.
        schema: The fields that become columns, with their types: a mapping such as
            `{"id": "int64", "at": "timestamp[us, UTC]", "total": "decimal(9, 2)"}`, whose type names are those that
            pyarrow prints (docs/reading.md#types), or an Arrow schema of pyarrow or another library. Each of its fields
            is the entry's field of that name, read from the text that `Dispatcher` writes for the type. Mutually
            exclusive with `fields`.
        {options}
        retry: A `RetryPolicy` that states whether, how often and for how long a server that is unreachable, starting or
            busy is tried again. Default None: a lost connection is replaced immediately, but only once between two
            replies.

    Raises:
        ConfigError: An option is unknown or invalid.
        ConnectionFailedError: The server could not be reached.
        CommandError: The server refused a command.
        GroupMissingError: The group does not exist, and `create` is false.
    """

    def __iter__(self) -> Iterator[ConsumerBatch]:
        return self

    def __next__(self) -> ConsumerBatch:
        self._warn()
        if (batch := self._native.poll(None)) is None:
            raise StopIteration
        return batch

    def poll(self, timeout: float | None = None) -> ConsumerBatch | None:
        """Return the next batch, or None after `timeout` seconds or once `stop` was called.

        Default None: wait for as long as it takes.

        Raises:
            FieldError: A value does not fit its column, and `on_bad_field` is `"fail"`. The entry stays pending until
                `ack_ids`, `fail_ids` or `release_ids` settles it.
            GroupMissingError: The group or its stream was deleted. The next call continues with the other streams.
            ConnectionFailedError: The server could not be reached, or the connection to it was lost. The next call
                continues.
            CommandError: The server refused a command, perhaps one of an earlier `ack`, `fail` or `release`. The
                entries stay pending. The next call continues, with the other streams if it refused to let one be read.
            ClosedError: The consumer is closed.
        """
        self._warn()
        return self._native.poll(timeout)

    def flush(self, timeout: float | None = None) -> ReadReport:
        """Wait until the server has processed every `ack`, `fail` and `release`, and return the counts so far.

        If `timeout` seconds pass first, `ReadReport.pending` may include entries that it has not processed yet. The
        timeout also ends an attempt to connect.
        """
        return ReadReport(**self._native.flush(timeout))

    def close(self, timeout: float = 10.0, *, release: bool = True) -> ReadReport:
        """Close the consumer, and return the counts.

        Outstanding acknowledgements, failures and releases are sent. With `release`, all other entries go back to the
        group. What is not done after `timeout` seconds, or because the server is away, stays pending, for a consumer of
        this name or, after `min_idle`, for any: see `ReadReport.pending` and `ReadReport.unknown`.

        Raises:
            CommandError: The server refused an acknowledgement, a failure or a release.
            GroupMissingError: The group or its stream was deleted.
        """
        return ReadReport(**self._native.close(release, timeout))

    def run(
        self,
        handle: Callable[[Any], object],
        *,
        per: Per = "batch",
        key_field: str | bytes | None = None,
        concurrency: int = 8,
        timeout: float | None = None,
        on_error: OnError = "fail",
        grace: float = 10.0,
    ) -> ReadReport:
        """Call a function in threads for what is read, until `stop`, SIGTERM or SIGINT, and return the counts.

        ```python
        def handle(entry):
            save(entry.stream, entry.id, entry["payload"])

        with Consumer(endpoint, group="billing", consumer="pod-3") as consumer:
            consumer.run(handle, per="entry", concurrency=8, timeout=30)
        ```

        A call that returns None acknowledges its entries, an exception fails them. Before that the handler may itself
        call `ack`, `fail` or `release` for single entries: the end of the call decides on the others. No call begins
        once other consumers may have taken its entries over (see `ConsumerBatch.check`): those are given back.

        **The end.** After `stop` or a signal nothing more is read, and no call begins. Calls that run may go on for
        `grace` seconds, or until a second signal. All other entries are given back, and the server is waited for, for
        at most 10 s. The same follows an error of reading, which is raised then. Signals count in the main thread, if
        the program has no handler of its own for them: let that call `stop`.

        **Memory.** More is read while fewer than `concurrency` pieces wait for a call, a piece being what a call gets:
        so at most about twice `concurrency` are in hand, and the rest of a batch. Pieces that wait for another one of
        their key count too.

        Args:
            handle: Called with a `ConsumerBatch`, an `Entry`, or a list of entries, in a context of its own
                (`contextvars`). It must return None: anything else, such as a coroutine, ends the run by a `TypeError`,
                and its entries are given back.
            per: `"batch"`; `"entry"`; or `"key"`: entries of a batch that have the same value of `key_field`, in their
                order, at most 250 of them. One call at a time has entries of a key, and they come in the order of
                the stream, over batches and streams; but entries that failed come again after later ones, and while a
                call runs on after its `timeout`, the next one of its key begins. Entries without the field are handled
                alone, in any order.
            key_field: The field with the key, of the type of the names (`names`), for `per="key"`.
            concurrency: The number of threads, from 1 to 10,000.
            timeout: Seconds, at most 86,400, after which a call counts as failed. A thread cannot be stopped: its
                result is of no use, and another thread takes its place. Up to `concurrency` calls are replaced so at
                a time; further ones keep their place until they return. If all have been taken, the run ends by a
                `StateError`. Default None: no limit.
            on_error: What an exception does with the entries of its call: `"fail"`, with its type and text as the
                reason, at most 200 characters, in which `***` replaces user and password of a URL, values named as
                passwords, and the passwords of the endpoint that it was given or has from a variable; `"release"`; or
                `"stop"`: they are given back, and the run ends and raises the exception. `SystemExit` and
                `KeyboardInterrupt` always do the last.
            grace: Seconds, from 0 to 86,400. What runs after that is not waited for, and its entries are given back.

        Raises:
            ConfigError: An option is invalid, `handle` is not a function or is a coroutine function, or the consumer
                has `ack="none"`.
            TypeError: `handle` has returned something.
            StateError: Too many calls run on after their `timeout`.
            ConcurrentUseError: The consumer is in use by another `run` or `poll`.
            ClosedError: The consumer is closed.
            ConnectionFailedError, CommandError, GroupMissingError, FieldError: As for `poll`.
        """
        options = RunOptions(per, key_field, concurrency, timeout, on_error, grace)
        from headrace.consumer_pieces import ConsumerPieces
        from headrace.run_threads import ThreadRun

        with self._only_run():
            report: ReadReport = ThreadRun(self, ConsumerPieces(self, options), handle, options).run()
        return report

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(release=exc_type is None)


Consumer.__doc__ = documented(Consumer.__doc__, CONSUMER)
Consumer.__signature__ = signature(Consumer, CONSUMER.values(), required=("group", "consumer"))  # type: ignore[attr-defined]
