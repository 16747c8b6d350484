"""Shard consumers over TLS, with few rights, and with a secret that must not appear."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest

from headrace import CommandError, HeadraceError
from headrace.testing import LocalServer
from support.canary import Secret, caught
from support.certs import Certs
from support.consumers import as_ids
from support.groups import GROUP, add
from support.patience import PATIENCE
from support.pipelines import KEY, endpoint_to
from support.processes import wait_until
from support.shard_consumers import member_of, next_batch, sharded, take, wait_for_shares

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]

#: What docs/shards.md names, and the keys.
RIGHTS = [
    *("eval", "evalsha", "time", "hmget", "hset", "hget", "hdel", "hgetall", "hincrby"),
    *("xgroup|create", "xgroup|setid", "xinfo|groups", "xinfo|stream", "xrange", "xread"),
]
KEYS = ["~orders*", "~{orders*}:lease:g", "~{orders*}:members:g"]
#: With `shards`, the number of them is recorded here.
SHARDS = "~{orders}:shards"


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    return connect(server)


def allow(client: Any, rights: list[str], keys: list[str]) -> None:
    # Redis 6.2 has no rights for subcommands of a container that take effect alone.
    major = int(client.info("server")["redis_version"].split(".")[0])
    given = [right if major >= 7 else right.partition("|")[0] for right in rights]
    client.execute_command("ACL", "SETUSER", "u", "reset", "on", ">p", *keys, *(f"+{right}" for right in given))


def test_the_rights_that_the_page_names_are_enough(server: LocalServer, client: Any) -> None:
    for shard in range(3):
        add(client, 10, key=f"orders:{shard}")
    allow(client, RIGHTS, [*KEYS, SHARDS])
    endpoint = sharded(server, 3, username="u", password="p")
    with member_of(endpoint, "a", batch_rows=4) as a:
        take(a, 30)
        assert a.flush().committed == 30
        with member_of(endpoint, "b") as b:
            wait_for_shares([a, b], [2, 1])
    with member_of(endpoint, "b") as b:
        client.xadd("orders:0", {"n": 1})
        assert len(next_batch(b)) == 1


@pytest.mark.parametrize("missing", ["eval", "time", "hset", "hgetall", "xgroup|create", "xinfo|groups", "xrange"])
def test_a_missing_right_is_named(server: LocalServer, client: Any, missing: str) -> None:
    add(client, 3, key="orders:0")
    allow(client, [right for right in RIGHTS if right != missing], KEYS)
    if int(client.info("server")["redis_version"].split(".")[0]) < 7:
        client.execute_command("ACL", "SETUSER", "u", "-" + missing.partition("|")[0])
    endpoint = endpoint_to(server, stream_key="orders:0", username="u", password="p")
    with pytest.raises(CommandError) as refused, member_of(endpoint) as member:  # noqa: PT012
        while True:
            member.poll(PATIENCE)
    assert (refused.value.code, refused.value.kind) == ("NOPERM", "permanent")
    assert missing.partition("|")[0].upper() in str(refused.value).upper()
    assert "stream orders:0" in str(refused.value)


@pytest.mark.parametrize("missing", KEYS[1:])
def test_a_missing_key_pattern_is_named(server: LocalServer, client: Any, missing: str) -> None:
    add(client, 3, key="orders:0")
    allow(client, RIGHTS, [key for key in KEYS if key != missing])
    endpoint = endpoint_to(server, stream_key="orders:0", username="u", password="p")
    with member_of(endpoint) as member:
        with pytest.raises(CommandError) as refused:
            member.poll(PATIENCE)
        assert refused.value.code == "NOPERM"
        assert missing[1:].replace("*", ":0") in str(refused.value)
        # It goes on when it may.
        allow(client, RIGHTS, KEYS)
        assert take(member, 3) == {"orders:0": as_ids([1, 2, 3])}


@pytest.mark.needs("tls")
def test_over_tls(tls_server: LocalServer, connect: Connect, certs: Certs) -> None:
    """Both connections: the one that reads, and the one of the leases."""
    client = connect(tls_server)
    add(client, 2_000)
    with member_of(endpoint_to(tls_server, tls_ca_cert=certs.ca), batch_rows=100) as member:
        take(member, 2_000)
        assert member.flush().committed == 2_000
    with pytest.raises(HeadraceError, match="the server's certificate is from an unknown CA"):
        take(member_of(endpoint_to(tls_server, tls_ca_cert=certs.other_ca)), 1)


def test_a_wrong_password_is_an_error(server: LocalServer, client: Any) -> None:
    allow(client, RIGHTS, ["~*"])
    endpoint = endpoint_to(server, username="u", password="not p")
    with pytest.raises(CommandError) as refused, member_of(endpoint) as member:
        member.poll(PATIENCE)
    assert refused.value.code == "WRONGPASS"


def test_a_secret_does_not_appear(server: LocalServer, client: Any, capfd: pytest.CaptureFixture[str]) -> None:
    secret = Secret()
    client.execute_command("ACL", "SETUSER", "u", "reset", "on", f">{secret.text}", "~*", "+@all")
    add(client, 6)
    endpoint = endpoint_to(server, username="u", password=secret.text)
    said: list[object] = []
    errors: list[BaseException] = []
    with member_of(endpoint, batch_rows=3) as member:
        batch = next_batch(member)
        said += [member, batch, member.report(), member.endpoint, repr(member), batch._repr_html_()]
        client.execute_command("ACL", "SETUSER", "u", "-hset")
        member.commit(batch)
        errors.append(caught(member.flush))
        client.execute_command("ACL", "SETUSER", "u", "resetpass", ">other")
        client.client_kill_filter(_type="normal", skipme=True)
        wait_until(lambda: is_refused(member, errors))
        errors.append(caught(lambda: member.commit(None)))  # type: ignore[arg-type]
        try:
            member.close(timeout=0.1)
        except HeadraceError as error:
            errors.append(error)
    texts = [f"{thing} {thing!r}" for thing in said]
    texts += ["".join(traceback.format_exception(error)) + repr((error.args, vars(error))) for error in errors]
    texts += [*capfd.readouterr(), server.log_text(), repr(client.client_list()), repr(client.acl_log())]
    assert len(errors) >= 3
    assert [text for text in texts if secret.is_in(text)] == []
    assert KEY.encode() in batch.stream
    assert GROUP.encode() == member.group


def is_refused(member: Any, errors: list[BaseException]) -> bool:
    try:
        member.poll(0.05)
    except CommandError as error:
        errors.append(error)
        return error.code == "WRONGPASS"
    except HeadraceError as error:
        errors.append(error)
    return False
