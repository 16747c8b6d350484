"""The commands on the wire as servers see them: MONITOR is the oracle.

`test_wire_bytes.py` checks the bytes, `test_wire_arrow.py` Arrow data.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import cycle, islice
from typing import Any

import pyarrow as pa
import pytest

from headrace import Dispatcher, Endpoint
from headrace.testing import LocalServer
from support import Certs, Monitor, Program
from support.endpoint_examples import EXAMPLES, Example
from support.fixture_types import StartServer

PAYLOADS = [b'{"order_id": 123}', b'{"order_id": 124}', b'{"order_id": 125}']
TS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]


def to(server: LocalServer, **options: Any) -> Endpoint:
    return Endpoint(**{"unix_socket": server.unix_socket, "stream_key": "s", **options})


def shown(server: LocalServer, endpoint: Endpoint, **options: Any) -> list[list[bytes]]:
    """The commands of the handshake and of `PAYLOADS`, from MONITOR."""
    with Monitor(server) as seen, Dispatcher(endpoint, **options) as dispatcher:
        for payload in PAYLOADS:
            dispatcher.produce(payload)
        assert dispatcher.flush().raise_for_failures().delivered == len(PAYLOADS)
    return [command for command in seen.commands() if command[0] != b"CLIENT"]


def expected(words: str) -> list[list[bytes]]:
    """XADD to the key `s` with these arguments between key and ID, for each of `PAYLOADS`, without time."""
    return [[b"XADD", b"s", *words.encode().split(), b"*", b"payload", payload] for payload in PAYLOADS]


def without_time(commands: list[list[bytes]]) -> list[list[bytes]]:
    for command in commands:
        assert command[-2] == b"ts"
        assert TS.fullmatch(command[-1].decode())
    return [command[:-2] for command in commands]


#: The time of dispatch is that of the kernel's last tick.
TICK = timedelta(milliseconds=20)


def second(moment: datetime) -> datetime:
    return moment.replace(microsecond=0)


# --- examples of endpoints


def check_example(example: Example, server: LocalServer, connect: Connect, files: dict[str, str]) -> None:
    here = {"host": server.host, "port": server.port, **files}
    options = {name: here.get(name, value) for name, value in example.options.items()} | {"port": server.port}
    endpoint = Endpoint.from_mapping(options)
    if endpoint.nomkstream:
        connect(server).xadd(options["stream_key"], {"first": "one"})
    # MONITOR runs as the default user, which has the example's password if that has no username.
    password = None if endpoint.username else options.get("password")
    started = second(datetime.now(UTC) - TICK)
    with Monitor(server, password=password) as seen, Dispatcher(endpoint) as dispatcher:
        for payload in PAYLOADS:
            dispatcher.produce(payload)
        assert dispatcher.flush().raise_for_failures().delivered == len(PAYLOADS)
    ended = datetime.now(UTC)
    commands = [command for command in seen.commands() if command[0] != b"CLIENT"]
    handshake, xadds = commands[: -len(PAYLOADS)], commands[-len(PAYLOADS) :]
    # Behind AUTH the server is asked what it is.
    asked = handshake.index([b"HELLO", b"2"])
    assert [command[0] for command in handshake[:asked]] in ([], [b"AUTH"])
    assert handshake[:asked] + handshake[asked + 1 :] == example.handshake_in_monitor()
    for payload, command in zip(PAYLOADS, xadds, strict=True):
        ts = command[-1].decode()
        assert command == example.command(payload, ts)
        assert TS.fullmatch(ts)
        assert started <= datetime.fromisoformat(ts) <= ended
    assert {command.db for command in seen.seen("XADD")} == {options.get("db", 0)}


def test_three_of_eleven_examples_use_tls() -> None:
    assert len({example.json for example in EXAMPLES}) == 11
    assert sum(example.tls for example in EXAMPLES) == 3


@pytest.mark.parametrize("example", [one for one in EXAMPLES if not one.tls], ids=lambda one: one.name)
def test_an_endpoint_sends_the_expected_commands(
    example: Example, program: Program, start_server: StartServer, connect: Connect
) -> None:
    server = start_server(program, transport="tcp", config=example.server_config())
    check_example(example, server, connect, {})


@pytest.mark.needs("tls")
@pytest.mark.parametrize("example", [one for one in EXAMPLES if one.tls], ids=lambda one: one.name)
def test_an_endpoint_sends_the_expected_commands_over_tls(
    example: Example, program: Program, start_server: StartServer, connect: Connect, certs: Certs
) -> None:
    server = start_server(
        program,
        transport="tls",
        tls_cert=certs.server.cert,
        tls_key=certs.server.key,
        tls_ca_cert=certs.ca,
        tls_client_auth="tls_cert" in example.options,
        config=example.server_config(),
    )
    files = {"tls_ca_cert": certs.ca, "tls_cert": certs.client.cert, "tls_key": certs.client.key}
    check_example(example, server, connect, {name: str(path) for name, path in files.items()})


# --- trimming


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ""),
        ({"maxlen": 10}, "MAXLEN ~ 10"),
        ({"maxlen": 10, "maxlen_approximate": False}, "MAXLEN 10"),
        ({"minid": 1713091234567}, "MINID ~ 1713091234567"),
        ({"minid": 1713091234567, "maxlen_approximate": False}, "MINID 1713091234567"),
        ({"minid": "1713091234567-8"}, "MINID ~ 1713091234567-8"),
        ({"minid": "1713091234567-8", "maxlen_approximate": False}, "MINID 1713091234567-8"),
        # The server refuses both together: MINID takes precedence.
        ({"minid": 5, "maxlen": 10}, "MINID ~ 5"),
        ({"minid": 5, "maxlen": 10, "maxlen_approximate": False}, "MINID 5"),
        ({"nomkstream": True}, "NOMKSTREAM"),
        ({"nomkstream": True, "maxlen": 10}, "NOMKSTREAM MAXLEN ~ 10"),
        ({"nomkstream": True, "maxlen": 10, "maxlen_approximate": False}, "NOMKSTREAM MAXLEN 10"),
        ({"nomkstream": True, "minid": 5}, "NOMKSTREAM MINID ~ 5"),
        ({"nomkstream": True, "minid": 5, "maxlen": 10, "maxlen_approximate": False}, "NOMKSTREAM MINID 5"),
        # Zero would delete every entry, so it is never sent.
        ({"maxlen": 0}, ""),
        ({"maxlen": 0, "maxlen_approximate": False}, ""),
        ({"minid": 0}, ""),
        ({"minid": "0-0"}, ""),
        ({"minid": "0"}, ""),
        ({"minid": 0, "maxlen": 0}, ""),
        ({"minid": 0, "maxlen": 10}, "MAXLEN ~ 10"),
        ({"minid": 5, "maxlen": 0}, "MINID ~ 5"),
        ({"nomkstream": True, "minid": "0-0", "maxlen": 0}, "NOMKSTREAM"),
    ],
)
def test_forms_of_xadd(server: LocalServer, connect: Connect, options: dict[str, Any], words: str) -> None:
    client = connect(server)
    client.xadd("s", {"first": "one"})
    assert without_time(shown(server, to(server, **options))) == expected(words)
    assert client.xlen("s") == 1 + len(PAYLOADS)


@pytest.mark.parametrize("own", [[None], ["s"], [None, "s"]], ids=["null", "named", "null or named"])
def test_trim_every_counts_for_each_stream_key(server: LocalServer, own: list[str | None]) -> None:
    rows = 250
    keys = [key for pair in zip(islice(cycle(own), rows), ["other"] * rows, strict=True) for key in pair]
    batch = pa.record_batch({"payload": [str(row) for row in range(2 * rows)], "key": keys})
    with Monitor(server) as seen, Dispatcher(to(server, maxlen=1000, trim_every=100)) as dispatcher:
        dispatcher.produce_batch(batch, stream_key="key")
        assert dispatcher.flush().raise_for_failures().delivered == 2 * rows
    by_key: dict[bytes, list[list[bytes]]] = {}
    for command in without_time(seen.commands("XADD")):
        by_key.setdefault(command[1], []).append(command[2:-2])
    assert by_key.keys() == {b"s", b"other"}
    for commands in by_key.values():
        assert len(commands) == rows
        assert [row for row, words in enumerate(commands) if words != [b"*"]] == [0, 100, 200]
        assert commands[0] == commands[100] == commands[200] == [b"MAXLEN", b"~", b"1000", b"*"]


def test_trim_every_counts_across_flushes_and_record_batches(any_server: LocalServer) -> None:
    batch = pa.record_batch({"payload": ["x"] * 25})
    endpoint = to(any_server, minid=5, maxlen_approximate=False, trim_every=100)
    with Monitor(any_server) as seen, Dispatcher(endpoint) as dispatcher:
        for _ in range(5):
            dispatcher.produce_batch(batch)
            for _ in range(25):
                dispatcher.produce(b"x")
            dispatcher.flush().raise_for_failures()
    words = [command[2:-2] for command in without_time(seen.commands("XADD"))]
    assert len(words) == 250
    assert [row for row, these in enumerate(words) if these == [b"MINID", b"5", b"*"]] == [0, 100, 200]


# --- fields


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"payload_field": "body"}, ("body", "ts")),
        ({"payload_field": "b", "ts_field": "geschickt um\r\n"}, ("b", "geschickt um\r\n")),
        ({"payload_field": "*", "ts_field": "MAXLEN"}, ("*", "MAXLEN")),
        ({"ts_field": None}, ("payload", None)),
        ({"payload_field": "ts", "ts_field": None}, ("ts", None)),
    ],
)
def test_field_names_can_be_changed(
    any_server: LocalServer, options: dict[str, Any], names: tuple[str, str | None]
) -> None:
    payload_field, ts_field = names
    commands = shown(any_server, to(any_server), **options)
    for payload, command in zip(PAYLOADS, commands, strict=True):
        pairs = command[3:]
        assert pairs[:2] == [payload_field.encode(), payload]
        if ts_field is None:
            assert len(pairs) == 2
        else:
            assert pairs[2] == ts_field.encode()
            assert TS.fullmatch(pairs[3].decode())
            assert len(pairs) == 4


@pytest.mark.parametrize("key", [b"\xff\x00", b"a b\r\n$1\r\n", "Schlüssel", b"*", b"MAXLEN", b"k" * 10_000])
def test_stream_keys_can_contain_any_bytes(server: LocalServer, connect: Connect, key: str | bytes) -> None:
    with Monitor(server) as seen, Dispatcher(to(server, stream_key=key, consumer_group=b"\x00\r\n")) as dispatcher:
        dispatcher.produce(b"x")
        dispatcher.flush().raise_for_failures()
    as_bytes = key.encode() if isinstance(key, str) else key
    assert [command[1] for command in seen.commands("XADD")] == [as_bytes]
    client = connect(server)
    assert client.keys() == [as_bytes]
    assert client.xinfo_groups(as_bytes)[0]["name"] == b"\x00\r\n"


@pytest.mark.parametrize(
    ("payload", "stored"),
    [
        (b"", b""),
        ("", b""),
        ("Grüße, 世界 🎉", "Grüße, 世界 🎉".encode()),
        (b"\x00\xff\r\n", b"\x00\xff\r\n"),
        (b"*1\r\n$8\r\nFLUSHALL\r\n", b"*1\r\n$8\r\nFLUSHALL\r\n"),
        (bytearray(b"abc"), b"abc"),
        (memoryview(b"abcdef")[::2], b"ace"),
        (memoryview(b"abcd").cast("H"), b"abcd"),
        (bytes(range(256)) * 1000, bytes(range(256)) * 1000),
    ],
)
def test_payloads_can_contain_any_bytes(server: LocalServer, connect: Connect, payload: Any, stored: bytes) -> None:
    client = connect(server)
    client.set("bystander", "1")
    with Dispatcher(to(server)) as dispatcher:
        dispatcher.produce(payload)
        dispatcher.flush().raise_for_failures()
        entry_id = dispatcher.dispatch(payload)
    entries = client.xrange("s")
    assert [list(fields) for _, fields in entries] == [[b"payload", b"ts"]] * 2
    assert [fields[b"payload"] for _, fields in entries] == [stored] * 2
    assert entries[1][0].decode() == entry_id
    assert client.dbsize() == 2


# --- the handshake


@pytest.mark.parametrize("db", [None, 0])
def test_select_0_is_never_sent(server: LocalServer, db: int | None) -> None:
    commands = shown(server, to(server, db=db))
    assert [command[0] for command in commands] == [b"XADD"] * len(PAYLOADS)


def test_another_database_is_selected_once(server: LocalServer, connect: Connect) -> None:
    commands = shown(server, to(server, db=3))
    assert commands[0] == [b"SELECT", b"3"]
    assert [command[0] for command in commands[1:]] == [b"XADD"] * len(PAYLOADS)
    assert connect(server, db=3).xlen("s") == len(PAYLOADS)
    assert connect(server).dbsize() == 0


def test_the_error_for_a_missing_database_names_select(server: LocalServer) -> None:
    dispatcher = Dispatcher(to(server, db=99))
    dispatcher.produce(b"x")
    (failure,) = dispatcher.flush().failed
    assert (failure.kind, failure.code, failure.written) == ("retryable", "ERR", "no")
    assert failure.message.endswith("SELECT was refused: ERR DB index is out of range")
    dispatcher.close()


def test_the_connection_sets_its_name(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    with Dispatcher(to(server)) as dispatcher:
        dispatcher.produce(b"x")
        dispatcher.flush().raise_for_failures()
        (own,) = [one for one in client.client_list() if one["name"] == "headrace"]
    assert own.get("lib-name", "headrace") == "headrace"  # Redis 7.2 and later, Valkey
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", own.get("lib-ver", "0.0.0"))
    assert own.get("resp", "2") == "2"


def test_newer_servers_get_the_library_name(start_server: StartServer) -> None:
    server = start_server(needs="redis-7.2")
    with Monitor(server) as seen, Dispatcher(to(server)) as dispatcher:
        dispatcher.dispatch(b"x")
    said = seen.commands("CLIENT")
    assert [command[:3] for command in said] == [
        [b"CLIENT", b"SETINFO", b"LIB-NAME"],
        [b"CLIENT", b"SETINFO", b"LIB-VER"],
        [b"CLIENT", b"SETNAME", b"headrace"],
    ]


def test_a_consumer_group_is_created_at_connect_unless_it_exists(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    endpoint = to(server, consumer_group="g", nomkstream=True)
    create = [b"XGROUP", b"CREATE", b"s", b"g", b"$", b"MKSTREAM"]
    for connection in range(1, 3):
        commands = shown(server, endpoint)
        assert commands[0] == create
        assert [command[0] for command in commands[1:]] == [b"XADD"] * len(PAYLOADS)
        (group,) = client.xinfo_groups("s")
        assert group["name"] == b"g"
        assert group["last-delivered-id"] == b"0-0"
        assert client.xlen("s") == connection * len(PAYLOADS)
    # The group can read all entries added since its creation.
    ((_, entries),) = client.xreadgroup("g", "c", {"s": ">"})
    assert len(entries) == 2 * len(PAYLOADS)


def test_a_new_consumer_group_begins_at_the_end_of_an_existing_stream(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    last = [client.xadd("s", {"n": n}) for n in range(3)][-1]
    shown(server, to(server, consumer_group="late"))
    (group,) = client.xinfo_groups("s")
    assert group["last-delivered-id"] == last
    ((_, entries),) = client.xreadgroup("late", "c", {"s": ">"})
    assert [fields[b"payload"] for _, fields in entries] == PAYLOADS


def test_a_consumer_group_that_cannot_be_created_fails_the_batch(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    client.set("s", "no stream")
    dispatcher = Dispatcher(to(server, consumer_group="g"))
    with Monitor(server) as seen:
        for payload in PAYLOADS:
            dispatcher.produce(payload)
        failures = dispatcher.flush().failed
        assert len(seen.commands("XGROUP")) == 1
        assert seen.commands("XADD") == []
    assert [(one.kind, one.code, one.written) for one in failures] == [("permanent", "WRONGTYPE", "no")] * 3
    assert "XGROUP CREATE was refused: WRONGTYPE" in failures[0].message
    client.delete("s")
    dispatcher.produce(b"x")
    assert dispatcher.flush().raise_for_failures().delivered == 1
    dispatcher.close()
