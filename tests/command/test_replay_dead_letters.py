"""`headrace dead-letters`: both formats, what is chosen, and what becomes of it."""

from __future__ import annotations

import json
import threading
from argparse import Namespace
from collections.abc import Callable
from contextlib import closing
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from command.conftest import Command, CommandOn
from command.letters import consumer_letter, row_letter, spark_letter
from faults.proxy import Pair, Proxy
from headrace import Consumer, Dispatcher, Endpoint, read_dead_letters
from headrace.admin import Commands, DeadLetter
from headrace.testing import LocalServer
from headrace_command.dead_letters.entry_command import EntryCommand
from headrace_command.dead_letters.mover import Mover
from headrace_command.dead_letters.selection import Destination
from headrace_command.dead_letters.tally import Tally
from headrace_command.output import Output
from support.fixture_types import StartServer
from support.processes import wait_until

Connect = Callable[..., Any]


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    return connect(server)


def rows(out: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def payloads(client: Any, key: str) -> list[bytes]:
    return [fields[b"payload"] for _, fields in client.xrange(key)]


def test_list_agrees_with_read_dead_letters(command: Command, server: LocalServer, client: Any) -> None:
    consumer_letter(client, 1, reason="no number")
    spark_letter(client, {"payload": b"x"}, code="WRONGTYPE")
    client.xadd("dead", {"payload": "no letter"})
    client.xadd("dead", {"a": "1", "dead:stream": "s", "dead:id": "1-0", "dead:failures": 1, "dead:reason": "order"})
    listed = rows(command("dead-letters", "list", "dead", "-o", "jsonl").out)
    endpoint = Endpoint(unix_socket=server.unix_socket, stream_key="dead")
    expected = [row for batch in read_dead_letters(endpoint) for row in pa.table(batch).to_pylist()]
    assert len(listed) == len(expected) == 4
    for row, wanted in zip(listed, expected, strict=True):
        names = ("stream", "original_id", "code", "reason", "failures")
        assert [row["id"], *map(row.get, names)] == [wanted["entry_id"], *map(wanted.get, names)]
        shown = json.loads(command("dead-letters", "show", "dead", row["id"], "-o", "json").out)
        fields = [(name.encode(), value.encode()) for name, value in shown["fields"]]
        assert fields == wanted["fields"]


def test_dead_letters_of_a_consumer_are_replayed_to_their_stream(
    command: Command, server: LocalServer, client: Any
) -> None:
    endpoint = Endpoint(unix_socket=server.unix_socket, stream_key="orders")
    with Dispatcher(endpoint, ts_field=None) as dispatcher:
        dispatcher.produce(b"\xffone")
    with Consumer(
        endpoint, group="g", consumer="c", max_failures=1, dead_letter_key="dead", start="earliest"
    ) as consumer:
        batch = consumer.poll()
        assert batch is not None
        consumer.fail(batch, "bad")
        consumer.flush()
    ended = command("dead-letters", "replay", "dead", "--all", "--allow-stream", "orders", "--yes")
    assert (ended.code, ended.out) == (0, b"1 replayed\n"), ended.err
    assert payloads(client, "orders") == [b"\xffone", b"\xffone"]
    assert client.xlen("dead") == 0


def test_dead_letters_of_a_stream_that_is_not_allowed_are_skipped(command: Command, client: Any) -> None:
    consumer_letter(client, 1, stream="secrets")
    consumer_letter(client, 2)
    ended = command("dead-letters", "replay", "dead", "--all", "--allow-stream", "orders", "--yes", "-o", "json")
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert (document["replayed"], document["delivery"]) == (1, "once")
    assert document["skipped"] == {"of a stream that --allow-stream does not name": 1}
    assert not client.exists("secrets")
    assert client.xlen("dead") == 1


def test_dead_letters_with_an_unknown_outcome_need_include_unknown(command: Command, client: Any) -> None:
    spark_letter(client, {"payload": b"a"}, written="unknown")
    first = command("dead-letters", "replay", "dead", "--all", "--to", "t", "--yes")
    assert first.code == 0
    assert b"1 skipped: written: unknown" in first.out
    assert not client.exists("t")
    second = command("dead-letters", "replay", "dead", "--all", "--to", "t", "--yes", "--include-unknown")
    assert second.out == b"1 replayed\n"
    assert payloads(client, "t") == [b"a"]


def test_a_letter_whose_row_may_not_have_been_written_is_kept(
    command_on: CommandOn, start_server: StartServer, connect: Connect
) -> None:
    """Only the connection that writes the row is lost: the letter could be deleted."""
    server = start_server(transport="tcp")
    client = connect(server)
    row_letter(client, {"a": 1})
    with Proxy(server.port or 0) as proxy:
        proxy.within("requests", rb"XADD", 0.5, Pair.reset)
        to_proxy = ("--host", "127.0.0.1", "--port", str(proxy.port))
        ended = command_on(server)(
            "dead-letters", "replay", "dead", "--all", "--to", "t", "--json", "--yes", "-o", "json", *to_proxy
        )
    assert json.loads(ended.out)["unknown"] == 1, ended
    assert (client.xlen("dead"), client.xlen("t")) == (1, 0)


def test_only_code_selects_dead_letters_and_a_dry_run_changes_nothing(command: Command, client: Any) -> None:
    spark_letter(client, {"payload": b"a"}, code="OOM")
    spark_letter(client, {"payload": b"b"}, code="WRONGTYPE")
    consumer_letter(client, 3)
    arguments = ("dead-letters", "replay", "dead", "--all", "--to", "t", "--only-code", "OOM")
    dry = command(*arguments, "--dry-run")
    assert "dry run: replay 1 letter of dead: 1 to t" in dry.err
    assert (client.xlen("dead"), client.exists("t")) == (3, 0)
    assert command(*arguments, "--yes").code == 0
    assert payloads(client, "t") == [b"a"]
    assert client.xlen("dead") == 2


def test_a_stream_without_dead_letters_is_reported(command: Command, client: Any) -> None:
    assert "no letters in orders" in command("dead-letters", "list", "orders").err
    client.xadd("orders", {"payload": "x"})
    ended = command("dead-letters", "list", "orders")
    assert "1 entry is not a dead letter: give the stream of dead letters, such as orders:dead" in ended.err


def test_named_dead_letters_are_replayed_and_missing_ones_are_reported(command: Command, client: Any) -> None:
    ids = [consumer_letter(client, number) for number in range(3)]
    ended = command("dead-letters", "replay", "dead", ids[1], "7-7", "--to", "t", "--yes")
    assert ended.code == 1
    assert "there is no letter 7-7 in dead" in ended.err
    assert payloads(client, "t") == [b"order 1"]
    assert [entry_id.decode() for entry_id, _ in client.xrange("dead")] == [ids[0], ids[2]]


def test_replay_follows_the_trimming_and_nomkstream_options(command: Command, client: Any) -> None:
    for number in range(5):
        consumer_letter(client, number)
    arguments = ("dead-letters", "replay", "dead", "--all", "--to", "t", "--yes")
    refused = command(*arguments, "--nomkstream")
    assert refused.code == 1, refused
    assert b"NO_STREAM" in refused.out
    assert client.xlen("dead") == 5
    trimmed = command(*arguments, "--maxlen", "2", "--no-maxlen-approximate")
    assert trimmed.code == 0, trimmed
    assert payloads(client, "t") == [b"order 3", b"order 4"]
    wrong = command(*arguments, "--maxlen", "-1")
    assert wrong.code == 2
    assert "maxlen" in wrong.err


def test_a_dead_letter_is_kept_when_its_replay_is_refused(command: Command, client: Any) -> None:
    consumer_letter(client, 1)
    client.set("t", "a string")
    ended = command("dead-letters", "replay", "dead", "--all", "--to", "t", "--yes", "-o", "json")
    assert ended.code == 1
    document = json.loads(ended.out)
    assert (document["failed"], document["replayed"]) == (1, 0)
    assert "WRONGTYPE" in document["failures"][0]["error"]
    assert client.xlen("dead") == 1


@pytest.mark.parametrize("count", [3500, 3501, pytest.param(300_000, marks=pytest.mark.thorough)])
def test_dead_letters_with_any_number_of_fields_are_replayed_once(
    command: Command, server: LocalServer, client: Any, count: int
) -> None:
    """A script passes on about 8,000 values: an entry with more fields than that is moved by a transaction."""
    fields = wide_letter(client, server, count)
    consumer_letter(client, 2)
    refused = command("dead-letters", "replay", "dead", "--all", "--to", "t", "--yes", "--nomkstream")
    assert (refused.code, refused.out.count(b"NO_STREAM"), client.xlen("dead")) == (1, 1, 2), refused
    ended = command("dead-letters", "replay", "dead", "--all", "--to", "t", "--yes", "-o", "json")
    document = json.loads(ended.out)
    assert (ended.code, document["replayed"], document["delivery"]) == (0, 2, "once"), ended
    (_, wide), (_, narrow) = entries_of(client, "t")
    assert wide == fields
    assert narrow == [b"payload", b"order 2"]
    assert client.xlen("dead") == 0


@pytest.mark.parametrize(
    ("count", "refused"),
    [
        *product([1, 3501], ["xrange", "xadd", "xdel", "eval", "type", "memory"]),
        *product([3501], ["multi", "exec"]),
    ],
)
def test_a_replay_of_which_a_part_is_refused_changes_nothing(
    server: LocalServer, client: Any, count: int, refused: str
) -> None:
    """The right to delete is checked before the first letter, and may be withdrawn after that."""
    wide_letter(client, server, count)
    allowed = {"xrange", "xrevrange", "xadd", "xdel", "eval", "multi", "exec", "ping"}
    missing = {"xrange", "xrevrange"} if refused == "xrange" else {refused}
    client.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~*", *(f"+{name}" for name in allowed - missing))
    ((entry_id, flat),) = entries_of(client, "dead")
    letter = DeadLetter.read(entry_id, flat)
    assert len(letter.own) == count
    if refused == "type":
        client.set("t", "a string")
    elif refused == "memory":
        client.config_set("maxmemory", 1)
    endpoint = Endpoint(unix_socket=server.unix_socket, stream_key="dead", username="app", password="pw")
    tally = Tally(Output(), "replayed")
    commands = Commands(endpoint)
    mover(commands, endpoint, tally).move([(letter, b"t")])
    assert (tally.counts, client.xlen("dead")) == ({"failed": 1}, 1)
    if refused == "type":
        client.delete("t")
    client.config_set("maxmemory", 0)
    assert client.exists("t") == 0
    client.execute_command("ACL", "SETUSER", "app", "+@all")
    mover(commands, endpoint, tally).move([(letter, b"t"), (letter, b"t")])
    assert (tally.counts, client.xlen("dead"), client.xlen("t")) == ({"failed": 1, "done": 1, "gone": 1}, 0, 1)
    commands.close()


@pytest.mark.parametrize("count", [1, 3501])
def test_an_equal_entry_from_before_is_not_taken_for_a_refused_one(
    server: LocalServer, client: Any, count: int
) -> None:
    fields = wide_letter(client, server, count)
    client.execute_command("XADD", "t", "*", *fields)
    client.execute_command("XSETID", "t", "18446744073709551615-18446744073709551615")
    ((entry_id, flat),) = entries_of(client, "dead")
    endpoint = Endpoint(unix_socket=server.unix_socket, stream_key="dead")
    tally = Tally(Output(), "replayed")
    with closing(Commands(endpoint)) as commands:
        mover(commands, endpoint, tally).move([(DeadLetter.read(entry_id, flat), b"t")])
    assert (tally.counts, client.xlen("dead"), client.xlen("t")) == ({"failed": 1}, 1, 1)


def entries_of(client: Any, key: str) -> Any:
    """ID, and names and values in turn, of each entry."""
    return client.eval("return redis.call('XRANGE', KEYS[1], '-', '+')", 1, key)


def mover(commands: Commands, endpoint: Endpoint, tally: Tally) -> Mover:
    destination = Destination(Namespace(to="t", allow_stream=[]), b"dead", is_cluster=False)
    entry = EntryCommand(b"dead", endpoint, "payload", None)
    return Mover(commands, b"dead", entry, destination, lambda: pytest.fail("there are no rows"), tally)


def wide_letter(client: Any, server: LocalServer, count: int) -> list[bytes]:
    """Make a letter of an entry with this many fields, as a consumer does; returns them."""
    fields = [part for number in range(count) for part in (b"\xff%d" % number, b":" * (number % 3))]
    client.execute_command("XADD", "s", "*", *fields)
    endpoint = Endpoint(unix_socket=server.unix_socket, stream_key="s")
    with Consumer(endpoint, group="g", consumer="c", max_failures=1, dead_letter_key="dead") as consumer:
        batch = consumer.poll()
        assert batch is not None
        consumer.fail(batch, "bad")
        assert consumer.flush().dead == 1
    return fields


def test_dead_letters_added_during_a_replay_are_not_replayed(
    command: Command, server: LocalServer, client: Any
) -> None:
    """A letter is added for each entry that is written again, as a consumer does it that gives the entry up again."""
    for number in range(30):
        consumer_letter(client, number)
    ended = threading.Event()

    def give_up() -> None:
        last = "0"
        while not ended.is_set():
            for _, entries in client.xread({"t": last}, block=100):
                for entry_id, _ in entries:
                    consumer_letter(client, 99)
                    last = entry_id

    consumer = threading.Thread(target=give_up)
    consumer.start()
    try:
        done = command("dead-letters", "replay", "dead", "--all", "--to", "t", "--yes")
    finally:
        wait_until(lambda: client.xlen("dead") == client.xlen("t"))
        ended.set()
        consumer.join()
    assert (done.code, done.out) == (0, b"30 replayed\n"), done
    assert payloads(client, "t") == [b"order %d" % number for number in range(30)]


@pytest.mark.needs("redis-8.6")
def test_replaying_into_the_stream_of_dead_letters_is_refused(command: Command, client: Any) -> None:
    consumer_letter(client, 1)
    for option in (("--to", "dead"), ("--allow-stream", "dead")):
        ended = command("dead-letters", "replay", "dead", "--all", *option, "--yes")
        assert (ended.code, client.xlen("dead")) == (2, 1)


@pytest.mark.thorough
@pytest.mark.needs("redis-8.6")
def test_dead_letters_of_spark_rows_are_replayed_in_the_requested_form(command: Command, client: Any) -> None:
    row_letter(client, {"id": 7, "body": "x"})
    replay = ("dead-letters", "replay", "dead", "--all", "--yes", "--to")
    plain = command(*replay, "t")
    assert plain.code == 0
    assert b"1 skipped: a row without a payload" in plain.out
    for key, option, expected in (
        ("json", ("--json",), {b"payload": b'{"id":7,"body":"x"}'}),
        ("payload", ("--payload", "body"), {b"payload": b"x"}),
        ("fields", ("--fields", "all"), {b"id": b"7", b"body": b"x"}),
        ("some", ("--fields", "id", "--ts-field", "at"), {b"id": b"7"}),
    ):
        row_letter(client, {"id": 7, "body": "x"})
        client.xtrim("dead", maxlen=1, approximate=False)
        ended = command(*replay, key, *option)
        assert ended.code == 0, ended
        assert "at least once" in ended.err
        (fields,) = [fields for _, fields in client.xrange(key)]
        assert ("at" in " ".join(option)) == (fields.pop(b"at", None) is not None)
        assert fields == expected
        assert client.xlen("dead") == 0


@pytest.mark.needs("redis-8.6")
def test_dead_letters_of_rows_that_cannot_be_written_are_kept(command: Command, client: Any) -> None:
    row_letter(client, {"id": 7})
    spark_letter(client, {"row": b"no Arrow"})
    spark_letter(client, {})
    ended = command("dead-letters", "replay", "dead", "--all", "--to", "t", "--payload", "body", "--yes", "-o", "jsonl")
    assert ended.code == 1, ended
    assert [row["outcome"] for row in rows(ended.out)] == ["failed"] * 3
    assert (client.xlen("dead"), client.exists("t")) == (3, 0)


@pytest.mark.needs("redis-8.6")
def test_a_replayed_payload_gets_the_requested_field_names(command: Command, client: Any) -> None:
    spark_letter(client, {"payload": b"a"})
    arguments = ("--payload-field", "body", "--ts-field", "at")
    command("dead-letters", "replay", "dead", "--all", "--to", "t", "--yes", *arguments)
    ((_, fields),) = client.xrange("t")
    assert list(fields) == [b"body", b"at"]


def test_drop_deletes_dead_letters_only(command: Command, client: Any) -> None:
    ids = [consumer_letter(client, number) for number in range(3)]
    client.xadd("dead", {"payload": "no letter"})
    assert command("dead-letters", "drop", "dead", ids[0], "--yes").out == b"1 dropped\n"
    ended = command("dead-letters", "drop", "dead", "--all", "--yes")
    assert ended.out == b"2 dropped\n1 skipped: no dead letter\n"
    assert payloads(client, "dead") == [b"no letter"]


@pytest.mark.needs("redis-8.6")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("replay", "dead", "--to", "t"), "needs the IDs of letters, or --all"),
        (("drop", "dead"), "needs the IDs of letters, or --all"),
        (("drop", "dead", "1-1", "--all"), "or --all and no ID"),
        (("replay", "dead", "--all"), "needs --to STREAM, or --allow-stream"),
        (("replay", "dead", "--all", "--to", "t", "--allow-stream", "o"), "leave --allow-stream out"),
        (("replay", "dead", "--all", "--to", "t"), "without a terminal this needs --yes"),
        (("drop", "dead", "--all"), "without a terminal this needs --yes"),
        (("list", "dead", "--to", "t"), "--to is for replay"),
        (("drop", "dead", "--all", "--maxlen", "5"), "--maxlen is for replay"),
        (("list", "dead", "--yes"), "--yes is for replay and drop"),
        (("show", "dead"), "show needs the IDs"),
        (("show", "dead", "yesterday"), "an ID is <milliseconds>-<number>"),
        (("list", "dead", "1-1"), "list takes no ID"),
    ],
)
def test_invalid_arguments_are_refused_and_change_nothing(
    command: Command, client: Any, arguments: tuple[str, ...], words: str
) -> None:
    consumer_letter(client, 1)
    ended = command("dead-letters", *arguments)
    assert ended.code == 2, ended
    assert words in ended.err
    assert (client.xlen("dead"), client.exists("t")) == (1, 0)


