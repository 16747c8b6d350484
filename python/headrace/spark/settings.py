"""The options of the data source: all text, as Spark passes them, checked before any task starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, cast

from headrace._headrace import read_options
from headrace.dispatcher import Dispatcher
from headrace.endpoint import Endpoint, _restore
from headrace.errors import ConfigError
from headrace.spark.names import refuse_unknown
from headrace.spark.transaction import Transaction
from headrace.tables import DATASOURCE, DATASOURCE_READ, DISPATCHER, ENDPOINT, LAYOUT

if TYPE_CHECKING:
    from headrace._headrace import _Layout

__all__ = [
    "ColumnOptions",
    "FailurePolicy",
    "Hidden",
    "WriteSettings",
    "hide_secrets",
    "known",
    "read",
    "read_endpoint",
]

#: Options of a layout that have another name here, because `stream_key` is the endpoint's.
COLUMN_OPTIONS = {"stream_key": "stream_key_column"}

#: The options of the endpoint that Spark would show.
PASSWORDS = ("password", "sentinel_password")
KEYS = ("tls_key", "sentinel_tls_key")

#: The text that Spark makes of a callable given where it expects text.
OBJECT = re.compile(r"<(function|bound method|built-in \w+|class) .+>|<.+ object at 0x[0-9a-f]+>")

#: The names that Spark itself adds to the options of a streaming query.
OF_SPARK = frozenset(
    {
        *("checkpointlocation", "queryname"),
        *("asyncprogresstrackingenabled", "asyncprogresstrackingcheckpointintervalms"),
    }
)

#: Options of the stream that the stream of dead letters does not share: every dead letter is kept.
NOT_OF_DEAD_LETTERS = (
    *("maxlen", "maxlen_approximate", "minid", "trim_every", "nomkstream", "consumer_group"),
    *("shards", "shard_hash", "shard_names", "key_field"),
)


class Hidden(str):
    """Text with a masked `repr`: Spark can print the local variables of a traceback."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def _default(name: str) -> Any:
    return DATASOURCE[name].default


@dataclass(frozen=True)
class ColumnOptions:
    """The options about columns. `headrace.spark.layout` resolves them against a schema.

    Attributes:
        layout: Keyword arguments of `Dispatcher.produce_batch`.
        ignore_columns: The columns to leave out; `*` means all that have no role.
    """

    layout: _Layout
    ignore_columns: tuple[str, ...]


@dataclass(frozen=True)
class FailurePolicy:
    """How to handle rows that cannot be written. `"collect"` is for `headrace.spark.write` alone."""

    on_failure: Literal["fail", "report", "dead_letter", "collect"] = _default("on_failure")
    dead_letter_key: str | None = _default("dead_letter_key")
    max_failed_rows: int | None = _default("max_failed_rows")
    max_failed_ratio: float | None = _default("max_failed_ratio")


@dataclass(frozen=True)
class WriteSettings:
    """All options of a write.

    Attributes:
        endpoint: Where entries are stored.
        dispatcher: Options of the dispatcher.
        columns: Options about columns.
        failure: How to handle rows that cannot be written.
        transaction: The name of a batch write, for exactly once.
        text: Whether the values of `dispatcher` are text, as Spark passes them to a data source.
    """

    endpoint: Endpoint
    dispatcher: Mapping[str, Any]
    columns: ColumnOptions
    failure: FailurePolicy
    transaction: Transaction | None
    text: bool = True

    @property
    def exactly_once(self) -> bool:
        """Whether rows that an earlier attempt wrote are deduplicated."""
        exactly_once: str = self.dispatcher.get("exactly_once", "off")
        return exactly_once != "off"

    @property
    def by_message_id(self) -> bool:
        """Whether rows are deduplicated by message ID rather than by number."""
        key: str | None = self.dispatcher.get("exactly_once_key")
        return key == "message_id"

    @property
    def retries(self) -> bool:
        """Whether the dispatcher waits for a server that it cannot reach."""
        retry: object = self.dispatcher.get("retry")
        return retry == "true" if self.text else retry is not None

    def make_dispatcher(self) -> Dispatcher:
        """Make a dispatcher with these options."""
        if self.text:
            return Dispatcher._from_text(self.endpoint, self.dispatcher)
        return Dispatcher(self.endpoint, **self.dispatcher)

    @property
    def dead_letters(self) -> Endpoint:
        """The endpoint of the dead letters: another stream on the same server."""
        state, inherited = self.endpoint._state()
        options = {name: value for name, value in state.items() if name not in NOT_OF_DEAD_LETTERS}
        try:
            return _restore(type(self.endpoint), {**options, "stream_key": self.failure.dead_letter_key}, inherited)
        finally:
            del state, options  # not for tracebacks with locals


def read(given: Mapping[str, str], *, streaming: bool) -> WriteSettings:
    """Check the options that Spark passes, with names in lower case.

    Raises:
        ConfigError: An option is unknown, wrong, or contradicts another one.
    """
    _check_names(given, streaming)
    own = _own(given)
    transaction = _transaction(own, given.get("exactly_once"), streaming=streaming)
    exactly_once = given.get("exactly_once", "auto" if streaming or transaction else "off")
    dispatcher = _dispatcher(given, exactly_once)
    columns, failure = _columns(own), _failure(given, own)
    settings = WriteSettings(read_endpoint(given), dispatcher, columns, failure, transaction)
    settings.make_dispatcher()  # checks its options, and opens no connection
    return settings


