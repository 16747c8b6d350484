"""`on_failure`: what happens to rows that cannot be written, how they are reported, and how they are written later."""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
import redis
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import headrace
from headrace import Dispatcher, Endpoint, tables
from headrace.spark.failures import advice
from headrace.testing import LocalServer
from support.datasource import InterceptingServer, Options, messages, payloads, save, stored, writer
from support.fixture_types import StartServer
from support.marks import thorough
from support.patience import LATE
from support.processes import wait_until

pytestmark = pytest.mark.usefixtures("text_key")

Connect = Callable[..., redis.Redis]

#: A part of each payload, which no error message may repeat.
PAYLOAD = "payload-of-row"


@pytest.fixture
def intercepted(any_server: LocalServer) -> Iterator[Options]:
    """Options for a server without memory for some payloads."""

    def answer(command: list[bytes]) -> bytes | None:
        full = command[1] == b"events" and any(b"too-much" in argument for argument in command)
        return b"-OOM command not allowed when used memory > 'maxmemory'.\r\n" if full else None

    with InterceptingServer(any_server, answer) as server:
        yield {"host": "127.0.0.1", "port": server.port, "stream_key": "events"}


def mixed(spark: SparkSession, rows: int = 100) -> DataFrame:
    """Two partitions; of every ten rows the fourth has no payload, the sixth a wrong key, the eighth is too large."""
    return spark.range(0, rows, 1, 2).selectExpr(
        "concat('m', id) AS message_id",
        f"case id % 10 when 3 then null when 7 then 'too-much' else concat('{PAYLOAD}', id) end AS payload",
        "if(id % 10 = 5, 'text', null) AS stream_key",
    )


GOOD = sorted(f"{PAYLOAD}{n}" for n in range(100) if n % 10 not in (3, 5, 7))
CODES = {3: "NULL_PAYLOAD", 5: "WRONGTYPE", 7: "OOM"}


def said_by(error: Exception) -> str:
    """The text of an error, without the source lines of its traceback."""
    return re.sub(r'\n +File ".*\n +.*(\n +[\^~]+)?', "", str(error))


# --- fail -------------------------------------------------------------------------------------------------------------


def test_failed_rows_fail_the_write_by_default(spark: SparkSession, client: redis.Redis, intercepted: Options) -> None:
    with pytest.raises(PythonException) as caught:
        writer(mixed(spark), intercepted).save()
    text = said_by(caught.value)
    assert "15 of 50 rows were not written to redis://127.0.0.1" in text
    for part in ("NULL_PAYLOAD 5", "WRONGTYPE 5", "OOM 5", "and 5 more"):
        assert part in text
    partition = re.search(
        r"row 3 of partition (\d), message ID 'm(\d+)': NULL_PAYLOAD \(permanent, written: no\)", text
    )
    assert partition
    assert (partition[1], partition[2]) in {("0", "3"), ("1", "53")}
    for code in CODES.values():
        assert f"\n{code}: {advice(code)}" in text
    assert PAYLOAD not in text
    assert "too-much" not in text
    # The messages in flight have ended, and there are no duplicates.
    written = payloads(client)
    assert len(written) == len(set(written))
    assert set(written) <= set(GOOD)
    assert len(written) >= 35


def test_the_first_failure_ends_the_task(spark: SparkSession, client: redis.Redis, any_server: LocalServer) -> None:
    frame = messages(spark, 500_000, 1).withColumn("payload", sf.expr("if(message_id = 7, null, payload)"))
    with pytest.raises(PythonException, match="row 7 of partition 0, message ID '7': NULL_PAYLOAD"):
        save(frame, any_server)
    assert client.xlen("events") < 500_000


def test_ordinals_count_across_record_batches(
    spark: SparkSession, client: redis.Redis, any_server: LocalServer
) -> None:
    frame = spark.range(0, 30_000, 1, 1).selectExpr("if(id = 25_001, null, string(id)) AS payload".replace("_", ""))
    with pytest.raises(PythonException, match=r"1 of 30,000 rows .*\n +row 25,001 of partition 0: NULL_PAYLOAD"):
        save(frame, any_server)
    assert client.xlen("events") == 29_999


def test_a_server_that_stays_down_fails_the_task(spark: SparkSession, closed_port: int) -> None:
    options = {"host": "127.0.0.1", "port": closed_port, "stream_key": "events", "retry_deadline": 0.3}
    with pytest.raises(PythonException) as caught:
        writer(messages(spark, 20_000), options).save()
    text = said_by(caught.value)
    assert re.search(r"10,000 of 10,000 rows were not written .*\(CONNECT 10,000\)", text)
    assert "every executor must reach the server, and retry_deadline" in text


