"""The reader on every server: what is in a stream comes out, once and in order, wherever it begins and ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute
import pytest
import redis

from headrace import (
    CommandError,
    ConfigError,
    ConnectionFailedError,
    DataLossError,
    Endpoint,
    Reader,
    StreamReplacedError,
)
from headrace.testing import LocalServer
from support.patience import PATIENCE

Connect = Callable[..., redis.Redis]


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> redis.Redis:
    return connect(server)


@pytest.fixture
def endpoint(server: LocalServer) -> Endpoint:
    return Endpoint.from_url(server.url, stream_key="s")


def fill(client: redis.Redis, count: int, key: str | bytes = "s", first: int = 1) -> None:
    """Entries 1-0 to `count`-0 with their number."""
    pipeline = client.pipeline(transaction=False)
    for number in range(first, first + count):
        pipeline.xadd(key, {"n": str(number), "text": "x" * (number % 50)}, id=f"{number}-0")
    pipeline.execute()


def numbers(batch: Any) -> list[int]:
    fields = pa.record_batch(batch).column("fields").to_pylist()
    return [int(dict(entry)["n"]) for entry in fields]


def read_all(reader: Reader) -> list[int]:
    return [number for batch in reader for number in numbers(batch)]


def test_every_entry_is_read_once_and_in_order(client: redis.Redis, endpoint: Endpoint) -> None:
    fill(client, 5_000)
    with Reader(endpoint, end="latest") as reader:
        batches = list(reader)
        assert reader.is_finished
    assert [number for batch in batches for number in numbers(batch)] == list(range(1, 5_001))
    assert all(batch.stream == b"s" and batch.lost == 0 for batch in batches)
    assert (batches[0].first_id, batches[-1].last_id) == ("1-0", "5000-0")
    table = pa.Table.from_batches([pa.record_batch(batch) for batch in batches])
    assert table.column_names == ["stream", "entry_id", "timestamp", "fields"]
    assert table["entry_id"].to_pylist() == [f"{number}-0" for number in range(1, 5_001)]
    assert table["timestamp"][4].as_py() == datetime(1970, 1, 1, 0, 0, 0, 5_000, UTC)
    assert table["fields"][6].as_py() == [("n", b"7"), ("text", b"x" * 7)]


def test_a_reader_with_an_end_is_an_arrow_stream(client: redis.Redis, endpoint: Endpoint) -> None:
    fill(client, 300)
    with Reader(endpoint, end="latest", batch_rows=100) as reader:
        assert pa.table(reader).num_rows == 300
    with Reader(endpoint, start="301", end="latest") as reader:
        assert pa.table(reader).num_rows == 0
    with Reader(endpoint, ["none"], end="latest") as reader:
        assert pa.table(reader).column_names == ["stream", "entry_id", "timestamp", "fields"]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("earliest", "latest", range(1, 101)),
        ("latest", "latest", []),
        ("40", "latest", range(40, 101)),
        ("40-0", "60-0", range(40, 61)),
        ("40-1", "60-0", range(41, 61)),
        ("earliest", "60", range(1, 61)),
        (datetime(1970, 1, 1, 0, 0, 0, 40_000, UTC), datetime(1970, 1, 1, 0, 0, 0, 60_000, UTC), range(40, 61)),
        (datetime(1970, 1, 1, 0, 0, 0, 39_999, UTC), datetime(1970, 1, 1, 0, 0, 0, 60_999, UTC), range(40, 61)),
        ('{"v":1,"streams":{"s":{"id":"40-0"}}}', "60", range(41, 61)),
        ("70", "60", []),
        ("0", "18446744073709551615-18446744073709551615", range(1, 101)),
    ],
)
def test_start_and_end(
    start: str | datetime, end: str | datetime, expected: list[int], client: redis.Redis, endpoint: Endpoint
) -> None:
    fill(client, 100)
    with Reader(endpoint, start=start, end=end) as reader:
        assert read_all(reader) == list(expected)


def test_ids_are_exact_up_to_the_maximum(client: redis.Redis, endpoint: Endpoint) -> None:
    last = 2**64 - 1
    ids = ["0-1", f"5-{last}", "6-0", f"{last}-{last - 1}", f"{last}-{last}"]
    for entry_id in ids:
        client.xadd("s", {"n": "1"}, id=entry_id)
    for start, end, expected in [
        ("earliest", "latest", ids),
        ("5", "5", ids[1:2]),
        ("6", "latest", ids[2:]),
        (f"{last}-{last}", "latest", ids[4:]),
        ("earliest", f"{last}-{last - 1}", ids[:4]),
    ]:
        with Reader(endpoint, start=start, end=end, metadata=["entry_id", "entry_ms", "entry_seq"]) as reader:
            table = pa.table(reader)
        assert table["entry_id"].to_pylist() == expected
        pairs = zip(table["entry_ms"].to_pylist(), table["entry_seq"].to_pylist(), strict=True)
        assert [f"{ms}-{seq}" for ms, seq in pairs] == expected
    with Reader(endpoint, start=f"{last}-{last}") as reader:
        batch = reader.read()
        assert batch is not None
        assert batch.last_id == ids[4]
        assert reader.read() is None
        assert reader.is_finished


def test_reading_resumes_after_the_position_of_each_batch(client: redis.Redis, endpoint: Endpoint) -> None:
    fill(client, 1_000)
    found: list[int] = []
    position = "earliest"
    while len(found) < 1_000:
        with Reader(endpoint, start=position, end="latest", batch_rows=77) as reader:
            if position != "earliest":
                assert json.loads(reader.position) == json.loads(position)
            batch = next(reader)
        found += numbers(batch)
        position = batch.position
    assert found == list(range(1, 1_001))


def test_start_latest_reads_only_new_entries(client: redis.Redis, endpoint: Endpoint) -> None:
    fill(client, 10)
    with Reader(endpoint, start="latest", linger=0.0) as reader:
        assert reader.read(timeout=0.05) is None
        assert not reader.is_finished
        for first in (11, 1_011, 5_011):
            fill(client, 1_000 if first > 11 else 1, first=first)
            count = 1_000 if first > 11 else 1
            found: list[int] = []
            while len(found) < count:
                batch = reader.read(timeout=PATIENCE)
                assert batch is not None
                found += numbers(batch)
            assert found == list(range(first, first + count))


def test_a_read_without_waiting_returns_available_entries(client: redis.Redis, endpoint: Endpoint) -> None:
    with Reader(endpoint, linger=0.001) as reader:
        assert reader.read(timeout=0) is None
        found: list[int] = []
        for first in (1, 501):
            fill(client, 500, first=first)
            while len(found) < first + 499:
                if (batch := reader.read(timeout=0)) is not None:
                    found += numbers(batch)
    assert found == list(range(1, 1_001))


def test_a_timeout_is_respected_while_entries_linger(client: redis.Redis, endpoint: Endpoint) -> None:
    fill(client, 5)
    with Reader(endpoint, linger=60.0) as reader:
        found: list[int] = []
        while len(found) < 5:
            if (batch := reader.read(timeout=0.02)) is not None:
                found += numbers(batch)
    assert found == [1, 2, 3, 4, 5]


def test_each_of_several_streams_is_read_in_order(client: redis.Redis, endpoint: Endpoint) -> None:
    keys = [f"s{number}" for number in range(20)]
    for at, key in enumerate(keys):
        fill(client, 50 * at, key)
    with Reader(endpoint, [*keys, "missing"], end="latest", batch_rows=64) as reader:
        found: dict[bytes, list[int]] = {}
        for batch in reader:
            found.setdefault(batch.stream, []).extend(numbers(batch))
    assert found == {key.encode(): list(range(1, 50 * at + 1)) for at, key in enumerate(keys) if at}
    with Reader(endpoint, [*keys, "missing"], start="latest") as reader:
        fill(client, 3, "missing")
        fill(client, 2, "s3", first=500)
        following: dict[bytes, list[int]] = {}
        while sum(map(len, following.values())) < 5:
            batch = next(reader)
            following.setdefault(batch.stream, []).extend(numbers(batch))
    assert following == {b"missing": [1, 2, 3], b"s3": [500, 501]}


def test_limit_ends_a_reader(client: redis.Redis, endpoint: Endpoint) -> None:
    fill(client, 2_000)
    for limit in (1, 16, 17, 1_000, 1_999):
        with Reader(endpoint, limit=limit, batch_rows=300) as reader:
            assert read_all(reader) == list(range(1, limit + 1))
            assert reader.is_finished


def test_keys_and_names_can_contain_any_bytes(client: redis.Redis, endpoint: Endpoint) -> None:
    key = b"\xff\x00key"
    command: Any = client.execute_command
    command("XADD", key, "1-0", b"\xfe", b"\x00", b"back\\slash", b"", b"twice", b"1", b"twice", b"2")
    with Reader(endpoint, [key], end="latest") as reader:
        batch = reader.read()
        assert batch is not None
        row = pa.record_batch(batch).to_pylist()[0]
        assert reader.position == batch.position
    assert row["stream"] == "\\xff\x00key"
    assert row["fields"] == [("\\xfe", b"\x00"), ("back\\\\slash", b""), ("twice", b"2")]
    with Reader(endpoint, [key], start=batch.position, end="latest") as reader:
        assert reader.read() is None
    with Reader(endpoint, [key], end="latest", fields_as="list", names="binary", metadata=[]) as reader:
        table = pa.table(reader)
    assert table.column_names == ["fields"]
    names = [pair["name"] for pair in table["fields"][0].as_py()]
    assert names == [b"\xfe", b"back\\slash", b"twice", b"twice"]


def test_entries_of_any_size_are_read(client: redis.Redis, endpoint: Endpoint) -> None:
    sizes = [10, 5_000_000, 0, 70_000, 20_000_000, 1, 262_144]
    for number, size in enumerate(sizes, 1):
        client.xadd("s", {"n": str(number), "v": b"v" * size}, id=f"{number}-0")
    with Reader(endpoint, end="latest", batch_rows=3) as reader:
        found = [(len(dict(row)["v"])) for batch in reader for row in pa.record_batch(batch)["fields"].to_pylist()]
    assert found == sizes


def test_an_entry_is_read_when_its_xinfo_reply_exceeds_64_mib(any_server: LocalServer, connect: Connect) -> None:
    # XINFO STREAM shows it twice, as the first entry and as the last one.
    connect(any_server).xadd("s", {"v": b"x" * (33 << 20)}, id="5-0")
    for reverse in (False, True):
        options: dict[str, Any] = {"reverse": reverse} if reverse else {"end": "latest"}
        with Reader(Endpoint.from_url(any_server.url, stream_key="s"), fields=["v"], **options) as reader:
            values = pa.table(reader)["v"]
        assert pa.compute.binary_length(values).to_pylist() == [33 << 20]


@pytest.mark.needs("redis-7.0")
class TestLoss:
    """What was trimmed before it was read is counted, or raised."""

    def test_a_loss_is_raised_after_the_entries_before_the_gap(self, client: redis.Redis, endpoint: Endpoint) -> None:
        fill(client, 100)
        with Reader(endpoint, batch_rows=10) as reader:
            first = reader.read()
            assert first is not None
            fill(client, 900, first=101)
            client.xtrim("s", maxlen=500, approximate=False)
            found = numbers(first)
            with pytest.raises(DataLossError) as raised:
                found.extend(number for batch in reader for number in numbers(batch))
            last = found[-1]
            assert found == list(range(1, last + 1))
            error = raised.value
            assert (error.lost, error.exact, error.stream) == (500 - last, True, b"s")
            assert "oldest entry is 501-0" in str(error)
            # The same reader, and another one from the position of the error, go on behind the gap.
            batch = reader.read()
            assert batch is not None
            assert numbers(batch)[0] == 501
        with Reader(endpoint, start=error.position, end="latest") as other:
            assert read_all(other) == list(range(501, 1_001))

    def test_reported_losses_add_up(self, client: redis.Redis, endpoint: Endpoint) -> None:
        fill(client, 100)
        found: list[int] = []
        lost = 0
        with Reader(endpoint, batch_rows=16, on_loss="report") as reader:
            first = 101
            while len(found) + lost < 1_000:
                batch = reader.read(timeout=PATIENCE)
                assert batch is not None
                assert batch.is_lost_exact
                found += numbers(batch)
                lost += batch.lost
                if first <= 1_000:
                    fill(client, 90, first=first)
                    first += 90
                    client.xtrim("s", maxlen=60, approximate=False)
        assert lost > 0
        assert found == sorted(set(found))

    def test_entries_trimmed_since_a_position_are_counted(self, client: redis.Redis, endpoint: Endpoint) -> None:
        fill(client, 100)
        with Reader(endpoint, limit=60) as reader:
            read_all(reader)
            position = reader.position
        client.xtrim("s", maxlen=40, approximate=False)
        with Reader(endpoint, start=position, end="latest") as reader:
            assert read_all(reader) == list(range(61, 101))
        client.xtrim("s", maxlen=20, approximate=False)
        with Reader(endpoint, start=position, end="latest") as reader, pytest.raises(DataLossError) as raised:
            read_all(reader)
        assert (raised.value.lost, raised.value.exact) == (20, True)
        client.xtrim("s", maxlen=0, approximate=False)
        with (
            Reader(endpoint, start=position, end="latest") as reader,
            pytest.raises(DataLossError, match="no entry is left"),
        ):
            read_all(reader)

    @pytest.mark.parametrize("on_loss", ["fail", "report"])
    def test_a_loss_is_found_when_no_entry_is_left(
        self, on_loss: Literal["fail", "report"], client: redis.Redis, endpoint: Endpoint
    ) -> None:
        fill(client, 100)
        with Reader(endpoint, end="200", batch_rows=10, on_loss=on_loss) as reader:
            found = numbers(next(reader))
            fill(client, 100, first=101)
            client.xtrim("s", maxlen=0, approximate=False)
            if on_loss == "fail":
                with pytest.raises(DataLossError) as raised:
                    found.extend(number for batch in reader for number in numbers(batch))
                assert raised.value.lost == 200 - len(found)
            found += read_all(reader)
            assert (reader.lost, reader.is_lost_exact) == (200 - len(found), True)
        assert found == list(range(1, len(found) + 1))
        with Reader(endpoint, start=reader.position, end="200", on_loss="report") as again:
            assert read_all(again) == []
            # A loss that no batch and no error has reported is still to be reported.
            assert again.lost == (reader.lost if on_loss == "report" else 0)

    def test_a_loss_after_a_start_in_mid_stream_is_an_upper_bound_raised_once(
        self, client: redis.Redis, endpoint: Endpoint
    ) -> None:
        fill(client, 100)
        with Reader(endpoint, start="50", end="200", batch_rows=10) as reader:
            found = numbers(next(reader))
            fill(client, 100, first=101)
            client.xtrim("s", maxlen=20, approximate=False)
            with pytest.raises(DataLossError) as raised:
                found.extend(number for batch in reader for number in numbers(batch))
            assert found == list(range(50, 50 + len(found)))
            assert not raised.value.exact
            assert raised.value.lost >= 181 - 50 - len(found)
            assert read_all(reader) == list(range(181, 201))

    def test_a_deleted_entry_makes_a_loss_an_upper_bound(self, client: redis.Redis, endpoint: Endpoint) -> None:
        fill(client, 100)
        with Reader(endpoint, limit=60) as reader:
            read_all(reader)
            position = reader.position
        client.xdel("s", "90-0")
        client.xtrim("s", minid="81", approximate=False)
        with Reader(endpoint, start=position, end="latest") as reader, pytest.raises(DataLossError) as raised:
            read_all(reader)
        assert (raised.value.lost, raised.value.exact) == (21, False)

    @pytest.mark.parametrize("refill", [0, 5])
    def test_a_recreated_stream_is_refused(self, refill: int, client: redis.Redis, endpoint: Endpoint) -> None:
        fill(client, 100)
        with Reader(endpoint, block=0.05) as reader:
            while (batch := reader.read(timeout=0.2)) is not None:
                assert batch.lost == 0
            position = reader.position
            client.delete("s")
            fill(client, refill)
            with pytest.raises(StreamReplacedError, match="not the one that was read before"):
                reader.read(timeout=5)
        with Reader(endpoint, start=position, end="latest") as reader, pytest.raises(StreamReplacedError):
            read_all(reader)

    def test_a_stream_recreated_under_higher_ids_is_refused_in_the_end(
        self, client: redis.Redis, endpoint: Endpoint
    ) -> None:
        """Its entries continue at the position; only its count of entries is too low."""
        fill(client, 100)
        with Reader(endpoint, block=0.05) as reader:
            while reader.read(timeout=0.2) is not None:
                pass
            client.delete("s")
            fill(client, 200, first=1_000)
            found: list[int] = []
            with pytest.raises(StreamReplacedError, match="not the one that was read before"):
                found.extend(number for batch in reader for number in numbers(batch))
            # The reader may notice it before it has read them all.
            assert found == list(range(1_000, 1_000 + len(found)))


def test_possible_losses_on_old_servers_cause_a_warning(program: Any, client: redis.Redis, endpoint: Endpoint) -> None:
    if program.counts_entries:
        return
    fill(client, 100)
    with Reader(endpoint, limit=10) as reader:
        read_all(reader)
        position = reader.position
    client.xtrim("s", maxlen=20, approximate=False)
    with Reader(endpoint, start=position, end="latest") as reader, pytest.warns(RuntimeWarning, match="does not count"):
        assert read_all(reader) == list(range(81, 101))


class TestErrors:
    """Bad input and bad servers give errors that say what to do."""

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"start": "newest"}, "start must be 'earliest'"),
            ({"end": "earliest"}, "end must be 'latest'"),
            ({"start": datetime(2026, 1, 1)}, "start must have a time zone"),
            ({"batch_rows": 0}, "batch_rows must be an integer from 1"),
            ({"bloc": 1.0}, "did you mean 'block'"),
            ({"on_loss": "ignore"}, "one of 'fail', 'report'"),
            ({"metadata": ["id"]}, "got 'id'"),
        ],
    )
    def test_invalid_options_are_refused(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            Reader(Endpoint(host="localhost", stream_key="s"), **options)

    @pytest.mark.parametrize("streams", ["s", b"s", [], [""], [1], ["a", "a"]])
    def test_invalid_streams_are_refused(self, streams: Any) -> None:
        with pytest.raises(ConfigError, match="streams must"):
            Reader(Endpoint(host="localhost", stream_key="s"), streams)

    def test_a_position_in_another_stream_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="'t', which is not among the streams"):
            Reader(Endpoint(host="localhost", stream_key="s"), start='{"v":1,"streams":{"t":{"id":"1-0"}}}')

    def test_a_key_of_another_type_is_refused(self, client: redis.Redis, endpoint: Endpoint) -> None:
        client.set("s", "text")
        with pytest.raises(CommandError, match="WRONGTYPE") as raised:
            Reader(endpoint)
        assert raised.value.code == "WRONGTYPE"

    def test_an_unreachable_server_raises_an_error(self, closed_port: int) -> None:
        with pytest.raises(ConnectionFailedError, match=f"127.0.0.1:{closed_port}"):
            Reader(Endpoint(host="127.0.0.1", port=closed_port, stream_key="s"))

    def test_a_lost_connection_is_replaced(self, client: redis.Redis, endpoint: Endpoint) -> None:
        fill(client, 3_000)
        found: list[int] = []
        with Reader(endpoint, end="latest", batch_rows=100) as reader:
            for batch in reader:
                found += numbers(batch)
                if len(found) % 500 == 0:
                    client.client_kill_filter(_type="normal", skipme=True)
        assert found == list(range(1, 3_001))


@pytest.mark.needs("redis-7.0")
class TestLossAcrossRestarts:
    """What a position says of losses, for a reader that begins there."""

    def test_a_deleted_entry_makes_later_losses_an_upper_bound(self, client: redis.Redis, endpoint: Endpoint) -> None:
        fill(client, 100)
        with Reader(endpoint, limit=60, end="latest") as reader:
            read_all(reader)
        client.xdel("s", "70-0")
        with Reader(endpoint, start=reader.position, limit=20, end="latest") as reader:
            assert read_all(reader)[-1] == 81
        client.xtrim("s", minid="92-0", approximate=False)
        with Reader(endpoint, start=reader.position, end="latest", on_loss="report") as reader:
            read_all(reader)
        # Ten were lost; the one that was deleted is counted with them.
        assert (reader.lost, reader.is_lost_exact) == (11, False)

    def test_a_loss_that_no_batch_reported_is_found_again(self, client: redis.Redis, endpoint: Endpoint) -> None:
        fill(client, 1, key="a")
        fill(client, 1, key="b")
        with Reader(endpoint, ["a", "b"], on_loss="report", block=0.01, linger=0.0) as reader:
            assert [next(reader).num_rows, next(reader).num_rows] == [1, 1]
            fill(client, 10, key="a", first=2)
            client.xtrim("a", maxlen=0, approximate=False)
            fill(client, 1, key="b", first=2)
            batch = next(reader)
            assert (batch.stream, batch.lost) == (b"b", 0)
        with Reader(endpoint, ["a", "b"], start=batch.position, end="latest", on_loss="report") as again:
            assert read_all(again) == []
        assert (again.lost, again.is_lost_exact) == (10, True)
