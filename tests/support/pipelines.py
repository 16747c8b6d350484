"""Messages for a real server, and the check of their outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow
import redis

from headrace import DeliveryReport, Dispatcher, Endpoint
from headrace.testing import LocalServer

#: The stream key of `endpoint_to`.
KEY = "events"
#: The label of a message that was delivered.
DELIVERED = (None, None, None)


def endpoint_to(server: LocalServer, **options: Any) -> Endpoint:
    """The endpoint of a server with its own transport; TLS also needs `tls_ca_cert=`."""
    if server.port is None:
        where: dict[str, Any] = {"unix_socket": server.unix_socket}
    else:
        where = {"host": server.host, "port": server.port, "tls": server.url.startswith("rediss:")}
    return Endpoint(**{"stream_key": KEY, **where, **options})


def payloads_of(start: int, count: int, size: int = 1_000) -> list[bytes]:
    """Payloads of `size` bytes after their number, which counts up from `start`."""
    return [b"%d-" % number + b"x" * size for number in range(start, start + count)]


def batch_of(payloads: Sequence[bytes]) -> pyarrow.RecordBatch:
    """A record batch with a message per payload."""
    return pyarrow.record_batch({"payload": pyarrow.array(payloads, pyarrow.binary())})


def produce_all(dispatcher: Dispatcher, payloads: Iterable[bytes]) -> None:
    for payload in payloads:
        dispatcher.produce(payload)


@dataclass(frozen=True)
class Outcome:
    """One row of `DeliveryReport.to_arrow`."""

    message_id: str
    entry_id: str | None
    kind: str | None
    code: str | None
    message: str | None
    written: str | None

    @property
    def label(self) -> tuple[str | None, str | None, str | None]:
        """Kind, code and written: all None if the message was delivered."""
        return self.kind, self.code, self.written


def outcomes(*reports: DeliveryReport) -> list[Outcome]:
    """The outcomes of these reports, in order."""
    return [Outcome(**row) for report in reports for row in pyarrow.table(report.to_arrow()).to_pylist()]


def labels(*reports: DeliveryReport) -> list[tuple[str | None, str | None, str | None]]:
    """Kind, code and written of every message."""
    return [outcome.label for outcome in outcomes(*reports)]


def connections(client: redis.Redis) -> set[str]:
    """The IDs of the connections that dispatchers have to a server."""
    return {line["id"] for line in cast("Any", client.client_list()) if line["name"] == "headrace"}


def stored(client: redis.Redis, key: str | bytes = KEY) -> list[tuple[str, bytes]]:
    """The entry ID and the payload of each entry in a stream, in order; empty if there is no stream."""
    if client.type(key) != b"stream":
        return []
    return [(entry.decode(), fields[b"payload"]) for entry, fields in cast("Any", client.xrange(key))]


def check_accounting(
    client: redis.Redis, sent: Sequence[tuple[str, bytes]], reported: Iterable[Outcome], *, overtaking: bool = False
) -> None:
    """Check the outcomes against the stored entries.

    `sent` has the stream key and the payload of each message; all payloads differ, and nothing else was written to
    these streams. Each message must have one outcome. Each delivered message is stored under its entry ID with its
    payload, in order (with `overtaking` in any order, because an error reply refused some for a while). A deduplicated
    message is stored; one that was not written is not; one whose outcome is unknown is stored at most once. Nothing
    else is stored.
    """
    reported = list(reported)
    assert len(reported) == len(sent)
    assert len({payload for _, payload in sent}) == len(sent)
    for key in {key for key, _ in sent}:
        mine = [(outcome, payload) for outcome, (at, payload) in zip(reported, sent, strict=True) if at == key]
        present = stored(client, key)
        assert len({payload for _, payload in present}) == len(present), "an entry is stored twice"
        delivered = [(outcome.entry_id, payload) for outcome, payload in mine if outcome.entry_id is not None]
        expected = set(delivered)
        here = [entry for entry in present if entry in expected]
        assert (sorted(here) == sorted(delivered)) if overtaking else (here == delivered)
        others = {payload for entry, payload in present if (entry, payload) not in expected}
        deduplicated = {payload for outcome, payload in mine if outcome.entry_id is None and outcome.kind is None}
        assert deduplicated <= others
        assert others <= deduplicated | {payload for outcome, payload in mine if outcome.written == "unknown"}
