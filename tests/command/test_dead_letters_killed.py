"""`headrace dead-letters replay` under SIGKILL at each step: nothing is lost, and once where one script does both."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from command.conftest import HEADRACE
from command.letters import MOST_FIELDS, consumer_letter
from faults.proxy import Direction, Proxy
from headrace.testing import LocalCluster, LocalServer
from support import Program
from support.fixture_types import BySize, StartServer
from support.marks import thorough

#: Letters of a run, and places where it is killed.
LETTERS, PLACES = 15, 10


def replay(*arguments: str) -> subprocess.Popen[bytes]:
    command = [HEADRACE, "dead-letters", "replay", "{a}dead", "--all", "--yes", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def killed(proxy: Proxy, direction: Direction, count: int, *arguments: str) -> None:
    """Kill a replay after a number of bytes in one direction."""
    process = replay(*arguments)

    def kill(pair: Any) -> None:
        os.kill(process.pid, signal.SIGKILL)
        pair.reset()

    proxy.at(direction, count, kill)
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, output
    proxy.disarm()
    proxy.rest()


def finish(*arguments: str) -> None:
    process = replay(*arguments)
    output, _ = process.communicate()
    assert process.returncode == 0, output


def transferred(client: Any, direction: Direction, work: Callable[[], None]) -> int:
    """The bytes of a direction that others than this client send or get while `work` is done."""
    name = {"requests": "total_net_input_bytes", "replies": "total_net_output_bytes"}[direction]
    first, second = (client.info("stats")[name] for _ in range(2))
    work()
    return int(client.info("stats")[name] - second - (second - first))


def numbers(client: Any, key: str) -> Counter[bytes]:
    """The payloads of entries and of letters."""
    found = [fields for _, fields in client.xrange(key)]
    return Counter(fields.get(b"payload") or b"order " + fields[b"dead:id"][2:] for fields in found)


@pytest.fixture
def tcp(start_server: StartServer, program: Program) -> LocalServer:
    return start_server(program, transport="tcp")


@pytest.mark.parametrize(
    ("direction", "others"), [("replies", 0), ("requests", MOST_FIELDS), *thorough(("requests", 0))]
)
def test_a_killed_replay_neither_loses_nor_repeats_dead_letters(
    tcp: LocalServer, connect: Callable[..., Any], direction: Direction, others: int, by_size: BySize
) -> None:
    client = connect(tcp)
    expected = Counter({b"order %d" % number: 1 for number in range(LETTERS)})

    def fill() -> None:
        client.delete("{a}dead", "{a}t")
        for number in range(LETTERS):
            consumer_letter(client, number, dead="{a}dead", others=others)

    with Proxy(tcp.port or 0) as proxy:
        arguments = ("--to", "{a}t", "--host", "127.0.0.1", "--port", str(proxy.port))
        fill()
        last = transferred(client, direction, lambda: finish(*arguments))
        seen = set()
        for place in range(0, PLACES, by_size(3, 1)):
            fill()
            killed(proxy, direction, 1 + place * (last - 1) // PLACES, *arguments)
            left, done = numbers(client, "{a}dead"), numbers(client, "{a}t")
            assert left + done == expected
            seen.add(len(done))
            finish(*arguments)
            assert (numbers(client, "{a}dead"), numbers(client, "{a}t")) == (Counter(), expected)
        assert len(seen) > 1, "no kill came in the middle"


@pytest.mark.needs("redis-7.0")
def test_a_killed_replay_to_another_slot_loses_no_dead_letters(cluster: LocalCluster, by_size: BySize) -> None:
    letters, target = cluster.owner("{a}dead"), cluster.owner("other")
    expected = {b"order %d" % number for number in range(LETTERS)}
    with (
        redis.Redis(port=letters.port or 0) as client,
        redis.Redis(port=target.port or 0) as other,
        Proxy(letters.port or 0) as proxy,
    ):
        node_map = ("--node-map", f"127.0.0.1:{letters.port}=127.0.0.1:{proxy.port}")
        arguments = ("--to", "other", "--nodes", f"127.0.0.1:{proxy.port}", *node_map)

        def fill() -> None:
            client.delete("{a}dead")
            other.delete("other")
            for number in range(LETTERS):
                consumer_letter(client, number, dead="{a}dead")

        fill()
        total = transferred(client, "requests", lambda: finish(*arguments))
        repeated = 0
        # The letters are deleted with the last bytes.
        deletes = LETTERS * 60
        before_deletes = total - deletes
        parts = by_size(2, 4)
        counts = [*range(1, before_deletes, before_deletes // parts), *range(before_deletes, total, deletes // parts)]
        for count in counts:
            fill()
            killed(proxy, "requests", count, *arguments)
            assert {*numbers(client, "{a}dead"), *numbers(other, "other")} == expected
            finish(*arguments)
            assert client.xlen("{a}dead") == 0
            done = numbers(other, "other")
            assert set(done) == expected
            repeated += done.total() - len(expected)
        assert repeated > 0, "no kill came between adding and deleting"


@pytest.fixture
def cluster(program: Program) -> Iterator[LocalCluster]:
    with LocalCluster(program.path) as cluster:
        yield cluster
