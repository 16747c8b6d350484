"""The dispatcher: messages go in, one outcome for each comes out."""

from __future__ import annotations

import atexit
import os
import warnings
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Literal, NoReturn, Self

from headrace import _headrace
from headrace.endpoint import Endpoint
from headrace.errors import ConfigError, ConnectionFailedError, DeliveryError
from headrace.metrics import Stats
from headrace.report import DeliveryReport, Failure, Unseen, delivery_error
from headrace.retry import RetryPolicy
from headrace.tables import CONNECTION_CODES

__all__ = ["Dispatcher"]

#: Seconds that leaving `with` spends on a last flush when an exception is already under way.
FLUSH_AFTER_EXCEPTION = 5.0


class Dispatcher(_headrace.Dispatcher):
    """Sends messages to an endpoint over one pipelined connection, and tells what became of each.

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
    try; the next batch connects anew. With a `RetryPolicy` the call waits for the server instead.

    **Threads and processes.** One caller at a time; another gets `ConcurrentUseError`. A forked child finds its
    dispatcher empty: what was produced before the fork is the parent's. The GIL is released while a call waits and
    while a record batch is encoded; Ctrl-C is noticed within 0.1 s. The end of the process waits for no server: a
    ResourceWarning says how many messages it takes with it.

    Args:
        endpoint: Where and how entries are stored.
        window_max_entries: Entries in flight at most. Default 8,192, with `ordered` 1; 1 and up.
        window_max_bytes: Bytes in flight at most. Default 4 MiB; 65,536 and up. The message that passes it is still
            sent: one is always in flight.
        classify: Which error replies are permanent. `"default"` (default): NOAUTH, NOPERM, WRONGTYPE, OOM, READONLY,
            WRONGPASS, BAD_MARKER, unknown commands and refused certificates. `"failover"`: the same without OOM and
            READONLY. `"strict"`: also DENIED, NOPROTO, CROSSSLOT and argument errors.
        error_overrides: Has the last word on single codes: `{"OOM": "retryable"}`.
        payload_field: Name of the field that holds the payload. Default `"payload"`.
        ts_field: Name of the field that holds the time of dispatch (`2026-04-14T12:00:00Z`, UTC). Default `"ts"`; None
            leaves it out.
        retry: Whether and when messages that failed are sent again. Default None: never, that is the caller's; with
            `exactly_once` `RetryPolicy()`.
        exactly_once: `"script"`: messages go out in runs that a script appends to the stream, which writes none twice,
            neither after a lost connection nor, with `begin`, after a crash. On every server from Redis 6.2 and
            Valkey 7.2 on; it needs the commands EVAL, EVALSHA, GET and SET, and takes the server up to 60 % more work
            for a message. `"idmp"`: the server remembers a name of each message for a while (XADD's IDMP, Redis 8.6.2
            and later); it needs XINFO STREAM, and where the stream's settings do not suffice XCFGSET and XGROUP.
            `"auto"`: the best that there is, which is the script. Default `"off"`. Excludes `rows_per_entry`,
            `arrow_ipc` and `dispatch`.
        exactly_once_key: What names a message within its batch: `"row"` (default), its number; with `"idmp"` also
            `"message_id"`, its message ID, whatever comes before it.
        idmp_duration: With `"idmp"`: seconds that the server remembers names for at least; 1 to 86,400. Default: as
            long as `retry` can send messages again, and no less than the stream is set to.
        token_ttl: With `"script"`: seconds that a batch can be begun again after its last message. Default 86,400; 1 to
            31,536,000.
        script_run_rows: With `"script"`: messages that one script call appends at most. Default 100; 1 to 1,000.
        ordered: True: one entry is in flight at a time, so that none overtakes one that is sent again. Slow. Default
            False: an entry that was refused may be overtaken by those in flight behind it, but for `"script"`, which
            keeps the order in any case.
        script_run_rows: With `exactly_once`: messages that one script call appends at most. Default 100; 1 to 1,000.
        wait_replicas: Replicas that must have a message before it counts as delivered, by WAIT
            (<https://redis.io/docs/latest/commands/wait/>). Default 0: none; it is delivered once the server has it. A
            message that too few had in time fails as `NOT_REPLICATED`: it is in the stream of this server.
        wait_aof: Whether a message must also be in the append-only file of the server, and in those of
            `wait_replicas` replicas, by WAITAOF (<https://redis.io/docs/latest/commands/waitaof/>, Redis 7.2 and later,
            Valkey). Default False.
        wait_timeout: Seconds that the server waits for them. Default 1.0; 0.001 to 3,600.
        wait_every: Entries that are waited for together. Default 8,192; 1 to 1,000,000. WAIT is also sent by `flush`,
            `dispatch`, and `poll` when something was answered; entries behind it wait until it was answered.

    Raises:
        ConfigError: An option is unknown or wrong.
    """

    _endpoint: Endpoint
    _is_lost: bool
    _process: int
    _handed_out: list[tuple[weakref.ref[DeliveryReport], Unseen]]
    _dropped: Unseen | None
    _sweep_at: int

    def __new__(  # noqa: D102, the class's docstring tells of the arguments
        cls,
        endpoint: Endpoint,
        *,
        window_max_entries: int | None = None,
        window_max_bytes: int = 4 * 1024 * 1024,
        classify: Literal["default", "failover", "strict"] = "default",
        error_overrides: Mapping[str, Literal["permanent", "retryable"]] | None = None,
        payload_field: str = "payload",
        ts_field: str | None = "ts",
        retry: RetryPolicy | None = None,
        exactly_once: Literal["off", "auto", "idmp", "script"] = "off",
        exactly_once_key: Literal["row", "message_id"] = "row",
        idmp_duration: float | None = None,
        token_ttl: float | None = None,
        script_run_rows: int | None = None,
        ordered: bool = False,
        wait_replicas: int = 0,
        wait_aof: bool = False,
        wait_timeout: float = 1.0,
        wait_every: int = 8_192,
        **unknown: object,
    ) -> Self:
        options: dict[str, object] = {
            "window_max_entries": window_max_entries,
            "window_max_bytes": window_max_bytes,
            "classify": classify,
            "error_overrides": error_overrides,
            "payload_field": payload_field,
            "ts_field": ts_field,
            "exactly_once": exactly_once,
            "exactly_once_key": exactly_once_key,
            "idmp_duration": idmp_duration,
            "token_ttl": token_ttl,
            "script_run_rows": script_run_rows,
            "ordered": ordered,
            "wait_replicas": wait_replicas,
            "wait_aof": wait_aof,
            "wait_timeout": wait_timeout,
            "wait_every": wait_every,
            **unknown,
        }
        if retry is not None:
            if not isinstance(retry, RetryPolicy):
                raise ConfigError(f"retry must be a RetryPolicy or None, got {retry!r}")
            options |= retry._options()
        return cls._make(endpoint, options)

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
            error.add_note(f"headrace: nobody looked at these failures: {delivery_error(unseen)}")

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
