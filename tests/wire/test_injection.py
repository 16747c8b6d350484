"""Bytes that look like commands, wherever a caller can pass bytes: the server runs only the intended commands.

Its own statistics say which it ran and how often; what is stored is what was given.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Self
from urllib.parse import quote

import pyarrow as pa
import pytest
from pyarrow import ipc

import headrace
from headrace import ConfigError, DeliveryReport, Dispatcher, Endpoint
from headrace.testing import LocalServer
from support import Program
from support.fixture_types import StartServer
from support.pipelines import outcomes

Connect = Callable[..., Any]
#: The number of calls of each command.
Commands = dict[str, int]

EVIL = [
    b"\r\n",
    b"\n",
    b"\r",
    b"*1\r\n$8\r\nFLUSHALL\r\n",
    b"\r\n*1\r\n$8\r\nFLUSHALL\r\n",
    b"$-1\r\n",
    b"\r\nFLUSHALL\r\n",
    b"FLUSHALL",
    b"-ERR no\r\n",
    b"+OK\r\n",
    b"\0",
    b"\xff\xfe\xfd",
    b"*",
    b"~",
    b"MAXLEN",
    b"NOMKSTREAM",
    b"IDMP",
    b"0-1",
    b"{s}",
    b"' or \"",
    b"redis.call('FLUSHALL')",
    b"]] return redis.call('FLUSHALL') --[[",
]
TEXTS = [part.decode() for part in EVIL if part.isascii()] + ["ä€𝄞", "\u2028"]


class Evil:
    """Random bytes and texts from a seed that contain `EVIL`."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def data(self, least: int = 0) -> bytes:
        parts = [self._random.choice([*EVIL, self._random.randbytes(self._random.randrange(9))]) for _ in range(4)]
        data = b"".join(parts[: self._random.randrange(5)])
        return data or self.data(least) if least else data

    def text(self) -> str:
        return "".join(self._random.choices([*TEXTS, "x", "7"], k=self._random.randrange(1, 5)))

    def name(self) -> str:
        """A column name: Arrow's C interface ends names at the first zero byte."""
        return self.text().replace("\0", "0")


@pytest.fixture
def evil(request: pytest.FixtureRequest) -> Evil:
    """Input from a new seed per test and server; a failure names the seed."""
    return Evil(request.node.name)


