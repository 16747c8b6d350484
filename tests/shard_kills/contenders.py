"""What people use in the place of a `ShardConsumer`. Each writes its rows into the log alone."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import redis
from redis.exceptions import LockError

from headrace import Consumer
from headrace.errors import HeadraceError

from .member import GROUP, Setting, rows_of
from .sink import Sink

#: Entries of a batch.
BATCH = 50


class Contender:
    """A member that is not a `ShardConsumer`."""

    def __init__(self, setting: Setting, name: str, seed: str, sink: Sink) -> None:
        self.setting = setting
        self.name = name
        self.sink = sink
        self.dice = random.Random(seed)
        self.ends = False
        signal.signal(signal.SIGTERM, self.end)
        self.streams = [key.decode() for key in setting.endpoint.stream_keys]

    def end(self, *_: object) -> None:
        self.ends = True

    def run(self) -> None:
        raise NotImplementedError

    def process(self, stream: str, found: list[tuple[str, bytes]], epoch: int) -> None:
        time.sleep(self.dice.random() * self.setting.work)
        self.sink.note(rows_of(stream, found, epoch, self.name))

    def client(self) -> Any:
        servers = self.setting.servers
        return redis.Redis(servers["host"], servers["port"], protocol=2, decode_responses=True)


class Consumers(Contender):
    """A `Consumer` of headrace, which hands entries of a stream to any member."""

    def run(self) -> None:
        setting = self.setting
        with Consumer(setting.endpoint, group=GROUP, consumer=self.name, min_idle=setting.lease) as consumer:
            self._consumer = consumer
            while not self.ends:
                with contextlib.suppress(HeadraceError):
                    if (batch := consumer.poll(0.2)) is not None:
                        found = [(each.id, each["payload"]) for each in batch]
                        self.process(batch.stream.decode(), found, 0)
                        consumer.ack(batch)


class Locks(Contender):
    """A lock of redis-py for each stream, XREAD, and the position in a key."""

    def run(self) -> None:
        client = self.client()
        while not self.ends:
            self.dice.shuffle(self.streams)
            try:
                is_idle = not [stream for stream in self.streams if self._turn(client, stream)]
            except (redis.RedisError, OSError):
                is_idle = True
            if is_idle:
                time.sleep(0.01)

    def _turn(self, client: Any, stream: str) -> bool:
        lock = client.lock(f"lock:{stream}", timeout=self.setting.lease, blocking=False)
        if not lock.acquire():
            return False
        try:
            epoch = time.time_ns()
            after = client.get(f"position:{stream}") or "0"
            found = [entry for _, each in client.xread({stream: after}, count=BATCH) for entry in each]
            if found:
                self.process(stream, [(each, fields["payload"].encode()) for each, fields in found], epoch)
                client.set(f"position:{stream}", found[-1][0])
        finally:
            with contextlib.suppress(LockError):
                lock.release()
        return bool(found)


TAKE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local epoch = redis.call('HINCRBY', KEYS[1], 'epoch', 1)
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'until', now + ARGV[2])
return {epoch, redis.call('HGET', KEYS[1], 'position') or '0'}
"""
KEEP = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'until', now + ARGV[2])
if ARGV[3] then redis.call('HSET', KEYS[1], 'position', ARGV[3]) end
return 1
"""


class Thieves(Contender):
    """As KCL does: who has less than its share takes a lease from who has most, and waits for nothing.

    The commit is fenced by the lease's counter, so that positions are right. What the old owner has in hand, it goes on
    to process.
    """

    def run(self) -> None:
        client = self.client()
        self._take, self._keep = client.register_script(TAKE), client.register_script(KEEP)
        owned: dict[str, list[Any]] = {}
        looked = 0.0
        while not self.ends:
            try:
                if time.monotonic() - looked > self.setting.lease / 4:
                    looked = time.monotonic()
                    self._look(client, owned)
                if not self._turn(client, owned):
                    time.sleep(0.01)
            except (redis.RedisError, OSError):
                time.sleep(0.02)
        with contextlib.suppress(redis.RedisError, OSError):
            client.zrem("members", self.name)

    def _look(self, client: Any, owned: dict[str, list[Any]]) -> None:
        lease = round(self.setting.lease * 1000)
        seconds, micros = client.time()
        now = seconds * 1000 + micros // 1000
        client.zadd("members", {self.name: now + lease})
        client.zremrangebyscore("members", "-inf", now)
        members = client.zrange("members", 0, -1)
        for stream in list(owned):
            if not self._keep(keys=[f"lease:{stream}"], args=[owned[stream][0], lease]):
                del owned[stream]
        leases = {stream: client.hmget(f"lease:{stream}", "owner", "until") for stream in self.streams}
        share = len(self.streams) // len(members)
        counts = {member: sum(owner == member for owner, _ in leases.values()) for member in members}
        free = [stream for stream, (_, until) in leases.items() if int(until or 0) < now]
        while len(owned) <= share:
            if free:
                stream = free.pop(self.dice.randrange(len(free)))
            else:
                most = max(counts, key=lambda member: counts[member])
                theirs = [stream for stream, (owner, _) in leases.items() if owner == most and stream not in owned]
                if len(owned) >= share or counts[most] <= share or most == self.name or not theirs:
                    return
                stream = self.dice.choice(theirs)
                counts[most] -= 1
            owned[stream] = self._take(keys=[f"lease:{stream}"], args=[self.name, lease])
            leases[stream] = [self.name, now + lease]

    def _turn(self, client: Any, owned: dict[str, list[Any]]) -> bool:
        if not owned:
            return False
        found = client.xread({stream: position for stream, (_, position) in owned.items()}, count=BATCH)
        for stream, entries in found:
            epoch = owned[stream][0]
            self.process(stream, [(each, fields["payload"].encode()) for each, fields in entries], epoch)
            last, lease = entries[-1][0], round(self.setting.lease * 1000)
            if self._keep(keys=[f"lease:{stream}"], args=[epoch, lease, last]):
                owned[stream][1] = last
            else:
                del owned[stream]
        return bool(found)


CONTENDERS: dict[str, Callable[[Setting, str, str, Sink], Contender]] = {
    "consumers": Consumers,
    "locks": Locks,
    "thieves": Thieves,
}