def known() -> list[str]:
    """Return the names of all options, of writes and of reads: a SQL view may have both."""
    return list(dict.fromkeys(["url", *ENDPOINT, *DISPATCHER, *DATASOURCE, *DATASOURCE_READ]))


def hide_secrets(options: MutableMapping[str, str]) -> None:
    """Keep the values that are secret, or may hold a secret, out of any traceback that shows `options`."""
    for name in ("url", *PASSWORDS, *KEYS):
        if name in options:
            options[name] = Hidden(options[name])


def _check_names(given: Mapping[str, str], streaming: bool) -> None:
    if "path" in given:
        raise ConfigError("save() and start() take no path: the option stream_key names the stream", option="path")
    refuse_unknown(set(given) - OF_SPARK if streaming else given, known())


# --- the endpoint -----------------------------------------------------------------------------------------------------


def read_endpoint(given: Mapping[str, str]) -> Endpoint:
    """The endpoint that the options describe.

    Raises:
        ConfigError: An option is wrong, or Spark would show a secret in it.
    """
    options = {name: given[name] for name in ENDPOINT if name in given}
    state: dict[str, object] = {}
    try:
        for name in PASSWORDS:
            if OBJECT.search(options.get(name, "")):
                why = f"must be text, got a callable; give {name}_env or {name}_file, or use headrace.spark.write"
                raise _wrong(name, why)
        endpoint = Endpoint._from_text(options, given.get("url"))
        state, _ = endpoint._state()
        if "password" in state and "password" not in options:
            why = "must not hold a password, which Spark would show; give password_env or password_file"
            raise _wrong("url", why)
        for name in KEYS:
            if isinstance(state.get(name), bytes) or "\n" in str(state.get(name, "")):
                raise _wrong(name, "must be the path of a file on each executor: Spark would show a key itself")
        return endpoint
    finally:
        del options, state  # not for tracebacks with locals


# --- the dispatcher ---------------------------------------------------------------------------------------------------


def _dispatcher(given: Mapping[str, str], exactly_once: str) -> dict[str, str | None]:
    """The options of `Dispatcher._from_text`. Retry is on by default."""
    options: dict[str, str | None] = {name: given[name] for name in DISPATCHER if name in given}
    if exactly_once != "off":
        options["exactly_once"] = exactly_once
    options.setdefault("retry", "true")
    if options["retry"] == "true":
        # Spark gives no more than at least once anyway: it runs failed tasks again.
        options.setdefault("retry_unknown", "true" if exactly_once == "off" else "false")
    if options.get("ts_field") == "":
        options["ts_field"] = None
    return options


# --- the options of the data source itself ----------------------------------------------------------------------------


def _own(given: Mapping[str, str]) -> dict[str, Any]:
    """The options of the table `DATASOURCE`, with their types; lists of names are tuples."""
    own = read_options("datasource", {name: given[name] for name in DATASOURCE if name in given})
    return own | {"ignore_columns": own["ignore_columns"] or ()}


def _columns(own: Mapping[str, Any]) -> ColumnOptions:
    layout = {name: own[COLUMN_OPTIONS.get(name, name)] for name in LAYOUT}
    return ColumnOptions(cast("_Layout", layout), own["ignore_columns"])


def _transaction(own: Mapping[str, Any], exactly_once: str | None, *, streaming: bool) -> Transaction | None:
    if streaming:
        if name := next((name for name in ("txn_app_id", "txn_version") if own[name] is not None), None):
            raise _wrong(name, "is for batch writes: a streaming query is named by the ID in its checkpoint")
        return None
    return Transaction.from_options(own["txn_app_id"], own["txn_version"], exactly_once)


def _failure(given: Mapping[str, str], own: Mapping[str, Any]) -> FailurePolicy:
    policy = FailurePolicy(**{field.name: own[field.name] for field in fields(FailurePolicy)})
    on_failure, dead_letter_key = policy.on_failure, policy.dead_letter_key
    if on_failure == "dead_letter" and dead_letter_key is None:
        raise _wrong("dead_letter_key", "is missing: it names the stream of the rows that cannot be written")
    if on_failure != "dead_letter" and dead_letter_key is not None:
        raise _wrong("dead_letter_key", f"is for on_failure='dead_letter', got on_failure={on_failure!r}")
    if on_failure == "dead_letter" and dead_letter_key == given.get("stream_key"):
        raise _wrong("dead_letter_key", f"must differ from stream_key, got {given['stream_key']!r} for both")
    for name in ("max_failed_rows", "max_failed_ratio"):
        if own[name] is not None and on_failure == "fail":
            raise _wrong(name, "is for on_failure='report' or 'dead_letter': 'fail' allows no failed row")
    return policy


def _wrong(option: str, why: str) -> ConfigError:
    return ConfigError(f"{option} {why}", option=option)
