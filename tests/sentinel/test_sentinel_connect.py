"""Which server the sentinels lead to, with which credentials, and what the errors say."""

from __future__ import annotations

import io
import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
import redis

from headrace import Consumer, Dispatcher, Endpoint, Reader, RetryPolicy
from headrace.testing import LocalSentinel
from support import Program
from support.certs import Certs
from support.fake_server import FakeServer, Peer
from support.patience import NEVER, PATIENCE
from support.processes import wait_until
from support.sentinels import StartGroup, endpoint_of
from support.servers import programs_with


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalSentinel]:
    """A group that no test changes."""
    with LocalSentinel(max(programs_with(["redis"])).path) as group:
        yield group


def code_of(endpoint: Endpoint) -> tuple[str, str, str]:
    """Code, kind and message of the failure that a message meets."""
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce(b"x")
        report = dispatcher.flush()
        (failure,) = report.failed
        return failure.code, failure.kind, failure.message


def test_writing_and_reading_go_to_the_master(group: LocalSentinel) -> None:
    endpoint = endpoint_of(group)
    with Dispatcher(endpoint, wait_replicas=2, wait_timeout=NEVER) as dispatcher:
        dispatcher.produce_batch(pa.table({"payload": [b"a", b"b"]}), payload="payload")
        assert dispatcher.flush().delivered == 2
    with Reader(endpoint, fields=["payload"], end="latest") as reader:
        assert pa.table(reader)["payload"].to_pylist() == ["a", "b"]
    with Consumer(endpoint, group="g", consumer="c", fields=["payload"]) as consumer:
        batch = consumer.poll(PATIENCE)
        assert batch is not None
        consumer.ack(batch)
    with redis.Redis(port=group.master().port or 0) as master:
        assert master.xinfo_groups("s")[0]["pending"] == 0


def test_a_url_describes_the_same_endpoint(shared: LocalSentinel) -> None:
    endpoint = Endpoint.from_url(shared.url + "/3", stream_key="s")
    assert endpoint.nodes == tuple(shared.nodes)
    assert endpoint.sentinel_master == "mymaster"
    assert endpoint.db == 3
    assert str(endpoint) == f"{shared.url}/3 stream key s"
    assert endpoint == endpoint_of(shared, db=3) == endpoint_of(shared, db=3, nodes=",".join(shared.nodes))
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce(b"x")
        assert dispatcher.flush().delivered == 1


def test_sentinels_that_are_down_are_skipped(group: LocalSentinel) -> None:
    for sentinel in group.sentinels[:2]:
        sentinel.kill()
    with Dispatcher(endpoint_of(group)) as dispatcher:
        dispatcher.produce(b"x")
        assert dispatcher.flush().delivered == 1
        # Without any sentinel what is connected goes on.
        group.sentinels[2].kill()
        for _ in range(3):
            dispatcher.produce(b"x")
            assert dispatcher.flush().delivered == 1
    code, kind, message = code_of(endpoint_of(group))
    assert (code, kind) == ("NO_MASTER", "retryable")
    assert message.startswith("no sentinel names the master 'mymaster': cannot connect to the sentinel 127.0.0.1:")
    assert all(node in message for node in group.nodes)


def test_all_replicas_include_those_that_are_down(group: LocalSentinel) -> None:
    """The sentinels may promote one of them as soon as it is back."""
    master = group.master()
    next(server for server in group.servers if server is not master).kill()
    with redis.Redis(port=master.port or 0) as client:
        wait_until(lambda: client.info("replication")["connected_slaves"] == 1)
    with Dispatcher(endpoint_of(group), wait_replicas="all", wait_timeout=0.2) as dispatcher:
        dispatcher.produce(b"x")
        (failure,) = dispatcher.flush().failed
    assert failure.code == "NOT_REPLICATED"
    assert failure.message == "1 of 2 replicas had the entry within 0.2 s; the server itself has it"


def test_a_master_name_unknown_to_the_sentinels_is_reported(shared: LocalSentinel) -> None:
    code, kind, message = code_of(endpoint_of(shared, sentinel_master="other"))
    assert (code, kind) == ("NO_MASTER", "retryable")
    assert f"the sentinel {shared.nodes[0]} knows no master 'other'" in message
    with pytest.raises(ConnectionError, match="knows no master 'other'"):
        next(Reader(endpoint_of(shared, sentinel_master="other")))


