"""What the readers of threads and of event loops have in common: options, streams, and what they tell their callers."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, Self, TypedDict, Unpack

from headrace import _headrace
from headrace.endpoint import Endpoint
from headrace.errors import ConfigError
from headrace.notices import notice
from headrace.retry import RetryPolicy, resolved
from headrace.stats import ReaderStats

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


class ReaderOptions(TypedDict, total=False):
    """The keyword arguments of `Reader`, for functions that pass them on; `Reader` documents each."""

    start: str | datetime
    end: str | datetime | None
    reverse: bool
    limit: int | None
    fields: Sequence[str] | Literal["*"] | None
    unpack: Literal["payload", "json", "arrow_ipc"] | None
    payload_field: str
    max_entry_bytes: int
    on_bad_field: Literal["fail", "null", "keep"]
    metadata: Sequence[str] | Mapping[str, str] | None
    fields_as: Literal["map", "list"]
    names: Literal["text", "binary"]
    batch_rows: int
    batch_bytes: int
    page_bytes: int
    block: float
    connections: int | None
    linger: float
    on_loss: Literal["fail", "report"]
    retry: RetryPolicy | None


class ReaderBase(_headrace.Reader):
    """The options and the streams of a reader."""

    #: Whether the constructor connects.
    _opens = True
    _endpoint: Endpoint
    _streams: list[bytes]
    _ends: bool
    _is_reverse: bool

    def __new__(  # noqa: D102, see the class
        cls,
        endpoint: Endpoint,
        streams: Iterable[str | bytes] | None = None,
        *,
        schema: _headrace._Schema | None = None,
        **options: Unpack[ReaderOptions],
    ) -> Self:
        given = resolved({**options})
        is_reverse = given.get("reverse") is True
        for name, is_last in (("start", False), ("end", True)):
            if isinstance(moment := given.get(name), datetime):
                given[name] = _milliseconds(name, moment, is_last=is_last != is_reverse)
        check_schema(schema)
        keys = stream_keys(streams)
        self = super().__new__(cls, endpoint, keys, given, schema, cls._opens)
        self._endpoint = endpoint
        self._streams = keys or list(endpoint.stream_keys)
        self._is_reverse = is_reverse
        self._ends = is_reverse or any(given.get(name) is not None for name in ("end", "limit"))
        return self

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint that entries are read from."""
        return self._endpoint

    @property
    def streams(self) -> list[bytes]:
        """The keys of the streams, without those that were dropped."""
        return self._streams.copy()

    def _doubt(self, text: str, /) -> None:
        warnings.warn(text, RuntimeWarning, stacklevel=3)  # at the line that reads

    def _notice(self, text: str, /) -> None:
        notice(text)

    def drop_stream(self, stream: str | bytes) -> None:
        """Stop reading one of the streams, for good, and continue with the others.

        Batches of it that `read` has not returned are dropped, and positions no longer contain it: a reader that starts
        at one is created without it.

        Raises:
            ConfigError: The reader has no such stream.
        """
        key = key_bytes(stream)
        super().drop_stream(key)
        self._streams.remove(key)

    def stats(self) -> ReaderStats:
        """Return the counters of this reader since its creation. Any thread may call this, at any time."""
        return ReaderStats(**self.counters.read())

    def __repr__(self) -> str:
        last = self._last_entry(self._streams[0]) if len(self._streams) == 1 else None
        place = "" if last is None else f", {'before' if self._is_reverse else 'after'} {last}"
        return f"<{type(self).__name__}: {shown_streams(self._streams, self._endpoint)}{place}>"


def check_schema(schema: object) -> None:
    """Raise unless the schema is an Arrow schema, a mapping from names to names of types, or None."""
    if schema is None or hasattr(schema, "__arrow_c_schema__"):
        return
    if not isinstance(schema, Mapping):
        allowed = "an Arrow schema, or a mapping such as {'id': 'int64', 'total': 'decimal(9, 2)'}"
        raise ConfigError(f"schema must be {allowed}, got {schema!r}", option="schema")
    for name, text in schema.items():
        if not isinstance(name, str) or not isinstance(text, str):
            message = f"schema must map names of fields to names of types, such as 'int64', got {text!r} for {name!r}"
            raise ConfigError(message, option="schema")


def stream_keys(streams: Iterable[object] | None) -> list[bytes]:
    """Return the keys as bytes; an empty list if none were given."""
    if streams is None:
        return []
    if isinstance(streams, str | bytes):
        raise ConfigError(f"streams must be a sequence of keys, got {streams!r}: write [{streams!r}]", option="streams")
    keys = []
    for key in streams:
        if not isinstance(key, str | bytes) or not key:
            raise ConfigError(f"streams must be keys, non-empty str or bytes, got {key!r}", option="streams")
        keys.append(key_bytes(key))
    if not keys:
        raise ConfigError("streams must have at least one key, got none", option="streams")
    return keys


def shown_streams(keys: list[bytes], endpoint: Endpoint) -> str:
    """Return the keys and their server for a repr."""
    if not keys:
        return f"no stream of {endpoint._server()}"
    return f"{'stream' if len(keys) == 1 else 'streams'} {_headrace.shown_names(keys)} of {endpoint._server()}"


def key_bytes(key: str | bytes) -> bytes:
    """Return the key as bytes; text is encoded as UTF-8."""
    return key.encode() if isinstance(key, str) else key


def _milliseconds(option: str, moment: datetime, *, is_last: bool) -> str:
    """Return a moment in milliseconds: the first one that is not before it, or the last one that is not after it."""
    if moment.tzinfo is None:
        raise ConfigError(f"{option} must have a time zone, got {moment!r}", option=option)
    whole, rest = divmod(moment - _EPOCH, _MILLISECOND)
    if whole < 0:
        raise ConfigError(f"{option} must not be before 1970, got {moment!r}", option=option)
    return str(whole if is_last or not rest else whole + 1)