@pytest.mark.needs("redis-8.6")
def test_list_prints_text_json_and_jsonl(command: Command, client: Any) -> None:
    assert command("dead-letters", "list", "dead", "-o", "json").out == b"[]\n"
    consumer_letter(client, 1, reason="a\nb\x1b[31m" + "x" * 100)
    spark_letter(client, {"payload": b"\xff"}, code="OOM")
    text = command("dead-letters", "list", "dead").out.decode()
    assert text.startswith("ID ")
    assert len(text.splitlines()) == 3
    assert "\x1b" not in text
    document = json.loads(command("dead-letters", "list", "dead", "-o", "json").out)
    assert [row["origin"] for row in document] == ["consumer", "spark"]
    limited = rows(command("dead-letters", "list", "dead", "-o", "jsonl", "--limit", "1").out)
    assert len(limited) == 1
    coded = rows(command("dead-letters", "list", "dead", "-o", "jsonl", "--only-code", "OOM").out)
    assert [row["code"] for row in coded] == ["OOM"]


@pytest.mark.thorough
@pytest.mark.needs("redis-8.6")
def test_large_dead_letters_are_replayed(command: Command, client: Any) -> None:
    for number in range(12):
        spark_letter(client, {"payload": bytes([number]) * (8 << 20)})
    ended = command("dead-letters", "replay", "dead", "--all", "--to", "t", "--yes")
    assert ended.code == 0, ended.err
    assert [payload[0] for payload in payloads(client, "t")] == list(range(12))


def test_a_missing_acl_right_is_reported(command: Command, server: LocalServer, client: Any) -> None:
    consumer_letter(client, 1)
    client.execute_command("ACL SETUSER app on >pw ~* +xrange +xrevrange +eval +xdel")
    environment = {"PW": "pw"}
    user = ("--username", "app", "--password-env", "PW")
    replay = command("dead-letters", "replay", "dead", "--all", "--to", "t", "--yes", *user, environment=environment)
    assert replay.code == 1, replay
    assert b"xadd" in replay.out
    assert client.xlen("dead") == 1
    client.execute_command("ACL SETUSER app +xadd -xdel")
    kept = command("dead-letters", "replay", "dead", "--all", "--to", "t", "--yes", *user, environment=environment)
    assert (kept.code, "xdel" in kept.err) == (3, True), kept
    assert (client.xlen("dead"), client.exists("t")) == (1, 0)
    client.execute_command("ACL SETUSER app -xrevrange")
    listed = command("dead-letters", "list", "dead", *user, environment=environment)
    assert listed.code == 3
    assert "xrevrange" in listed.err
