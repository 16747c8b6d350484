"""`headrace check`: what it finds on real servers, and how it ends."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest

from command.conftest import HEADRACE, Command, Ended
from headrace._headrace import time_zones
from headrace.testing import LocalServer
from headrace_command.arguments import MODES
from support import Program
from support.fixture_types import Replicate, StartServer

Connect = Callable[..., Any]


def steps(ended: Ended) -> dict[str, dict[str, Any]]:
    """The steps by their names."""
    return {step["step"]: step for step in json.loads(ended.out)["steps"]}


def states(ended: Ended) -> dict[str, str]:
    """The state of each mode."""
    return {
        name.removeprefix("mode "): step["state"] for name, step in steps(ended).items() if name.startswith("mode ")
    }


def test_the_modes_of_a_healthy_server_depend_on_its_version(
    command: Command, server: LocalServer, program: Program, connect: Connect
) -> None:
    client = connect(server)
    client.config_set("appendonly", "yes")
    ended = command("check", "s", "-o", "json")
    assert ended.code == 0, ended
    found = states(ended)
    assert list(found) == list(MODES)
    expected = dict.fromkeys(MODES, "ok" if program.label != "redis-6.2" else "unknown")
    expected["wait_replicas"] = "fail"
    if not program.can("idmp"):
        expected["idmp"] = "fail"
    if not program.can("waitaof"):
        expected["wait_aof"] = "fail"
    assert found == expected
    assert steps(ended)["version"]["text"].endswith(program.version)


def test_check_changes_nothing_on_the_server(command: Command, server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    client.xadd("s", {"a": 1})
    before = client.info("stats"), client.xinfo_stream("s")
    for mode in MODES:
        command("check", "s", "--for", mode, "--replicas", "0")
        command("check", "new", "--for", mode)
    assert client.keys() == [b"s"]
    assert client.xinfo_stream("s") == before[1]
    assert client.xinfo_groups("s") == []
    written = {"xadd", "xgroup|create", "xcfgset", "set", "eval", "evalsha", "xgroup|destroy"}
    stats = client.info("commandstats")
    assert stats["cmdstat_xadd"]["calls"] == 1
    assert not {f"cmdstat_{name}" for name in written - {"xadd"}} & stats.keys()


@pytest.mark.needs("redis-7.0")
def test_the_requested_mode_decides_the_exit_code(command: Command, server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    client.execute_command("ACL SETUSER app on >pw ~s +xadd +acl|dryrun +acl|whoami +info +type +time")
    user, environment = ("--username", "app", "--password-env", "PW"), {"PW": "pw"}
    good = command("check", "s", "--for", "plain", *user, environment=environment)
    assert good.code == 0, good
    bad = command("check", "s", "--for", "plain,script", "-o", "json", *user, environment=environment)
    assert bad.code == 3
    found = states(bad)
    assert (found["plain"], found["script"], found["reader"]) == ("ok", "fail", "fail")
    text = steps(bad)["mode script"]["text"]
    assert text == "the user needs +eval +evalsha +get +set ~s ~{s}:headrace:*"
    assert json.loads(bad.out)["ok"] is False
    client.execute_command(f"ACL SETUSER app {text.removeprefix('the user needs ')}")
    assert command("check", "s", "--for", "script", *user, environment=environment).code == 0
    other = command("check", "t", "--for", "plain", *user, environment=environment)
    assert (other.code, "+xadd ~t" in other.err) == (3, True), other


def test_the_time_zone_release_is_reported(command: Command) -> None:
    found = steps(command("check", "-o", "json"))["time zones"]
    release, folder = time_zones()
    assert (found["state"], found["version"], found["folder"]) == ("ok", release, folder and str(folder))
    assert found["text"].startswith(f"{release} of IANA, ")


def test_steps_without_the_required_rights_are_unknown(command: Command, server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    client.execute_command("ACL SETUSER app on >pw ~s +xadd")
    user, environment = ("--username", "app", "--password-env", "PW"), {"PW": "pw"}
    ended = command("check", "s", "--for", "plain", "-o", "json", *user, environment=environment)
    assert ended.code == 0, ended
    found = steps(ended)
    for name in ("role", "eviction", "AOF", "replicas", "clock", "stream", "ACL", "mode plain", "mode script"):
        assert found[name]["state"] == "unknown", found[name]
    assert "ok" not in states(ended).values()
    strict = command("check", "s", "--for", "plain", "--strict", *user, environment=environment)
    assert strict.code == 3


def test_unsuitable_settings_and_keys_are_reported(
    command: Command, server: LocalServer, program: Program, connect: Connect
) -> None:
    client = connect(server)
    client.config_set("maxmemory", "100mb")
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.set("text", "x")
    found = steps(command("check", "text", "-o", "json"))
    assert found["eviction"]["state"] == "warn"
    assert "noeviction" in found["eviction"]["text"]
    assert found["AOF"]["state"] == "warn"
    assert found["stream"]["text"].startswith("the key holds a string")
    script = command("check", "s", "--for", "script")
    assert (script.code, "may evict markers" in script.err) == (3, True), script
    kind = command("check", "text", "--for", "plain")
    assert (kind.code, "holds a string rather than a stream" in kind.err) == (3, True), kind
    aof = command("check", "s", "--for", "wait_aof")
    assert aof.code == 3
    if program.can("waitaof"):
        assert "appendonly" in aof.err


def test_plain_mode_fails_on_a_replica(command: Command, replicate: Replicate, program: Program) -> None:
    master, replica = replicate(program)
    found = steps(command("check", "s", "-o", "json", environment={"HEADRACE_URL": replica.url}))
    assert f"a replica of 127.0.0.1:{master.port}" in found["role"]["text"]
    assert found["mode plain"]["state"] == "fail"
    good = command("check", "s", "--for", "wait_replicas", environment={"HEADRACE_URL": master.url})
    assert good.code == 0, good
    two = command("check", "s", "--for", "wait_replicas", "--replicas", "2", environment={"HEADRACE_URL": master.url})
    assert (two.code, "1 of 2 replicas are online" in two.err) == (3, True), two


@pytest.mark.needs("redis-8.6")
def test_failed_connections_are_reported_with_advice(command: Command, server: LocalServer, closed_port: int) -> None:
    ended = command("check", "s", "--host", "127.0.0.1", "--port", str(closed_port))
    assert ended.code == 3
    assert "connection refused; check that a server runs" in ended.err
    name = command("check", "s", "--host", "no-such-host.invalid")
    assert (name.code, "check the name" in name.err) == (3, True), name
    path = command("check", "s", "--unix-socket", "/nowhere/redis.sock")
    assert (path.code, path.err.startswith("headrace: SOCKET: ")) == (3, True), path


@pytest.mark.needs("redis-8.6")
def test_check_fails_at_the_timeout_when_the_server_is_silent(command: Command, server: LocalServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        ended = command("check", "s", "--host", "127.0.0.1", "--port", port, "--connect-timeout", "1")
    assert ended.code == 3
    assert "within 1 s" in ended.err


def test_wrong_and_missing_passwords_are_reported(command: Command, server: LocalServer, connect: Connect) -> None:
    connect(server).config_set("requirepass", "right")
    missing = command("check", "s")
    assert (missing.code, "give the password: --password-env" in missing.err) == (3, True), missing
    wrong = command("check", "s", "--password-env", "PW", environment={"PW": "wrong"})
    assert (wrong.code, "check --username and the password" in wrong.err) == (3, True), wrong
    right = command("check", "s", "--password-env", "PW", "-o", "json", environment={"PW": "right"})
    assert right.code == 0, right
    assert steps(right)["AUTH"]["text"] == "the password was accepted"


@pytest.mark.needs("redis-8.6")
def test_an_unneeded_password_is_reported(command: Command, server: LocalServer) -> None:
    ended = command("check", "s", "--password-env", "PW", environment={"PW": "x"})
    assert (ended.code, "leave the password out" in ended.err) == (3, True), ended


def test_waiting_ends_when_the_server_starts(start_server: StartServer, closed_port: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["check", "s", "--for", "plain", "--host", "127.0.0.1", "--port", str(port), "--wait", "50s"]
    process = subprocess.Popen([HEADRACE, *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "waiting for up to 50 s: TCP: " in process.stderr.readline()
    start_server(needs="redis-7.0", transport="tcp", port=port)
    out, err = process.communicate()
    assert (process.returncode, "plain" in out) == (0, True), err


@pytest.mark.needs("redis-8.6")
def test_a_wrong_password_fails_without_waiting(command: Command, server: LocalServer, connect: Connect) -> None:
    connect(server).config_set("requirepass", "right")
    ended = command("check", "s", "--password-env", "PW", "--wait", "10m", environment={"PW": "wrong"})
    assert ended.code == 3
    assert "waiting" not in ended.err


@pytest.mark.needs("redis-8.6")
def test_waiting_ends_after_the_given_time(command: Command, server: LocalServer, closed_port: int) -> None:
    ended = command("check", "--host", "127.0.0.1", "--port", str(closed_port), "--wait", "500ms")
    assert (ended.code, "waiting for up to 0." in ended.err) == (3, True), ended


@pytest.mark.needs("redis-8.6")
def test_ipv6(command: Command, start_server: StartServer, connect: Connect) -> None:
    server = start_server(transport="tcp")
    connect(server).config_set("bind", "127.0.0.1 ::1")
    ended = command("check", "s", "--host", "::1", "--port", str(server.port), "-o", "json")
    assert ended.code == 0, ended
    assert steps(ended)["TCP"]["address"] == f"[::1]:{server.port}"
    assert json.loads(ended.out)["endpoint"] == f"[::1]:{server.port}, stream s"


@pytest.mark.needs("redis-8.6")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("check", "--for", "plain"), "--for needs STREAM"),
        (("check", "s", "--for", "writing"), "invalid choice"),
        (("check", "s", "--wait", "soon"), "--wait: must be a duration such as 90s"),
    ],
)
def test_invalid_arguments_are_refused(
    command: Command, server: LocalServer, arguments: tuple[str, ...], words: str
) -> None:
    ended = command(*arguments)
    assert (ended.code, words in ended.err) == (2, True), ended


@pytest.mark.needs("redis-8.6")
def test_only_the_server_is_checked_without_a_stream(command: Command, server: LocalServer) -> None:
    ended = command("check", "-o", "json")
    assert ended.code == 0
    assert "stream" not in steps(ended)
    assert steps(ended)["mode plain"]["text"] == "give STREAM, so that rights can be checked"


@pytest.mark.needs("redis-8.6")
def test_text_output_has_one_line_per_step(command: Command, server: LocalServer) -> None:
    ended = command("check", "s\x1b[31m\n")
    lines = ended.out.decode().splitlines()
    assert len(lines) == 2 + len(json.loads(command("check", "s", "-o", "json").out)["steps"])
    assert "\x1b" not in ended.out.decode()
    assert lines[1].split()[:2] == ["ok", "SOCKET"]


@pytest.mark.needs("redis-8.6")
def test_a_server_that_answers_with_garbage_is_reported_in_one_line(command: Command, server: LocalServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as peer:
                peer.recv(1000)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        ended = command("check", "s", "--host", "127.0.0.1", "--port", str(listener.getsockname()[1]))
        thread.join()
    assert ended.code == 3
    assert "Traceback" not in ended.err
    assert ended.err.count("\n") == 1, ended.err
    assert os.linesep in ended.err
