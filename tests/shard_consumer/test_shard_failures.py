"""What follows `fail`, and the end of a process that has an entry: retries, halves, dead letters."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from faults.proxy import Pair, Proxy
from headrace import (
    AsyncShardConsumer,
    CommandError,
    ConfigError,
    Dispatcher,
    Endpoint,
    ShardBatch,
    ShardConsumer,
    StateError,
)
from headrace.testing import LocalServer
from support.consumers import as_ids
from support.fixture_types import StartServer
from support.groups import GROUP, add
from support.patience import NEVER, PATIENCE
from support.pipelines import KEY, endpoint_to
from support.processes import wait_until
from support.servers import Program
from support.shard_consumers import ids_of, lease_of, member_of, next_batch, take
from support.shard_process import MemberProcess

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]
#: What ends as a dead letter after two failures.
TWICE: dict[str, Any] = {"max_failures": 2, "dead_letter_key": "dead"}


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    return connect(server)


def letter_of(client: Any, key: str = "dead") -> list[dict[str, str]]:
    """The fields of the dead letters."""
    return [{name.decode(): value.decode() for name, value in fields.items()} for _, fields in client.xrange(key)]


def test_a_stream_comes_again_from_the_entry_that_failed(server: LocalServer, client: Any) -> None:
    add(client, 20)
    with member_of(server, batch_rows=5) as member:
        first, second, third = (next_batch(member) for _ in range(3))
        member.fail(second[2], "no")
        report = member.flush()
        assert (report.handed_over, report.committed, report.pending) == (15, 7, 0)
        assert (report.failed, report.repeated, report.dead) == (1, 8, 0)
        lease = lease_of(client, KEY)
        assert (lease["failures"], lease["reason"], lease["limit"]) == ("1", "no", "0")
        # What is of no use any more has no effect, and says nothing of what comes.
        member.commit(third)
        member.fail(third, "no")
        assert member.flush() == report
        assert take(member, 13) == {KEY: as_ids(range(8, 21))}
        assert member.flush().committed == 20
        lease = lease_of(client, KEY)
        assert (lease["failures"], lease["reason"]) == ("0", "")
        with pytest.raises(StateError, match=r"^stream events: what was committed cannot fail$"):
            member.fail(first, "late")


def test_a_committed_entry_cannot_fail(server: LocalServer, client: Any) -> None:
    add(client, 5)
    with member_of(server) as member:
        batch = next_batch(member)
        member.commit(batch[2])
        with pytest.raises(StateError, match="what was committed cannot fail"):
            member.fail(batch[2], "late")
        member.fail(batch, "the rest")
        assert ids_of(next_batch(member)) == ["4-0"]


def test_other_streams_go_on_while_one_waits(server: LocalServer, client: Any) -> None:
    for key in ("x", "y"):
        add(client, 30, key=key)
    with member_of(server, streams=["x", "y"], batch_rows=10) as member:
        while (batch := next_batch(member)).stream != b"x":
            member.commit(batch)
        done = 30 - (member.report().handed_over - 10)
        member.fail(batch, "no", delay=3600.0)
        assert take(member, done)["y"][-1] == "30-0"
        assert member.poll(0.2) is None
        assert sorted(member.assignment) == [b"x", b"y"]
    # The next owner goes on from the count.
    assert lease_of(client, "x")["limit"] == "5"
    with member_of(server, streams=["x", "y"], batch_rows=10) as member:
        assert ids_of(next_batch(member)) == as_ids(range(1, 6))


def test_the_pause_grows_with_each_failure(server: LocalServer, client: Any) -> None:
    add(client, 1)
    with member_of(server) as member:
        began = time.monotonic()
        for _ in range(4):
            member.fail(next_batch(member)[0], "no")
        next_batch(member)
        assert time.monotonic() - began >= 0.1 + 0.2 + 0.4 + 0.8
        assert member.report().failed == 4


def test_an_entry_that_fails_too_often_becomes_a_dead_letter(server: LocalServer, client: Any) -> None:
    wide = [part for number in range(4_000) for part in (f"n{number}", "v")]
    client.execute_command("XADD", KEY, "1-0", "a", "1")
    client.execute_command("XADD", KEY, "2-0", *wide)
    client.execute_command("XADD", KEY, "3-0", "a", "3")
    with member_of(server, fields="*", **TWICE) as member:
        while member.report().committed < 3:
            for entry in member.poll(0.05) or ():
                if entry.id == "2-0":
                    member.fail(entry, "caf\xe9")
                    break
                member.commit(entry)
        report = member.flush()
        assert (report.committed, report.failed, report.dead, report.pending) == (3, 2, 1, 0)
    (letter,) = letter_of(client)
    assert (letter["dead:stream"], letter["dead:id"], letter["dead:reason"]) == (KEY, "2-0", "caf\xe9")
    assert letter["dead:failures"] == "2"
    assert letter["dead:fields"].startswith("2:n01:v2:n11:v")
    assert client.xinfo_groups(KEY)[0]["last-delivered-id"] == b"3-0"


def test_the_count_of_failures_is_in_the_lease(server: LocalServer, client: Any) -> None:
    add(client, 3)
    for owner in ("a", "b"):
        with member_of(server, owner, **TWICE) as member:
            member.fail(next_batch(member)[0], owner)
    (letter,) = letter_of(client)
    assert (letter["dead:id"], letter["dead:reason"], letter["dead:failures"]) == ("1-0", "b", "2")
    with member_of(server, "c") as member:
        assert ids_of(next_batch(member)) == ["2-0", "3-0"]


def test_the_failures_of_a_deleted_entry_are_not_those_of_the_next_one(server: LocalServer, client: Any) -> None:
    add(client, 3)
    with member_of(server, **TWICE) as member:
        member.fail(next_batch(member)[0], "no")
    client.xdel(KEY, "1-0")
    with member_of(server, **TWICE, on_loss="report") as member:
        batch = next_batch(member)
        assert ids_of(batch) == ["2-0", "3-0"]
        member.fail(batch[0], "no")
        assert member.flush().dead == 0
        member.fail(next_batch(member)[0], "no")
        assert member.flush().dead == 1
    assert [letter["dead:id"] for letter in letter_of(client)] == ["2-0"]


@pytest.mark.parametrize("unpack", [False, True], ids=["entries", "rows"])
def test_a_batch_that_fails_comes_in_halves(server: LocalServer, client: Any, unpack: bool) -> None:
    """Until the entry that fails is alone; what is between is committed."""
    options: dict[str, Any] = {**TWICE, "batch_rows": 16}
    if unpack:
        rows = pa.table({"json": [f'{{"n": {row}}}' for row in range(32)]})
        with Dispatcher(endpoint_to(server), ts_field=None) as dispatcher:
            dispatcher.produce_batch(rows, json=["json"], rows_per_entry=2)
            dispatcher.flush().raise_for_failures()
        options |= {"unpack": "json", "schema": {"json": "utf8"}, "metadata": ["entry_id"], "batch_rows": 32}
    else:
        add(client, 16)
    every = [entry_id.decode() for entry_id, _ in client.xrange(KEY)]
    poison = every[10]
    sizes, done = [], []
    with member_of(server, **options) as member:
        while member.report().committed < 16:
            if (batch := member.poll(0.05)) is None:
                continue
            ids = list(dict.fromkeys(entry.id for entry in batch))
            sizes.append(len(ids))
            if poison in ids:
                member.fail(batch, "poison")
            else:
                done += ids
                member.commit(batch)
        assert member.flush().dead == 1
    assert done == [entry_id for entry_id in every if entry_id != poison]
    assert sizes[:4] == [16, 8, 8, 4], "the first half is well, and the second one is halved"
    assert 1 in sizes
    assert sizes[-1] > 1, "batches are as large as usual again"
    assert [letter["dead:id"] for letter in letter_of(client)] == [poison]


def test_an_entry_that_ends_its_processes_becomes_a_dead_letter(server: LocalServer, client: Any) -> None:
    add(client, 10)
    done: list[str] = []
    deaths = 0
    while len(done) < 9:
        with MemberProcess(server, batch_rows=8, **TWICE) as process:
            while len(done) < 9:
                _, ids, _ = process.ask("poll")
                if "3-0" in ids:
                    process.kill()
                    deaths += 1
                    break
                process.ask("commit")
                done += ids
    assert done == [entry_id for entry_id in as_ids(range(1, 11)) if entry_id != "3-0"]
    (letter,) = letter_of(client)
    assert (letter["dead:id"], letter["dead:failures"]) == ("3-0", "2")
    assert letter["dead:reason"] == "the process that had it ended"
    assert deaths <= 3 + 2, "halves of 8, and two alone"


def test_no_entry_is_blamed_that_was_not_alone_in_hand(server: LocalServer, client: Any) -> None:
    """A process that commits late and ends again and again."""
    add(client, 8)
    for _ in range(6):
        with MemberProcess(server, batch_rows=2, **TWICE) as process:
            polled = [process.ask("poll")[1] for _ in range(3)]
            assert sum(map(len, polled)) >= 3
            process.kill()
    assert lease_of(client, KEY)["failures"] == "0"
    assert not client.exists("dead")


def test_a_process_that_ends_in_order_is_no_failure(server: LocalServer, client: Any) -> None:
    add(client, 3)
    for _ in range(3):
        with member_of(server, batch_rows=2, **TWICE) as member:
            assert ids_of(next_batch(member)) == ["1-0", "2-0"]
    lease = lease_of(client, KEY)
    assert (lease["failures"], lease["limit"]) == ("0", "0")


@pytest.mark.parametrize("before", [True, False], ids=["request", "reply"])
def test_a_dead_letter_whose_connection_breaks_is_written_once(
    start_server: StartServer, program: Program, connect: Connect, before: bool
) -> None:
    server = start_server(program, transport="tcp")
    client = connect(server)
    add(client, 6)
    assert server.port is not None
    with Proxy(server.port) as proxy:
        endpoint = Endpoint(host="127.0.0.1", port=proxy.port, stream_key=KEY)
        with member_of(endpoint, max_failures=1, dead_letter_key="dead") as member:
            batch = next_batch(member)
            member.commit(batch[0])
            member.flush()
            cut = threading.Event()

            def cuts(pair: Pair) -> None:
                if before:
                    pair.reset()
                else:
                    pair.end("replies")
                cut.set()

            proxy.within("requests", rb"EVALSHA\r\n.*", 0.0, cuts)
            member.fail(batch[2], "no")
            report = member.flush()
            assert cut.is_set()
            assert (report.committed, report.dead, report.unknown) == (3, 1, 0)
            assert take(member, 3) == {KEY: as_ids(range(4, 7))}
    assert [letter["dead:id"] for letter in letter_of(client)] == ["3-0"]


def test_a_dead_letter_that_is_refused_changes_nothing(server: LocalServer, client: Any) -> None:
    add(client, 3)
    client.set("dead", "no stream")
    with member_of(server, max_failures=1, dead_letter_key="dead") as member:
        batch = next_batch(member)
        member.fail(batch[1], "no")
        with pytest.raises(CommandError, match=r"stream events: the dead letter \(EVAL with .*XADD.*WRONGTYPE"):
            member.flush()
        assert client.xinfo_groups(KEY)[0]["last-delivered-id"] == b"0-0"
        client.delete("dead")
        wait_until(lambda: member.report().dead == 1)
        assert take(member, 1) == {KEY: ["3-0"]}
        assert member.flush().committed == 3
    assert [letter["dead:id"] for letter in letter_of(client)] == ["2-0"]


def test_a_stream_that_failed_can_be_given_up(server: LocalServer, client: Any) -> None:
    for key in ("x", "y"):
        add(client, 5, key=key)
    with member_of(server, streams=["x", "y"], batch_rows=5) as member:
        for _ in range(2):
            member.fail(next_batch(member), "no", delay=3600.0)
        with member_of(server, "b", ["x", "y"]) as other:
            wait_until(lambda: len(member.assignment) == len(other.assignment) == 1)
            assert ids_of(next_batch(other)) == ["1-0", "2-0"]


def test_options_that_do_not_fit_are_refused(server: LocalServer) -> None:
    with pytest.raises(ConfigError, match=r"^max_failures needs dead_letter_key, the stream that"):
        member_of(server, max_failures=3)
    with pytest.raises(ConfigError, match=r"^dead_letter_key needs max_failures: no entry would be moved"):
        member_of(server, dead_letter_key="dead")
    with pytest.raises(ConfigError, match=r"^dead_letter_key must not be one of the streams, got 'y'"):
        member_of(server, streams=["x", "y"], max_failures=3, dead_letter_key="y")
    with pytest.raises(ConfigError, match=r"^max_failures must be an integer from 1"):
        member_of(server, max_failures=0, dead_letter_key="dead")


def test_fail_on_an_event_loop(server: LocalServer, client: Any) -> None:
    add(client, 6)

    async def main() -> None:
        given: dict[str, Any] = {"group": GROUP, "member": "a", "linger": 0.0, "lease": NEVER, **TWICE}
        async with AsyncShardConsumer(endpoint_to(server), **given) as member:
            while member.report().committed < 6:
                batch: ShardBatch | None = await member.poll(0.05)
                for entry in batch or ():
                    if entry.id == "4-0":
                        member.fail(entry, "no")
                        break
                    member.commit(entry)
            assert (await member.flush()).dead == 1
            waited = asyncio.create_task(member.poll(PATIENCE))
            add(client, 1, first=7)
            batch = await waited
            assert batch is not None
            assert ids_of(batch) == ["7-0"]

    asyncio.run(main())
    assert [letter["dead:id"] for letter in letter_of(client)] == ["4-0"]


def test_a_batch_that_a_cancelled_poll_keeps_is_of_no_use_after_a_failure(server: LocalServer, client: Any) -> None:
    add(client, 20)

    async def main() -> None:
        given: dict[str, Any] = {"group": GROUP, "member": "a", "linger": 0.0, "lease": NEVER, "batch_rows": 5}
        async with AsyncShardConsumer(endpoint_to(server), **given) as member:
            first = await member.poll(PATIENCE)
            assert first is not None
            for _ in range(3):
                # Cancelled at once: what it has found is for the next call.
                waited = asyncio.create_task(member.poll(PATIENCE))
                await asyncio.sleep(0)
                waited.cancel()
                await asyncio.wait([waited])
            member.fail(first, "no", delay=0.0)
            again = await member.poll(PATIENCE)
            assert again is not None
            assert ids_of(again) == ["1-0", "2-0"], "half of what failed"

    asyncio.run(main())


def test_what_is_no_batch_of_the_consumer_cannot_fail(server: LocalServer, client: Any) -> None:
    add(client, 3)
    with member_of(server) as member, member_of(server, group="other") as other:
        theirs = next_batch(other)
        with pytest.raises(ConfigError, match="batch must belong to this consumer"):
            member.fail(theirs, "no")
        refused: Any = None
        with pytest.raises(TypeError, match="batch is None"):
            member.fail(refused, "no")
    closed: ShardConsumer = other
    with pytest.raises(Exception, match="closed"):
        closed.fail(theirs, "no")
