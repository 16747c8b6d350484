"""`headrace check` and `dead-letters` never print a password."""

from __future__ import annotations

import itertools

import redis

from command.conftest import Command
from command.letters import consumer_letter
from headrace.testing import LocalServer
from support.canary import Secret


def test_no_password_is_printed(any_command: Command, tcp_server: LocalServer) -> None:
    secret = Secret()
    with redis.Redis(unix_socket_path=tcp_server.unix_socket) as client:
        consumer_letter(client, 1)
        client.execute_command("ACL", "SETUSER", "app", "on", f">{secret.text}", "~*", "+@all")
    verbs = (
        ("check", "s", "--for", "plain"),
        ("dead-letters", "list", "dead"),
        ("dead-letters", "replay", "dead", "--all", "--to", "t", "--yes"),
        ("dead-letters", "drop", "dead", "--all", "--yes"),
    )
    seen = 0
    for verb, form, user in itertools.product(verbs, ("text", "json"), ("app", "nobody")):
        url = f"redis://{user}:{secret.text}@127.0.0.1:{tcp_server.port}"
        ended = any_command(*verb, "-o", form, "--debug", environment={"HEADRACE_URL": url})
        assert ended.code == (0 if user == "app" else 3), ended
        assert not secret.is_in(ended.out)
        assert not secret.is_in(ended.err)
        seen += "app" in ended.err
    assert seen >= len(verbs), "--debug shows the endpoint"
