"""The duration of calls that read, on a server that does not answer, or not in time."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import redis

from faults.proxy import Pair, Proxy
from headrace import AsyncDispatcher, Consumer, Endpoint, HeadraceError, Reader, RetryPolicy
from headrace.testing import LocalCluster, LocalServer
from support import Certs
from support.clusters import endpoint_of
from support.patience import NEVER, PATIENCE
from support.processes import stopped
from support.stalls import Surroundings

ENTRIES = 200
#: A retry policy that never gives up.
RETRY = RetryPolicy(deadline=NEVER)
Misbehave = Callable[[Proxy, LocalServer], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class Behaviour:
    """What a server does from some moment on, to the connections it has and to new ones."""

    begin: Misbehave
    tls: bool = False


def _on_each(act: Callable[[Proxy, Pair], object], *, tls: bool = False) -> Behaviour:
    @contextlib.contextmanager
    def begin(proxy: Proxy, _server: LocalServer) -> Iterator[None]:
        proxy.each(lambda pair: act(proxy, pair))
        yield

    return Behaviour(begin, tls)


def _trickle(pair: Pair) -> None:
    flow = pair.flows["replies"]
    flow.segment, flow.pause = 1, 0.1


def _after(count: int, act: Callable[[Pair], object]) -> Callable[[Proxy, Pair], object]:
    return lambda proxy, pair: proxy.at("replies", count, act, pair)


def _stall(pair: Pair) -> None:
    pair.stall("replies")


@contextlib.contextmanager
def _unserved(proxy: Proxy, _server: LocalServer) -> Iterator[None]:
    proxy.accepts = False
    proxy.each(Pair.reset)
    yield


@contextlib.contextmanager
def _away(proxy: Proxy, _server: LocalServer) -> Iterator[None]:
    proxy.refuses = True
    proxy.each(Pair.reset)
    yield


@contextlib.contextmanager
def _stopped(_proxy: Proxy, server: LocalServer) -> Iterator[None]:
    with stopped(server):
        yield


#: The replies to CLIENT SETINFO, twice, and CLIENT SETNAME.
_HANDSHAKE = 3 * len(b"+OK\r\n")

BEHAVIOURS: dict[str, Behaviour] = {
    "silent": _on_each(lambda _, pair: _stall(pair)),
    "stopped": Behaviour(_stopped),
    "a byte every 0.1 s": _on_each(lambda _, pair: _trickle(pair)),
    "a byte every 0.1 s after the handshake": _on_each(_after(_HANDSHAKE, _trickle)),
    "accepts, never answers": Behaviour(_unserved),
    "half a reply": _on_each(_after(3, _stall)),
    "silent after the handshake": _on_each(_after(_HANDSHAKE, _stall)),
    "refuses connections": Behaviour(_away),
    "TLS, half a record": _on_each(_after(20, _stall), tls=True),
    "TLS, a byte every 0.1 s": _on_each(lambda _, pair: _trickle(pair), tls=True),
}


@dataclass(frozen=True)
class Place:
    """A server behind a proxy, which behaves badly inside the block of `misbehaving`."""

    endpoint: Endpoint
    misbehaving: Callable[[], contextlib.AbstractContextManager[None]]

    def consumer(self, **options: Any) -> Consumer:
        return Consumer(self.endpoint, group="g", consumer="c", batch_rows=50, block=0.1, linger=0.0, **options)


@dataclass(frozen=True)
class Call:
    """A call, and the time it may take: its own timeout, and those of the endpoint that apply to it."""

    measure: Callable[[Place, float], tuple[float, object]]
    """Returns its seconds, and what it returned or raised. The timeout is that of the call, if it has one."""
    timeouts: float
    """How often the timeout may pass. The deadline of a policy counts from the end of the first attempt."""
    connect_timeout: bool = False
    """Whether the endpoint's timeouts apply: they are as long as that of the call. Otherwise they never pass."""
    command_timeout: bool = False


def _timed(call: Callable[[], object]) -> tuple[float, object]:
    began = time.monotonic()
    try:
        result = call()
    except HeadraceError as error:
        result = error
    return time.monotonic() - began, result


def _reader(place: Place, _timeout: float, **options: Any) -> tuple[float, object]:
    with place.misbehaving():
        return _timed(lambda: Reader(place.endpoint, **options))


