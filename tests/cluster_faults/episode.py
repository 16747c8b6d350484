"""One dispatcher with some faults, and what is wrong with the outcomes that it reported."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import redis

from headrace import Dispatcher, RetryPolicy
from headrace.testing import LocalServer
from support.clusters import endpoint_of, rows_of, wait_until_whole
from support.load import BATCH, Load
from support.processes import wait_until
from support.shards import key_of

from .faults import FAILOVERS, FAULTS, LATE, LOSSY, UNPLANNED
from .proxied import ProxiedCluster
from .redis_py import RedisPy
from .redis_rs import RedisRs

DEADLINE = 60.0
COMMAND_TIMEOUT = 3.0
#: Beyond both, for a machine that is busy.
SLACK = 5.0
PATIENT = RetryPolicy(initial_backoff=0.01, max_backoff=0.1, deadline=DEADLINE)
CONFIRMED: dict[str, Any] = {"wait_replicas": 1, "wait_timeout": 3.0, "wait_every": 50}

#: Those with "streams" write to several streams of all nodes, those with "one slot" to several streams of a slot, those
#: with "shards" to the shards of one stream.
#: The faults happen to the first of them. Those with "tls" need a cluster that speaks it.
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "policy": {"retry": PATIENT},
    "wait": {"retry": PATIENT, **CONFIRMED},
    "script": {"retry": PATIENT, "exactly_once": "script"},
    "script, wait": {"retry": PATIENT, "exactly_once": "script", **CONFIRMED},
    "idmp": {"retry": PATIENT, "exactly_once": "idmp"},
    "streams": {},
    "streams, policy": {"retry": PATIENT},
    "streams, wait": {"retry": PATIENT, **CONFIRMED},
    "streams, script": {"retry": PATIENT, "exactly_once": "script"},
    "one slot": {},
    "one slot, policy": {"retry": PATIENT},
    "one slot, wait": {"retry": PATIENT, **CONFIRMED},
    "one slot, script": {"retry": PATIENT, "exactly_once": "script"},
    "shards, policy": {"retry": PATIENT},
    "shards, script": {"retry": PATIENT, "exactly_once": "script"},
    "tls": {},
    "tls, script": {"retry": PATIENT, "exactly_once": "script"},
    "tls, streams, wait": {"retry": PATIENT, **CONFIRMED},
    "tls, shards, policy": {"retry": PATIENT},
}

#: The cluster pipelines of other clients, beside them: what goes wrong with them is counted.
CONTENDERS: dict[str, Callable[[ProxiedCluster, str], Any]] = {
    "redis-py": RedisPy,
    "redis-py, streams": RedisPy,
    "redis-rs": RedisRs,
    "redis-rs, streams": RedisRs,
}

#: How many streams or shards there are where there are several.
STREAMS = 7

#: The name of the dispatcher's connections.
NAME = "headrace"


@dataclass
class Verdict:
    """What became of the rows of an episode."""

    mode: str
    faults: list[str] = field(default_factory=list)
    rows: int = 0
    redirects: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    #: Rows that are there more than once.
    duplicates: int = 0
    #: Acknowledged and not there.
    lost: int = 0
    #: Written behind later rows.
    reordered: int = 0
    #: Seconds of the longest flush.
    longest: float = 0.0
    #: What the faults do not explain.
    wrong: list[str] = field(default_factory=list)


def run(cluster: ProxiedCluster, mode: str, seed: int, key: str, most: int = 3) -> Verdict:
    """Write at a rate, let some faults happen, and look at each row."""
    chance = random.Random(seed)
    verdict = Verdict(mode)
    options = MODES.get(mode, {})
    shards = {"shards": STREAMS} if "shards" in mode else {}
    endpoint = endpoint_of(cluster, key, command_timeout=COMMAND_TIMEOUT, **cluster.options, **shards)
    masters = {server.port for server in _masters(cluster)}
    sender = CONTENDERS[mode](cluster, key) if mode in CONTENDERS else Dispatcher(endpoint, **options)
    with sender as dispatcher, ThreadPoolExecutor() as pool:
        keys = _streams(mode, key)
        rate = chance.choice([5_000, 20_000, 50_000])
        load = Load(dispatcher, rate, keys)
        if shards:
            keys = [f"{key}:{number}" for number in range(STREAMS)]
            load = Load(dispatcher, rate, [key_of(number, STREAMS) for number in range(STREAMS)], "shard_key")
        running = pool.submit(load.run)
        try:
            wait_until(lambda: load.rows > 0 or running.done(), 40)
            if shards:
                # What says how many shards there are must not be lost with the rows of a failover.
                wait_until(lambda: _has_replica(cluster, f"{{{key}}}:shards"), 40)
            for _ in range(chance.randint(1, most)):
                time.sleep(chance.uniform(0.0, 0.2))
                name = chance.choice(list(FAULTS))
                FAULTS[name](cluster, keys[0] if shards else key, chance)
                verdict.faults.append(name)
            before = load.rows
            wait_until(lambda: load.rows >= before + 2 * BATCH or running.done(), 60)
        finally:
            load.stop()
            running.result()
        wait_until_whole(cluster)
        if isinstance(dispatcher, Dispatcher) and "exactly_once" in options:
            dispatcher.begin(f"{key} {seed}")
        last = load.rows
        load.produce(range(last, last + 10 * STREAMS))
        report = dispatcher.flush()
        if not report.ok:
            verdict.wrong.append(f"not delivered once all was over: {report.failed[0].code}")
        if isinstance(dispatcher, Dispatcher):
            verdict.redirects = dispatcher.stats().redirects
            if (open_there := max(_connections(cluster))) > 1:
                verdict.wrong.append(f"a node has {open_there} connections")
    if {server.port for server in _masters(cluster)} != masters and not FAILOVERS & set(verdict.faults):
        verdict.faults.append(UNPLANNED)
    acknowledged = load.acknowledged | set(range(last, last + report.delivered))
    judge(verdict, [rows_of(cluster, one) for one in keys or [key]], acknowledged, load.unknown)
    verdict.rows, verdict.codes, verdict.longest = load.rows, load.codes, load.longest
    if load.longest > DEADLINE + COMMAND_TIMEOUT + SLACK:
        verdict.wrong.append(f"outcomes came after {load.longest:.1f} s")
    if "script" in mode and verdict.lost and "MARKER_LOST" not in load.codes:
        verdict.wrong.append(f"{verdict.lost} acknowledged rows are not there, and no marker was missed")
    for server in _masters(cluster):
        with redis.Redis(unix_socket_path=server.unix_socket) as client:
            client.flushall()
    return verdict


def _streams(mode: str, key: str) -> list[str]:
    """The streams that the rows name in this mode. Empty: they name none, and go to that of the endpoint."""
    if "one slot" in mode:
        return [key, *(f"{{{key}}}:{number}" for number in range(1, STREAMS))]
    if "streams" in mode:
        return [key, *(f"{key}:{number}" for number in range(1, STREAMS))]
    return []


def _masters(cluster: ProxiedCluster) -> list[LocalServer]:
    found = []
    for server in cluster.servers:
        with redis.Redis(unix_socket_path=server.unix_socket) as client:
            if client.info("replication")["role"] == "master":
                found.append(server)
    return found


def _has_replica(cluster: ProxiedCluster, key: str) -> bool:
    """Whether a replica has this key."""
    counts = []
    for server in cluster.servers:
        with redis.Redis(unix_socket_path=server.unix_socket, single_connection_client=True) as client:
            if client.info("replication")["role"] == "slave":
                client.execute_command("READONLY")
                with contextlib.suppress(redis.ResponseError):
                    counts.append(int(client.exists(key)))
    return any(counts)


def _connections(cluster: ProxiedCluster) -> list[int]:
    """How many connections of the dispatcher each node has."""
    counts = []
    for server in cluster.servers:
        with redis.Redis(unix_socket_path=server.unix_socket) as client:
            counts.append(sum(each["name"] == NAME for each in client.client_list()))
    return counts


def judge(verdict: Verdict, streams: list[list[int]], acknowledged: set[int], unknown: set[int]) -> None:
    """Note what is wrong with the rows that are there."""
    is_lossy = bool(LOSSY & set(verdict.faults))
    is_late = bool(LATE & set(verdict.faults)) and not ("script" in verdict.mode or "idmp" in verdict.mode)
    if misplaced := sum(row % len(streams) != number for number, rows in enumerate(streams) for row in rows):
        verdict.wrong.append(f"{misplaced} rows are in another stream")
    there = {row for rows in streams for row in rows}
    inverted = sum(first > second for rows in streams for first, second in pairwise(rows))
    lost = len(acknowledged - there)
    duplicates = sum(map(len, streams)) - len(there)
    if duplicates:
        verdict.wrong.append(f"{duplicates} rows were written twice")
    if unreported := len(there - acknowledged - unknown):
        verdict.wrong.append(f"{unreported} rows are there that were reported as not written")
    if lost and (not is_lossy or "wait" in verdict.mode):
        verdict.wrong.append(f"{lost} acknowledged rows are not there")
    if inverted and not is_late and (not is_lossy or "script" in verdict.mode):
        verdict.wrong.append(f"{inverted} rows were written behind later ones")
    verdict.duplicates, verdict.lost, verdict.reordered = duplicates, lost, inverted
