"""The dispatcher: messages go in, one outcome for each comes out."""

from __future__ import annotations

import atexit
import os
import warnings
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Literal, NoReturn, Self, TypedDict, Unpack

from headrace import _headrace
from headrace.endpoint import Endpoint
from headrace.errors import ConfigError, ConnectionFailedError, DeliveryError
from headrace.metrics import Stats
from headrace.report import DeliveryReport, Failure, Unseen, delivery_error
from headrace.retry import RetryPolicy
from headrace.tables import CONNECTION_CODES, DISPATCHER, documented, signature

__all__ = ["Dispatcher", "DispatcherOptions"]

#: Seconds that leaving `with` spends on a last flush when an exception is already under way.
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
    wait_replicas: int
    wait_aof: bool
    wait_timeout: float
    wait_every: int
    retry: RetryPolicy | None


class Dispatcher(_headrace.Dispatcher):
    """Sends messages to an endpoint over one pipelined connection, and reports the outcome of each.

    ```python
    with Dispatcher(Endpoint(host="localhost", stream_key="order-events")) as dispatcher:
        dispatcher.produce(b'{"order_id": 123}', message_id=123)
        report = dispatcher.flush()
        print(report.delivered, report.failed_ids)
    ```

    Each message is one `XADD key [NOMKSTREAM] [MAXLEN|MINID [~] n] * payload … ts …`
    (<https://redis.io/docs/latest/commands/xadd/>). `produce` and `produce_batch` encode into a buffer and send when a
    chunk of 64 KiB is full; `flush` sends the rest and waits for the outcomes. Nothing is sent by itself: end each unit
    of work with `flush`.

    **Outcomes.** A message is delivered when the server answered with its entry ID, and with `wait_replicas` or
    `wait_aof` once others have it too. Otherwise it has *failed*: permanent or retryable, with a code, and with
    `written` telling whether it may be in the stream all the same.
    Without a `RetryPolicy` a message is never sent twice.

    **No server.** The first failed connect fails the rest of the batch (up to the next `flush`) without another
    try; the next batch connects again. With a `RetryPolicy` the call waits for the server instead.

    **Threads and processes.** One caller at a time; another gets `ConcurrentUseError`. A forked child finds its
    dispatcher empty: what was produced before the fork is the parent's. The GIL is released while a call waits and
    while a record batch is encoded; Ctrl-C is noticed within 0.1 s. The end of the process waits for no server: a
    ResourceWarning says how many messages it takes with it.

    Args:
        endpoint: Where and how entries are stored.
        {options}
        retry: A `RetryPolicy`: whether and when failed messages are sent again. Default None: never, unless
            `exactly_once` is on, which makes it `RetryPolicy()`.

    Raises:
        ConfigError: An option is unknown or wrong.
    """

    _endpoint: Endpoint
    _is_lost: bool
    _process: int
    _handed_out: list[tuple[weakref.ref[DeliveryReport], Unseen]]
    _dropped: Unseen | None
    _sweep_at: int

    def __new__(cls, endpoint: Endpoint, **options: Unpack[DispatcherOptions]) -> Self:  # noqa: D102, see the class
        given: dict[str, object] = {**options}
        retry = given.pop("retry", None)
        for name in given:
            if name.startswith("retry_"):  # an option of Spark: here it is a field of a RetryPolicy
                raise ConfigError(f"unknown option {name!r}; did you mean 'retry'?", option=name)
        if retry is not None:
            if not isinstance(retry, RetryPolicy):
                raise ConfigError(f"retry must be a RetryPolicy or None, got {retry!r}", option="retry")
            given |= retry._options()
        return cls._make(endpoint, given)

    @classmethod
    def _from_text(cls, endpoint: Endpoint, options: Mapping[str, str | None]) -> Self:
        """Make a dispatcher from options that are text (`"8192"`, `"true"`), as Spark hands them over, or None."""
        return cls._make(endpoint, dict(options), text=True)

    @classmethod
    def _make(cls, endpoint: Endpoint, options: dict[str, object], *, text: bool = False) -> Self:
        self = super().__new__(cls, endpoint, options, text)
        self._endpoint = endpoint
        self._is_lost = False
        self._process = os.getpid()
        self._handed_out = []
        self._dropped = None
        self._sweep_at = 16
        _living.add(self)
        return self

    @property
    def endpoint(self) -> Endpoint:
        """Where and how entries are stored."""
        return self._endpoint

    # `produce` and `produce_batch` are the native ones: no Python stands between the caller and the hot path.

    def poll(self) -> DeliveryReport:  # type: ignore[override]
        """Hand out what was answered since the last report. Never waits.

        Sends what an open connection takes at once, but opens none: that may wait.
        """
        return self._hand_out(super().poll())

    def flush(self, timeout: float | None = None) -> DeliveryReport:  # type: ignore[override]
        """Wait until every message has its outcome, and hand out all that no report held yet.

        Ordinals of messages without an ID start again at 0. After Ctrl-C, or an `InternalError`, nothing is lost:
        another flush goes on.

        Args:
            timeout: Seconds; None waits as long as the server makes progress (at most `command_timeout` without any).
                When it is over, messages without a reply fail as retryable `TIMEOUT`, and the connection is replaced.
        """
        return self._hand_out(super().flush(timeout))

    def dispatch(self, payload: bytes | bytearray | memoryview | str) -> str:
        """Send one message now, behind all others, and wait for its outcome, which is in no report.

        Returns:
            Its entry ID, such as `"1713091234567-0"`.

        Raises:
            ConnectionFailedError: The server was not reached or was lost; `failures[0].written` says whether the
                message may be in the stream.
            DeliveryError: The server refused it.
        """
        outcome = super().dispatch(payload)
        if isinstance(outcome, str):
            return outcome
        kind, code, message, written = outcome
        failure = Failure(0, kind, code, message, written)
        error = ConnectionFailedError if code in CONNECTION_CODES else DeliveryError
        text = f"the message was not delivered: {code} ({kind}, written: {written}): {message}"
        raise error(text, failures=(failure,), failed=1, failed_by_code={code: 1})

    def stats(self) -> Stats:
        """Count what this dispatcher has done since it was made. Any thread may ask, at any time."""
        return Stats(**self.counters.read())

    def close(self) -> None:
        """Flush, then close the connection. A second call does nothing.

        Raises:
            DeliveryError: There are failures that nobody looked at.
        """
        if self.closed:
            return
        try:
            self.flush()
        except BaseException as error:
            error.add_note(f"headrace: closed with {self.unreported:,} messages that have no outcome in a report")
            raise
        finally:
            super().close()
        if unseen := self._take_unseen():
            raise delivery_error(unseen)

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
        """Close without hiding the exception that is under way: what is to be said is added to it."""
        try:
            if self.closed:
                return
            try:
                report = self.flush(FLUSH_AFTER_EXCEPTION)
                error.add_note(f"headrace: flushed after this exception: {report!r}")
            finally:
                if self.unreported:
                    error.add_note(f"headrace: {self.unreported:,} messages have no outcome in a report")
                super().close()
        except BaseException as second:
            error.add_note(f"headrace: cannot flush after this exception: {second!r}")
        if unseen := self._take_unseen():
            error.add_note(f"headrace: unhandled delivery failures: {delivery_error(unseen)}")

    def __del__(self) -> None:
        # Without `_endpoint` the constructor did not get to its end.
        if "_endpoint" in self.__dict__:
            self._say_what_is_lost()

    def _say_what_is_lost(self) -> None:
        """Warn of messages that nobody will hear of any more; once."""
        if self._is_lost:
            return
        try:
            count = 0 if self.closed else self.unreported
        except RuntimeError:  # a daemon thread is in a call as the process ends, or a call panicked
            stats = self.stats()
            count = stats.messages - stats.delivered - stats.failed
        if count:
            self._is_lost = True
            warnings.warn(
                f"{count:,} messages were dropped with {self!r}, which was neither flushed nor closed",
                ResourceWarning,
                stacklevel=3,
                source=self,
            )

    def __reduce__(self) -> NoReturn:
        msg = "a dispatcher cannot be pickled: it owns a connection; send the endpoint and make a dispatcher there"
        raise TypeError(msg)

    def __repr__(self) -> str:
        return f"<Dispatcher to {self._endpoint}>"

    def _hand_out(self, native: _headrace.Report) -> DeliveryReport:
        report = DeliveryReport(native)
        if report._unseen is not None:
            self._forget_parents()
            self._handed_out.append((weakref.ref(report), report._unseen))
            if len(self._handed_out) >= self._sweep_at:
                self._sweep()
        return report

    def _sweep(self) -> None:
        """Forget reports that were looked at; keep the counts of those that were dropped without a look."""
        self._forget_parents()
        kept = []
        for reference, unseen in self._handed_out:
            if unseen.looked_at:
                continue
            if reference() is not None:
                kept.append((reference, unseen))
            elif self._dropped is None:
                self._dropped = unseen
            else:
                self._dropped.absorb(unseen)
        self._handed_out = kept
        # Whoever keeps many reports unread does not pay for all of them at each new one.
        self._sweep_at = 2 * len(kept) + 16

    def _take_unseen(self) -> list[Unseen]:
        """Take the failures that nobody looked at."""
        self._sweep()
        unseen = [unseen for _, unseen in self._handed_out]
        if self._dropped is not None:
            unseen.insert(0, self._dropped)
        self._handed_out, self._dropped = [], None
        return unseen

    def _forget_parents(self) -> None:
        """What failed before a fork is the parent's to look at."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._handed_out, self._dropped = [], None


_living: weakref.WeakSet[Dispatcher] = weakref.WeakSet()


@atexit.register
def _say_what_the_end_loses() -> None:
    """Warn of each dispatcher with messages left. What a daemon thread's frames reach is never collected."""
    for dispatcher in tuple(_living):
        dispatcher._say_what_is_lost()


_KEYWORDS: Final = {name: option for name, option in DISPATCHER.items() if not name.startswith("retry")}

Dispatcher.__doc__ = documented(Dispatcher.__doc__, _KEYWORDS)
Dispatcher.__new__.__signature__ = signature(  # type: ignore[attr-defined]
    Dispatcher.__new__, [*_KEYWORDS.values(), DISPATCHER["retry"]]
)
