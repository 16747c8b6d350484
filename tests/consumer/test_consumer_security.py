"""Consumers over TLS, with few rights, and with a secret that must not appear."""

from __future__ import annotations

import gc
import logging
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from headrace import CommandError, GroupMissingError, LeaseLostError, Reader
from headrace.testing import LocalServer
from support.canary import Secret, caught
from support.certs import Certs
from support.consumers import as_ids, consumer_of, next_batch, set_pending, take
from support.groups import GROUP, add, endpoint_for, pending_of
from support.pipelines import KEY, endpoint_to
from support.processes import wait_until

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]

#: What reading without acknowledgements needs, as docs/reading.md has it.
AT_MOST_ONCE = ["xreadgroup", "xpending"]
FULL = ["eval", "evalsha", "xreadgroup", "xpending", "xack", "xclaim", "xautoclaim"]


@pytest.fixture
def client(server: LocalServer, connect: Connect) -> Any:
    return connect(server)


def allow(client: Any, *rules: str, keys: str = "*") -> None:
    client.execute_command("ACL", "SETUSER", "u", "reset", "on", ">p", f"~{keys}", *rules)


def plus(rights: list[str]) -> list[str]:
    return [f"+{right}" for right in rights]


@pytest.mark.needs("tls")
def test_over_tls(tls_server: LocalServer, connect: Connect, certs: Certs) -> None:
    """Both connections: the one that reads, and the one that acknowledges and renews while the other waits."""
    client = connect(tls_server)
    add(client, 2_000)
    endpoint = endpoint_to(tls_server, tls_ca_cert=certs.ca)
    options: dict[str, Any] = {"max_failures": 1, "dead_letter_key": "dead", "min_idle": 5.0}
    with consumer_of(endpoint, **options) as consumer:
        batch = next_batch(consumer)
        found = batch.entry_ids
        while len(found) < 2_000:
            consumer.ack(batch)
            batch = next_batch(consumer)
            found += batch.entry_ids
        consumer.fail(batch, "why", mask=[True, *[False] * (batch.num_rows - 1)])
        consumer.ack(batch)
        # No call reads or sends now: the thread of the consumer does.
        wait_until(lambda: pending_of(client) == {})
        batch.check()
        report = consumer.flush()
        assert (len(found), report.acked, report.dead) == (2_000, 1_999, 1)
    with pytest.raises(CommandError, match="the server's certificate is from an unknown CA") as refused:
        consumer_of(endpoint_to(tls_server, tls_ca_cert=certs.other_ca))
    assert (refused.value.code, refused.value.kind) == ("TLS", "permanent")


@pytest.mark.needs("tls")
def test_with_a_client_certificate(mtls_server: LocalServer, connect: Connect, certs: Certs) -> None:
    client = connect(mtls_server)
    add(client, 3)
    pair: dict[str, Any] = {"tls_cert": certs.client.cert, "tls_key": certs.client.key}
    with consumer_of(endpoint_to(mtls_server, tls_ca_cert=certs.ca, **pair)) as consumer:
        assert take(consumer, 3, ack=True) == as_ids([1, 2, 3])
        wait_until(lambda: pending_of(client) == {})
    with pytest.raises(CommandError, match="requires a client certificate"):
        consumer_of(endpoint_to(mtls_server, tls_ca_cert=certs.ca))


def test_a_read_only_user_can_use_a_reader_but_not_a_consumer(server: LocalServer, client: Any) -> None:
    """A group is state on the server, so reading through it is writing."""
    add(client, 3)
    client.xgroup_create(KEY, GROUP, id="0")
    allow(client, "+@read", "+@connection")
    endpoint = endpoint_for(server, "u")
    for options in ({}, {"ack": "none"}, {"create": False}):
        with pytest.raises(CommandError, match=rf"the ACL user needs \+xreadgroup ~{KEY}") as refused:
            consumer_of(endpoint, **options)
        assert (refused.value.code, refused.value.kind) == ("NOPERM", "permanent")
    assert pending_of(client) == {}
    with Reader(endpoint, end="latest") as reader:
        assert pa.table(reader)["entry_id"].to_pylist() == as_ids([1, 2, 3])


def test_a_user_without_script_rights_needs_ack_none(server: LocalServer, client: Any) -> None:
    add(client, 3)
    client.xgroup_create(KEY, GROUP, id="0")
    allow(client, *plus(AT_MOST_ONCE), keys=KEY)
    endpoint = endpoint_for(server, "u")
    with pytest.raises(CommandError, match=r"the ACL user needs \+xack"):
        consumer_of(endpoint, create=False)
    allow(client, *plus([right for right in FULL if not right.startswith("eval")]), keys=KEY)
    with pytest.raises(CommandError, match=r"EVAL was refused: the ACL user needs \+eval "):
        consumer_of(endpoint, create=False)
    assert pending_of(client) == {}
    allow(client, *plus(AT_MOST_ONCE), keys=KEY)
    with consumer_of(endpoint, create=False, ack="none") as consumer:
        assert take(consumer, 3) == as_ids([1, 2, 3])
    assert pending_of(client) == {}


