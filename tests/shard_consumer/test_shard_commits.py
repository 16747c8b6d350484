"""What a commit does: for the next owner, for the group, for the counts; what is no commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from faults.proxy import Pair, Proxy
from headrace import ConfigError, Consumer, Dispatcher, Endpoint, Reader, ShardBatch
from headrace.testing import LocalServer
from support.consumers import as_ids
from support.fixture_types import StartServer
from support.groups import GROUP, add
from support.pipelines import KEY, endpoint_to
from support.processes import after_ticks, wait_until
from support.servers import Program
from support.shard_consumers import ids_of, lease_of, member_of, next_batch, sharded, take

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    return connect(server)


def following(server: LocalServer, count: int, **options: Any) -> list[str]:
    """What the next owner gets: this many entries."""
    with member_of(server, "next", batch_rows=1_000, **options) as member:
        return take(member, count, commit=False)[KEY]


def place_of(client: Any) -> str:
    """The ID up to which the stream `KEY` is done, as the group has it."""
    (group,) = client.xinfo_groups(KEY)
    return str(group["last-delivered-id"].decode())


def test_a_commit_is_for_what_was_returned_before_too(server: LocalServer, client: Any) -> None:
    add(client, 20)
    with member_of(server, batch_rows=5) as member:
        batches = [next_batch(member) for _ in range(3)]
        assert member.report().pending == 15
        member.commit(batches[1])
        report = member.flush()
        assert (report.handed_over, report.committed, report.pending) == (15, 10, 5)
        # What is done is done, also with a batch before, and again.
        member.commit(batches[0])
        member.commit(batches[1])
        assert member.flush() == report
        assert place_of(client) == "10-0"
    assert following(server, 10) == as_ids(range(11, 21))


def test_a_commit_up_to_an_entry(server: LocalServer, client: Any) -> None:
    add(client, 20)
    with member_of(server, batch_rows=8) as member:
        first, second = next_batch(member), next_batch(member)
        for entry, committed in [(first[2], 3), (first[0], 3), (first[2], 3), (first[6], 7), (first[7], 8)]:
            member.commit(entry)
            report = member.flush()
            assert (report.committed, report.pending) == (committed, 16 - committed)
            assert place_of(client) == f"{committed}-0"
        member.commit(second[3])
        member.commit(first)
        report = member.flush()
        assert (report.committed, report.pending) == (12, 4)
    assert following(server, 8) == as_ids(range(13, 21))


def test_a_batch_is_committed_by_the_first_commit_after_it(server: LocalServer, client: Any) -> None:
    add(client, 10)
    with member_of(server, batch_rows=4) as member:
        next_batch(member)
        member.commit(next_batch(member)[1])
        assert member.flush().committed == 6
        member.commit(next_batch(member))
    assert member.report() == (10, 10, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0)


def test_an_entry_of_several_rows_is_committed_as_one(server: LocalServer) -> None:
    import pyarrow as pa

    rows = pa.table({"json": [f'{{"n": {number}}}' for number in range(9)]})
    with Dispatcher(endpoint_to(server)) as dispatcher:
        dispatcher.produce_batch(rows, json=["json"], rows_per_entry=3)
        dispatcher.flush().raise_for_failures()
    options: dict[str, Any] = {"unpack": "json", "schema": {"json": "utf8"}, "metadata": ["entry_id", "row_in_entry"]}
    with member_of(server, **options) as member:
        batch = next_batch(member)
        assert [row["row_in_entry"] for row in batch.to_pylist()] == [0, 1, 2] * 3
        assert member.report().handed_over == 3
        member.commit(batch[4])
        report = member.flush()
        assert (report.committed, report.pending) == (2, 1)
    with member_of(server, "next", **options) as member:
        assert ids_of(next_batch(member)) == ids_of(batch)[6:]


def test_the_place_is_in_the_lease_and_beside_it_in_the_group(server: LocalServer, client: Any) -> None:
    add(client, 10)
    with member_of(server) as member:
        batch = next_batch(member)
        member.commit(batch[3])
        member.flush()
        lease = lease_of(client, KEY)
        assert (lease["owner"], lease["epoch"]) == ("a", str(batch.epoch))
        assert '"4-0"' in lease["position"]
    lease = lease_of(client, KEY)
    assert (lease["owner"], lease["until"], lease["epoch"]) == ("", "0", str(batch.epoch))
    # The group is for other tools: the lease decides.
    client.xgroup_setid(KEY, GROUP, "0")
    assert following(server, 6) == as_ids(range(5, 11))


@pytest.mark.needs("redis-7.0")
def test_the_lag_of_the_group_follows_the_commits(server: LocalServer, client: Any) -> None:
    add(client, 100)
    with member_of(server, batch_rows=30) as member:
        for done in (30, 60, 90, 100):
            member.commit(next_batch(member))
            member.flush()
            (group,) = client.xinfo_groups(KEY)
            assert (group["entries-read"], group["lag"], group["pending"]) == (done, 100 - done, 0)
    # The next owner knows the number from the lease.
    add(client, 50, first=101)
    with member_of(server, "next", batch_rows=20) as member:
        member.commit(next_batch(member))
        member.flush()
        (group,) = client.xinfo_groups(KEY)
        assert (group["entries-read"], group["lag"]) == (120, 30)


def test_a_server_that_does_not_count_entries(start_server: StartServer, connect: Connect) -> None:
    """Redis 6.2 has neither ENTRIESREAD nor lag."""
    from support.servers import programs_with

    oldest = min(programs_with(["redis"]))
    server = start_server(oldest)
    client = connect(server)
    add(client, 10)
    with member_of(server, batch_rows=4) as member:
        member.commit(next_batch(member))
        member.flush()
        assert place_of(client) == "4-0"
        member.commit(next_batch(member)[0])
        member.flush()
        assert place_of(client) == "5-0"
    assert following(server, 5) == as_ids(range(6, 11))


def test_what_is_no_batch_of_the_consumer_is_refused(server: LocalServer, client: Any) -> None:
    add(client, 10)
    with (
        member_of(server, batch_rows=5) as member,
        member_of(server, group="other") as other,
        Reader(endpoint_to(server)) as reader,
        Consumer(endpoint_to(server), group="third", consumer="c") as consumer,
    ):
        next_batch(member)
        read, consumed = next(reader), next(consumer)
        refused: Any
        for refused in (None, [], "1-0", 1, read, read[0], consumed, consumed[0], object()):
            with pytest.raises(TypeError, match=r"^batch (is None: poll returned no batch|must be one that poll ret)"):
                member.commit(refused)
        with pytest.raises(TypeError, match="got an Entry of a Reader or a Consumer"):
            member.commit(read[0])
        theirs = next_batch(other)
        for refused in (theirs, theirs[0]):
            with pytest.raises(ConfigError, match="batch must belong to this consumer, got one of another consumer"):
                member.commit(refused)
        assert member.flush().committed == other.flush().committed == 0
        assert member.report().pending == 5
        consumer.close()


def test_a_batch_of_an_earlier_consumer_of_the_name_is_refused(server: LocalServer, client: Any) -> None:
    add(client, 3)
    with member_of(server) as first:
        batch = next_batch(first)
    with member_of(server) as second:
        next_batch(second)
        with pytest.raises(ConfigError, match="one of another consumer"):
            second.commit(batch)


def test_the_counts_add_up_with_commits_from_many_threads(server: LocalServer, client: Any) -> None:
    for shard in range(4):
        add(client, 500, key=f"orders:{shard}")
    with member_of(sharded(server, 4), batch_rows=10) as member:
        batches: list[ShardBatch] = []
        while sum(batch.num_rows for batch in batches) < 2_000:
            batches.append(next_batch(member))

        def commit(first: int) -> None:
            for batch in batches[first::8]:
                member.commit(batch)

        threads = [threading.Thread(target=commit, args=(first,)) for first in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        report = member.flush()
        assert (report.handed_over, report.committed, report.pending, report.fenced) == (2_000, 2_000, 0, 0)
    assert all(client.xinfo_groups(f"orders:{shard}")[0]["last-delivered-id"] == b"500-0" for shard in range(4))


def test_a_signal_handler_may_commit_while_poll_waits(any_server: LocalServer, connect: Connect) -> None:
    add(connect(any_server), 3)
    with member_of(any_server) as member:
        batch = next_batch(member)

        def act() -> None:
            batch.check()
            member.commit(batch)
            assert member.report().handed_over == 3
            assert member.assignment == [KEY.encode()]
            member.stop()

        with after_ticks(3, act):
            assert member.poll() is None
        assert member.flush().committed == 3


def test_a_commit_is_sent_without_another_call(server: LocalServer, client: Any) -> None:
    add(client, 3)
    with member_of(server) as member:
        member.commit(next_batch(member))
        wait_until(lambda: place_of(client) == "3-0")


def test_a_server_that_forgot_the_script_gets_it_again(server: LocalServer, client: Any) -> None:
    add(client, 20)
    with member_of(server, batch_rows=5) as member:
        for done in (5, 10, 15, 20):
            client.script_flush()
            member.commit(next_batch(member))
            assert member.flush().committed == done


@pytest.mark.parametrize("before", [True, False], ids=["request", "reply"])
def test_a_commit_whose_connection_breaks_is_repeated(
    start_server: StartServer, program: Program, connect: Connect, before: bool
) -> None:
    """Also one that the server had executed: it counts once."""
    server = start_server(program, transport="tcp")
    client = connect(server)
    add(client, 40)
    assert server.port is not None
    with Proxy(server.port) as proxy:
        endpoint = Endpoint(host="127.0.0.1", port=proxy.port, stream_key=KEY)
        with member_of(endpoint, batch_rows=10) as member:
            member.commit(next_batch(member))
            member.flush()
            cut = threading.Event()

            def cuts(pair: Pair) -> None:
                if before:
                    pair.reset()
                else:
                    pair.end("replies")
                cut.set()

            # The second commit: the script is known.
            proxy.within("requests", rb"EVALSHA\r\n.*", 0.0, cuts)
            member.commit(next_batch(member))
            report = member.flush()
            assert cut.is_set()
            assert (report.committed, report.pending, report.unknown, report.fenced) == (20, 0, 0, 0)
            take(member, 20)
            assert member.flush().committed == 40
        assert lease_of(client, KEY)["owner"] == ""
    assert place_of(client) == "40-0"


def test_no_commit_is_sent_for_a_stream_that_another_member_has(server: LocalServer, client: Any) -> None:
    """A lease that was deleted or taken by hand."""
    add(client, 10)
    with member_of(server, batch_rows=5) as member:
        first, second = next_batch(member), next_batch(member)
        client.hset("{events}:lease:g", mapping={"owner": "b", "epoch": second.epoch + 1})
        client.hset("{events}:lease:g", "until", 2**52)
        member.commit(first)
        report = member.flush()
        assert (report.committed, report.fenced, report.streams_lost) == (0, 5, 1)
        # What was not committed is pending no longer, and counts when it is.
        assert report.pending == 0
        member.commit(second)
        assert member.flush().fenced == 10
        assert "position" not in lease_of(client, KEY)
        assert place_of(client) == "0-0"
