"""Members of a group that share streams, and what they returned."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from headrace import Endpoint, ShardBatch, ShardConsumer, ShardReport
from headrace.testing import LocalServer
from support.groups import GROUP, Client
from support.patience import NEVER, PATIENCE
from support.pipelines import endpoint_to
from support.processes import wait_until

#: The stream key of `sharded`.
ORDERS = "orders"

#: A lease that ends while a test waits for it. Only members that are to lose their streams have it.
SHORT = 0.5


def sharded(server: LocalServer, shards: int, **options: Any) -> Endpoint:
    """The endpoint of the stream `orders`, which has shards."""
    return endpoint_to(server, stream_key=ORDERS, shards=shards, **options)


def member_of(
    where: LocalServer | Endpoint, name: str | bytes = "a", streams: Iterable[str | bytes] | None = None, **options: Any
) -> ShardConsumer:
    """A member of the group `GROUP`, which keeps its streams however busy the machine is."""
    endpoint = where if isinstance(where, Endpoint) else endpoint_to(where)
    given = {"group": GROUP, "member": name, "linger": 0.0, "lease": NEVER, **options}
    return ShardConsumer(endpoint, streams, **given)


def next_batch(consumer: ShardConsumer) -> ShardBatch:
    """The next batch, which must come."""
    batch = consumer.poll(PATIENCE)
    assert batch is not None, "no batch came"
    return batch


def ids_of(batch: ShardBatch) -> list[str]:
    return [entry.id for entry in batch]


def take(consumer: ShardConsumer, count: int, *, commit: bool = True) -> dict[str, list[str]]:
    """The IDs of the next `count` entries, which must come, by stream, in the order in which they came."""
    found: dict[str, list[str]] = defaultdict(list)
    left = count
    while left > 0:
        batch = next_batch(consumer)
        found[batch.stream.decode("utf-8", "backslashreplace")] += ids_of(batch)
        left -= len(batch)
        if commit:
            consumer.commit(batch)
    assert left == 0, f"{-left} entries more than expected"
    return dict(found)


def wait_for_shares(members: Sequence[ShardConsumer], shares: Sequence[int]) -> list[list[bytes]]:
    """Wait until the members own as many streams as said, and return these."""
    wait_until(lambda: [len(member.assignment) for member in members] == list(shares))
    owned = [member.assignment for member in members]
    keys = [key for assignment in owned for key in assignment]
    assert len(set(keys)) == len(keys), "a stream has two owners"
    return owned


def lease_key(stream: str | bytes, group: str = GROUP) -> bytes:
    """The key of a lease, as docs/shards.md has it; for a stream key without braces."""
    stream = stream.encode() if isinstance(stream, str) else stream
    return b"{%s}:lease:%s" % (stream, group.encode())


def lease_of(client: Client, stream: str | bytes) -> dict[str, str]:
    """The fields of a lease."""
    return {name.decode(): value.decode() for name, value in client.hgetall(lease_key(stream)).items()}


def now(client: Client) -> int:
    """The time of the server, in milliseconds."""
    seconds, micros = client.time()
    return int(seconds * 1_000 + micros // 1_000)


class Work:
    """Members that work in threads: each notes what it gets, and commits it."""

    def __init__(self, note: Callable[[ShardBatch], object] | None = None) -> None:
        self.note = note
        """What to do with each batch before its commit."""
        self.noted: dict[bytes, list[str]] = defaultdict(list)
        """The IDs of each stream, in the order in which any member noted them."""
        self.members: dict[str, ShardConsumer] = {}
        self.reports: list[ShardReport] = []
        """Of those that left."""
        self._lock = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}
        self._failures: list[BaseException] = []

    def join(self, name: str, member: ShardConsumer) -> None:
        self.members[name] = member
        self._threads[name] = threading.Thread(target=self._run, args=(member,), name=name)
        self._threads[name].start()

    def leave(self, name: str) -> None:
        """Stop a member between two batches, and close it."""
        member = self.members.pop(name)
        member.stop()
        self._threads.pop(name).join()
        self.reports.append(member.close())

    def wait_for(self, count: int) -> None:
        """Wait until this many entries were noted."""
        wait_until(lambda: self._failures or sum(map(len, self.noted.values())) >= count)
        assert self._failures == []

    def _run(self, member: ShardConsumer) -> None:
        try:
            for batch in member:
                with self._lock:
                    self.noted[batch.stream] += ids_of(batch)
                if self.note is not None:
                    self.note(batch)
                member.commit(batch)
        except BaseException as failure:
            self._failures.append(failure)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for name in list(self.members):
            self.leave(name)
        if exc is None:
            assert self._failures == []
