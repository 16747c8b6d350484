"""The programs that read: each is the loop of a process that may be killed at any step.

A kind of client is a function that reads until it is asked to stop, and then until nothing is left. To add one, write
the loop and enter it in `CLIENTS`.
"""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import redis

from headrace import AsyncReader, Reader, RetryPolicy
from headrace.errors import (
    CommandError,
    ConnectionFailedError,
    DataLossError,
    StreamReplacedError,
)
from support.on_a_loop import OnALoop

from .client_base import GROUP, Config, Control, Ended, Loop, failed, pairs_of
from .consumer_client import consume
from .journal import Acked, Done, Doubted, Failed, Handed, Journal, Opened, Replaced, Row, digest


def run(config: Config, control: Control) -> None:
    """Read until everything was read and the control says that no more entries will come."""
    journal = Journal(config.journal)
    try:
        CLIENTS[config.client].loop(config, journal, control)
    except Ended:
        pass
    except Exception as error:
        journal.add(Failed(repr(error), expected=False))
        raise
    finally:
        journal.close()


# headrace.Reader, and headrace.AsyncReader.


def _read_by_position(config: Config, journal: Journal, control: Control) -> None:
    rng = random.Random(config.seed)
    while True:
        # All readers of a process start at the position of the last transaction, as a restarted process does.
        _read_on(config, journal, control, rng)


def _read_on(config: Config, journal: Journal, control: Control, rng: random.Random) -> None:
    position = journal.position or json.dumps({"v": 1, "streams": {key: {"id": "0-0", "n": 0} for key in config.keys}})
    is_last = control.is_last()
    options: dict[str, Any] = {
        "batch_rows": rng.choice([1, 7, 100, 8_192]),
        "batch_bytes": rng.choice([1_000, 16 << 20]),
        "page_bytes": rng.choice([1, 3_000, 100_000, 1 << 20]),
        "block": rng.choice([0.01, 0.05, 1.0]),
        "linger": rng.choice([0.0, 0.002, 0.005]),
        "on_loss": rng.choice(["report", "fail"]),
        "retry": rng.choice([None, RetryPolicy(max_attempts=1), RetryPolicy(deadline=1.0, max_backoff=0.05)]),
        "fields_as": rng.choice(["map", "list"]),
        "names": "binary",
        "end": "latest" if is_last else None,
    }
    control.step("begin")
    try:
        with _reader(config, rng, start=position, **options) as reader:
            journal.add(Opened())
            seen = 0
            while True:
                control.step("read")
                if control.is_last() and not is_last:
                    return
                try:
                    lost = _next_batch(reader, journal, control)
                except (ConnectionFailedError, CommandError) as error:
                    failed(journal, error)
                    if rng.random() < 0.3:
                        return
                else:
                    seen += lost or 0
                    if lost is None and is_last and reader.is_finished:
                        # Entries trimmed after the last one that was read are reported by no batch.
                        journal.add(Done((), reader.position, reader.lost - seen, reader.is_lost_exact))
                        raise Ended
    except StreamReplacedError as error:
        key = error.stream.decode()
        places = json.loads(journal.position or position)
        places["streams"][key] = {"id": "0-0", "n": 0}
        journal.add(Replaced(key, json.dumps(places)))
    except (ConnectionFailedError, CommandError) as error:
        failed(journal, error)


def _reader(config: Config, rng: random.Random, **options: Any) -> Any:
    if config.client == "async-reader":
        return OnALoop(AsyncReader(config.endpoint(), config.keys, **options), rng)
    return Reader(config.endpoint(), config.keys, **options)