def _consumer(place: Place, _timeout: float, **options: Any) -> tuple[float, object]:
    with place.misbehaving():
        return _timed(lambda: place.consumer(**options))


def _read(place: Place, timeout: float, **options: Any) -> tuple[float, object]:
    with Reader(place.endpoint, block=0.1, **options) as reader:
        while reader.read(0.05) is not None:
            pass
        with place.misbehaving():
            return _timed(lambda: reader.read(timeout))


def _reader_close(place: Place, _timeout: float) -> tuple[float, object]:
    reader = Reader(place.endpoint, block=NEVER)
    while reader.read(0.05) is not None:
        pass
    with place.misbehaving():
        return _timed(reader.close)


def _poll(place: Place, timeout: float, **options: Any) -> tuple[float, object]:
    consumer = place.consumer(**options)
    batch = consumer.poll(PATIENCE)
    assert batch is not None
    with place.misbehaving():
        consumer.ack(batch)
        while True:
            seconds, result = _timed(lambda: consumer.poll(timeout))
            if result is None or isinstance(result, HeadraceError):
                break  # what has arrived is returned
        consumer.close(0)
        return seconds, result


def _flush(place: Place, timeout: float, **options: Any) -> tuple[float, object]:
    consumer = place.consumer(**options)
    batch = consumer.poll(PATIENCE)
    assert batch is not None
    with place.misbehaving():
        consumer.ack(batch)
        measured = _timed(lambda: consumer.flush(timeout))
        consumer.close(0)
        return measured


def _close(decide: Callable[[Consumer, Any], object], **options: Any) -> Callable[[Place, float], tuple[float, object]]:
    def measure(place: Place, timeout: float) -> tuple[float, object]:
        consumer = place.consumer(**options)
        batch = consumer.poll(PATIENCE)
        assert batch is not None
        with place.misbehaving():
            decide(consumer, batch)
            return _timed(lambda: consumer.close(timeout))

    return measure


def _close_idle(place: Place, timeout: float) -> tuple[float, object]:
    """A read is on its way that the server never ends."""
    consumer = Consumer(place.endpoint, group="g", consumer="c", block=NEVER, linger=0.0)
    while (batch := consumer.poll(0.2)) is not None:
        consumer.ack(batch)
    polling = threading.Thread(target=lambda: _timed(consumer.poll))
    polling.start()
    time.sleep(0.1)
    with place.misbehaving():
        consumer.stop()
        polling.join()
        return _timed(lambda: consumer.close(timeout))


def _leave(place: Place, _timeout: float) -> tuple[float, object]:
    """The end of a `with` block: its timeout is the default of `close`."""
    consumer = place.consumer()
    batch = consumer.poll(PATIENCE)
    assert batch is not None
    with place.misbehaving():
        consumer.ack(batch)
        return _timed(lambda: consumer.__exit__(None, None, None))


def _on_loop(place: Place, call: Callable[[AsyncDispatcher], Any]) -> tuple[float, object]:
    async def run() -> tuple[float, object]:
        dispatcher = AsyncDispatcher(place.endpoint)
        await dispatcher.send(b"first")
        with place.misbehaving():
            await dispatcher.produce(b"second")
            began = time.monotonic()
            try:
                result = await call(dispatcher)
                _ = getattr(result, "ok", None)  # marks the failures as seen
            except HeadraceError as error:
                result = error
            seconds = time.monotonic() - began
            with contextlib.suppress(HeadraceError):
                await dispatcher.flush(0)
                await dispatcher.close()
            return seconds, result

    return asyncio.run(run())


