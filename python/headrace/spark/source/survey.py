"""The driver's view of the server, or of the nodes of a cluster, over connections that stay open."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import pyarrow as pa

from headrace import _headrace
from headrace._headrace import StreamInfo
from headrace.errors import ConfigError
from headrace.inspection import inspect
from headrace.spark.source.entry_ids import Id
from headrace.spark.source.options import ReadSettings
from headrace.spark.source.place import GroupState, Place

__all__ = ["Survey"]

logger = logging.getLogger("headrace.spark")


class Survey:
    """Looks at streams, and changes nothing."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._native = _headrace.Survey(settings.endpoint)
        #: The streams of which a warning says that they do not exist.
        self._missing: set[str] = set()

    def keys(self) -> tuple[str, ...]:
        """Return the keys of the streams: as they were given, or those that currently match the pattern.

        Raises:
            ConfigError: No stream matches the pattern, too many do, or the key of one is not UTF-8.
        """
        settings = self._settings
        if settings.keys is not None:
            return settings.keys
        found = inspect(settings.endpoint, settings.pattern, groups=False)
        if found.truncated:
            text = f"stream_pattern={settings.pattern!r} matches more than 10,000 streams"
            raise ConfigError(text, option="stream_pattern")
        keys = tuple(sorted(_key(shown) for shown in pa.table(found.streams)["key"].to_pylist()))
        if not keys:
            text = f"stream_pattern={settings.pattern!r} matches no stream"
            raise ConfigError(text, option="stream_pattern")
        settings.start.check(keys)
        settings.end.check(keys)
        return keys

    def streams(self, keys: Sequence[str], *, warns: bool = False) -> dict[str, StreamInfo]:
        """Return what the server says about each stream. One round trip to each server.

        With `warns`, the first time that a stream does not exist is logged: a misspelt key looks like an empty stream.
        """
        infos = dict(zip(keys, self._native.streams([key.encode() for key in keys]), strict=True))
        if warns:
            self._warn([key for key, info in infos.items() if info.is_missing], keys)
        return infos

    def groups(self, keys: Sequence[str], name: str) -> dict[str, GroupState | None]:
        """Return each existing stream's group of this name, or None. One round trip to each server."""
        asked = self._native.groups([key.encode() for key in keys])
        found: dict[str, GroupState | None] = {}
        for key, (info, groups) in zip(keys, asked, strict=True):
            if not info.is_missing:
                found[key] = None
            for group in groups:
                if group.name == name.encode():
                    place = Place(group.last_delivered, group.entries_read)
                    found[key] = GroupState(group.consumers, group.pending, place)
        return found

    def first_ids(self, ranges: Iterable[tuple[str, Id, Id]]) -> list[Id | None]:
        """Return the first entry of each range of a stream, both ends included. One round trip to each server."""
        return self._native.first_ids([(key.encode(), first, last) for key, first, last in ranges])

    def _warn(self, missing: Sequence[str], keys: Sequence[str]) -> None:
        endpoint = self._settings.endpoint
        if endpoint.shards is not None and len(missing) < len(keys):
            return  # shards without messages
        for key in missing:
            if key not in self._missing:
                self._missing.add(key)
                text = (
                    "the stream does not exist, and counts as empty: %s; check stream_key, or stream_keys for several"
                )
                logger.warning(text, endpoint._with_stream_key(key))

    def close(self) -> None:
        """Close the connections."""
        self._native.close()


def _key(shown: str) -> str:
    """Restore a key that `inspect` shows with an escape for each byte that is not UTF-8, and doubled backslashes."""
    key = shown.replace("\\\\", "\0")
    if "\\" in key:
        text = f"stream_pattern matches the key '{shown}', which is not UTF-8: Spark's checkpoint holds text"
        raise ConfigError(text, option="stream_pattern")
    return key.replace("\0", "\\")
