"""Staged causes of a stuck consumer: each gives its sentence and a remedy, which is run and helps."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from command.conftest import HEADRACE, Command
from command.redis_cli import redis_cli
from headrace import Consumer, Endpoint
from headrace.testing import LocalServer
from support.processes import wait_until

Connect = Callable[..., redis.Redis]
HOUR = 3_600_000


class Stage:
    """A stream `s` with the group `g`, and the command beside it."""

    def __init__(self, command: Command, server: LocalServer, client: redis.Redis) -> None:
        self.command = command
        self.server = server
        self.client = client

    def add(self, entries: int) -> list[str]:
        with self.client.pipeline(transaction=False) as pipe:
            for number in range(entries):
                pipe.xadd("s", {"payload": f"order {number}"})
            return [entry_id.decode() for entry_id in pipe.execute()]

    def take(self, consumer: str, count: int) -> list[str]:
        found: Any = self.client.xreadgroup("g", consumer, {"s": ">"}, count=count)
        return [entry_id.decode() for entry_id, _ in found[0][1]] if found else []

    def leave(self, consumer: str, ids: list[str], deliveries: int = 1, idle: int = HOUR) -> None:
        """As if these entries were delivered an hour ago, this often."""
        self.client.xclaim("s", "g", consumer, 0, ids, idle=idle, retrycount=deliveries, justid=True)  # type: ignore[arg-type]

    def look(self, *arguments: str) -> dict[str, Any]:
        ended = self.command("inspect", "s", "-o", "json", *(arguments or ("--sample", "0")))
        assert ended.err == ""
        found: dict[str, Any] = json.loads(ended.out)
        assert ended.code == (0 if found["healthy"] else 1)
        return found

    def findings(self, *arguments: str) -> dict[str, dict[str, Any]]:
        return {finding["code"]: finding for finding in self.look(*arguments)["findings"]}

    def wait_idle(self, *consumers: str, seconds: float) -> None:
        """Until each of these consumers has asked for nothing for that long, by the server."""

        def are_idle() -> bool:
            found: Any = self.client.xinfo_consumers("s", "g")
            idle = {each["name"].decode(): each["idle"] / 1000 for each in found}
            return all(idle[name] > seconds for name in consumers)

        wait_until(are_idle)

    def run(self, finding: dict[str, Any], folder: Path) -> str:
        """Paste the command of a remedy into a shell."""
        programs = folder / "bin"
        programs.mkdir(exist_ok=True)
        for name, path in (("headrace", Path(HEADRACE)), ("redis-cli", redis_cli())):
            (programs / name).unlink(missing_ok=True)
            (programs / name).symlink_to(path)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", finding["command"]],
            env={"PATH": f"{programs}:/usr/bin:/bin", "HEADRACE_URL": self.server.url, "HOME": str(folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done
        assert "ERR" not in done.stdout, done
        return done.stdout


@pytest.fixture
def stage(command: Command, server: LocalServer, connect: Connect) -> Stage:
    client = connect(server)
    client.xgroup_create("s", "g", "0", mkstream=True)
    return Stage(command, server, client)


def alarms(found: dict[str, dict[str, Any]]) -> list[str]:
    return [code for code, finding in found.items() if finding["alarm"]]


def test_a_group_that_keeps_up_is_healthy(stage: Stage) -> None:
    stage.add(20)
    stage.client.xack("s", "g", *stage.take("c1", 20))
    last = stage.add(1)
    stage.take("c1", 1)  # at work
    found = stage.look()
    assert found["healthy"]
    assert found["findings"] == []
    assert found["groups"][0]["lag"] == 0
    assert found["groups"][0]["pending_entries"][0]["id"] == last[0]
    assert "healthy: nothing is stuck" in stage.command("inspect", "s", "--sample", "0").out.decode()


def test_a_dead_consumer_is_diagnosed_and_remedied(stage: Stage, tmp_path: Path) -> None:
    ids = stage.add(4)
    stage.take("dead", 4)
    stage.leave("dead", ids)
    stage.wait_idle("dead", seconds=0.6)
    with busy(stage, every=1):  # the consumer c1
        found = stage.findings("--sample", "0", "--stuck-after", "500ms")
        assert alarms(found) == ["DEAD_CONSUMER"]
        finding = found["DEAD_CONSUMER"]
        assert finding["text"].startswith("consumer 'dead' of group 'g' holds 4 entries and has asked for nothing for ")
        assert finding["text"].endswith("it is probably dead")
        assert "hand them to 'c1'" in finding["advice"]
        stage.run(finding, tmp_path)
    own: Any = stage.client.xreadgroup("g", "c1", {"s": "0"})
    assert [entry_id.decode() for entry_id, _ in own[0][1]] == ids
    stage.client.xack("s", "g", *ids)
    assert stage.look()["healthy"]


def test_many_entries_of_a_dead_consumer_are_handed_over_at_once(stage: Stage, tmp_path: Path) -> None:
    ids = stage.add(30)
    stage.take("dead", 30)
    stage.leave("dead", ids)
    stage.wait_idle("dead", seconds=0.4)
    finding = stage.findings("--sample", "0", "--stuck-after", "0.3")["DEAD_CONSUMER"]
    assert "XAUTOCLAIM" in finding["command"]
    stage.run(finding, tmp_path)
    assert stage.client.xpending("s", "g")["consumers"] == [{"name": b"rescue", "pending": 30}]
    own: Any = stage.client.xreadgroup("g", "rescue", {"s": "0"})
    assert [entry_id.decode() for entry_id, _ in own[0][1]] == ids
    stage.client.xack("s", "g", *ids)
    assert stage.look()["healthy"]


def test_a_consumer_that_reads_only_new_entries_is_diagnosed_and_remedied(stage: Stage, tmp_path: Path) -> None:
    ids = stage.add(3)
    stage.take("c1", 3)
    stage.leave("c1", ids)
    stage.add(2)
    stage.client.xack("s", "g", *stage.take("c1", 2))
    found = stage.findings()
    assert alarms(found) == ["READS_ONLY_NEW"]
    text = found["READS_ONLY_NEW"]["text"]
    assert text.startswith(
        "consumer 'c1' of group 'g' is alive, but 3 entries that it got up to 60 min ago are pending"
    )
    assert "it reads only new entries (>), never its own pending ones" in text
    stage.run(found["READS_ONLY_NEW"], tmp_path)
    own: Any = stage.client.xreadgroup("g", "rescue", {"s": "0"})
    stage.client.xack("s", "g", *[entry_id for entry_id, _ in own[0][1]])
    assert stage.look()["healthy"]


def test_a_poison_entry_is_diagnosed_and_remedied(stage: Stage, tmp_path: Path) -> None:
    ids = stage.add(3)
    stage.take("c1", 3)
    stage.client.xack("s", "g", ids[0], ids[2])
    stage.leave("c1", [ids[1]], deliveries=12, idle=0)
    found = stage.findings()
    assert alarms(found) == ["POISON_ENTRY"]
    finding = found["POISON_ENTRY"]
    assert finding["text"] == (
        f"entry {ids[1]} was delivered 12 times in group 'g' and was never acknowledged: consumers fail on it"
    )
    printed = stage.run(finding, tmp_path)
    assert "payload=order 1" in printed
    assert stage.look()["healthy"]
    assert stage.client.xlen("s") == 3


def test_what_a_consumer_of_headrace_failed_on_and_gave_back_is_told_as_that(stage: Stage) -> None:
    endpoint = Endpoint.from_url(stage.server.url, stream_key="s")
    first, *_ = stage.add(5)
    with Consumer(endpoint, group="g", consumer="c", batch_rows=5) as consumer:
        assert consumer.poll(timeout=60) is not None
        consumer.fail_ids("s", [first], "broken")
    screen = stage.command("inspect", "s", "--sample", "0").out.decode()
    assert "  pending 5: 1 failed, 4 given back\n" in screen
    assert "healthy: nothing is stuck\n" in screen
    assert f"- entry {first} failed once in group 'g', and is delivered again: its counter is 21, and" in screen


def test_a_slow_consumer_is_diagnosed(stage: Stage, tmp_path: Path) -> None:
    stage.add(50)
    stage.take("slow", 2)
    stage.wait_idle("slow", seconds=3.1)
    found = stage.findings("--sample", "0", "--stuck-after", "30")
    assert alarms(found) == ["SLOW_CONSUMER"]
    text = found["SLOW_CONSUMER"]["text"]
    assert text.startswith("consumer 'slow' of group 'g' has been at work on 2 entries for ")
    assert text.endswith("while 48 entries wait: it is slow")
    assert_watch(stage, found["SLOW_CONSUMER"])


def assert_watch(stage: Stage, finding: dict[str, Any]) -> None:
    """The remedy is more consumers, and its command shows that they help."""
    assert finding["advice"] in (
        "start more consumers of the group, and watch its lag",
        "start a consumer of the group again, and watch its lag",
    )
    assert finding["command"].startswith("headrace inspect s --group g --watch")
    watch = subprocess.Popen(
        [
            HEADRACE,
            *finding["command"].split()[1:],
            "0.2",
            "-o",
            "jsonl",
            "-u",
            stage.server.url,
            "--stuck-after",
            "30",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert watch.stdout is not None
    try:
        assert json.loads(watch.stdout.readline())["groups"][0]["lag"] > 0
        stage.client.xack("s", "g", *stage.take("second", 100_000))
        while json.loads(watch.stdout.readline())["groups"][0]["lag"] > 0:
            pass
        watch.terminate()
        _, err = watch.communicate()
        assert (watch.returncode, err) == (143, b"headrace: interrupted\n")
    finally:
        watch.kill()
        watch.wait()


def test_trimmed_pending_entries_are_diagnosed_and_remedied(stage: Stage, tmp_path: Path) -> None:
    ids = stage.add(4)
    stage.take("c1", 4)
    stage.client.xtrim("s", minid=ids[3], approximate=False)
    found = stage.findings()
    assert alarms(found) == ["TRIMMED_PENDING"]
    assert found["TRIMMED_PENDING"]["text"] == (
        "3 of 4 pending entries of group 'g' were trimmed or deleted: no consumer can read them any more"
    )
    stage.run(found["TRIMMED_PENDING"], tmp_path)
    assert stage.look()["healthy"]
    assert stage.client.xpending("s", "g")["pending"] == 1


def test_a_deleted_pending_entry_is_diagnosed_and_remedied(stage: Stage, tmp_path: Path) -> None:
    ids = stage.add(3)
    stage.take("c1", 3)
    stage.client.xdel("s", ids[1])
    finding = stage.findings()["TRIMMED_PENDING"]
    assert finding["text"].startswith("1 of 3 pending entries of group 'g' was trimmed or deleted")
    stage.run(finding, tmp_path)
    assert stage.look()["healthy"]


def test_an_unknown_lag_raises_no_alarm(stage: Stage, tmp_path: Path) -> None:
    ids = stage.add(10)
    stage.client.xdel("s", ids[6])
    stage.client.xack("s", "g", *stage.take("c1", 4))
    found = stage.findings()
    assert alarms(found) == []
    if "LAG_UNKNOWN" not in found:  # Redis 6.2 counts nothing: what waits is counted there, as long as it is little
        assert stage.look()["entries_added"] is None
        assert stage.look()["groups"][0]["lag"] == 5
        return
    finding = found["LAG_UNKNOWN"]
    assert finding["text"].startswith("the lag of group 'g' is unknown, at most 9 entries: an entry after the position")
    assert finding["text"].endswith("5 were counted")
    printed = stage.run(finding, tmp_path)
    assert len(printed.splitlines()) == 5
    stage.client.xack("s", "g", *stage.take("c1", 10))
    assert "LAG_UNKNOWN" not in stage.findings()


def test_a_group_ahead_of_the_stream_is_diagnosed_and_remedied(stage: Stage, tmp_path: Path) -> None:
    stage.client.xadd("s", {"payload": "old"}, id="900-0")
    stage.take("c1", 1)
    stage.client.xack("s", "g", "900-0")
    stage.client.delete("s")
    stage.client.xadd("s", {"payload": "new"}, id="5-0")
    stage.client.xgroup_create("s", "g", "900-0")
    assert not stage.take("c1", 1)
    found = stage.findings()
    assert alarms(found) == ["GROUP_AHEAD"]
    assert found["GROUP_AHEAD"]["text"].startswith(
        "group 'g' is at 900-0, ahead of the newest entry 5-0 of the stream: it gets nothing until IDs pass that"
    )
    stage.run(found["GROUP_AHEAD"], tmp_path)
    assert stage.take("c1", 1) == ["5-0"]
    assert stage.look()["healthy"]


def test_a_group_without_consumers_is_diagnosed_and_remedied(stage: Stage, tmp_path: Path) -> None:
    stage.add(7)
    found = stage.findings()
    assert alarms(found) == ["NO_CONSUMER"]
    assert found["NO_CONSUMER"]["text"] == "group 'g' has no consumer, while 7 entries wait"
    stage.run(found["NO_CONSUMER"], tmp_path)
    after = stage.look()
    assert after["healthy"]
    assert after["groups"] == []


def test_a_group_without_live_consumers_is_diagnosed(stage: Stage, tmp_path: Path) -> None:
    stage.add(3)
    stage.client.xack("s", "g", *stage.take("c1", 1))
    stage.wait_idle("c1", seconds=0.3)
    found = stage.findings("--sample", "0", "--stuck-after", "0.2")
    assert alarms(found) == ["NO_LIVE_CONSUMER"]
    assert found["NO_LIVE_CONSUMER"]["text"].endswith("while 2 entries wait: it is probably dead")
    assert_watch(stage, found["NO_LIVE_CONSUMER"])
    assert stage.look()["healthy"]


@contextmanager
def busy(stage: Stage, every: int) -> Iterator[None]:
    """A producer, and a consumer that takes one of `every` entries, until the end."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(0.02):
            stage.add(every)
            stage.client.xack("s", "g", *stage.take("c1", 1))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        wait_until(lambda: any(found["name"] == b"c1" for found in consumers_of(stage)))
        yield
    finally:
        stop.set()
        thread.join()