class Statistics:
    """The commands that the server ran during the block."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.commands: Commands = {}

    def __enter__(self) -> Self:
        self._client.config_resetstat()
        return self

    def __exit__(self, *_: object) -> None:
        counts = self._client.info("commandstats")
        # Without the commands of this test; INFO counts too, which the script calls to check permissions.
        ours = ("cmdstat_config", "cmdstat_info")
        self.commands = {
            name.removeprefix("cmdstat_"): calls["calls"] + calls["rejected_calls"]
            for name, calls in counts.items()
            if not name.startswith(ours)
        }


def ran(program: Program, **commands: int) -> Commands:
    """The commands of one connection: its handshake, then these. `xinfo_stream`: a subcommand."""
    # Subcommands are counted separately since Redis 7.0; SETINFO exists since 7.2, and an unknown one is not counted.
    has_subcommands = not program.is_redis or program.numbers >= (7,)
    has_setinfo = not program.is_redis or program.numbers >= (7, 2)
    begin = {"client_setname": 1, "client_setinfo": 2 if has_setinfo or not has_subcommands else 0}
    counts: Counter[str] = Counter()
    for name, count in {**begin, **commands}.items():
        word, _, subcommand = name.partition("_")
        counts[f"{word}|{subcommand}" if subcommand and has_subcommands else word] += count
    return {name: count for name, count in counts.items() if count}


def to(server: LocalServer, key: str | bytes, **options: Any) -> Endpoint:
    return Endpoint(**{"unix_socket": server.unix_socket, "stream_key": key, **options})


def entries(client: Any, key: str | bytes) -> list[dict[bytes, bytes]]:
    return [fields for _, fields in client.xrange(key)]


def send(endpoint: Endpoint, data: Any, *, options: dict[str, Any] | None = None, **layout: Any) -> DeliveryReport:
    with Dispatcher(endpoint, ts_field=None, **(options or {})) as dispatcher:
        dispatcher.produce_batch(data, **layout)
        return dispatcher.flush().raise_for_failures()


ROUNDS = 4
RUNS = 20
MESSAGES = 2_000


@pytest.mark.parametrize("mode", ["off", "script"])
def test_messages_inject_no_command(
    server: LocalServer, program: Program, connect: Connect, evil: Evil, mode: str
) -> None:
    options: dict[str, Any] = {"exactly_once": mode}
    if mode == "off":
        expected = [ran(program, xadd=MESSAGES)]
    else:
        options["script_run_rows"] = 100
        # A script call has 100 rows, the first one also the script's text, and it reads and moves the marker.
        # The rows of a call share their time: each second that begins in between makes one more call.
        expected = [
            ran(program, eval=2, evalsha=runs - 1, get=runs, set=runs, xadd=MESSAGES) for runs in range(RUNS, RUNS + 10)
        ]
    check_messages(server, connect, evil, options, expected)


@pytest.mark.needs("idmp")
def test_messages_with_idmp_inject_no_command(
    server: LocalServer, program: Program, connect: Connect, evil: Evil
) -> None:
    # The stream is created and configured.
    more = {"hello": 1, "xinfo_stream": 2, "xgroup_create": 1, "xgroup_destroy": 1, "xcfgset": 1}
    options = {"exactly_once": "idmp", "exactly_once_key": "message_id"}
    check_messages(server, connect, evil, options, [ran(program, xadd=MESSAGES, **more)])


def check_messages(
    server: LocalServer, connect: Connect, evil: Evil, options: dict[str, Any], expected: list[Commands]
) -> None:
    """Stream keys, names of fields, payloads, message IDs, tokens. The server runs one of the expected sets."""
    client = connect(server)
    for turn in range(ROUNDS):
        key, payload_field, ts_field = b"%d" % turn + evil.data(), evil.text(), evil.text() + "ts"
        payloads, ids = [evil.data() for _ in range(MESSAGES)], [f"{evil.text()}{n}" for n in range(MESSAGES)]
        with (
            Statistics(client) as statistics,
            Dispatcher(to(server, key), payload_field=payload_field, ts_field=ts_field, **options) as dispatcher,
        ):
            if options["exactly_once"] != "off":
                dispatcher.begin(evil.text())
            for payload, message_id in zip(payloads, ids, strict=True):
                dispatcher.produce(payload, message_id)
            report = dispatcher.flush().raise_for_failures()
        assert [outcome.message_id for outcome in outcomes(report)] == ids
        stored = entries(client, key)
        assert [entry[payload_field.encode()] for entry in stored] == payloads
        assert {tuple(entry) for entry in stored} == {(payload_field.encode(), ts_field.encode())}
        assert statistics.commands in expected


@pytest.mark.parametrize("mode", ["off", "script"])
def test_rows_of_many_streams_inject_no_command(
    server: LocalServer, program: Program, connect: Connect, evil: Evil, mode: str
) -> None:
    """Stream keys and fields of rows; each stream has its own marker."""
    client = connect(server)
    for _ in range(ROUNDS):
        client.flushall()
        keys = [evil.data(1) for _ in range(5)]
        names = sorted({evil.name() for _ in range(4)})
        rows = [
            {"key": key, **{name: evil.data() for name in names}}
            for key in sorted(keys * 20, key=lambda _: evil.text())
        ]
        schema = pa.schema({"key": pa.binary(), **dict.fromkeys(names, pa.binary())})
        with Statistics(client) as statistics:
            data = pa.Table.from_pylist(rows, schema)
            options = {"exactly_once": mode, **({"script_run_rows": 1} if mode == "script" else {})}
            report = send(to(server, evil.data(1)), data, options=options, fields=names, stream_key="key")
        assert report.delivered == len(rows)
        for key in set(keys):
            mine = [{name.encode(): row[name] for name in names} for row in rows if row["key"] == key]
            assert entries(client, key) == mine
        count = len(rows)
        assert statistics.commands == (
            ran(program, xadd=count)
            if mode == "off"
            else ran(program, eval=2, evalsha=count - 1, get=count, set=count, xadd=count)
        )


@pytest.mark.parametrize("layout", ["json", "rows_per_entry", "arrow_ipc"])
def test_layouts_inject_no_command(
    server: LocalServer, program: Program, connect: Connect, evil: Evil, layout: str
) -> None:
    client = connect(server)
    for turn in range(ROUNDS):
        key, field = b"%d" % turn + evil.data(), evil.text()
        names = sorted({evil.name() for _ in range(4)})
        rows = [{name: evil.text() for name in names} for _ in range(100)]
        data = pa.Table.from_pylist(rows)
        with Statistics(client) as statistics:
            if layout == "json":
                send(to(server, key), data, options={"payload_field": field}, json=True)
            elif layout == "rows_per_entry":
                options = {"payload_field": field}
                send(to(server, key), data, options=options, payload=names[0], rows_per_entry=10)
            else:
                send(to(server, key), data, options={"payload_field": field}, arrow_ipc=True, rows_per_entry=10)
        stored = entries(client, key)
        assert statistics.commands == ran(program, xadd=len(stored))
        if layout == "json":
            assert [json.loads(entry[field.encode()]) for entry in stored] == rows
        elif layout == "rows_per_entry":
            unpacked = [payload for entry in stored for payload in headrace.unpack(entry, field)]
            assert unpacked == [row[names[0]].encode() for row in rows]
        else:
            assert [
                row for entry in stored for row in ipc.open_stream(entry[field.encode()]).read_all().to_pylist()
            ] == rows


def test_credentials_and_groups_inject_no_command(
    start_server: StartServer, program: Program, connect: Connect, evil: Evil
) -> None:
    """User names, passwords, groups. A server has no user names with white space: AUTH fails for those."""
    server = start_server(program)
    client = connect(server)
    for turn in range(30):
        user, password, group, key = evil.text(), evil.data(1), evil.data(1), evil.data(1)
        client.flushall()
        exists = client.execute_command("ACL", "SETUSER", f"user{turn}", "on", b">" + password, "~*", "+@all") == b"OK"
        name = f"user{turn}" if exists and turn % 2 else user
        endpoint = to(server, key, username=name, password=password, consumer_group=group, db=3)
        with Statistics(client) as statistics, Dispatcher(endpoint) as dispatcher:
            dispatcher.produce(b"x")
            report = dispatcher.flush()
            codes = [failure.code for failure in report.failed]
        if turn % 2:
            assert codes == []
            assert statistics.commands == ran(program, auth=1, select=1, xgroup_create=1, xadd=1)
        else:
            assert codes == ["WRONGPASS"]
            assert statistics.commands == {"auth": 1}


def test_urls_inject_no_command(start_server: StartServer, program: Program, connect: Connect, evil: Evil) -> None:
    server = start_server(program, transport="tcp")
    client = connect(server)
    for turn in range(10):
        password, key = evil.text(), evil.text()
        client.flushall()
        client.execute_command("ACL", "SETUSER", f"user{turn}", "on", f">{password}", "~*", "+@all")
        url = f"redis://user{turn}:{quote(password, safe='')}@127.0.0.1:{server.port}/?stream_key={quote(key, safe='')}"
        with Statistics(client) as statistics, Dispatcher(Endpoint.from_url(url)) as dispatcher:
            dispatcher.produce(b"x")
            dispatcher.flush().raise_for_failures()
        assert statistics.commands == ran(program, auth=1, hello=1, xadd=1)
        assert len(entries(client, key)) == 1


def test_invalid_entry_ids_are_never_sent(server: LocalServer, program: Program, connect: Connect, evil: Evil) -> None:
    """Neither as a trim option nor as the ID of an entry."""
    client = connect(server)
    texts = [evil.text() for _ in range(200)]
    data = pa.record_batch({"payload": pa.array(["x"] * 200), "id": texts})
    with Statistics(client) as statistics, Dispatcher(to(server, "s")) as dispatcher:
        dispatcher.produce_batch(data, entry_id="id")
        failed = {failure.message_id: failure.code for failure in dispatcher.flush().failed}
    refused = [n for n, text in enumerate(texts) if not re.fullmatch(r"\*|\d+(-(\d+|\*))?", text)]
    assert len(refused) > 100
    assert {n for n, code in failed.items() if code == "BAD_ENTRY_ID"} == set(refused)
    assert statistics.commands == ran(program, xadd=200 - len(refused))
    for text in (text for n, text in enumerate(texts) if n in refused):
        with pytest.raises(ConfigError, match=r"^minid must be "):
            to(server, "s", minid=text)
