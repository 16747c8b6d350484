"""The examples that are killed: how each is started, what it has stored, and what it was doing when it was killed."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any, Protocol

import redis

from headrace.testing import LocalServer
from support.paths import ROOT

EXAMPLES = ROOT / "examples"
SOURCE, TARGET = "order-events", "copied-orders"


class Handoff(Protocol):
    """An example that copies the stream `SOURCE`, whose entries are numbered in the field `payload`: 0, 1, 2, …"""

    #: The command that continues an earlier run and copies all existing entries.
    command: list[str]

    def __init__(self, server: LocalServer, client: redis.Redis, folder: Path) -> None: ...

    def count(self) -> int:
        """How many entries are stored."""

    def stored(self) -> list[str]:
        """The payloads of all stored entries, in order."""

    def moment(self) -> str:
        """What a process was doing when it was killed, judging by what it left behind."""


class ToSqlite:
    """`examples/to_sqlite.py`: stores the position in the same transaction as the rows."""

    def __init__(self, server: LocalServer, client: redis.Redis, folder: Path) -> None:  # noqa: ARG002
        self._path = folder / "shop.db"
        self.command = [sys.executable, str(EXAMPLES / "to_sqlite.py"), str(self._path), "--url", server.url]

    def count(self) -> int:
        return int(self._rows("SELECT count(*) FROM orders")[0][0]) if self._path.exists() else 0

    def stored(self) -> list[str]:
        return [payload for (payload,) in self._rows("SELECT payload FROM orders ORDER BY rowid")]

    def moment(self) -> str:
        # SQLite deletes it at the end of a transaction; if it exists, the next opening of the database rolls back.
        journal = self._path.with_name(self._path.name + "-journal")
        return "in a transaction" if journal.exists() else "between two transactions"

    def _rows(self, query: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self._path, timeout=60)) as database:
            return database.execute(query).fetchall()


class Pipe:
    """`examples/pipe.py`: stores each range in a file before sending it."""

    def __init__(self, server: LocalServer, client: redis.Redis, folder: Path) -> None:
        self._client = client
        self._path = folder / "pipe.json"
        self.command = [sys.executable, str(EXAMPLES / "pipe.py"), str(self._path), "--source", server.url]

    def count(self) -> int:
        return int(self._client.xlen(TARGET))

    def stored(self) -> list[str]:
        return payloads(self._client, TARGET)

    def moment(self) -> str:
        if not self._path.exists():
            return "before the first range"
        state = json.loads(self._path.read_text())
        if state["last_id"] is None:
            return "between two ranges"
        written = self.count() - self._behind(state["position"])
        if written == 0:
            return "range saved, nothing sent"
        return "range sent in part" if written < state["rows"] else "range sent, not confirmed in the file"

    def _behind(self, position: str) -> int:
        """The number of entries before a position."""
        if position == "earliest":
            return 0
        last = json.loads(position)["streams"][SOURCE]["id"]
        entries: Any = self._client.xrange(SOURCE, last, last)
        return int(entries[0][1][b"payload"]) + 1


HANDOFFS: dict[str, type[Handoff]] = {"to_sqlite": ToSqlite, "pipe": Pipe}


def payloads(client: redis.Redis, key: str) -> list[str]:
    """The payloads of all entries in a stream."""
    entries: Any = client.xrange(key)
    return [fields[b"payload"].decode() for _, fields in entries]