def consumers_of(stage: Stage) -> list[dict[str, Any]]:
    found: Any = stage.client.xinfo_consumers("s", "g")
    return list(found)


def test_a_producer_faster_than_the_consumers_is_diagnosed(stage: Stage, tmp_path: Path) -> None:
    stage.add(2_000)
    stage.client.xack("s", "g", *stage.take("c1", 1))
    with busy(stage, every=5):
        found = stage.findings("--sample", "0.5")
    assert alarms(found) == ["PRODUCER_FASTER"]
    text = found["PRODUCER_FASTER"]["text"]
    assert text.startswith("entries arrive at ")
    assert "and group 'g' reads " in text
    assert "its lag of 2," in text
    assert_watch(stage, found["PRODUCER_FASTER"])


def test_a_busy_group_that_keeps_up_is_healthy(stage: Stage) -> None:
    with busy(stage, every=1):
        found = stage.look("--sample", "0.5")
    assert found["findings"] == []
    assert found["rate"] > 0


def test_entries_trimmed_before_a_group_read_them_are_reported_if_counted(stage: Stage) -> None:
    ids = stage.add(10)
    stage.client.xack("s", "g", *stage.take("c1", 2))
    stage.client.xtrim("s", minid=ids[7], approximate=False)
    found = stage.look()
    if found["entries_added"] is None:  # Redis 6.2 does not count
        assert found["groups"][0]["trimmed_unread"] is None
        return
    assert [f["text"] for f in found["findings"]] == [
        "5 entries were trimmed before group 'g' read them: they are lost to it"
    ]


def test_group_names_are_quoted_for_the_shell(stage: Stage, tmp_path: Path) -> None:
    name = b"$(touch hit); '\x1b[31m\xff\n"
    stage.client.xgroup_create("s", name, "0")
    stage.add(1)
    found = [f for f in stage.look()["findings"] if f["group"] != "g"]
    assert [f["code"] for f in found] == ["NO_CONSUMER"]
    assert found[0]["command"].isprintable()
    assert found[0]["command"].isascii()
    stage.run(found[0], tmp_path)
    assert [group["name"] for group in stage.client.xinfo_groups("s")] == [b"g"]
    assert not (Path.cwd() / "hit").exists()
    text = stage.command("inspect", "s", "--sample", "0").out
    assert b"\x1b" not in text
