"""Which entries are read, as which columns: as those of a `Reader`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace import (
    CommandError,
    ConfigError,
    DataLossError,
    Dispatcher,
    FieldError,
    GroupMissingError,
    Reader,
    SchemaError,
    ShardBatch,
    ShardConsumer,
    StreamReplacedError,
)
from headrace.testing import LocalServer
from support.consumers import as_ids
from support.groups import GROUP, add
from support.marks import thorough
from support.patience import PATIENCE
from support.pipelines import KEY, endpoint_to
from support.processes import PeakMemory
from support.shard_consumers import ids_of, lease_of, member_of, next_batch, sharded, take

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    return connect(server)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fields": ["n", "missing"]},
        *thorough({"fields": "*"}),
        {"schema": {"n": "int64", "text": "utf8 not null"}},
        {"metadata": {"stream": "key", "entry_id": "id"}, "fields_as": "list", "names": "binary"},
        *thorough({"metadata": []}),
        {"batch_rows": 7},
    ],
    ids=lambda options: ",".join(options) or "default",
)
def test_the_columns_are_those_of_a_reader(server: LocalServer, client: Any, options: dict[str, Any]) -> None:
    for number in range(30):
        client.xadd(KEY, {"n": number, "text": f"text {number}"})
    with Reader(endpoint_to(server), end="latest", **options) as reader:
        expected = pa.table(reader)
    batches: list[ShardBatch] = []
    with member_of(server, **options) as member:
        while sum(batch.num_rows for batch in batches) < 30:
            batches.append(next_batch(member))
        assert pa.schema(member) == expected.schema
    assert pa.Table.from_batches([pa.record_batch(batch) for batch in batches]).equals(expected)
    assert [row for batch in batches for row in batch.to_pylist()] == expected.to_pylist()
    assert max(map(len, batches)) <= options.get("batch_rows", 30)


def test_packed_rows(server: LocalServer) -> None:
    rows = pa.table({"n": list(range(10)), "text": [f"text {number}" for number in range(10)]})
    with Dispatcher(endpoint_to(server)) as dispatcher:
        dispatcher.produce_batch(rows, arrow_ipc=True, rows_per_entry=4)
        dispatcher.flush().raise_for_failures()
    with member_of(server, unpack="arrow_ipc", metadata=[]) as member:
        batch = next_batch(member)
        assert pa.table(pa.record_batch(batch)).equals(rows)
        assert (len(batch), batch.num_rows) == (10, 10)
        assert member.report().handed_over == 3
        member.commit(batch)
        assert member.flush().committed == 3


def test_the_schema_is_unknown_before_the_first_entry(server: LocalServer, client: Any) -> None:
    with member_of(server, fields="*") as member:
        with pytest.raises(SchemaError, match="first entry"):
            pa.schema(member)
        client.xadd(KEY, {"n": 1})
        next_batch(member)
        assert pa.schema(member).names[-1] == "n"


def test_a_batch_is_a_sequence_of_entries_with_a_place(server: LocalServer, client: Any) -> None:
    ids = [client.xadd("orders:1", {"payload": f"order {number}"}).decode() for number in range(25)]
    with member_of(sharded(server, 3)) as member:
        batch = next_batch(member)
        assert (batch.stream, batch.shard, batch.first_id, batch.last_id) == (b"orders:1", 1, ids[0], ids[-1])
        assert (batch.lost, batch.is_lost_exact, bool(batch), len(batch)) == (0, True, True, 25)
        assert [entry["payload"] for entry in batch[:2]] == [b"order 0", b"order 1"]
        assert batch[-1].stream == b"orders:1"
        assert 1 <= batch.epoch < 2**53
        assert batch.epoch == int(lease_of(client, "orders:1")["epoch"])
        assert repr(batch) == f"<ShardBatch: 25 rows of 'orders:1', {ids[0]} to {ids[-1]}>"
        shown = batch._repr_html_()
        assert ("order 19" in shown, "order 20" in shown, "ShardBatch: 25 rows" in shown) == (True, False, True)
        with pytest.raises(AttributeError, match="a ShardBatch has no attribute 'position'"):
            batch.position  # type: ignore[attr-defined]  # noqa: B018
        for thing in (member, batch):
            with pytest.raises(TypeError, match="pickle"):
                pickle.dumps(thing)
        assert repr(member).startswith("<ShardConsumer: member 'a' of group 'g', streams 'orders:0', 'orders:1'")


@pytest.mark.parametrize(
    ("start", "expected"), [("earliest", 1), ("4-0", 4), ("(4-0", 5), *thorough(("4", 4), ("0-1", 1))]
)
def test_a_new_group_begins_at_start(server: LocalServer, client: Any, start: str, expected: int) -> None:
    add(client, 6)
    with member_of(server, start=start) as member:
        assert take(member, 7 - expected) == {KEY: as_ids(range(expected, 7))}
        member.flush()
    # From then on the last commit counts.
    add(client, 2, first=7)
    with member_of(server, start="earliest") as member:
        assert take(member, 2) == {KEY: as_ids([7, 8])}


def test_a_new_group_can_begin_after_the_newest_entry(server: LocalServer, client: Any) -> None:
    add(client, 6)
    with member_of(server, start="latest") as member:
        assert member.poll(0.05) is None or member.assignment == []
        while not member.assignment:
            assert member.poll(0.05) is None
        add(client, 2, first=7)
        assert take(member, 2) == {KEY: as_ids([7, 8])}


def test_an_existing_group_begins_after_its_position(server: LocalServer, client: Any) -> None:
    add(client, 6)
    client.xgroup_create(KEY, GROUP, id="2-0")
    with member_of(server, start="earliest") as member:
        assert take(member, 4) == {KEY: as_ids(range(3, 7))}


def test_a_group_with_pending_entries_is_refused_until_they_are_settled(server: LocalServer, client: Any) -> None:
    add(client, 6)
    client.xgroup_create(KEY, GROUP, id="0")
    client.xreadgroup(GROUP, "c", {KEY: ">"}, count=2)
    with member_of(server) as member:
        message = r"^stream events: the group has 2 pending entries of a Consumer, so its position is not that of a"
        with pytest.raises(CommandError, match=message) as refused:
            member.poll(PATIENCE)
        assert getattr(refused.value, "stream", None) == KEY.encode()
        assert member.assignment == []
        client.xack(KEY, GROUP, "1-0", "2-0")
        assert take(member, 4) == {KEY: as_ids(range(3, 7))}


def test_a_stream_that_does_not_exist_is_created(server: LocalServer, client: Any) -> None:
    with member_of(server) as member:
        while not member.assignment:
            assert member.poll(0.02) is None
        (group,) = client.xinfo_groups(KEY)
        assert group["name"] == GROUP.encode()
        add(client, 3)
        assert take(member, 3) == {KEY: as_ids([1, 2, 3])}


def test_a_stream_that_does_not_exist_is_an_error_without_create(server: LocalServer, client: Any) -> None:
    add(client, 3, key="there")
    with member_of(server, "a", ["missing", "there"], create=False) as member:
        batches: list[ShardBatch] = []
        errors: list[GroupMissingError] = []
        while not batches or not errors:
            try:
                batches.append(next_batch(member))
            except GroupMissingError as error:
                errors.append(error)
        assert ids_of(batches[0]) == as_ids([1, 2, 3])
        assert [str(error) for error in errors] == ["stream missing: it does not exist, and create is false"]
        assert errors[0].stream == b"missing"
        # It is told once, and tried again.
        assert member.poll(0.05) is None
        assert client.exists("missing") == 0
        add(client, 2, key="missing")
        assert take(member, 2) == {"missing": as_ids([1, 2])}


@pytest.mark.needs("redis-7.0")
def test_a_loss_is_raised_once_and_the_next_call_continues_after_it(server: LocalServer, client: Any) -> None:
    add(client, 10)
    with member_of(server, batch_rows=2) as member:
        member.commit(next_batch(member))
    client.xtrim(KEY, maxlen=3, approximate=False)
    with member_of(server) as member:
        with pytest.raises(DataLossError, match=r"^stream events: 5 entries were trimmed") as lost:
            member.poll(PATIENCE)
        assert (lost.value.lost, lost.value.exact) == (5, True)
        assert member.report().lost == 5
        assert take(member, 3) == {KEY: as_ids([8, 9, 10])}


@pytest.mark.needs("redis-7.0")
def test_a_loss_can_be_reported(server: LocalServer, client: Any) -> None:
    add(client, 10)
    with member_of(server, batch_rows=2) as member:
        member.commit(next_batch(member))
    client.xtrim(KEY, maxlen=3, approximate=False)
    with member_of(server, on_loss="report") as member:
        batch = next_batch(member)
        assert (ids_of(batch), batch.lost, batch.is_lost_exact) == (as_ids([8, 9, 10]), 5, True)
        member.commit(batch)
        assert member.flush().lost == 5
        assert client.xinfo_groups(KEY)[0]["lag"] == 0


def test_a_value_that_does_not_fit_is_raised_once_and_skipped_by_the_next_call(
    server: LocalServer, client: Any
) -> None:
    """Who leaves the loop at the exception begins with this entry again: nothing after it was committed."""
    for number in ("1", "x", "3"):
        client.xadd(KEY, {"n": number})
    for _ in range(2):
        with pytest.raises(FieldError, match="does not fit"), member_of(server, schema={"n": "int64"}) as member:  # noqa: PT012
            for batch in member:
                member.commit(batch)
    with member_of(server, schema={"n": "int64"}) as member:
        with pytest.raises(FieldError, match="does not fit"):
            member.poll(PATIENCE)
        batch = next_batch(member)
        assert [entry["n"] for entry in batch] == [3]
        member.commit(batch)
        # The entry before it is committed too.
        assert member.flush().committed == 1
    with member_of(server) as member:
        assert member.poll(0.05) is None


def test_values_that_do_not_fit_can_be_kept(server: LocalServer, client: Any) -> None:
    for number in ("1", "x"):
        client.xadd(KEY, {"n": number})
    with member_of(server, schema={"n": "int64"}, on_bad_field="keep", metadata=[]) as member:
        rows = next_batch(member).to_pylist()
    assert [row["n"] for row in rows] == [1, None]
    assert dict(rows[1]["raw"]) == {"n": b"x"}


@pytest.mark.needs("redis-7.0")
def test_a_replaced_stream_is_an_error_until_its_lease_is_deleted(server: LocalServer, client: Any) -> None:
    add(client, 10, key="other")
    add(client, 10)
    with member_of(server, "a", [KEY, "other"]) as member:
        take(member, 20)
        member.flush()
    client.delete(KEY)
    add(client, 5)
    with member_of(server, "a", [KEY, "other"]) as member:
        with pytest.raises(
            StreamReplacedError, match=r"^stream events is not the one that was read before"
        ) as replaced:
            member.poll(PATIENCE)
        assert replaced.value.stream == KEY.encode()
        # The other goes on.
        add(client, 5, first=11, key="other")
        found = None
        while found is None:
            try:
                found = take(member, 5)
            except StreamReplacedError:
                continue
        assert found == {"other": as_ids(range(11, 16))}
    client.delete("{events}:lease:g")
    with member_of(server, "a", [KEY, "other"]) as member:
        assert take(member, 5) == {KEY: as_ids(range(1, 6))}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": ""}, "group must be text or bytes, of 1 byte to 512 MiB, got ''"),
        ({"member": ""}, "member must be text or bytes, of 1 byte to 512 MiB, got ''"),
        ({"member": None}, "member must be"),
        ({"lease": 0.1}, "lease must be .* 0.2 .* 3600"),
        ({"lease": 4000}, "lease must be .* 0.2 .* 3600"),
        ({"lease": "10"}, "lease must be"),
        ({"start": "yesterday"}, r"start must be 'earliest', 'latest', an entry ID 'ms-seq', or '\(' and an entry ID"),
        ({"end": "latest"}, "unknown option 'end'"),
        ({"leese": 3}, "unknown option 'leese'; did you mean 'lease'"),
        ({"fields": ["a"], "schema": {"a": "utf8"}}, "schema"),
        ({"streams": []}, "streams"),
        ({"streams": ["a", "a"]}, "twice|more than once|duplicate"),
        ({"batch_rows": 0}, "batch_rows must be"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value.items())).__repr__(),
)
def test_bad_options_are_refused(endpoint: Any, options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"group": "g", "member": "m", **options}
    with pytest.raises(ConfigError, match=message):
        ShardConsumer(endpoint, given.pop("streams", None), **given)


@pytest.mark.parametrize("missing", ["group", "member"])
def test_names_are_required(endpoint: Any, missing: str) -> None:
    given: dict[str, Any] = {"group": "g", "member": "m"}
    del given[missing]
    with pytest.raises((ConfigError, TypeError), match=missing):
        ShardConsumer(endpoint, **given)


@pytest.mark.thorough
def test_memory_is_bounded_with_a_thousand_streams(any_server: LocalServer, connect: Connect) -> None:
    """What is read ahead: a page of each stream would be 300 MB."""
    client = connect(any_server)
    value = b"x" * 10_000
    pipeline = client.pipeline(transaction=False)
    for shard in range(1_000):
        for _ in range(30):
            pipeline.xadd(f"orders:{shard}", {"v": value})
        pipeline.execute()
    with member_of(sharded(any_server, 1_000), batch_rows=10) as member:
        memory = PeakMemory()
        count = 0
        while count < 30_000:
            batch = next_batch(member)
            count += len(batch)
            member.commit(batch)
        assert member.flush().committed == 30_000
        assert memory.growth < 100 << 20
        print(f"grew by {memory.growth >> 20} MiB")
