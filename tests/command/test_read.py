"""`headrace read`: ranges, forms, unpacking, following, ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis

from command.conftest import HEADRACE, Command, Ended
from headrace import Dispatcher, Endpoint
from headrace.testing import LocalServer
from support.processes import wait_until
from support.servers import DURABLE

#: What reading needs.
RIGHTS = ["+xrange", "+xread", "+xinfo|stream"]
Connect = Callable[..., redis.Redis]


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> redis.Redis:
    return connect(server)


def rows(ended: Ended) -> list[dict[str, Any]]:
    assert ended.code == 0
    assert ended.err == "" if ended.out else ended.err.startswith("no entries in ")
    return [json.loads(line) for line in ended.out.splitlines()]


def ids(ended: Ended) -> list[str]:
    return [row["id"] for row in rows(ended)]


def add(client: redis.Redis, entry_id: str, *fields: str | bytes) -> None:
    """An entry whose fields may have equal names."""
    execute: Any = client.execute_command
    execute("XADD", "s", entry_id, *fields)


@pytest.fixture
def numbered(client: redis.Redis) -> redis.Redis:
    """The entries 1000-0 to 5000-0 of the stream `s`."""
    for number in range(1, 6):
        client.xadd("s", {"n": number, "payload": f"order {number}"}, id=f"{number}000-0")
    return client


def test_a_json_object_has_the_id_time_stream_and_fields_of_its_entry(command: Command, client: redis.Redis) -> None:
    add(client, "1795527416265-3", "a", "1", "b", b"\xff\x00", "a", 'ü"\n\x1b', b"\xfe", "x")
    assert rows(command("read", "s", "-o", "jsonl")) == [
        {
            "id": "1795527416265-3",
            "timestamp": "2026-11-24T13:36:56.265Z",
            "stream": "s",
            "fields": {"a": ["1", 'ü"\n\x1b'], "b": {"base64": "/wA="}, "\\xfe": "x"},
        }
    ]


def test_json_and_jsonl_output_contain_the_same_objects(command: Command, client: redis.Redis) -> None:
    for number in range(300):
        client.xadd("s", {f"f{n}": os.urandom(number % 7) for n in range(number % 5 + 1)})
    add(client, "*", "x", "1", "y", "2", "x", "3", "y", "\x7f\t", "x", b"\x80")
    quick = command("read", "s", "-o", "jsonl")
    one_by_one = command("read", "s", "-o", "jsonl", "--fields", "f0,f1,f2,f3,f4,x,y")
    document = command("read", "s", "-o", "json")
    assert rows(quick) == rows(one_by_one) == json.loads(document.out)
    assert len(rows(quick)) == 301
    assert quick.out == one_by_one.out


@pytest.mark.needs("redis-8.6")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), [1, 2, 3, 4, 5]),
        (("--from", "2000", "--to", "4000-0"), [2, 3, 4]),
        (("--from", "(2000-0", "--count", "2"), [3, 4]),
        (("--from", "1970-01-01T00:00:02.5Z", "--to", "1970-01-01T00:00:04Z"), [3, 4]),
        (("--from", "1970-01-01T00:00:03.0004Z"), [4, 5]),
        (("--from", "latest"), []),
        (("--last", "2"), [4, 5]),
        (("--last", "99"), [1, 2, 3, 4, 5]),
        (("--last", "2", "--to", "3000"), [2, 3]),
        (("--reverse",), [5, 4, 3, 2, 1]),
        (("--reverse", "--from", "3000", "--to", "2000"), [3, 2]),
        (("--since", "1h"), []),
        (("--since", "9999w"), [1, 2, 3, 4, 5]),
        (("--to", "2099-01-01T00:00Z"), [1, 2, 3, 4, 5]),
    ],
)
def test_ranges_are_selected_by_id_time_or_count(
    command: Command, numbered: redis.Redis, arguments: tuple[str, ...], expected: list[int]
) -> None:
    assert ids(command("read", "s", "-o", "jsonl", *arguments)) == [f"{number}000-0" for number in expected]


@pytest.mark.needs("redis-8.6")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--from", "yesterday"), "--from must be earliest, latest, an entry ID or a time, got 'yesterday'"),
        (("--from", "1969-01-01T00:00Z"), "--from must not be before 1970"),
        (("--from", "99999999999999999999-1"), "less than 2^64"),
        (("--to", "(5-1"), "--to must be an entry ID that is included, got '(5-1'"),
        (("--since", "1y"), "--since: must be a duration such as 90s, 15m, 1h30m or 2d, got '1y'"),
        (("--count", "0"), "--count must be a whole number of at least 1, got '0'"),
        (("--last", "1000001"), "--last must be at most 1,000,000"),
        (("--follow", "--to", "latest"), "--follow has no end"),
        (("--follow", "-o", "json"), "--follow has no end, and -o json is one document"),
        (("--payload", "-o", "jsonl"), "--payload prints bare payloads"),
        (("--unpack", "payload", "--fields", "a"), "--fields chooses members"),
        (("t", "--last", "1"), "--last needs a single stream"),
        (("--consumer-group", "g"), "unknown option --consumer-group: headrace send has it"),
    ],
)
def test_invalid_arguments_are_refused(
    command: Command, numbered: redis.Redis, arguments: tuple[str, ...], words: str
) -> None:
    ended = command("read", "s", *arguments)
    assert (ended.code, ended.out) == (2, b"")
    assert words in ended.err


@pytest.mark.needs("redis-8.6")
def test_text_output_has_one_line_per_entry_without_control_characters(command: Command, client: redis.Redis) -> None:
    client.xadd("s", {"name": b"a\n\x1b[31m\xff", "n": "1"}, id="1795527416265-0")
    assert command("tail", "s").out.decode() == (
        "1795527416265-0  2026-11-24T13:36:56.265Z  name=a\\n\\x1b[31m\\xff  n=1\n"
    )


def test_each_row_names_its_stream_when_several_are_read(command: Command, numbered: redis.Redis) -> None:
    numbered.xadd("t", {"n": 1}, id="7-0")
    ended = command("read", "s", "t", "--fields", "n", "--count", "6")
    assert sorted(line.split()[0] for line in ended.out.decode().splitlines()) == ["s"] * 5 + ["t"]
    assert sorted(row["stream"] for row in rows(command("read", "s", "t", "-o", "jsonl"))) == ["s"] * 5 + ["t"]


def test_shards_are_read_together(command: Command, server: LocalServer) -> None:
    with Dispatcher(Endpoint.from_url(server.url, stream_key="s", shards=3)) as dispatcher:
        for number in range(30):
            dispatcher.produce(b"%d" % number, key=b"%d" % number)
    found = rows(command("read", "s", "--shards", "3", "-o", "jsonl"))
    assert {row["stream"] for row in found} == {"s:0", "s:1", "s:2"}
    assert sorted(int(row["fields"]["payload"]) for row in found) == list(range(30))


@pytest.mark.needs("redis-8.6")
@pytest.mark.parametrize("per_entry", [1, 7])
def test_payloads_can_be_sent_to_another_stream(
    command: Command, server: LocalServer, client: redis.Redis, per_entry: int
) -> None:
    payloads = [b"order %d" % number for number in range(50)] + [b"\xff\xfe", b"\t"]
    table = pa.table({"payload": pa.array(payloads, pa.binary())})
    with Dispatcher(Endpoint.from_url(server.url, stream_key="s")) as dispatcher:
        dispatcher.produce_batch(table, rows_per_entry=per_entry)
    printed = command("read", "s", "--payload")
    assert (printed.code, printed.err, printed.out) == (0, "", b"".join(payload + b"\n" for payload in payloads))
    assert command("send", "t", stdin=printed.out).code == 0
    stored: Any = client.xrange("t")
    assert [fields[b"payload"] for _, fields in stored] == payloads


@pytest.mark.needs("redis-8.6")
def test_payloads_with_line_ends_are_reported(command: Command, client: redis.Redis) -> None:
    client.xadd("s", {"payload": "two\nlines"})
    ended = command("read", "s", "--payload")
    assert (ended.code, ended.out) == (0, b"two\nlines\n")
    assert "some payloads contain line ends" in ended.err


@pytest.mark.needs("redis-8.6")
def test_packed_json_is_unpacked(command: Command, server: LocalServer) -> None:
    table = pa.table({"id": [1, 2, 3], "name": ["a", None, "ü"]})
    with Dispatcher(Endpoint.from_url(server.url, stream_key="s")) as dispatcher:
        dispatcher.produce_batch(table, json=True, rows_per_entry=2)
    found = rows(command("read", "s", "-o", "jsonl", "--unpack", "json"))
    assert [(row["row"], row["payload"]) for row in found] == [
        (0, {"id": 1, "name": "a"}),
        (1, {"id": 2}),
        (0, {"id": 3, "name": "ü"}),
    ]
    found = rows(command("read", "s", "-o", "jsonl", "--unpack", "json", "--fields", "name"))
    assert [row["payload"] for row in found] == [{"name": "a"}, {}, {"name": "ü"}]


@pytest.mark.needs("redis-8.6")
@pytest.mark.parametrize("codec", [None, "zstd"])
def test_arrow_entries_are_unpacked_without_pyarrow(
    command: Command, server: LocalServer, codec: Any, tmp_path: Path
) -> None:
    table = pa.table({"id": [1, 2, 3], "at": pa.array([0, None, 5], pa.timestamp("ms", "UTC"))})
    with Dispatcher(Endpoint.from_url(server.url, stream_key="s")) as dispatcher:
        dispatcher.produce_batch(table, arrow_ipc=True, codec=codec)
    hidden = {"PYTHONPATH": str(_without_pyarrow(tmp_path))}
    found = rows(command("read", "s", "-o", "jsonl", "--unpack", "arrow_ipc", environment=hidden))
    assert [row["payload"] for row in found] == [
        {"id": 1, "at": "1970-01-01T00:00:00.000Z"},
        {"id": 2},
        {"id": 3, "at": "1970-01-01T00:00:00.005Z"},
    ]
    lines = command("read", "s", "--unpack", "arrow_ipc", "--payload", environment=hidden).out.splitlines()
    assert [json.loads(line)["id"] for line in lines] == [1, 2, 3]


def _without_pyarrow(folder: Path) -> Path:
    """A folder whose pyarrow cannot be imported."""
    (folder / "pyarrow.py").write_text("raise ImportError('pyarrow is hidden')\n")
    return folder


@pytest.mark.needs("redis-8.6")
@pytest.mark.parametrize("unpack", ["payload", "json", "arrow_ipc"])
def test_entries_that_cannot_be_unpacked_are_reported(command: Command, client: redis.Redis, unpack: str) -> None:
    client.xadd("s", {"other": "x"}, id="1-0")
    client.xadd("s", {"payload": '{"good": 1}'}, id="2-0")
    ended = command("read", "s", "-o", "jsonl", "--unpack", unpack)
    assert ended.code == 1
    assert "s 1-0 cannot be unpacked, and is left out: " in ended.err
    assert len(ended.out.splitlines()) == (0 if unpack == "arrow_ipc" else 1)


def test_reading_neither_changes_nor_creates_groups(command: Command, numbered: redis.Redis) -> None:
    numbered.xgroup_create("s", "g", "0")
    before = numbered.xinfo_groups("s")
    assert len(rows(command("read", "s", "-o", "jsonl"))) == 5
    assert command("read", "nothing", "-o", "json").out == b"[]\n"
    assert numbered.xinfo_groups("s") == before
    assert not numbered.exists("nothing")


def test_a_user_with_read_rights_only_can_read(command: Command, numbered: redis.Redis) -> None:
    numbered.acl_setuser("reader", enabled=True, passwords=["+canary-81"], keys=["s"], commands=RIGHTS)
    secret = {"READER_PASSWORD": "canary-81"}
    options = ("--username", "reader", "--password-env", "READER_PASSWORD", "--debug")
    ended = command("read", "s", "-o", "json", *options, environment=secret)
    assert ended.code == 0, ended
    assert len(json.loads(ended.out)) == 5
    refused = command("read", "other", "-o", "json", *options, environment=secret)
    assert refused.code == 3
    assert "NOPERM" in refused.err
    assert "canary-81" not in ended.err + ended.out.decode() + refused.err + refused.out.decode()


@contextmanager
def following(server: LocalServer, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [HEADRACE, "read", "s", "--follow", *arguments],
        env={**os.environ, "HEADRACE_URL": server.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def test_ctrl_c_exits_with_130(server: LocalServer, numbered: redis.Redis) -> None:
    with following(server, "--last", "2", "--payload") as process:
        assert [line(process), line(process)] == [b"order 4\n", b"order 5\n"]
        numbered.xadd("s", {"payload": "new"})
        assert line(process) == b"new\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate() == (b"", b"headrace: interrupted\n")
        assert process.returncode == 130


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def test_an_unreachable_server_is_reported_and_waited_for(
    start_server: Callable[..., LocalServer], connect: Connect
) -> None:
    server = start_server(config=DURABLE)
    client = connect(server)
    client.xadd("s", {"payload": "before"})
    with following(server, "--from", "earliest", "--payload") as process:
        assert line(process) == b"before\n"
        server.kill()
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"warning: retrying to read from ")
        server.restart()
        wait_until(lambda: _answers(client))
        client.xadd("s", {"payload": "after"})
        assert line(process) == b"after\n"


def test_the_command_exits_quietly_with_141_when_stdout_is_closed(server: LocalServer, client: redis.Redis) -> None:
    with client.pipeline(transaction=False) as pipe:
        for number in range(20_000):
            pipe.xadd("s", {"payload": f"a payload of some length, so that it fills a pipe: {number}"})
        pipe.execute()
    process = subprocess.Popen(
        [HEADRACE, "read", "s", "-o", "jsonl", "-u", server.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


def test_a_stream_without_entries_is_reported(command: Command, client: Any) -> None:
    client.xadd("s", {"payload": "x"}, id="1-0")
    assert command("read", "s", "--from", "2-0").err == "no entries in s within this range\n"
    client.xdel("s", "1-0")
    ended = command("read", "s")
    assert (ended.code, ended.out, ended.err) == (0, b"", "no entries in s\n")


def test_a_stream_that_does_not_exist_is_reported_with_similar_ones(
    any_command: Command, any_server: LocalServer, connect: Connect
) -> None:
    ended = any_command("read", "orders")
    assert (ended.code, ended.out, ended.err) == (1, b"", "headrace: there is no stream 'orders'\n")
    client = connect(any_server)
    for key in ("orders:dead", "Orders", "weather", "order"):
        client.xadd(key, {"payload": "x"})
    client.set("orders2", "no stream")
    client.xdel("weather", client.xinfo_stream("weather")["last-generated-id"])
    ended = any_command("read", "orders", "weather")
    assert (ended.code, ended.out) == (1, b"")
    missing, empty, _ = ended.err.split("\n")
    assert missing == "headrace: there is no stream 'orders'; similar: 'order', 'Orders', 'orders:dead'"
    assert empty == "no entries in weather"
    _, _, missing = any_command("read", "ord*").err.partition("headrace: ")
    assert missing == "there is no stream 'ord*', and a pattern is not taken; similar: 'order', 'orders:dead'\n"
    client.acl_setuser("reader", enabled=True, passwords=["+canary-81"], keys=["*"], commands=RIGHTS)
    options = ("--username", "reader", "--password-env", "P")
    ended = any_command("read", "orders", *options, environment={"P": "canary-81"})
    assert (ended.code, ended.err) == (1, "headrace: there is no stream 'orders'\n")
