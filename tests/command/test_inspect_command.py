"""`headrace inspect` beside its diagnosis: rights, secrets, ends, forms, shards."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import termios
from collections.abc import Callable
from typing import Any

import redis

from command.conftest import HEADRACE, Command
from headrace import Dispatcher, Endpoint, inspect
from headrace.testing import LocalServer
from support.groups import rows
from support.processes import wait_until

Connect = Callable[..., redis.Redis]


def test_inspect_needs_few_rights_and_prints_no_password(
    command: Command, server: LocalServer, connect: Connect
) -> None:
    client = connect(server)
    client.xadd("s", {"payload": "x"})
    client.xgroup_create("s", "g", "0")
    rights = ["+xinfo|stream", "+xinfo|groups", "+xinfo|consumers", "+xpending"]
    client.acl_setuser("looker", enabled=True, passwords=["+canary-82"], keys=["s"], commands=rights)
    options = ("--username", "looker", "--password-env", "LOOKER_PASSWORD", "--debug", "--sample", "0")
    secret = {"LOOKER_PASSWORD": "canary-82"}
    ended = command("inspect", "s", "-o", "json", *options, environment=secret)
    found = json.loads(ended.out)
    assert ended.code == 1
    assert [finding["code"] for finding in found["findings"]] == ["NO_CONSUMER"]
    assert "--user looker" in found["findings"][0]["command"]
    assert (found["time"], found["first_age"], found["memory"], found["dead_letters"]) == (None, None, None, None)
    client.acl_setuser("looker", enabled=True, commands=["-xpending"])
    refused = command("inspect", "s", *options, environment=secret)
    assert refused.code == 3
    assert "NOPERM" in refused.err
    assert "canary-82" not in ended.err + ended.out.decode() + refused.err + refused.out.decode()


def test_missing_streams_and_groups_are_reported(
    any_command: Command, any_server: LocalServer, connect: Connect
) -> None:
    ended = any_command("inspect", "nothing")
    assert (ended.code, ended.out, ended.err) == (1, b"", "headrace: there is no stream 'nothing'\n")
    connect(any_server).xadd("s", {"payload": "x"})
    ended = any_command("inspect", "s*")
    assert ended.code == 1
    assert ended.err == "headrace: there is no stream 's*', and a pattern is not taken; similar: 's'\n"
    ended = any_command("inspect", "s", "--group", "g", "--sample", "0")
    assert (ended.code, ended.err) == (1, "headrace: the stream 's' has no group 'g'\n")
    connect(any_server).set("text", "x")
    ended = any_command("inspect", "text")
    assert ended.code == 3
    assert ended.err.startswith("headrace: the key 'text' does not hold a stream: XINFO STREAM: WRONGTYPE ")


def test_invalid_arguments_are_refused(any_command: Command) -> None:
    for arguments, words in (
        (("--watch", "0"), "--watch must be from 0.001 to 86400 seconds, got 0"),
        (("--sample", "2d"), "--sample must be from 0 to 86400 seconds, got 172800"),
        (("--stuck-after", "nan"), "--stuck-after: must be a duration such as 90s, 15m, 1h30m or 2d, got 'nan'"),
        (("--watch", "-o", "json"), "--watch has no end, and -o json is one document"),
    ):
        ended = any_command("inspect", "s", *arguments)
        assert (ended.code, ended.out) == (2, b"")
        assert words in ended.err


def test_each_shard_is_inspected(any_command: Command, any_server: LocalServer) -> None:
    with Dispatcher(Endpoint.from_url(any_server.url, stream_key="s", shards=2)) as dispatcher:
        for number in range(10):
            dispatcher.produce(b"%d" % number)
    ended = any_command("inspect", "s", "--shards", "2", "-o", "json", "--sample", "0")
    found = json.loads(ended.out)
    assert [shard["stream"] for shard in found] == ["s:0", "s:1"]
    assert sum(shard["length"] for shard in found) == 10
    assert ended.code == 0


def test_a_group_at_the_start_has_lost_what_was_trimmed(
    any_command: Command, any_server: LocalServer, connect: Connect
) -> None:
    """Unless `entries_read` counts that as read, as it does for a query of Spark from the oldest entry."""
    client = connect(any_server)
    for number in range(100):
        client.xadd("s", {"payload": number})
    client.xtrim("s", maxlen=20, approximate=False)
    client.xgroup_create("s", "g", "0")
    for read, unread in ((None, 80), (80, 0)):
        if read is not None:
            client.xgroup_setid("s", "g", "0", entries_read=read)
        found = json.loads(any_command("inspect", "s", "-o", "json", "--sample", "0").out)
        (of_library,) = rows(inspect(Endpoint.from_url(any_server.url, stream_key="s")).groups)
        assert found["groups"][0]["trimmed_unread"] == of_library["trimmed_unread"] == unread
        texts = {finding["code"]: finding["text"] for finding in found["findings"]}
        assert texts.keys() - {"NO_CONSUMER"} == ({"TRIMMED_UNREAD"} if unread else set())
        assert not unread or "also those trimmed before it was created" in texts["TRIMMED_UNREAD"]


def test_dead_letters_are_reported_as_a_note(any_command: Command, any_server: LocalServer, connect: Connect) -> None:
    client = connect(any_server)
    client.xadd("s", {"payload": "x"})
    client.xadd("s:dead", {"payload": "x"})
    ended = any_command("inspect", "s", "--sample", "0")
    assert ended.code == 0
    assert "- 1 dead letter is in 's:dead'" in ended.out.decode()
    client.xadd("other", {"payload": "x"})
    found = json.loads(any_command("inspect", "s", "--sample", "0", "--dead-letters", "other", "-o", "jsonl").out)
    assert found["dead_letters"] == {"stream": "other", "length": 1}


def test_a_missing_group_is_reported_with_the_existing_groups(any_command: Command, client: Any) -> None:
    client.xadd("s", {"payload": "x"})
    client.xgroup_create("s", "billing", "0")
    ended = any_command("inspect", "s", "--sample", "0", "--group", "biling")
    assert (ended.code, ended.out) == (1, b"")
    assert ended.err == "headrace: the stream 's' has no group 'biling': there is 'billing'\n"


def test_watch_output_fits_the_terminal(any_server: LocalServer, connect: Connect) -> None:
    client = connect(any_server)
    client.xadd("s", {"payload": "x"})
    client.xgroup_create("s", "g", "0")
    client.xreadgroup("g", "c", {"s": ">"})
    client.xclaim("s", "g", "c", 0, client.xpending("s", "g")["min"].decode().split(), idle=7_200_000, justid=True)
    main, other = pty.openpty()
    termios.tcsetwinsize(other, (24, 60))
    watch = subprocess.Popen(
        [HEADRACE, "inspect", "s", "--watch", "0.2", "-u", any_server.url], stdout=other, stderr=other
    )
    os.close(other)
    try:
        shown = b""
        while shown.count(b"\x1b[2J") < 2:
            shown += os.read(main, 65_536)
    finally:
        watch.kill()
        watch.wait()
        os.close(main)
    first = shown.split(b"\x1b[H\x1b[2J")[1].decode().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d, every 200 ms; Ctrl-C ends it", first[0])
    assert any(line.startswith("! consumer 'c' of group 'g' is alive") for line in first)
    assert [line for line in first if len(line) > 60 and "redis-cli" not in line] == []


def test_watching_continues_after_a_restart(tcp_server: LocalServer, connect: Connect) -> None:
    connect(tcp_server).xadd("s", {"payload": "x"})
    watch = subprocess.Popen(
        [HEADRACE, "inspect", "s", "--watch", "0.1", "-o", "jsonl"],
        env={**os.environ, "HEADRACE_URL": tcp_server.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert watch.stdout is not None
        assert watch.stderr is not None
        assert json.loads(watch.stdout.readline())["length"] == 1
        tcp_server.kill()
        assert watch.stderr.readline().startswith(b"warning: ")
        tcp_server.restart()

        def add() -> bool:
            try:
                return bool(connect(tcp_server).xadd("s", {"payload": "x"}, id="7-0"))
            except redis.ConnectionError:
                return False

        wait_until(add)
        while json.loads(watch.stdout.readline())["last_id"] != "7-0":
            pass
    finally:
        watch.kill()
        watch.communicate()
