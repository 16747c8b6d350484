"""The remedies of `headrace inspect` run where the server is not a local one without a password."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import redis

from command.conftest import HEADRACE, Command
from command.redis_cli import redis_cli
from headrace.testing import LocalCluster, LocalSentinel, LocalServer
from support import Certs, Program
from support.canary import Secret
from support.fixture_types import StartServer

pytestmark = pytest.mark.needs("redis-7.0")

#: An hour in milliseconds.
HOUR = 3_600_000


def poison(client: redis.Redis, key: str = "s") -> None:
    """An entry that was delivered twelve times: its remedy calls both `headrace` and `redis-cli`."""
    client.xadd(key, {"payload": "order 1"}, id="5-0")
    client.xgroup_create(key, "g", "0")
    client.xreadgroup("g", "c", {key: ">"})
    client.xclaim(key, "g", "c", 0, ["5-0"], retrycount=12, justid=True)


def remedy(command: Command, *arguments: str, environment: Mapping[str, str] | None = None, key: str = "s") -> str:
    ended = command("inspect", key, "--sample", "0", "-o", "json", *arguments, environment=environment)
    found: dict[str, Any] = json.loads(ended.out)
    assert [finding["code"] for finding in found["findings"]] == ["POISON_ENTRY"], ended
    line: str = found["findings"][0]["command"]
    return line


def paste(line: str, folder: Path, environment: Mapping[str, str]) -> str:
    """Run a line in a shell whose `PATH` has both programs."""
    for name, path in (("headrace", Path(HEADRACE)), ("redis-cli", redis_cli())):
        (folder / name).symlink_to(path)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        env={"PATH": f"{folder}:/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "order 1" in done.stdout, done.stdout.splitlines()[-1]) == (0, True, "1"), (line, done)
    return done.stderr


@pytest.mark.parametrize("way", ["nodes", "host"])
def test_remedies_on_a_cluster_reach_the_node_of_the_stream(
    command: Command, program: Program, tmp_path: Path, way: str
) -> None:
    with LocalCluster(program.path, replicas=0) as cluster:
        other = next(server for server in cluster.servers if server.port != cluster.owner("s").port)
        with redis.Redis(port=cluster.owner("s").port or 0) as client:
            poison(client)
            options = (
                ("--nodes", ",".join(cluster.nodes)) if way == "nodes" else ("-u", f"redis://127.0.0.1:{other.port}")
            )
            line = remedy(command, *options)
            assert " -c XACK" in line
            paste(line, tmp_path, {})
            assert client.xpending("s", "g")["pending"] == 0


def test_each_stream_of_a_cluster_is_inspected_on_its_node(command: Command, program: Program) -> None:
    with LocalCluster(program.path, replicas=0) as cluster:
        keys = ["s:0", "s:1", "s:2", "s:3"]
        assert len({cluster.owner(key).port for key in keys}) > 1
        for key in keys[1:]:
            with redis.Redis(port=cluster.owner(key).port or 0) as client:
                client.xadd(key, {"payload": key})
        nodes = ("--nodes", ",".join(cluster.nodes))
        # The stream of dead letters is in another slot than each of the shards.
        with redis.Redis(port=cluster.owner("s:dead").port or 0) as client:
            client.xadd("s:dead", {"payload": "x"})
        ended = command("inspect", "s", "--shards", "4", *nodes, "--sample", "0", "-o", "json")
        found = json.loads(ended.out)
        assert (ended.code, ended.err) == (1, "headrace: there is no stream 's:0'\n")
        assert [(shard["stream"], shard["length"], shard["dead_letters"]["length"]) for shard in found] == [
            (key, 1, 1) for key in keys[1:]
        ]


def test_remedies_for_a_sentinel_group_are_sent_to_the_master(
    command: Command, program: Program, tmp_path: Path
) -> None:
    with LocalSentinel(program.path, replicas=1) as group:
        with redis.Redis(unix_socket_path=group.master().unix_socket) as client:
            poison(client)
        nodes = ["127.0.0.1:1", *group.nodes]
        line = remedy(command, "--nodes", ",".join(nodes), "--sentinel-master", group.master_name)
        assert f"redis-cli -h 127.0.0.1 -p {group.master().port} XACK" in line
        paste(line, tmp_path, {})
        with redis.Redis(unix_socket_path=group.master().unix_socket) as client:
            assert client.xpending("s", "g")["pending"] == 0


@pytest.mark.parametrize("way", ["env", "file"])
def test_remedies_name_the_certificates_and_the_source_of_the_password(
    command: Command, start_server: StartServer, certs: Certs, tmp_path: Path, way: str
) -> None:
    pair, own = certs.server, certs.client
    server = start_server(
        needs="tls", transport="tls", tls_cert=pair.cert, tls_key=pair.key, tls_ca_cert=certs.ca, tls_client_auth=True
    )
    secret = Secret()
    with redis.Redis(unix_socket_path=server.unix_socket) as client:
        poison(client)
        client.execute_command("ACL", "SETUSER", "app", "on", f">{secret.text}", "~*", "+@all")
        file = tmp_path / "pass word"
        file.write_text(secret.text + "\n")
        file.chmod(0o600)
        environment = {"APP_PASSWORD": secret.text} if way == "env" else {}
        password = ("--password-env", "APP_PASSWORD") if way == "env" else ("--password-file", str(file))
        tls = ("--tls", "--tls-ca-cert", str(certs.ca), "--tls-cert", str(own.cert), "--tls-key", str(own.key))
        options = ("--host", "127.0.0.1", "--port", str(server.port), "--username", "app", *password, *tls)
        line = remedy(command, *options, environment=environment)
        assert not secret.is_in(line)
        (tmp_path / "bin").mkdir()
        assert paste(line, tmp_path / "bin", environment) == ""
        assert client.xpending("s", "g")["pending"] == 0


def test_remedies_omit_the_password_of_a_url(command: Command, tcp_server: LocalServer, tmp_path: Path) -> None:
    secret = Secret()
    with redis.Redis(unix_socket_path=tcp_server.unix_socket, db=2) as client:
        poison(client)
        client.execute_command("ACL", "SETUSER", "app", "on", f">{secret.text}", "~*", "+@all")
        address = f"127.0.0.1:{tcp_server.port}/2"
        line = remedy(command, "-u", f"redis://app:{secret.text}@{address}?connect_timeout=3", "-q")
        assert not secret.is_in(line)
        assert f"read --host 127.0.0.1 --port {tcp_server.port} --db 2 --username app --connect-timeout 3.0" in line
        # Both programs have an own place for the password.
        line = line.replace("headrace read", "headrace read --password-env REDISCLI_AUTH")
        paste(line, tmp_path, {"REDISCLI_AUTH": secret.text})
        assert client.xpending("s", "g")["pending"] == 0
