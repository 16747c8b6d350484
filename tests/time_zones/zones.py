"""Timestamps of all time zones: what headrace writes, and what Python's zoneinfo says by the package tzdata."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import redis
import tzdata

from headrace.testing import LocalServer

FOLDER = Path(tzdata.__file__).parent / "zoneinfo"
FIRST, LAST = datetime(1900, 1, 1, tzinfo=UTC), datetime(2201, 1, 1, tzinfo=UTC)
#: Two changes within it, as in Freetown in 1939, may be missed.
STEP = 7 * 86_400
#: The placeholder of IANA for a machine whose zone was not set.
NO_ZONE = "Factory"


def groups() -> Iterator[list[str]]:
    """The names of each table: some zones have several."""
    names = defaultdict(list)
    for path in sorted(FOLDER.rglob("*")):
        if path.is_file() and path.read_bytes()[:4] == b"TZif" and path.name != NO_ZONE:
            names[path.read_bytes()].append(path.relative_to(FOLDER).as_posix())
    return iter(names.values())


def changes(zone: ZoneInfo) -> Iterator[int]:
    """The first second of each offset, since 1970."""

    def offset_at(second: int) -> timedelta | None:
        return datetime.fromtimestamp(second, zone).utcoffset()

    low, last = int(FIRST.timestamp()), int(LAST.timestamp())
    offset = offset_at(low)
    for high in range(low + STEP, last, STEP):
        if (new := offset_at(high)) != offset:
            since = range(high - STEP, high)
            yield since[0] + bisect_left(since, True, key=lambda second: offset_at(second) != offset)
            offset = new


def seconds_of(zone: ZoneInfo) -> list[int]:
    """Both sides of each change, and a second of each half of a year."""
    halves = [datetime(year, month, 3, 4, 5, 6, tzinfo=UTC) for year in range(1900, 2201) for month in (1, 7)]
    return [*(int(half.timestamp()) for half in halves), *(change - by for change in changes(zone) for by in (1, 0))]


def all_zones() -> dict[str, list[int]]:
    """The seconds to write for each name."""
    found = {}
    for first, *others in groups():
        found[first] = seconds_of(zone_of(first))
        found |= dict.fromkeys(others, found[first][::7])
    return found


def zone_of(name: str) -> ZoneInfo:
    with (FOLDER / name).open("rb") as file:
        return ZoneInfo.from_file(file)


def expected(seconds: Sequence[int], zone: ZoneInfo) -> list[str]:
    return [
        datetime.fromtimestamp(second, zone).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        for second in seconds
    ]


def differences(zones: dict[str, list[int]], written: dict[str, list[str]]) -> dict[str, tuple[str, str]]:
    """The names that differ, each with the first text that is written and the one that is expected."""
    found = {}
    for name, seconds in zones.items():
        pairs = zip(written[name], expected(seconds, zone_of(name)), strict=True)
        if different := next((pair for pair in pairs if pair[0] != pair[1]), None):
            found[name] = different
    return found


def write(
    zones: dict[str, list[int]], server: LocalServer, folder: Path
) -> tuple[dict[str, list[str]], tuple[str, str]]:
    """What headrace writes in a process with this zone folder; the release that it uses, and where that is."""
    command = [sys.executable, str(Path(__file__).with_name("writer.py")), str(server.unix_socket)]
    environment = {**os.environ, "TZDIR": str(folder)}
    ended = subprocess.run(
        command, env=environment, input=json.dumps(zones), capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    release, used = ended.stdout.splitlines()
    with redis.Redis(unix_socket_path=str(server.unix_socket)) as client:
        entries = cast("Any", client.xrange("s"))
    texts = [json.loads(fields[b"payload"])["texts"] for _, fields in entries]
    return dict(zip(zones, texts, strict=True)), (release, used)
