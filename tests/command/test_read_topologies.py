"""`headrace read` on clusters, behind sentinels, with TLS, and on a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis

from command.conftest import HEADRACE, Command
from headrace import Dispatcher, Endpoint
from headrace.testing import LocalCluster, LocalSentinel, LocalServer
from support import Certs, Program
from support.fixture_types import StartServer
from support.marks import thorough
from support.processes import wait_until

pytestmark = pytest.mark.needs("redis-7.0")


def test_streams_and_shards_of_all_nodes_of_a_cluster_are_read(command: Command, program: Program) -> None:
    with LocalCluster(program.path, replicas=0) as cluster:
        with Dispatcher(Endpoint(nodes=cluster.nodes, stream_key="s", shards=4)) as dispatcher:
            for number in range(40):
                dispatcher.produce(b"%d" % number, key=b"%d" % number)
        assert len({cluster.owner(f"s:{shard}").port for shard in range(4)}) > 1
        nodes = ("--nodes", ",".join(cluster.nodes))
        host = ("--host", "127.0.0.1", "--port", str(cluster.servers[0].port))
        for arguments in (
            ("s", "--shards", "4", *nodes),
            ("s", "--shards", "4", *host, "--since", "1h"),
            ("s:0", "s:1", "s:2", "s:3", *nodes),
        ):
            ended = command("read", *arguments, "-o", "json")
            assert ended.code == 0, ended
            found = json.loads(ended.out)
            assert {row["stream"] for row in found} == {"s:0", "s:1", "s:2", "s:3"}
            assert sorted(int(row["fields"]["payload"]) for row in found) == list(range(40))


def test_following_continues_with_the_new_master_after_a_failover(program: Program) -> None:
    with LocalSentinel(program.path, replicas=1) as group:
        old = group.master()
        with redis.Redis(unix_socket_path=old.unix_socket) as client:
            client.xadd("s", {"payload": "before"})
            client.wait(1, 0)
        to = ("--nodes", ",".join(group.nodes), "--sentinel-master", group.master_name)
        process = subprocess.Popen(
            [HEADRACE, "read", "s", "--from", "earliest", "--follow", "--payload", *to],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"before\n"
            old.kill()
            wait_until(lambda: group.master() is not old)

            def add() -> bool:
                with redis.Redis(unix_socket_path=group.master().unix_socket) as client:
                    try:
                        return bool(client.xadd("s", {"payload": "after"}))
                    except redis.ReadOnlyError:
                        return False

            wait_until(add)
            assert process.stdout.readline() == b"after\n"
        finally:
            process.kill()
            process.communicate()


def test_tls_with_a_client_certificate(command: Command, start_server: StartServer, certs: Certs) -> None:
    pair, own = certs.server, certs.client
    server = start_server(
        needs="tls", transport="tls", tls_cert=pair.cert, tls_key=pair.key, tls_ca_cert=certs.ca, tls_client_auth=True
    )
    with redis.Redis(unix_socket_path=server.unix_socket) as client:
        client.xadd("s", {"payload": "x"})
    options = ("read", "s", "--payload", "--host", "127.0.0.1", "--port", str(server.port))
    tls = ("--tls", "--tls-ca-cert", str(certs.ca), "--tls-cert", str(own.cert), "--tls-key", str(own.key))
    ended = command(*options, *tls)
    assert (ended.code, ended.out) == (0, b"x\n")
    refused = command(*options, "--tls")
    assert (refused.code, refused.out) == (3, b"")
    assert "certificate" in refused.err


def on_a_terminal(server: LocalServer, *arguments: str) -> str:
    """What the command writes to a terminal."""
    main, other = pty.openpty()
    environment = {**os.environ, "HEADRACE_URL": server.url, "LC_ALL": "C"}
    process = subprocess.Popen([HEADRACE, *arguments], stdout=other, stderr=other, env=environment)
    os.close(other)
    shown = b""
    try:
        while part := os.read(main, 65_536):
            shown += part
    except OSError:  # the last writer closed it
        pass
    finally:
        os.close(main)
        process.wait()
    return shown.decode().replace("\r\n", "\n")


#: A value, and how it is shown: control characters, marks that turn text around, bytes that are no UTF-8.
SHOWN = [
    (b"plain", "plain"),
    ("Žluťoučký kůň 日本 🐎".encode(), "Žluťoučký kůň 日本 🐎"),
    (b"\x1b]0;title\x07\x1b[2J", r"\x1b]0;title\x07\x1b[2J"),
    ("a\u202eb\u200f\u2028\x9b31m".encode(), r"a\u202eb\u200f\u2028\x9b31m"),
    (b"\xff\x00\r\n\t", r"\xff\x00\r\n\t"),
]


@pytest.mark.parametrize("form", ["text", "json", *thorough("jsonl", "payload", "unpacked")])
def test_no_control_characters_are_written_to_a_terminal(any_server: LocalServer, form: str) -> None:
    more = {"payload": ["--payload"], "unpacked": ["--unpack", "payload"]}.get(form, ["-o", form])
    for value, as_text in SHOWN:
        with redis.Redis(unix_socket_path=any_server.unix_socket) as client:
            client.delete("s\x1b")
            client.xadd("s\x1b", {b"\x1bname": value, b"payload": value}, id="5-0")
        shown = on_a_terminal(any_server, "read", "s\x1b", *more)
        assert all(character.isprintable() for line in shown.splitlines() for character in line), repr(shown)
        if form in ("json", "jsonl"):
            (entry,) = json.loads(shown) if form == "json" else [json.loads(shown)]
            assert entry["stream"] == "s\x1b"
            fields: dict[str, Any] = entry["fields"]
            assert set(fields) == {"\x1bname", "payload"}
        else:
            assert as_text in shown


@pytest.mark.parametrize("before", ["", "a"])
def test_long_values_are_shortened_on_a_terminal_only(
    any_server: LocalServer, any_command: Command, before: str
) -> None:
    value = before + "ü" * 5_000
    with redis.Redis(unix_socket_path=any_server.unix_socket) as client:
        client.xadd("s", {"payload": value})
    shown = on_a_terminal(any_server, "read", "s")
    assert f"({len(value.encode()):,} bytes)" in shown
    assert len(shown) < 400
    assert "\\x" not in shown, "it was cut inside a character"
    assert value.encode() in any_command("read", "s").out


def test_the_command_exits_quietly_when_piped_into_head(any_server: LocalServer, tmp_path: Path) -> None:
    with redis.Redis(unix_socket_path=any_server.unix_socket) as client, client.pipeline(transaction=False) as pipe:
        for number in range(20_000):
            pipe.xadd("s", {"payload": f"a payload of some length, so that it fills a pipe: {number}"})
        pipe.execute()
    for form in (["-o", "text"], ["-o", "jsonl"], ["-o", "json"], ["--payload"]):
        line = f"{HEADRACE} read s {' '.join(form)} | head -n 1 > /dev/null; echo ${{PIPESTATUS[0]}}"
        ended = subprocess.run(
            ["bash", "-c", line],
            env={**os.environ, "HEADRACE_URL": any_server.url},
            capture_output=True,
            check=False,
        )
        assert (ended.stdout, ended.stderr) == (b"141\n", b""), form
