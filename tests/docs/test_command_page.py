"""The console blocks of docs/command.md: each is run against a server, and prints what the page shows, in shape."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis

from command.letters import consumer_letter, spark_letter
from headrace import Dispatcher, Endpoint
from headrace.testing import LocalServer
from support import Certs
from support.canary import Secret
from support.fixture_types import StartServer
from support.paths import ROOT
from support.shell import Shell, assert_shown, commands_of

PAGE = (ROOT / "docs" / "command.md").read_text()
SECTION = re.compile(r"^#+ ([^\n]*)$|^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> Iterator[tuple[str, str]]:
    """The console blocks, each with the first two words of its heading."""
    title = ""
    for found in SECTION.finditer(PAGE):
        if found[1] is not None:
            title = " ".join(found[1].replace("`", "").split()[:2])
        else:
            yield title, found[2]


BLOCKS = list(blocks())


@pytest.fixture
def client(tcp_server: LocalServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=tcp_server.port or 0) as client:
        yield client


@pytest.fixture
def shell(tmp_path: Path, tcp_server: LocalServer) -> Shell:
    return Shell(tmp_path, tcp_server)


@pytest.fixture
def stages(
    shell: Shell, client: redis.Redis, tcp_server: LocalServer, request: pytest.FixtureRequest
) -> dict[str, Callable[[], None]]:
    """What is there before the block of a section."""
    return {
        "The command": lambda: orders(shell.folder),
        "headrace send": lambda: orders(shell.folder),
        "headrace read": lambda: entries(client),
        "headrace inspect": lambda: stuck(client),
        "headrace check": lambda: protected(
            shell, request.getfixturevalue("start_server"), request.getfixturevalue("certs")
        ),
        "headrace shards": lambda: members(client, tcp_server),
        "headrace dead-letters": lambda: letters(client),
    }


def orders(folder: Path) -> None:
    """Files of orders."""
    (folder / "orders.jsonl").write_text("".join(f'{{"order_id": {number}}}\n' for number in range(1_204)))
    with gzip.open(folder / "orders.csv.gz", "wt") as file:
        file.write("order_id,city\n1,Rome\n2,Oslo\n")
    pq.write_table(pa.table({"order_id": [1, 2, 3]}), folder / "history.parquet")


def entries(client: redis.Redis) -> None:
    """Entries of a day in the past, and of now."""
    for at in (1_795_525_416_265, 1_795_525_516_265):
        client.xadd("order-events", {"payload": "{}", "city": "Rome", "total": "9.5"}, id=f"{at}-0")
    client.xadd("order-events", {"payload": "{}", "city": "Oslo", "total": "12"})


def stuck(client: redis.Redis) -> None:
    """A group whose consumer reads new entries only, with an entry that it got two hours ago."""
    for number in range(40):
        client.xadd("order-events", {"payload": f"order {number}"})
    client.xgroup_create("order-events", "billing", "0")
    found: Any = client.xreadgroup("billing", "pod-1", {"order-events": ">"}, count=15)
    ids = [entry_id for entry_id, _ in found[0][1]]
    client.xack("order-events", "billing", *ids[2:])
    client.xclaim("order-events", "billing", "pod-1", 0, ids[:2], idle=7_200_000, retrycount=1, justid=True)


def protected(shell: Shell, start_server: StartServer, certs: Certs) -> None:
    """A server with TLS and the user `producer`."""
    server = start_server(needs="tls", transport="tls", tls_cert=certs.server.cert, tls_key=certs.server.key)
    secret = Secret()
    with redis.Redis(unix_socket_path=server.unix_socket) as client:
        rights = "+xadd +eval +evalsha +script|load +get +set +info +time +type +acl|dryrun"
        client.execute_command(f"ACL SETUSER producer on >{secret.text} ~* {rights}")
    (shell.folder / "ca.pem").write_bytes(certs.ca.read_bytes())
    shell.environment["REDIS_PASSWORD"] = secret.text
    shell.names["db1:6380"] = f"localhost:{server.port}"


def letters(client: redis.Redis) -> None:
    """Dead letters of both writers; the first one has the ID of the page."""
    fields = {"payload": "order 1", "dead:stream": "orders", "dead:id": "5-1", "dead:reason": "bad", "dead:failures": 3}
    client.xadd("orders:dead", fields, id="1776168000000-0")  # type: ignore[arg-type]
    consumer_letter(client, 2, dead="orders:dead", stream="refunds")
    spark_letter(client, {"payload": b"order 3"}, dead="orders:dead", code="WRONGTYPE")


def members(client: redis.Redis, server: LocalServer) -> None:
    """A stream with twelve shards, and a member of a group of it."""
    with Dispatcher(Endpoint.from_url(server.url, stream_key="payments", shards=12)) as dispatcher:
        dispatcher.produce(b"12", key="ann")
    client.xgroup_create("payments:0", "billing", mkstream=True)
    client.hset("{payments:0}:members:billing", "pod-1", 2**45)


@pytest.mark.parametrize("number", range(len(BLOCKS)), ids=[title.replace(" ", "-") for title, _ in BLOCKS])
def test_a_console_block_runs_as_shown(shell: Shell, stages: dict[str, Callable[[], None]], number: int) -> None:
    title, block = BLOCKS[number]
    stages[title]()
    for line, shown in commands_of(block):
        if line.startswith("export "):
            continue  # the server is one of this test
        code, printed = shell.type(line)
        print(f"$ {line}  → {code}", *printed, sep="\n")
        is_endless = re.search(r"--(follow|watch)\b", line)
        assert code == (130 if is_endless else 1 if "inspect" in line else 0), (line, printed)
        if shown:
            assert_shown([shell.named(text) for text in shown], printed)


def test_the_blocks_are_found() -> None:
    assert len(BLOCKS) == PAGE.count("```console")
    assert {title for title, _ in BLOCKS} >= {f"headrace {verb}" for verb in ("send", "read", "inspect", "check")}
    assert sum(bool(shown) for _, block in BLOCKS for _, shown in commands_of(block)) >= 4