@pytest.mark.thorough
@pytest.mark.parametrize("on_failure", ["report", "dead_letter"])
def test_on_failure_does_not_cover_a_server_that_stays_down(
    spark: SparkSession, closed_port: int, on_failure: str
) -> None:
    """It ends the first task; later groups of rows do not wait for it again."""
    options: Options = {"host": "127.0.0.1", "port": closed_port, "stream_key": "events", "on_failure": on_failure}
    if on_failure == "dead_letter":
        options["dead_letter_key"] = "dead"
    with pytest.raises(PythonException) as caught:
        writer(messages(spark, 1_000_000), {**options, "retry_deadline": 0.3}).save()
    text = said_by(caught.value)
    assert re.search(r"\d\d,\d+ of \d\d,\d+ rows were not written .*\(CONNECT \d\d,\d+\): server unreachable", text)
    assert f"server unreachable until retry_deadline; on_failure={on_failure} only covers row errors" in text
    assert "given up after" in text
    # Without retries nothing waits.
    if on_failure == "report":
        writer(messages(spark, 1_000_000), {**options, "retry": "false"}).save()


@pytest.mark.parametrize(
    ("exactly_once", "away"),
    [(True, 0), *(pytest.param(*case, marks=pytest.mark.thorough) for case in ((False, 0), (False, 10), (True, 10)))],
)
def test_rows_are_delivered_after_a_server_restart(
    spark: SparkSession, start_server: StartServer, connect: Connect, exactly_once: bool, away: float
) -> None:
    server = start_server(config={"appendonly": "yes", "appendfsync": "always"})
    back: list[float] = []

    def strike() -> None:
        client = connect(server)
        with contextlib.suppress(redis.ConnectionError):
            while client.xlen("events") < 5_000:
                time.sleep(0.001)
        server.kill()
        time.sleep(away)
        server.restart()
        back.append(time.monotonic())
        before = min(client.xlen("events"), 199_999)  # possibly all, if this thread was scheduled late
        wait_until(lambda: client.xlen("events") > before)
        back.append(time.monotonic())

    with ThreadPoolExecutor(1) as executor:
        struck = executor.submit(strike)
        options = {"txn_app_id": "job", "txn_version": 1} if exactly_once else {}
        save(messages(spark, 200_000), server, **options)
        struck.result()
    returned, resumed = back
    assert resumed - returned < LATE
    written = payloads(connect(server))
    assert set(written) == {f"p{n}" for n in range(200_000)}
    if exactly_once:
        assert len(written) == 200_000


def test_every_code_of_headrace_has_advice() -> None:
    own = [code for code in tables.CODES.values() if code.is_own]
    assert len(own) > 20
    assert [code.name for code in own if not code.advice] == ["UNSUPPORTED"]  # its messages say what is required


# --- report -----------------------------------------------------------------------------------------------------------


def test_on_failure_report_writes_all_good_rows(spark: SparkSession, client: redis.Redis, intercepted: Options) -> None:
    writer(mixed(spark), {**intercepted, "on_failure": "report"}).save()
    assert sorted(payloads(client)) == GOOD


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_failed_rows": 30, "max_failed_ratio": 0.3}, None),
        ({"max_failed_rows": 14}, "15 of 50 rows .*: more than max_failed_rows=14\n"),
        ({"max_failed_ratio": 0.29}, "30 of 100 rows .*: more than max_failed_ratio=0.29\n"),
        *thorough(
            ({"max_failed_rows": 29}, "30 of 100 rows .*: more than max_failed_rows=29\n"),
            ({"max_failed_rows": 0}, "15 of 50 rows .*: more than max_failed_rows=0\n"),
        ),
    ],
)
def test_limits_of_failed_rows_are_enforced(
    spark: SparkSession, client: redis.Redis, intercepted: Options, limits: Options, reason: str | None
) -> None:
    write = writer(mixed(spark), {**intercepted, "on_failure": "report", **limits})
    if reason is None:
        write.save()
    else:
        # The commit reports the first limit for the whole write, a task reports the others.
        with pytest.raises((PythonException, AnalysisException), match=reason):
            write.save()


def test_limits_allow_an_empty_write(spark: SparkSession, any_server: LocalServer) -> None:
    save(messages(spark, 0), any_server, on_failure="report", max_failed_ratio="0", max_failed_rows="0")