def _next_batch(reader: Any, journal: Journal, control: Control) -> int | None:
    """Read and process one batch; returns the loss that was reported with it, or None without a batch."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            batch = reader.read(timeout=0.05)
        except DataLossError as error:
            journal.add(Done((), error.position, error.lost, error.exact))
            return error.lost
        finally:
            if warned:
                journal.add(Doubted())
    if batch is None:
        return None
    control.step("processed")
    table = pa.record_batch(batch).to_pydict()
    rows = tuple(
        (stream, entry_id, digest(pairs_of(fields)))
        for stream, entry_id, fields in zip(table["stream"], table["entry_id"], table["fields"], strict=True)
    )
    lost: int = batch.lost
    journal.add(Done(rows, batch.position, lost, batch.is_lost_exact))
    control.step("committed")
    return lost


# redis-py.


def _redis_py(config: Config, journal: Journal, control: Control) -> None:
    """XREAD from the last IDs, which are stored in the transaction of the rows."""
    rng = random.Random(config.seed)
    client = config.redis_py()
    last = json.loads(journal.position or json.dumps(dict.fromkeys(config.keys, "0-0")))
    count = rng.choice([1, 10, 100, 1_000])
    journal.add(Opened())
    try:
        while True:
            control.step("read")
            is_last = control.is_last()
            try:
                reply = client.xread(last, count=count, block=None if is_last else 50)
            except redis.RedisError as error:
                failed(journal, error)
                continue
            if not reply:
                if is_last:
                    raise Ended
                continue
            control.step("processed")
            rows = _rows(reply)
            last |= {key: entry_id for key, entry_id, _ in rows}
            journal.add(Done(rows, json.dumps(last)))
            control.step("committed")
    finally:
        client.close()


def _redis_py_group(config: Config, journal: Journal, control: Control) -> None:
    """XREADGROUP of new entries, XACK, then the transaction: never looks at pending entries."""
    client = config.redis_py()
    streams: Any = dict.fromkeys(config.keys, ">")

    def create() -> None:
        for key in config.keys:
            try:
                client.xgroup_create(key, GROUP, "0", mkstream=True)
            except redis.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise

    def read(count: int, block: int | None) -> Any:
        return client.xreadgroup(GROUP, config.consumer, streams, count=count, block=block)

    calls = _GroupCalls(create, read, lambda key, ids: client.xack(key, GROUP, *ids))
    try:
        _read_group(config, journal, control, calls, acks_first=True)
    finally:
        client.close()


def _walrus(config: Config, journal: Journal, control: Control) -> None:
    """A `consumer_group` of walrus: read, the transaction, ack. Pending entries come only if the program asks."""
    from walrus import Database  # only the campaign has it

    client = Database(**config.redis_py_options())
    group = client.consumer_group(GROUP, dict.fromkeys(config.keys, "0"), consumer=config.consumer)
    calls = _GroupCalls(
        lambda: group.create(ensure_keys_exist=False, mkstream=True),
        lambda count, block: group.read(count=count, block=block),
        lambda key, ids: group.streams[key].ack(*ids),
    )
    try:
        _read_group(config, journal, control, calls, acks_first=False)
    finally:
        client.close()


@dataclass(frozen=True)
class _GroupCalls:
    """The calls of a client that create the groups, read up to a number of entries, and acknowledge some of them."""

    create: Callable[[], object]
    read: Callable[[int, int | None], Any]
    ack: Callable[[str, list[bytes]], object]


def _read_group(config: Config, journal: Journal, control: Control, calls: _GroupCalls, *, acks_first: bool) -> None:
    rng = random.Random(config.seed)
    count = rng.choice([1, 10, 100, 1_000])
    has_groups = False
    journal.add(Opened())
    while True:
        control.step("read")
        is_last = control.is_last()
        try:
            if not has_groups:
                calls.create()
                has_groups = True
            reply = calls.read(count, None if is_last else 50)
        except redis.RedisError as error:
            failed(journal, error)
            has_groups &= "NOGROUP" not in str(error)
            continue
        if not reply:
            if is_last:
                raise Ended
            continue
        rows = _rows(reply)
        ids = tuple((key, entry_id) for key, entry_id, _ in rows)
        journal.add(Handed(ids))
        control.step("handed out")
        if not acks_first:
            journal.add(Done(rows))
            control.step("committed")
        journal.add(Acked(ids))
        try:
            for key, entries in reply:
                calls.ack(key.decode(), [entry_id for entry_id, _ in entries])
        except redis.RedisError as error:
            failed(journal, error)
        control.step("acknowledged")
        if acks_first:
            journal.add(Done(rows))
            control.step("committed")


def _rows(reply: Any) -> tuple[Row, ...]:
    return tuple(
        (key.decode(), entry_id.decode(), digest(fields.items()))
        for key, entries in reply
        for entry_id, fields in entries
    )


@dataclass(frozen=True)
class Client:
    """A kind of client."""

    name: str
    loop: Loop
    #: Whether it is a client of headrace, and so must do nothing wrong.
    ours: bool
    #: Whether it reads in a consumer group.
    group: bool = False
    #: How many consumers of a group read at the same time, each in its own process.
    processes: int = 1


CLIENTS: dict[str, Client] = {
    client.name: client
    for client in (
        Client("reader", _read_by_position, ours=True),
        Client("async-reader", _read_by_position, ours=True),
        Client("consumer", consume, ours=True, group=True),
        Client("consumers", consume, ours=True, group=True, processes=3),
        Client("async-consumers", consume, ours=True, group=True, processes=3),
        Client("redis-py", _redis_py, ours=False),
        Client("redis-py-group", _redis_py_group, ours=False, group=True),
        Client("walrus", _walrus, ours=False, group=True),
    )
}