@pytest.mark.parametrize("missing", ["+xadd", "+xrange", "~dead"])
def test_an_entry_stays_pending_without_the_rights_for_its_dead_letter(
    server: LocalServer, client: Any, missing: str
) -> None:
    add(client, 2)
    rights = [rule for rule in plus([*FULL, "xgroup|create", "xadd", "xrange"]) if rule != missing]
    keys = ["~" + KEY, *(["~dead"] if missing != "~dead" else [])]
    client.execute_command("ACL", "SETUSER", "u", "reset", "on", ">p", *keys, *rights)
    with consumer_of(endpoint_for(server, "u"), max_failures=1, dead_letter_key="dead") as consumer:
        batch = next_batch(consumer)
        consumer.fail(batch, "why", mask=[True, False])
        with pytest.raises(CommandError, match=r"the dead letter \(EVAL with XPENDING, XRANGE, XADD and XACK\)") as no:
            consumer.flush()
        assert (no.value.code, no.value.kind) == ("NOPERM", "permanent")
        assert sorted(pending_of(client)) == as_ids([1, 2])
        # The others go on, and this one too once it may.
        consumer.ack(batch, [False, True])
        consumer.flush()
        assert list(pending_of(client)) == ["1-0"]
    assert client.exists("dead") == 0


@pytest.mark.parametrize("revoked", ["xack", "xdel", "xinfo"])
def test_no_dead_letter_is_added_while_the_entry_cannot_be_acknowledged(
    server: LocalServer, client: Any, revoked: str
) -> None:
    add(client, 1)
    allow(client, "+@all")
    options: dict[str, Any] = {"max_failures": 1, "dead_letter_key": "dead", "min_idle": 0.5, "block": 0.02}
    with consumer_of(endpoint_for(server, "u"), ack_delete=True, **options) as consumer:
        batch = next_batch(consumer)
        client.execute_command("ACL", "SETUSER", "u", "-" + revoked)
        consumer.fail(batch, "why")
        for tried in range(3):
            with pytest.raises(CommandError, match=r"the dead letter .* was refused") as refused:
                consumer.flush() if not tried else polls(consumer)
            assert (refused.value.code, client.exists("dead"), list(pending_of(client))) == ("NOPERM", 0, ["1-0"])
        client.execute_command("ACL", "SETUSER", "u", "+" + revoked)
        while consumer.report().dead == 0:
            try:
                assert consumer.poll(0.05) is None
            except CommandError:
                continue
    assert (client.xlen("dead"), client.xlen(KEY), pending_of(client)) == (1, 0, {})


def test_a_consumer_continues_after_a_revoked_right_is_restored(server: LocalServer, client: Any) -> None:
    add(client, 1)
    allow(client, "+@all")
    with consumer_of(endpoint_for(server, "u"), block=0.02) as consumer:
        first = next_batch(consumer)
        client.execute_command("ACL", "SETUSER", "u", "-xreadgroup", "-xack")
        consumer.ack(first)
        with pytest.raises(CommandError) as refused:
            consumer.flush()
        assert (refused.value.code, refused.value.kind) == ("NOPERM", "permanent")
        assert list(pending_of(client)) == ["1-0"]
        with pytest.raises(CommandError, match="xreadgroup") as refused:
            polls(consumer)
        assert refused.value.code == "NOPERM"
        client.execute_command("ACL", "SETUSER", "u", "+xreadgroup", "+xack")
        add(client, 1, first=2)
        assert take(consumer, 1, ack=True) == ["2-0"]
        consumer.ack(first)
        assert consumer.flush().acked == 2
    assert pending_of(client) == {}


def test_a_consumer_never_exposes_its_password(
    server: LocalServer, client: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    secret, other = Secret(), Secret()
    caplog.set_level(logging.DEBUG)
    add(client, 3)
    client.execute_command("ACL", "SETUSER", "u", "on", f">{secret.text}", "~*", "+@all")
    endpoint = endpoint_to(server, username="u", password=secret.text)
    errors = [caught(partial(consumer_of, endpoint_to(server, username="u", password=other.text)))]
    errors.append(caught(partial(consumer_of, endpoint, create=False)))
    assert [type(error) for error in errors] == [CommandError, GroupMissingError]
    said: list[object] = []
    with warnings.catch_warnings(record=True, action="always") as warned:
        consumer = consumer_of(endpoint, min_idle=0.3, block=0.02)
        # A second one of the same name, which is warned of.
        with consumer_of(endpoint, streams=["quiet"], block=0.02) as second:
            while not warned:
                second.poll(0.02)
        batch = next_batch(consumer)
        set_pending(client, "other", ["1-0"], key=KEY)
        wait_until(lambda: is_lost(batch))
        errors.append(caught(batch.check))
        # The password changes, and both connections end.
        client.execute_command("ACL", "SETUSER", "u", "resetpass", f">{other.text}")
        client.client_kill_filter(_type="normal", skipme=True)
        consumer.ack(batch)
        errors.append(caught(partial(polls, consumer)))
        errors.append(caught(consumer.close))
        said += [consumer, batch, consumer.report(), consumer.endpoint, repr(consumer), str(consumer)]
        unclosed = consumer_of(endpoint_to(server, username="u", password=other.text))
        del unclosed
        gc.collect()
    assert [type(error) for error in errors[2:]] == [LeaseLostError, CommandError, CommandError]
    texts = [f"{thing} {thing!r}" for thing in said]
    texts += ["".join(traceback.format_exception(error)) + repr((error.args, vars(error))) for error in errors]
    texts += [f"{message.message!r}" for message in warned]
    texts += [record.getMessage() for record in caplog.records]
    texts += [*capfd.readouterr(), server.log_text(), repr(client.client_list()), repr(client.acl_log())]
    assert len(warned) == 1
    assert [text for text in texts if secret.is_in(text) or other.is_in(text)] == []


def is_lost(batch: Any) -> bool:
    try:
        batch.check()
    except LeaseLostError:
        return True
    return False


def polls(consumer: Any) -> None:
    while True:
        consumer.poll(0.05)