CALLS: dict[str, Call] = {
    "Reader()": Call(_reader, 2, connect_timeout=True, command_timeout=True),
    "Consumer()": Call(_consumer, 2, connect_timeout=True, command_timeout=True),
    "Reader(), retry": Call(
        lambda place, timeout: _reader(place, timeout, retry=RetryPolicy(deadline=timeout)),
        5,
        connect_timeout=True,
        command_timeout=True,
    ),
    "Consumer(), retry": Call(
        lambda place, timeout: _consumer(place, timeout, retry=RetryPolicy(deadline=timeout)),
        5,
        connect_timeout=True,
        command_timeout=True,
    ),
    "Reader.read(timeout)": Call(_read, 2, connect_timeout=True),
    "Reader.read(timeout), retry": Call(lambda *its: _read(*its, retry=RETRY), 2, connect_timeout=True),
    "Reader.close()": Call(_reader_close, 0),
    "Consumer.poll(timeout)": Call(_poll, 2, connect_timeout=True),
    "Consumer.poll(timeout), retry": Call(lambda *its: _poll(*its, retry=RETRY), 2, connect_timeout=True),
    "Consumer.flush(timeout)": Call(_flush, 1),
    "Consumer.flush(timeout), retry": Call(lambda *its: _flush(*its, retry=RETRY), 1),
    "Consumer.close(timeout), undecided": Call(_close(lambda *_: None), 1),
    "Consumer.close(timeout), acked": Call(_close(lambda consumer, batch: consumer.ack(batch)), 1),
    "Consumer.close(timeout), failed": Call(_close(lambda consumer, batch: consumer.fail(batch, "why")), 1),
    "Consumer.close(timeout), retry": Call(_close(lambda consumer, batch: consumer.ack(batch), retry=RETRY), 1),
    "Consumer.close(timeout), idle": Call(_close_idle, 1),
    "AsyncDispatcher.flush(timeout)": Call(lambda place, timeout: _on_loop(place, lambda it: it.flush(timeout)), 1),
    "AsyncDispatcher.close()": Call(
        lambda place, _: _on_loop(place, lambda it: it.close()), 2.1, connect_timeout=True, command_timeout=True
    ),
}
#: The end of a `with` block, which takes no timeout, and the one that it has.
LEAVE, LEAVE_TIMEOUT = Call(_leave, 1), 10.0


def start(around: Surroundings, behaviour: Behaviour) -> LocalServer:
    """A server for calls that meet this behaviour."""
    if not behaviour.tls:
        return around.start_server(transport="tcp")
    pair = around.certs.server
    return around.start_server(needs=("tls",), transport="tls", tls_cert=pair.cert, tls_key=pair.key)


#: The streams of a cluster, in slots of all its nodes, and the seconds for which calls are measured there.
KEYS, FOR = [f"k{number}" for number in range(12)], 8.0
READS = ("Reader.read", "Consumer.poll")


def nodes_stopped(cluster: LocalCluster, read: str, connections: int | None, timeout: float) -> float:
    """The seconds of the longest of many calls while all nodes of a cluster are stopped; `connect_timeout` is 1 s."""
    endpoint = endpoint_of(cluster, KEYS[0], connect_timeout=1.0, command_timeout=0.5)
    options: dict[str, Any] = {"block": 0.1, "connections": connections, "retry": RETRY}
    longest = 0.0
    with contextlib.ExitStack() as stack:
        call: Callable[[float], object]
        if read == "Reader.read":
            call = stack.enter_context(Reader(endpoint, KEYS, **options)).read
        else:
            consumer = Consumer(endpoint, KEYS, group="g", consumer="c", **options)
            stack.callback(consumer.close, 0)
            call = consumer.poll
        call(timeout)
        for server in cluster.servers:
            stack.enter_context(stopped(server))
        ends = time.monotonic() + FOR
        while time.monotonic() < ends:
            longest = max(longest, _timed(lambda: call(timeout))[0])
    return longest


def measure(
    server: LocalServer, certs: Certs, behaviour: Behaviour, call: Call, timeout: float
) -> tuple[float, object]:
    """The seconds of the call on such a server, and what it returned or raised."""
    with contextlib.closing(redis.Redis(unix_socket_path=server.unix_socket, protocol=2)) as client:
        client.flushall()
        pipeline = client.pipeline(transaction=False)
        for number in range(ENTRIES):
            pipeline.xadd("s", {"n": number, "p": "x" * 50})
        pipeline.execute()
    encrypted: dict[str, Any] = {"tls": True, "tls_ca_cert": certs.ca} if behaviour.tls else {}
    with Proxy(cast(int, server.port)) as proxy:
        endpoint = Endpoint(
            host="127.0.0.1",
            port=proxy.port,
            stream_key="s",
            topology="single",
            connect_timeout=timeout if call.connect_timeout else NEVER,
            command_timeout=timeout if call.command_timeout else NEVER,
            **encrypted,
        )
        return call.measure(Place(endpoint, lambda: behaviour.begin(proxy, server)), timeout)