@pytest.mark.needs("redis-8.6")
def test_a_server_named_as_a_sentinel_is_reported(shared: LocalSentinel) -> None:
    master = f"127.0.0.1:{shared.master().port}"
    with Dispatcher(endpoint_of(shared, nodes=[master])) as dispatcher:
        dispatcher.produce(b"x")
        (failure,) = dispatcher.flush().failed
    refused = f"the sentinel {master} refused SENTINEL GET-MASTER-ADDR-BY-NAME: ERR unknown command"
    assert (failure.code, failure.kind) == ("ERR", "permanent")
    assert failure.message.startswith(refused)
    assert failure.advice == "give the addresses of sentinels as nodes, or leave sentinel_master out"


def test_each_password_goes_to_its_own_servers(start_group: StartGroup, program: Program) -> None:
    acl = {"user": "app on >geheim ~* +@all", "requirepass": "daten"}
    group = start_group(config=acl, sentinel_config={"requirepass": "waechter"})
    right: dict[str, Any] = {"username": "app", "password": "geheim", "sentinel_password": "waechter"}
    with Dispatcher(endpoint_of(group, **right)) as dispatcher:
        dispatcher.produce(b"x")
        assert dispatcher.flush().delivered == 1
    wrongs: list[tuple[dict[str, Any], str, str]] = [
        ({"sentinel_password": "geheim"}, "WRONGPASS", "cannot connect to the sentinel 127.0.0.1:"),
        ({"sentinel_password": None}, "NOAUTH", "the sentinel 127.0.0.1:"),
        ({"password": "waechter"}, "WRONGPASS", "cannot connect to the master 'mymaster' at 127.0.0.1:"),
    ]
    for wrong, code, start in wrongs:
        found, kind, message = code_of(endpoint_of(group, **(right | wrong)))
        assert (found, kind) == (code, "permanent"), message
        assert message.startswith(start)
        assert not any(secret in message for secret in ("geheim", "waechter", "daten"))
    for server in (*group.servers, *group.sentinels):
        assert not any(secret in server.log_text() for secret in ("geheim", "waechter", "daten"))


@pytest.mark.needs("redis-8.6")
def test_tls_with_the_sentinels_and_the_server(start_group: StartGroup, program: Program, certs: Certs) -> None:
    pair = certs.server
    group = start_group(tls_cert=pair.cert, tls_key=pair.key, tls_ca_cert=certs.ca)
    tls: dict[str, Any] = {"tls": True, "tls_ca_cert": certs.ca}
    for options in (tls, tls | {"sentinel_tls_ca_cert": certs.ca}):
        with Dispatcher(endpoint_of(group, **options)) as dispatcher:
            dispatcher.produce(b"x")
            assert dispatcher.flush().delivered == 1
    code, kind, message = code_of(endpoint_of(group, **tls, sentinel_tls_ca_cert=certs.other_ca))
    assert (code, kind) == ("TLS", "permanent")
    assert "the sentinel 127.0.0.1:" in message
    code, kind, message = code_of(endpoint_of(group, **tls, sentinel_tls=False))
    assert code == "NO_MASTER"
    assert "a server that expects TLS here does so" in message


def fake(script: Callable[[Peer], None]) -> FakeServer:
    """A sentinel whose every connection runs the script."""
    return FakeServer(*[script] * 20, handshake=False)


