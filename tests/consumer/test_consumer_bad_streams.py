"""One stream that cannot be read does not stop the others of a consumer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from headrace import CommandError, ConfigError, Consumer, Endpoint, GroupMissingError, HeadraceError
from headrace.consumer import ConsumerBatch
from headrace.testing import LocalServer
from support.bad_streams import STREAMS, Change, allow, delete, fill, forbid, overwrite
from support.consumers import consumer_of, next_batch
from support.groups import GROUP, pending_of
from support.patience import PATIENCE
from support.pipelines import endpoint_to
from support.processes import wait_until


def destroy(client: Any) -> None:
    client.xgroup_destroy("b", GROUP)


MISSING = "the consumer group 'g' of the stream 'b' does not exist"
CHANGES = [
    (delete, GroupMissingError, MISSING),
    (destroy, GroupMissingError, MISSING),
    (overwrite, CommandError, "stream b: [A-Z]+ was refused: WRONGTYPE"),
    (forbid, CommandError, "stream b: [A-Z]+ was refused: NOPERM"),
]


@pytest.fixture
def client(server: LocalServer, connect: Callable[..., Any]) -> Any:
    client = connect(server)
    fill(client, STREAMS)
    allow(client)
    return client


@pytest.fixture
def endpoint(server: LocalServer) -> Endpoint:
    return endpoint_to(server, username="limited", password="secret")


class Polling:
    """What a consumer returns and raises. It acknowledges what it gets."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.entries: Counter[bytes] = Counter()
        self.errors: list[HeadraceError] = []

    def once(self) -> bool:
        try:
            batch = self.consumer.poll(0.01)
        except HeadraceError as error:
            self.errors.append(error)
            return True
        if batch is not None:
            self.entries[batch.stream] += batch.num_rows
            self.consumer.ack(batch)
        return batch is not None

    def until(self, **entries: int) -> None:
        expected = {name.encode(): count for name, count in entries.items()}
        wait_until(lambda: self.once() is not None and all(self.entries[k] >= n for k, n in expected.items()))
        assert self.entries == Counter(expected)

    def until_error(self) -> HeadraceError:
        wait_until(lambda: self.once() is not None and self.errors != [])
        (error,) = self.errors
        return error


@pytest.mark.parametrize("ack", ["explicit", "none"])
@pytest.mark.parametrize(("change", "kind", "message"), CHANGES)
def test_a_bad_stream_of_a_consumer_is_reported_once_and_the_others_go_on(
    endpoint: Endpoint, client: Any, change: Change, kind: Any, message: str, ack: str
) -> None:
    options: dict[str, Any] = {"ack": "none"} if ack == "none" else {}
    with consumer_of(endpoint, "c", STREAMS, block=0.05, claim_interval=0.05, **options) as consumer:
        polling = Polling(consumer)
        polling.until(a=5, b=5, c=5)
        change(client)
        for round_ in range(1, 4):
            fill(client, ["a", "c"])
            polling.until(a=5 + 5 * round_, b=5, c=5 + 5 * round_)
        error = polling.until_error()
        assert getattr(error, "stream", None) == b"b"
        with pytest.raises(kind, match=message):
            raise error
        # The end of the consumer does not raise it again.
        report = consumer.close()
    assert polling.errors == [error]
    assert report.acked == (0 if ack == "none" else 45)


@pytest.mark.parametrize("change", [forbid, destroy, overwrite])
def test_a_stream_is_read_on_when_the_server_accepts_it_again(endpoint: Endpoint, client: Any, change: Change) -> None:
    with consumer_of(endpoint, "c", STREAMS, block=0.05) as consumer:
        polling = Polling(consumer)
        polling.until(a=5, b=5, c=5)
        change(client)
        polling.until_error()
        fill(client, ["a", "c"])
        polling.until(a=10, b=5, c=10)
        allow(client)
        if change is overwrite:
            client.delete("b")
        if change is not forbid:
            client.xgroup_create("b", GROUP, id="$", mkstream=True)
        fill(client, STREAMS)
        polling.until(a=15, b=10, c=15)
        assert len(polling.errors) == 1


@pytest.mark.parametrize(("change", "kind", "message"), CHANGES)
def test_a_consumer_without_another_stream_raises_at_each_call(
    endpoint: Endpoint, client: Any, change: Change, kind: Any, message: str
) -> None:
    with consumer_of(endpoint, "c", ["b"], block=0.05) as consumer:
        consumer.ack(next_batch(consumer))
        consumer.flush()
        change(client)
        for _ in range(3):
            with pytest.raises(kind, match=message):
                consumer.poll(PATIENCE)


