"""The options of a consumer: which values are allowed, which exclude each other, and which rights a user needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace import CommandError, ConfigError, Consumer, Endpoint
from headrace.testing import LocalServer
from support.consumers import consumer_of, next_batch, set_pending, take
from support.groups import GROUP, add, endpoint_for, pending_of
from support.pipelines import KEY
from support.servers import Program

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]

NAMES: dict[str, Any] = {"group": "g", "consumer": "c"}


@pytest.mark.parametrize(
    ("options", "option", "text"),
    [
        ({"group": ""}, "group", "group must be text or bytes, of 1 byte"),
        ({"group": None}, "group", "group must be a non-empty name"),
        ({"consumer": ""}, "consumer", "of 1 byte"),
        ({"consumer": b""}, "consumer", "of 1 byte"),
        ({"start": "soon"}, "start", "start must be 'earliest', 'latest', an entry ID"),
        ({"create": "perhaps"}, "create", "perhaps"),
        ({"fields_as": "dict"}, "fields_as", "dict"),
        ({"names": "utf8"}, "names", "utf8"),
        ({"metadata": ["nothing"]}, "metadata", "nothing"),
        ({"batch_rows": 0}, "batch_rows", "0"),
        ({"batch_rows": 1.5}, "batch_rows", "1.5"),
        ({"batch_bytes": 0}, "batch_bytes", "0"),
        ({"page_bytes": -1}, "page_bytes", "-1"),
        ({"block": 0}, "block", "0"),
        ({"block": 3601}, "block", "3601"),
        ({"linger": -0.1}, "linger", "-0.1"),
        ({"min_idle": 0}, "min_idle", "0"),
        ({"renew": 2}, "renew", "2"),
        ({"max_processing": float("nan")}, "max_processing", "NaN"),
        ({"claim_interval": 0}, "claim_interval", "0"),
        ({"ack": "auto"}, "ack", "auto"),
        ({"fields": "id"}, "fields", "fields must be '*' or a sequence of names, such as ['id'], got 'id'"),
        ({"max_failures": 0, "dead_letter_key": "d"}, "max_failures", "0"),
        ({"on_bad_field": "skip"}, "on_bad_field", "skip"),
        # Two that exclude each other, or of which one needs the other.
        ({"claim": False, "claim_interval": 1.0}, "claim_interval", "claim_interval needs claim=True"),
        ({"max_failures": 3}, "max_failures", "max_failures needs dead_letter_key"),
        ({"dead_letter_key": "d"}, "dead_letter_key", "dead_letter_key needs max_failures"),
        ({"fields": ["a"], "on_bad_field": "dead_letter"}, "on_bad_field", "needs dead_letter_key"),
        ({"dead_letter_key": "events", "max_failures": 1}, "dead_letter_key", "must not be one of the streams"),
        ({"ack": "none", "ack_delete": True}, "ack_delete", "ack_delete needs ack='explicit'"),
        ({"ack": "none", "max_failures": 1, "dead_letter_key": "d"}, "max_failures", "needs ack='explicit'"),
        ({"fields": ["a"], "metadata": ["a"]}, "metadata", "a"),
        ({"fields": ["deliveries"], "metadata": ["deliveries"]}, "metadata", "deliveries"),
        ({"fields": ["a"], "metadata": {"deliveries": "a"}}, "metadata", "a"),
        ({"nonsense": 1}, "nonsense", "nonsense"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], option: str, text: str) -> None:
    """Found before a connection is opened: there is no server here."""
    with pytest.raises(ConfigError) as raised:
        Consumer(Endpoint(host="127.0.0.1", port=1, stream_key="events"), **{**NAMES, **options})
    assert text in str(raised.value)
    assert option in str(raised.value)
    assert raised.value.option == option


@pytest.mark.parametrize("missing", NAMES)
def test_group_and_consumer_names_are_required(missing: str) -> None:
    endpoint = Endpoint(host="127.0.0.1", port=1, stream_key="events")
    purpose = {"group": "that its consumers share", "consumer": "of its own in each process"}[missing]
    with pytest.raises(ConfigError, match=f"^{missing} must be a non-empty name {purpose}, got none$"):
        Consumer(endpoint, **{name: value for name, value in NAMES.items() if name != missing})


def test_invalid_streams_and_schemas_are_refused() -> None:
    endpoint = Endpoint(host="127.0.0.1", port=1, stream_key="events")
    with pytest.raises(ConfigError, match="streams must name each stream once, got 's' twice"):
        Consumer(endpoint, ["s", b"s"], **NAMES)
    wrong: Any = ["n"]
    with pytest.raises(ConfigError) as raised:
        Consumer(endpoint, schema=wrong, **NAMES)
    example = "{'id': 'int64', 'total': 'decimal(9, 2)'}"
    assert str(raised.value) == f"schema must be an Arrow schema, or a mapping such as {example}, got ['n']"
    assert raised.value.option == "schema"
    with pytest.raises(ConfigError, match="fields") as raised:
        Consumer(endpoint, schema=pa.schema([("n", pa.int64())]), fields=["n"], **NAMES)


def test_options_are_accepted_at_their_bounds(any_server: LocalServer, connect: Connect) -> None:
    add(connect(any_server), 3)
    lowest: dict[str, Any] = {"block": 0.001, "batch_rows": 1, "batch_bytes": 1, "page_bytes": 1, "linger": 0.0}
    with consumer_of(any_server, **lowest, claim=False, min_idle=31_536_000.0, max_processing=0.001) as consumer:
        assert take(consumer, 3, ack=True) == ["1-0", "2-0", "3-0"]
    add(connect(any_server), 3, first=4)
    highest: dict[str, Any] = {"block": 3600.0, "batch_bytes": 1 << 30, "page_bytes": 1 << 30}
    with consumer_of(any_server, "d", **highest, max_failures=1_000_000, dead_letter_key=b"\xff") as consumer:
        assert take(consumer, 3, ack=True) == ["4-0", "5-0", "6-0"]
        assert consumer.flush().acked == 3


def test_acknowledging_is_a_no_op_with_ack_none(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    add(client, 100)
    with consumer_of(server, ack="none") as consumer:
        batch = next_batch(consumer)
        assert pending_of(client) == {}
        consumer.ack(batch)
        batch.check()
        report = consumer.flush()
        assert (report.handed_over, report.pending, report.stale) == (batch.num_rows, 0, 0)
        take(consumer, 100 - batch.num_rows)
    assert client.xlen(KEY) == 100


def test_acknowledged_entries_are_deleted(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    add(client, 5)
    with consumer_of(server, ack_delete=True) as consumer:
        batch = next_batch(consumer)
        consumer.ack(batch, [True, False, True, False, False])
        assert consumer.flush().acked == 2
        assert [entry for entry, _ in client.xrange(KEY)] == [b"2-0", b"4-0", b"5-0"]
        consumer.ack(batch)
        assert consumer.flush().acked == 5
        assert client.xlen(KEY) == 0


def test_dead_letters_are_deleted_from_their_stream_too(
    server: LocalServer, program: Program, connect: Connect
) -> None:
    client = connect(server)
    add(client, 4)
    with consumer_of(server, ack_delete=True, max_failures=1, dead_letter_key="dead", min_idle=1.0) as consumer:
        batch = next_batch(consumer)
        consumer.ack(batch, [True, True, False, False])
        consumer.fail(batch, "why", mask=[False, False, True, False])
        assert consumer.flush().dead == 1
        assert [entry for entry, _ in client.xrange(KEY)] == [b"4-0"]
        client.xgroup_create(KEY, "second", id="0")
        consumer.fail(batch, "why", mask=[False, False, False, True])
        if program.can("redis-8.2"):
            assert consumer.flush().dead == 2
            assert (client.xlen(KEY), client.xlen("dead"), pending_of(client)) == (1, 2, {})
            with consumer_of(server, group="second", ack_delete=True) as last:
                assert take(last, 1, ack=True) == ["4-0"]
                last.flush()
        else:
            with pytest.raises(CommandError, match=r"ack_delete needs .* one consumer group.*with 2 groups"):
                consumer.flush()
            assert (client.xlen(KEY), client.xlen("dead"), list(pending_of(client))) == (1, 1, ["4-0"])
            client.xgroup_destroy(KEY, "second")
            while consumer.report().dead == 1:
                consumer.poll(0.05)
            assert client.xlen("dead") == 2
    assert client.xlen(KEY) == 0


def test_entries_that_another_group_still_needs_are_not_deleted(
    server: LocalServer, program: Program, connect: Connect
) -> None:
    client = connect(server)
    add(client, 3)
    with consumer_of(server, ack_delete=True) as consumer:
        batch = next_batch(consumer)
        client.xgroup_create(KEY, "second", id="0")
        consumer.ack(batch)
        if program.can("redis-8.2"):
            assert consumer.flush().acked == 3
            assert (client.xlen(KEY), pending_of(client)) == (3, {})
            # The last of the groups removes them, if they are still its own.
            with consumer_of(server, group="second", ack_delete=True) as last:
                batch = next_batch(last)
                set_pending(client, "other", ["2-0"], key=KEY, group="second")
                last.ack(batch)
                report = last.flush()
                assert (report.acked, report.stale) == (2, 1)
            assert [entry for entry, _ in client.xrange(KEY)] == [b"2-0"]
            return
        with pytest.raises(CommandError, match=r"ack_delete needs a stream with one consumer group.*with 2 groups"):
            consumer.flush()
        assert client.xlen(KEY) == 3
        assert len(pending_of(client)) == 3
        client.xgroup_destroy(KEY, "second")
        consumer.ack(batch)
        assert consumer.flush().acked == 3
        assert client.xlen(KEY) == 0


#: What a consumer needs beside the keys, as docs/reading.md has it.
RULES = ["eval", "evalsha", "xreadgroup", "xpending", "xack", "xclaim", "xautoclaim", "xgroup|create"]


def allow(client: Any, *rules: str, key: str = KEY) -> None:
    client.execute_command("ACL", "SETUSER", "u", "reset", "on", ">p", f"~{key}", *(f"+{rule}" for rule in rules))


def test_a_consumer_works_with_the_minimal_rights(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    add(client, 3)
    allow(client, *RULES)
    with consumer_of(endpoint_for(server, "u"), min_idle=5.0, claim_interval=0.02) as consumer:
        batch = next_batch(consumer)
        # Without the right to end the connection before this one, it is only looked at once more what is pending.
        client.client_kill_filter(_type="normal", skipme=True)
        consumer.ack(batch, [True, False, False])
        assert consumer.flush().acked == 1
        batch.check()
        consumer.fail(batch, "why", mask=[False, True, False], delay=0)
        assert next_batch(consumer).entry_ids == ["2-0"]
    assert sorted(pending_of(client)) == ["2-0", "3-0"]


@pytest.mark.parametrize("missing", RULES)
def test_a_missing_acl_right_is_reported_before_an_entry_is_read(
    server: LocalServer, connect: Connect, missing: str
) -> None:
    client = connect(server)
    add(client, 3)
    if missing != "xgroup|create":
        client.xgroup_create(KEY, GROUP, id="0")
    allow(client, *(rule for rule in RULES if rule != missing))
    with pytest.raises(CommandError) as refused:
        consumer_of(endpoint_for(server, "u"))
    assert (refused.value.code, refused.value.kind) == ("NOPERM", "permanent")
    assert f"+{missing}" in str(refused.value)
    assert f"~{KEY}" in str(refused.value)
    if missing != "xgroup|create":
        assert pending_of(client) == {}


def test_a_key_that_the_user_may_not_access_is_refused(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    add(client, 1)
    allow(client, *RULES, key="other")
    with pytest.raises(CommandError, match=f"~{KEY}") as refused:
        consumer_of(endpoint_for(server, "u"))
    assert refused.value.code == "NOPERM"


def test_a_key_of_another_type_is_refused(server: LocalServer, connect: Connect) -> None:
    connect(server).set(KEY, "text")
    with pytest.raises(CommandError, match=f"the key '{KEY}' does not hold a stream") as refused:
        consumer_of(server)
    assert (refused.value.code, refused.value.kind) == ("WRONGTYPE", "permanent")


def test_a_consumer_on_a_replica_is_refused(any_replicated: tuple[LocalServer, LocalServer]) -> None:
    _, replica = any_replicated
    with pytest.raises(CommandError, match="READONLY"):
        consumer_of(Endpoint(unix_socket=replica.unix_socket, stream_key=KEY))