def named(port: int) -> Callable[[Peer], None]:
    """The script of a sentinel that names a port."""

    def script(peer: Peer) -> None:
        while peer.commands(1):
            peer.send(b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%d\r\n" % (len(str(port)), port))

    return script


def test_a_replica_named_as_the_master_is_refused(shared: LocalSentinel) -> None:
    replica = next(server for server in shared.servers if server.port != shared.master().port)
    with fake(named(replica.port or 0)) as liar:
        endpoint = endpoint_of(shared, nodes=[f"127.0.0.1:{liar.port}"])
        code, kind, message = code_of(endpoint)
        assert (code, kind) == ("NO_MASTER", "retryable")
        assert message == f"127.0.0.1:{replica.port}, which the sentinels name as the master 'mymaster', is a replica"
        # The next one is asked.
        with Dispatcher(endpoint_of(shared, nodes=[f"127.0.0.1:{liar.port}", *shared.nodes])) as dispatcher:
            dispatcher.produce(b"x")
            assert dispatcher.flush().delivered == 1
    with redis.Redis(port=replica.port or 0) as client:
        assert client.info("commandstats").get("cmdstat_xadd", {}).get("rejected_calls", 0) == 0


def test_an_outdated_sentinel_does_not_end_the_connection(shared: LocalSentinel) -> None:
    """It names a replica, once the connection stands."""
    replica = next(server for server in shared.servers if server.port != shared.master().port)
    ports = [shared.master().port or 0]

    def script(peer: Peer) -> None:
        while peer.commands(1):
            port = ports[-1]
            ports.append(replica.port or 0)
            peer.send(f"*2\r\n$9\r\n127.0.0.1\r\n${len(str(port))}\r\n{port}\r\n".encode())

    with (
        fake(script) as behind,
        Dispatcher(endpoint_of(shared, nodes=[f"127.0.0.1:{behind.port}"], sentinel_poll=0.05)) as dispatcher,
    ):
        while len(ports) < 10:
            dispatcher.produce(b"x")
            assert dispatcher.flush().delivered == 1
        assert dispatcher.stats().connections == 1


@pytest.mark.parametrize(
    "reply",
    [
        b"$-1\r\n",
        b"*1\r\n$1\r\nx\r\n",
        b"*2\r\n:1\r\n:2\r\n",
        b"*2\r\n$1\r\nx\r\n$1\r\nx\r\n",
        b"*2147483647\r\n",
        b"+OK\r\n",
    ],
    ids=repr,
)
def test_invalid_sentinel_replies_are_refused(reply: bytes, shared: LocalSentinel) -> None:
    def script(peer: Peer) -> None:
        peer.commands(1)
        peer.send(reply)
        peer.wait_for_end()

    with fake(script) as odd:
        code, _, _ = code_of(endpoint_of(shared, nodes=[f"127.0.0.1:{odd.port}"]))
    assert code in ("NO_MASTER", "PROTOCOL")


def test_a_sentinel_that_never_replies_leaves_time_for_the_next(shared: LocalSentinel) -> None:
    with fake(Peer.wait_for_end) as silent:
        endpoint = endpoint_of(shared, nodes=[f"127.0.0.1:{silent.port}", *shared.nodes], connect_timeout=2)
        with Dispatcher(endpoint) as dispatcher:
            dispatcher.produce(b"x")
            assert dispatcher.flush().delivered == 1
        code, _, message = code_of(endpoint_of(shared, nodes=[f"127.0.0.1:{silent.port}"], connect_timeout=0.2))
        assert code == "NO_MASTER"
        assert "within 0.2 s" in message


def child(dispatcher: Dispatcher, result: Any) -> None:
    dispatcher.produce(b"child")
    result.put(dispatcher.flush().delivered)


def test_a_forked_child_does_not_disturb_its_parent(shared: LocalSentinel) -> None:
    context = multiprocessing.get_context("fork")
    with Dispatcher(endpoint_of(shared, sentinel_poll=0.05)) as dispatcher:
        dispatcher.produce(b"parent")
        assert dispatcher.flush().delivered == 1
        result = context.Queue()
        process = context.Process(target=child, args=(dispatcher, result))
        process.start()
        assert result.get(timeout=PATIENCE) == 1
        process.join()
        for _ in range(5):
            dispatcher.produce(b"parent")
            assert dispatcher.flush().delivered == 1
        assert dispatcher.stats().connections == 1


def test_secrets_of_sentinels_are_not_shown(shared: LocalSentinel) -> None:
    endpoint = endpoint_of(shared, sentinel_username="u", sentinel_password="hunter2", sentinel_tls=False)
    text = io.StringIO()
    print(endpoint, repr(endpoint), endpoint._debug(), file=text)
    assert "hunter2" not in text.getvalue()
    assert not hasattr(endpoint, "sentinel_password")


def test_a_retry_policy_waits_for_sentinels(group: LocalSentinel) -> None:
    for sentinel in group.sentinels:
        sentinel.kill()
    patient = RetryPolicy(initial_backoff=0.01, max_backoff=0.05, deadline=NEVER)
    waits: list[object] = []
    with Dispatcher(endpoint_of(group), retry=patient) as dispatcher:
        dispatcher.produce(b"x")
        group.sentinels[1].restart()
        assert dispatcher.flush().delivered == 1, waits