# --- dead letters -----------------------------------------------------------------------------------------------------


def test_dead_letters(spark: SparkSession, client: redis.Redis, intercepted: Options) -> None:
    writer(
        mixed(spark), {**intercepted, "on_failure": "dead_letter", "dead_letter_key": "dead", "maxlen": 1_000}
    ).save()
    assert sorted(payloads(client)) == GOOD
    letters = list(stored(client, "dead").values())
    assert Counter(fields["code"].decode() for fields in letters) == dict.fromkeys(CODES.values(), 10)
    for fields in letters:
        number = 50 * int(fields["partition"]) + int(fields["ordinal"])
        code = CODES[number % 10]
        assert fields.pop("ts").endswith(b"Z")
        assert fields.pop("message")
        assert {name: value.decode() for name, value in fields.items()} == {
            **({} if code == "NULL_PAYLOAD" else {"payload": "too-much" if code == "OOM" else f"{PAYLOAD}{number}"}),
            "stream_key": "text" if code == "WRONGTYPE" else "events",
            "message_id": f"m{number}",
            "kind": "permanent",
            "code": code,
            "written": "no",
            "partition": str(number // 50),
            "ordinal": str(number % 50),
        }


def test_dead_letters_of_other_layouts_contain_the_row(
    spark: SparkSession, client: redis.Redis, any_server: LocalServer
) -> None:
    """A dead letter holds the row itself, which gives the same entry when it is written again."""
    frame = spark.sql("""
        select id, 1.0e10d as x, timestamp '2026-04-14 12:00:00' as at, array(id, null) as list,
            if(id = 1, 'text', null) as stream_key, if(id = 1, '5-1', null) as entry_id
        from range(0, 3, 1, 1)
    """)
    save(frame, any_server, on_failure="dead_letter", dead_letter_key="dead", message_id="id", entry_id="entry_id")
    assert client.xlen("events") == 2
    (letter,) = stored(client, "dead").values()
    assert (letter["stream_key"], letter["entry_id"], letter["message_id"]) == (b"text", b"5-1", b"1")
    row = pa.table(headrace.unpack_arrow(letter, "row"))
    assert row.column_names == ["id", "x", "at", "list"]
    (letters,) = headrace.read_dead_letters(Endpoint(unix_socket=any_server.unix_socket, stream_key="dead"))
    (found,) = pa.table(letters).select(["stream", "original_id", "code", "failures", "fields"]).to_pylist()
    assert found == {
        "stream": "text",
        "original_id": "5-1",
        "code": letter["code"].decode(),
        "failures": None,
        "fields": [(b"row", letter["row"])],
    }
    with Dispatcher(Endpoint(unix_socket=any_server.unix_socket, stream_key="again")) as dispatcher:
        dispatcher.produce_batch(row, json=True)
    expected = frame.where("id = 1").select(sf.to_json(sf.struct("id", "x", "at", "list")).alias("json")).first()
    assert expected
    assert payloads(client, "again") == [expected.json]


def test_each_of_many_dead_letters_contains_its_row(
    spark: SparkSession, client: redis.Redis, any_server: LocalServer
) -> None:
    """More rows than are buffered at once: each failure still finds its row."""
    key = "if(id % 1000 = 7, 'text', null) AS stream_key"
    frame = spark.range(0, 150_000, 1, 1).selectExpr("string(id) AS body", key)
    save(frame, any_server, on_failure="dead_letter", dead_letter_key="dead")
    expected = [str(n) for n in range(7, 150_000, 1_000)]
    assert client.xlen("events") == 150_000 - len(expected)
    letters = list(stored(client, "dead").values())
    assert [fields["payload"].decode() for fields in letters] == expected
    assert [fields["ordinal"].decode() for fields in letters] == expected
    assert not any("message_id" in fields for fields in letters)


def test_dead_letters_that_cannot_be_written_fail_the_task(
    spark: SparkSession, client: redis.Redis, intercepted: Options
) -> None:
    options = {**intercepted, "on_failure": "dead_letter", "dead_letter_key": "text"}
    with pytest.raises(PythonException) as caught:
        writer(mixed(spark), options).save()
    text = said_by(caught.value)
    assert "15 of 15 rows were not written to redis://127.0.0.1" in text
    assert "stream key text (WRONGTYPE 15): these are dead letters; without them rows would be lost" in text
    assert re.search(r"row 5 of partition \d, message ID 'm\d+': WRONGTYPE", text)
    assert PAYLOAD not in text