@pytest.mark.parametrize(("change", "kind", "message"), CHANGES)
def test_a_dropped_stream_of_a_consumer_is_not_read_any_longer(
    endpoint: Endpoint, client: Any, change: Change, kind: Any, message: str
) -> None:
    with consumer_of(endpoint, "c", STREAMS, block=0.05) as consumer:
        polling = Polling(consumer)
        polling.until(a=5, b=5, c=5)
        change(client)
        error = polling.until_error()
        with pytest.raises(kind, match=message):
            raise error
        consumer.drop_stream(getattr(error, "stream", b""))
        assert consumer.streams == [b"a", b"c"]
        client.delete("b")
        allow(client)
        client.xgroup_create("b", GROUP, id="0", mkstream=True)
        fill(client, STREAMS)
        polling.until(a=10, b=5, c=10)
        assert (client.xpending("b", GROUP)["pending"], len(polling.errors)) == (0, 1)
        with pytest.raises(ConfigError, match="stream must be one of the consumer's streams, got 'b'"):
            consumer.drop_stream("b")


def test_entries_of_a_dropped_stream_can_be_settled_and_the_rest_goes_to_others(
    endpoint: Endpoint, client: Any
) -> None:
    options: dict[str, Any] = {"batch_rows": 2, "claim_interval": 0.02}
    with consumer_of(endpoint, "c", STREAMS, **options) as consumer:
        first = next_batch(consumer)
        name = first.stream.decode()
        consumer.drop_stream(name)
        polling = Polling(consumer)
        polling.until(**{other: 5 for other in STREAMS if other != name})
        consumer.ack(first)
        assert consumer.flush().acked == 12
        assert polling.errors == []
        with consumer_of(endpoint, "other", [name], min_idle=0.2, **options) as other:
            Polling(other).until(**{name: 3})
        for stream in consumer.streams:
            consumer.drop_stream(stream)
        assert consumer.poll() is None
        assert list(consumer) == []
    assert all(pending_of(client, stream) == {} for stream in STREAMS)


@pytest.mark.parametrize("change", [delete, destroy])
def test_an_acknowledgement_without_its_group_is_reported_and_the_others_go_on(
    endpoint: Endpoint, client: Any, change: Change
) -> None:
    with consumer_of(endpoint, "c", STREAMS, min_idle=1.0, block=0.05) as consumer:
        held: list[ConsumerBatch] = []
        while sum(batch.num_rows for batch in held) < 15:  # the entries of a stream may come in two batches
            held.append(next_batch(consumer))
        change(client)
        for batch in held:
            consumer.ack(batch)
        with pytest.raises(GroupMissingError, match=r"^stream b: the acknowledgement .* was refused") as missing:
            consumer.flush()
        assert missing.value.stream == b"b"
        assert consumer.flush().acked == 10
        fill(client, ["a", "c"])
        polling = Polling(consumer)
        polling.until(a=5, c=5)
        # That of reading, and that of the leases.
        wait_until(lambda: polling.once() is not None and len(polling.errors) == 2)
        renewals = consumer.stats().renewals
        kept = next_batch_of(consumer, client, "a")
        wait_until(lambda: polling.once() is not None and consumer.stats().renewals >= renewals + 10)
        consumer.ack(kept)
        assert len(polling.errors) == 2
        consumer.close(release=False)  # those of b cannot be released


def next_batch_of(consumer: Consumer, client: Any, stream: str) -> ConsumerBatch:
    fill(client, [stream])
    return next_batch(consumer)


def test_a_refused_acknowledgement_names_its_stream(endpoint: Endpoint, client: Any) -> None:
    with consumer_of(endpoint, "c", ["a"], block=0.05) as consumer:
        batch = next_batch(consumer)
        client.execute_command("ACL", "SETUSER", "limited", "-xack")
        consumer.ack(batch)
        with pytest.raises(CommandError, match=r"^stream a: the acknowledgement .* was refused") as refused:
            consumer.flush()
        assert (refused.value.stream, refused.value.code) == (b"a", "NOPERM")
        allow(client)
        client.set("text", "a string")
        with pytest.raises(CommandError, match="the key 'text' does not hold a stream") as refused:
            consumer_of(endpoint, "c", ["a", "text"])
        assert refused.value.stream == b"text"
        consumer.ack(batch)
        assert consumer.flush().acked == 5
