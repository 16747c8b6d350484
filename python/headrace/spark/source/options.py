"""The options of a read: all text, as Spark passes them, checked before any request to a server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from headrace._headrace import read_options
from headrace.endpoint import Endpoint
from headrace.errors import ConfigError
from headrace.spark.names import refuse_unknown
from headrace.spark.settings import known, read_endpoint
from headrace.spark.source.bounds import Bounds, read_bounds
from headrace.tables import DATASOURCE_READ

__all__ = ["ReadSettings", "read"]

#: The options that name the streams, of which one must be given.
STREAMS: Final = ("stream_key", "stream_keys", "stream_pattern")

#: The options that only one of the two kinds of read has.
OF_BATCH: Final = ("ending", "ending_timestamp")
OF_STREAMING: Final = (
    "max_entries_per_trigger",
    "min_entries_per_trigger",
    "max_trigger_delay",
    "available_now",
    "poll_interval",
    "allow_short_replay",
    "commit_group",
)

#: The options that are passed to `Reader` as they are.
OF_THE_READER: Final = ("batch_rows", "batch_bytes", "page_bytes", "on_bad_field", "fields_as")
OF_UNPACK: Final = ("unpack", "payload_field", "max_entry_bytes")


@dataclass(frozen=True)
class ReadSettings:
    """All options of a read.

    Attributes:
        endpoint: The server.
        keys: The keys of the streams; None with a pattern.
        pattern: A glob-style pattern of keys.
        start: Where each stream begins.
        end: In batch, where each stream ends.
        past_end: What a time after the newest entry means.
        fail_on_data_loss: Whether entries that were trimmed before they were read are an error.
        allow_short_replay: Whether a micro-batch or task that runs again may have fewer rows than before.
        min_partitions: The minimum number of partitions; None for one per stream.
        max_entries: The maximum number of entries in a micro-batch.
        min_entries: How many entries a micro-batch waits for.
        max_delay: How long a micro-batch waits for `min_entries`, in seconds.
        available_now: What the user states about the trigger.
        poll_interval: Seconds between two requests to the server.
        commit_group: The group that shows how far the query has read.
        fields: The fields that become columns; None for all in one column, or for those of the user's schema.
        metadata: The metadata columns, each with the name that it gets; None for the usual ones.
        reader: Options of each `Reader`.
    """

    endpoint: Endpoint
    keys: tuple[str, ...] | None
    pattern: str | None
    start: Bounds
    end: Bounds
    past_end: Literal["error", "latest"]
    fail_on_data_loss: bool
    allow_short_replay: bool
    min_partitions: int | None
    max_entries: int | None
    min_entries: int | None
    max_delay: float
    available_now: bool | None
    poll_interval: float
    commit_group: str | None
    fields: tuple[str, ...] | None
    metadata: Mapping[str, str] | None
    reader: Mapping[str, Any]

    @property
    def keeps_raw(self) -> bool:
        """Whether entries that do not fit are kept in the metadata column `raw`."""
        return bool(self.reader["on_bad_field"] == "keep")


def read(given: Mapping[str, str], *, streaming: bool | None) -> ReadSettings:
    """Check the options that Spark passes, with names in lower case. `streaming` is None if that is not known yet.

    Raises:
        ConfigError: An option is unknown, wrong, or contradicts another one.
    """
    _check_names(given, streaming=streaming)
    own = read_options("datasource_read", {name: given[name] for name in DATASOURCE_READ if name in given})
    keys, pattern = _streams(given, own)
    first = keys[0] if keys else pattern or ""
    endpoint = read_endpoint({**given, "stream_key": first})
    if own["find_shards"]:
        _need_stream_key(given, "find_shards")
        endpoint = endpoint.find_shards()
    if endpoint.shards is not None:
        _need_stream_key(given, "shards")
        keys = tuple(key.decode() for key in endpoint.stream_keys)
    usual: Literal["earliest", "latest"] = "latest" if streaming else "earliest"
    start = read_bounds("starting", given.get("starting"), own["starting_timestamp"], usual)
    end = read_bounds("ending", given.get("ending"), own["ending_timestamp"], "latest")
    for bounds in (start, end):
        if keys is not None:
            bounds.check(keys)
    reader = {name: own[name] for name in OF_THE_READER}
    if own["unpack"] is not None:
        reader |= {name: own[name] for name in OF_UNPACK}
    return ReadSettings(
        endpoint=endpoint,
        keys=keys,
        pattern=pattern,
        start=start,
        end=end,
        past_end=own["starting_timestamp_past_end"],
        fail_on_data_loss=own["fail_on_data_loss"],
        allow_short_replay=own["allow_short_replay"],
        min_partitions=own["min_partitions"],
        max_entries=own["max_entries_per_trigger"],
        min_entries=_min_entries(given, own),
        max_delay=own["max_trigger_delay"],
        available_now=own["available_now"],
        poll_interval=own["poll_interval"],
        commit_group=own["commit_group"],
        fields=_names(own["fields"]),
        metadata=_metadata(own["metadata"]) if "metadata" in given else None,
        reader=reader,
    )


def _check_names(given: Mapping[str, str], *, streaming: bool | None) -> None:
    if "path" in given:
        raise ConfigError("load() takes no path: the option stream_key names the stream", option="path")
    refuse_unknown(given, known())
    others = () if streaming is None else OF_BATCH if streaming else OF_STREAMING
    for name in others:
        if name in given:
            kind = "spark.read: a streaming query has no end" if streaming else "spark.readStream"
            raise ConfigError(f"{name} is for {kind}; leave it out", option=name)


def _need_stream_key(given: Mapping[str, str], option: str) -> None:
    if "stream_key" not in given:
        raise ConfigError(f"{option} needs stream_key: the name that the shards have in common", option=option)


def _streams(given: Mapping[str, str], own: Mapping[str, Any]) -> tuple[tuple[str, ...] | None, str | None]:
    named = [name for name in STREAMS if name in given]
    if len(named) != 1:
        got = " and ".join(named) or "none"
        raise ConfigError(f"one of {', '.join(STREAMS)} must name the streams, got {got}", option=(*named, *STREAMS)[0])
    if pattern := own["stream_pattern"]:
        return None, pattern
    keys = (given["stream_key"],) if "stream_key" in given else tuple(own["stream_keys"])
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise ConfigError(f"stream_keys must name each stream once, got {twice!r} twice", option="stream_keys")
    return keys, None


def _min_entries(given: Mapping[str, str], own: Mapping[str, Any]) -> int | None:
    least, most = own["min_entries_per_trigger"], own["max_entries_per_trigger"]
    if least is None and "max_trigger_delay" in given:
        raise ConfigError("max_trigger_delay needs min_entries_per_trigger", option="max_trigger_delay")
    if least is not None and most is not None and most < least:
        text = f"min_entries_per_trigger must not exceed max_entries_per_trigger={most}, got {least}"
        raise ConfigError(text, option="min_entries_per_trigger")
    return None if least is None else int(least)


def _metadata(names: Any) -> dict[str, str]:
    named = _renamed(names) if isinstance(names, str) else {name: name for name in names}
    columns = list(named.values())
    if twice := next((column for column in columns if columns.count(column) > 1), None):
        raise ConfigError(f"metadata must give each column a name of its own, got {twice!r} twice", option="metadata")
    return named


def _renamed(text: str) -> dict[str, str]:
    """Read the names from a JSON object, which has remained text until here."""
    try:
        named = json.loads(text)
    except ValueError:
        named = None
    if not isinstance(named, dict) or not all(isinstance(column, str) and column for column in named.values()):
        allowed = "column names with commas between them, or a JSON object from columns to the names that they get"
        raise ConfigError(f"metadata must be {allowed}, got {text!r}", option="metadata")
    return named


def _names(names: Any) -> tuple[str, ...] | None:
    if names == ["*"] or names == ("*",):
        raise ConfigError(
            "fields must name the fields: Spark needs the columns before it reads, got '*'", option="fields"
        )
    return None if names is None else tuple(names)
