"""Members that die, hang, start again, fork, and share a name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace import StateError
from headrace.testing import LocalServer
from support.consumers import as_ids
from support.groups import add
from support.pipelines import KEY
from support.processes import in_child, wait_until
from support.shard_consumers import (
    SHORT,
    ids_of,
    lease_of,
    member_of,
    next_batch,
    now,
    sharded,
    take,
    wait_for_shares,
)
from support.shard_process import MemberProcess

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    return connect(server)


def test_the_streams_of_a_killed_process_go_to_others_when_its_leases_end(server: LocalServer, client: Any) -> None:
    streams = ["x", "y", "z"]
    for key in streams:
        add(client, 30, key=key)
    with MemberProcess(server, "victim", streams, lease=2.0, batch_rows=10) as victim:
        first = victim.ask("poll")
        assert victim.ask("commit")["committed"] == 10
        second = victim.ask("poll")
        with member_of(server, "survivor", streams) as survivor:
            wait_until(lambda: len(survivor.assignment) > 0)
            had = [key for key in streams if lease_of(client, key).get("owner") == "victim"]
            victim.kill()
            ends = {key: int(lease_of(client, key)["until"]) for key in had}
            # The first one of them that it gets.
            wait_until(lambda: set(had) & {key.decode() for key in survivor.assignment})
            assert now(client) >= min(ends.values())
            wait_for_shares([survivor], [3])
            found = take(survivor, 80)
            assert survivor.report().streams_lost == 0
    assert first[1] == as_ids(range(1, 11))
    done = {first[0]: 10}
    assert found == {key: as_ids(range(1 + done.get(key, 0), 31)) for key in streams}
    assert second[1][0] in found[second[0]], "it was not committed"


def test_a_suspended_process_is_fenced(server: LocalServer, client: Any) -> None:
    add(client, 20)
    with MemberProcess(server, "a", lease=SHORT, batch_rows=10) as zombie:
        stream, ids, epoch = zombie.ask("poll")
        zombie.suspend()
        with member_of(server, "b") as heir:
            batch = next_batch(heir)
            assert ids_of(batch)[:10] == ids == as_ids(range(1, 11))
            assert batch.epoch > epoch
            heir.commit(batch[4])
            heir.flush()
            before = lease_of(client, KEY)
            # The first thing that it does, before its thread could notice anything.
            zombie.tell("check")
            zombie.tell("commit")
            zombie.resume()
            named, lost, message = zombie.answer()
            assert (named, lost) == (str(stream.encode()), ids)
            assert message.startswith(
                "stream events: another member may own it by now, as its lease was not renewed in"
            )
            report = zombie.answer()
            assert (report["committed"], report["fenced"], report["unknown"], report["streams_lost"]) == (0, 10, 0, 1)
            after = lease_of(client, KEY)
            assert {**after, "until": before["until"]} == before
            assert client.xinfo_groups(KEY)[0]["last-delivered-id"] == b"5-0"
            # It returns nothing of the stream, and says so.
            assert zombie.ask("look") is False
            assert zombie.ask("revoked") == [KEY]
            assert zombie.ask("assignment") == []
            heir.commit(batch)
            assert heir.flush().fenced == 0


def test_a_suspended_process_whose_streams_nobody_took_begins_after_its_last_commit(
    server: LocalServer, client: Any
) -> None:
    """What `check` has refused comes again, under another epoch."""
    add(client, 30)
    with MemberProcess(server, lease=SHORT, batch_rows=10) as member:
        member.ask("poll")
        assert member.ask("commit")["committed"] == 10
        _, ids, epoch = member.ask("poll")
        member.suspend()
        wait_until(lambda: int(lease_of(client, KEY)["until"]) < now(client))
        member.tell("check")
        member.resume()
        assert member.answer()[1] == ids == as_ids(range(11, 21))
        stream, again, later = member.ask("poll")
        assert (stream, again, later > epoch) == (KEY, ids, True)
        assert member.ask("check") == []
        assert member.ask("commit")["committed"] == 20
        assert member.ask("revoked") == [KEY]


def test_a_process_that_starts_again_gets_its_streams_at_once(server: LocalServer, client: Any) -> None:
    """The leases of the killed one would have gone on for an hour."""
    streams = ["x", "y", "z", "w"]
    for key in streams:
        add(client, 20, key=key)
    with member_of(server, "other", streams) as other:
        with MemberProcess(server, "pod-1", streams, batch_rows=10) as first:
            wait_until(lambda: len(first.ask("assignment")) == len(other.assignment) == 2)
            kept, had = other.assignment, first.ask("assignment")
            stream, _, epoch = first.ask("poll")
            assert first.ask("commit")["committed"] == 10
            first.kill()
        with MemberProcess(server, "pod-1", streams, batch_rows=10) as second:
            wait_until(lambda: len(second.ask("assignment")) == 2)
            assert second.ask("assignment") == had
            found: dict[str, list[str]] = {}
            for _ in range(3):
                key, ids, at = second.ask("poll")
                found.setdefault(key, []).extend(ids)
                assert key != stream or at > epoch
            assert set(found) == set(had)
            assert found[stream] == as_ids(range(11, 21))
            assert (other.assignment, other.report().streams_given_up <= 2) == (kept, True)


def test_the_earlier_process_of_a_name_is_fenced(server: LocalServer, client: Any) -> None:
    add(client, 20)
    with MemberProcess(server, "pod-1", batch_rows=10) as first:
        first.ask("poll")
        first.suspend()
        with MemberProcess(server, "pod-1", batch_rows=10) as second:
            assert second.ask("poll")[1] == as_ids(range(1, 6)), "half: the first one may have ended because of it"
            first.tell("commit")
            first.resume()
            assert first.answer()["fenced"] == 10
            assert second.ask("commit")["committed"] == 5


def test_two_processes_of_one_name_do_not_take_streams_from_each_other_again_and_again(
    server: LocalServer, client: Any
) -> None:
    """Someone started a second one by mistake: entries are done all the same, and somebody is told."""
    for shard in range(4):
        add(client, 500, key=f"orders:{shard}")
    members = [member_of(sharded(server, 4), "a", batch_rows=10) for _ in range(2)]
    returned: list[int] = []
    failures: list[StateError] = []
    done = threading.Event()

    def is_done() -> bool:
        groups = [client.xinfo_groups(f"orders:{shard}") for shard in range(4)]
        return all(found and found[0]["last-delivered-id"] == b"500-0" for found in groups)

    def work(member: Any) -> None:
        while not done.is_set():
            try:
                batch = member.poll(0.02)
            except StateError as error:
                failures.append(error)
                return
            if batch is not None:
                returned.append(len(batch))
                time.sleep(0.01)  # the work
                member.commit(batch)

    threads = [threading.Thread(target=work, args=(member,)) for member in members]
    for thread in threads:
        thread.start()
    try:
        wait_until(is_done, 60)
    finally:
        done.set()
        for thread in threads:
            thread.join()
        for member in members:
            member.close()
    taken = sum(member.report().streams_taken for member in members)
    assert taken <= 3 * 4, f"streams were taken {taken} times"
    assert sum(returned) <= 3 * 2_000
    assert len(failures) <= 1


def test_a_forked_child_is_refused_and_the_parent_continues(any_server: LocalServer, connect: Connect) -> None:
    client = connect(any_server)
    add(client, 40)
    with member_of(any_server, batch_rows=16) as member:
        batch = next_batch(member)

        def use() -> list[str]:
            calls: list[Callable[[], object]] = [
                member.poll,
                member.flush,
                member.report,
                batch.check,
                lambda: member.commit(batch),
            ]
            errors = []
            for call in calls:
                with pytest.raises(StateError) as raised:
                    call()
                errors.append(str(raised.value))
            assert member.assignment == []
            member.stop()
            member.close()
            return errors

        assert set(in_child(use)) == {"the consumer belongs to the process that made it: make one in each process"}
        batch.check()
        member.commit(batch)
        assert take(member, 24) == {KEY: as_ids(range(17, 41))}
        assert member.flush().committed == 40
    assert member.report().streams_given_up == 1
