"""headrace, from record batches and from a loop in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING, Any

from benches.contenders.common import payloads
from benches.turns import Run, Target

from headrace import Dispatcher, Endpoint

if TYPE_CHECKING:
    import pyarrow as pa

Options = Mapping[str, Any]


def endpoint(target: Target, options: Options | None = None) -> Endpoint:
    """`options` are those of an endpoint, besides the address and the stream."""
    given: dict[str, Any] = {"stream_key": target.stream_key, "maxlen": target.maxlen}
    if target.unix_socket:
        given |= {"unix_socket": target.unix_socket}
    else:
        given |= {"host": target.host, "port": target.port}
    if target.tls_ca_cert:
        given |= {"tls": True, "tls_ca_cert": target.tls_ca_cert}
    return Endpoint(**given | dict(options or {}))


def produce_batch(
    target: Target,
    endpoint_options: Options | None = None,
    dispatcher_options: Options | None = None,
    batch_options: Options | None = None,
) -> Callable[[], int]:
    """Record batches with message IDs from a column, `poll()` after each.

    `batch_options` go to `produce_batch` instead of `payload="payload"`.
    """
    import pyarrow as pa

    ids = pa.array(range(target.batch), pa.int64())
    batch = pa.record_batch({"id": ids, "payload": pa.array(payloads(target), pa.binary())})
    options = {"payload": "payload"} if batch_options is None else batch_options
    return batch_after_batch(target, batch, options, endpoint_options, dispatcher_options)


def produce_streams(target: Target, endpoint_options: Options | None = None) -> Callable[[], int]:
    """Record batches for 64 streams, selected by a column, `poll()` after each."""
    import pyarrow as pa
    from benches.contenders.streams import keys_of_rows

    columns = {"id": pa.array(range(target.batch), pa.int64()), "payload": pa.array(payloads(target), pa.binary())}
    batch = pa.record_batch({**columns, "key": pa.array(keys_of_rows(target))})
    return batch_after_batch(target, batch, {"payload": "payload", "stream_key": "key"}, endpoint_options, None)


def produce_shards(target: Target, endpoint_options: Options | None = None) -> Callable[[], int]:
    """Record batches for 64 shards, selected by a column of keys, `poll()` after each."""
    import pyarrow as pa
    from benches.contenders.streams import STREAMS, shard_keys_of_rows

    columns = {"id": pa.array(range(target.batch), pa.int64()), "payload": pa.array(payloads(target), pa.binary())}
    batch = pa.record_batch({**columns, "key": pa.array(shard_keys_of_rows(target))})
    options = {"shards": STREAMS, **(endpoint_options or {})}
    return batch_after_batch(target, batch, {"payload": "payload", "shard_key": "key"}, options, None)


def produce_typed(
    target: Target,
    null_share: float = 0.0,
    endpoint_options: Options | None = None,
    dispatcher_options: Options | None = None,
    batch_options: Options | None = None,
) -> Callable[[], int]:
    """Record batches of six typed columns, some values null, with message IDs.

    `batch_options` go to `produce_batch` instead of `fields`, which names all six.
    """
    from benches.prepared_bytes import TYPED
    from benches.typed_batches import typed_batch

    batch = typed_batch(target, null_share)
    options = {"fields": list(TYPED)} if batch_options is None else batch_options
    return batch_after_batch(target, batch, options, endpoint_options, dispatcher_options)


def batch_after_batch(
    target: Target,
    batch: pa.RecordBatch,
    batch_options: Options,
    endpoint_options: Options | None,
    dispatcher_options: Options | None,
) -> Callable[[], int]:
    """The same record batch up to `target.rows` rows, `poll()` after each."""

    def run() -> int:
        delivered = 0
        with Dispatcher(endpoint(target, endpoint_options), **dispatcher_options or {}) as dispatcher:
            for _ in range(target.rows // target.batch):
                dispatcher.produce_batch(batch, message_id="id", **batch_options)
                delivered += dispatcher.poll().delivered
            return delivered + dispatcher.flush().raise_for_failures().delivered

    return run


def produce(
    target: Target,
    message_ids: bool = False,
    endpoint_options: Options | None = None,
    dispatcher_options: Options | None = None,
) -> Run:
    """One call per message, with or without an int message ID, `poll()` after each batch."""
    rows = payloads(target)

    def run() -> int:
        delivered = 0
        with Dispatcher(endpoint(target, endpoint_options), **dispatcher_options or {}) as dispatcher:
            for _ in repeat(None, target.rows // target.batch):
                if message_ids:
                    for message_id, payload in enumerate(rows):
                        dispatcher.produce(payload, message_id)
                else:
                    for payload in rows:
                        dispatcher.produce(payload)
                delivered += dispatcher.poll().delivered
            return delivered + dispatcher.flush().raise_for_failures().delivered

    return run


def in_threads(target: Target, dispatchers: int) -> Run:
    """Several dispatchers, each with a thread and a connection, share the record batches."""
    total = target.rows // target.batch
    shares = [total // dispatchers + (number < total % dispatchers) for number in range(dispatchers)]
    runs = [produce_batch(replace(target, rows=share * target.batch)) for share in shares if share]

    def run() -> int:
        with ThreadPoolExecutor(len(runs)) as threads:
            return sum(threads.map(lambda run: run(), runs))

    return run
