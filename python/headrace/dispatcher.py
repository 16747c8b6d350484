"""The dispatcher: accepts messages, and returns one outcome for each."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypedDict, Unpack

from headrace import _headrace
from headrace.dispatcher_base import DispatcherBase, describe_options
from headrace.endpoint import Endpoint
from headrace.failure import Failure
from headrace.forgotten import tell, without_outcome
from headrace.report import DeliveryReport, delivery_error, not_delivered
from headrace.retry import RetryPolicy, resolved
from headrace.wording import counted

if TYPE_CHECKING:
    from headrace._headrace import _Bytes, _Fields

__all__ = ["Dispatcher", "DispatcherOptions"]

#: The timeout of the last flush, in seconds, when an exception leaves the `with` block.
FLUSH_AFTER_EXCEPTION = 5.0


class DispatcherOptions(TypedDict, total=False):
    """The keyword arguments of `Dispatcher`, for functions that pass them on; `Dispatcher` documents each."""

    window_max_entries: int | None
    window_max_bytes: int
    classify: Literal["default", "failover", "strict"]
    error_overrides: Mapping[str, Literal["permanent", "retryable"]] | None
    payload_field: str
    ts_field: str | None
    exactly_once: Literal["off", "auto", "idmp", "script"]
    exactly_once_key: Literal["row", "message_id"]
    idmp_duration: float | None
    token_ttl: float | None
    script_run_rows: int | None
    ordered: bool
    wait_replicas: int | Literal["all"]
    wait_aof: bool
    wait_timeout: float
    wait_every: int
    retry: RetryPolicy | None


class Dispatcher(_headrace.Dispatcher, DispatcherBase):
    """Sends messages to an endpoint over one pipelined connection, and returns an outcome for each.

    ```python
    with Dispatcher(Endpoint(host="localhost", stream_key="order-events")) as dispatcher:
        dispatcher.produce(b'{"order_id": 123}', message_id=123)
        report = dispatcher.flush()
        print(report.delivered, report.failed_ids)
    ```

    Each message is one `XADD key [NOMKSTREAM] [MAXLEN|MINID [~] n] * payload … ts …`
    (<https://redis.io/docs/latest/commands/xadd/>). `produce` and `produce_batch` encode into a buffer and send when a
    chunk of 64 KiB is full; `flush` sends the rest and waits for the outcomes. No background thread sends messages, so
    end each unit of work with `flush`.

    **Outcomes.** A message is delivered when the server has replied with its entry ID and, with `wait_replicas` or
    `wait_aof`, the copies are confirmed. Otherwise it has *failed*: its outcome is permanent or retryable, and has a
    code and `written`, which is `"unknown"` if the message may be in the stream all the same. Without a `RetryPolicy` a
    message is never sent twice.

    **No server.** If a connect fails, the rest of the batch (up to the next `flush`) fails without another attempt; the
    next batch connects again. With a `RetryPolicy` the call waits for the server instead.

    **Threads and processes.** Any thread may call `produce`, `produce_batch`, `dispatch`, `poll` and `flush`, and a
    call that waits does not stop the others. Messages of a thread stay in order, and reports cover those of all
    threads. `begin`, `skip_failed` and `close` raise `ConcurrentUseError` beside another call. After a fork the child's
    dispatcher is empty: messages produced before the fork belong to the parent. The GIL is released while a call waits
    and while a record batch is encoded; Ctrl-C is noticed within 0.1 s. At exit the process does not wait for a server:
    a `ForgottenWarning` states how many messages have no outcome.

    Args:
        endpoint: Where and how entries are stored.
        {options}
        retry: A `RetryPolicy` that states whether and when failed messages are sent again. Default None: never, unless
            `exactly_once` is on; it is then `RetryPolicy()`.
        trace_context: Whether each message, and each entry of a batch, gets the fields `traceparent` and `tracestate`
            of the current OpenTelemetry span, after its own. Without a span nothing is added; a field with one of these
            names is refused. Needs `pip install opentelemetry-api`. Default False.

    Raises:
        ConfigError: An option is unknown or invalid.
    """

    _forgotten_text = ", and may not have been sent: call flush(), or use `with Dispatcher(…) as dispatcher:`"

    def __new__(  # noqa: D102, see the class
        cls, endpoint: Endpoint, *, trace_context: bool = False, **options: Unpack[DispatcherOptions]
    ) -> Self:
        self = cls._make(endpoint, resolved({**options}))
        if trace_context is not False:
            from headrace.trace_context import trace

            trace(self, Dispatcher, {**options}, is_on=trace_context)
        return self

    @classmethod
    def _from_text(cls, endpoint: Endpoint, options: Mapping[str, str | None]) -> Self:
        """Make a dispatcher from options that are text (`"8192"`, `"true"`), as Spark passes them, or None."""
        return cls._make(endpoint, dict(options), text=True)

    @classmethod
    def _make(cls, endpoint: Endpoint, options: dict[str, object], *, text: bool = False) -> Self:
        self = super().__new__(cls, endpoint, options, text)
        self._opened(endpoint)
        return self

    # `produce`, `produce_batch`, `begin` and `skip_failed` are inherited: no Python frame on the hot path.

    def poll(self) -> DeliveryReport:  # type: ignore[override]
        """Return the outcomes that arrived since the last report. Never waits.

        Sends as much as an open connection accepts immediately, but opens no connection, because connecting may wait.
        """
        return self._unread.add(super().poll())

    def flush(self, timeout: float | None = None) -> DeliveryReport:  # type: ignore[override]
        """Wait until every message has an outcome, and return all outcomes that no report contains yet.

        Messages that other threads produce meanwhile are left to the next report. The ordinals of messages without an
        ID restart at 0 if every message has an outcome. After Ctrl-C or an `InternalError` nothing is lost: call
        `flush` again.

        Args:
            timeout: Seconds to wait. Default None: as long as the server makes progress (at most `command_timeout`
                without any). After the timeout, messages without a reply fail as retryable `TIMEOUT`, those of other
                threads too, and the connection is replaced.
        """
        return self._unread.add(super().flush(timeout))

    def dispatch(
        self,
        payload: _Bytes | None = None,
        key: _Bytes | None = None,
        *,
        fields: _Fields | None = None,
        stream_key: _Bytes | None = None,
        entry_id: str | None = None,
    ) -> str:
        """Send one message now, after all others, and wait for its outcome, which no report contains.

        Concurrent calls of several threads share round trips. Ctrl-C drops the outcome: the message may be written.

        Args:
            payload: As for `produce`.
            key: As for `produce`: only if the endpoint has `shards`.
            fields: As for `produce`.
            stream_key: As for `produce`.
            entry_id: As for `produce`.

        Returns:
            The entry ID of the message, such as `"1713091234567-0"`.

        Raises:
            ConnectionFailedError: The server could not be reached, or the connection was lost; `failures[0].written` is
                `"unknown"` if the message may be in the stream.
            DeliveryError: The server refused the message, or it has no field.
            ConfigError, MessageError: As for `produce`; or the dispatcher writes exactly once.
        """
        outcome = super().dispatch(payload, key, fields=fields, stream_key=stream_key, entry_id=entry_id)
        if isinstance(outcome, str):
            return outcome
        raise not_delivered(Failure(0, *outcome), self._endpoint, stream_key)

    def close(self) -> None:
        """Flush, then close the connection. A second call does nothing.

        Raises:
            DeliveryError: There are unhandled delivery failures.
        """
        if self.closed:
            return
        try:
            self.flush()
        except BaseException as error:
            error.add_note(f"headrace: closed with {counted(self.unreported)} without an outcome in a report")
            raise
        finally:
            super().close()
        if late := self.unreported:
            text = without_outcome(late, self._endpoint)
            tell(f"{text}: they were produced while another thread closed the dispatcher")
        if unhandled := self._unread.take():
            raise delivery_error(unhandled)

    if not TYPE_CHECKING:  # a type checker refuses `async with` by itself

        def __aenter__(self) -> NoReturn:
            raise TypeError("a Dispatcher needs `with`; `async with` is for an AsyncDispatcher")

        __aexit__ = __aenter__

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._close_after(error)

    def _close_after(self, error: BaseException) -> None:
        """Close without hiding the exception that leaves the block: results become notes on it."""
        try:
            if self.closed:
                return
            try:
                report = self.flush(FLUSH_AFTER_EXCEPTION)
                if len(report):
                    error.add_note(f"headrace: flushed after this exception: {report!r}")
            finally:
                if self.unreported:
                    error.add_note(f"headrace: {counted(self.unreported)} without an outcome in a report")
                super().close()
        except BaseException as second:
            error.add_note(f"headrace: cannot flush after this exception: {second!r}")
        if unhandled := self._unread.take():
            error.add_note(f"headrace: unhandled delivery failures: {delivery_error(unhandled)}")

    def _forgotten(self) -> int:
        try:
            return 0 if self.closed else self.unreported
        except RuntimeError:  # a daemon thread is in a call as the process ends, or a call panicked
            counts: dict[str, Any] = self.counters.read()
            failed: int = sum(counts["failed_by_code"].values())
            unsettled: int = counts["messages"] - counts["delivered"] - failed
            return unsettled


describe_options(Dispatcher, Dispatcher.__new__)
