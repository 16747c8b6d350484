"""Copy a Redis stream into another, on any server: each entry once and in order, even across crashes.

    python examples/pipe.py                                                  # a local server and sample orders
    python examples/pipe.py pipe.json --source redis://localhost:6379 --target redis://localhost:6380
    python examples/pipe.py pipe.json --source redis://localhost:6379 --target redis://localhost:6380 --follow

Before a range of entries is copied, a file records where the range begins and ends, and under which token it is sent.
After a crash at any moment, exactly this range is read again and sent under the same token, and the target skips the
messages that are already in the stream. It remembers a token for a day (`token_ttl`): restart within that time. Entries
are copied as they are, with all fields, but get new IDs.

The target identifies a message by the token and its number in the range. If entries of the range were trimmed or
deleted before they were read again, the program therefore stops with an error.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import sys
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from headrace import Dispatcher, Endpoint, ReadBatch, Reader, RetryPolicy
from headrace.testing import LocalServer


@dataclass(frozen=True)
class State:
    """The content of the file: the position after everything copied, and the range that may be partly copied.

    `token` is made once per file, so that a new file starts from scratch. `version` counts the ranges: the target
    remembers only the last one, and skips the messages of those before it.
    """

    token: str
    version: int = 0
    position: str = "earliest"
    #: The last entry of the range that begins after the position. None: everything was copied.
    last_id: str | None = None
    rows: int = 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Copy a Redis stream into another one.")
    parser.add_argument("state", nargs="?", type=Path, help="file that stores the progress (default: a temporary one)")
    parser.add_argument("--source", metavar="URL", help="server to read (default: start one, with orders)")
    parser.add_argument("--source-key", default="order-events", help="stream to read (default: %(default)s)")
    parser.add_argument("--target", metavar="URL", help="server to write to (default: that of the source)")
    parser.add_argument("--target-key", default="copied-orders", help="stream to append to (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=8_192, help="maximum entries per range (default: %(default)s)")
    parser.add_argument("--follow", action="store_true", help="wait for new entries, until Ctrl-C")
    parser.add_argument(
        "--deadline", type=float, default=30, help="seconds to retry while the target fails (default: %(default)s)"
    )
    arguments = parser.parse_args()

    with contextlib.ExitStack() as stack:
        url = arguments.source or stack.enter_context(LocalServer()).url
        source = Endpoint.from_url(url, stream_key=arguments.source_key)
        target = Endpoint.from_url(arguments.target or url, stream_key=arguments.target_key)
        if not arguments.source:
            produce_orders(source, 2_500)
        path = arguments.state or Path(stack.enter_context(TemporaryDirectory())) / "pipe.json"
        lock = stack.enter_context(path.with_suffix(".lock").open("w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends, in whatever way
        except OSError:
            print(f"another process uses {path}", file=sys.stderr)
            return 1
        retry = RetryPolicy(deadline=arguments.deadline)
        dispatcher = stack.enter_context(Dispatcher(target, exactly_once="script", retry=retry))
        with contextlib.suppress(KeyboardInterrupt):
            copy(source, dispatcher, path, None if arguments.follow else "latest", arguments.rows)
    return 0


def produce_orders(endpoint: Endpoint, count: int) -> None:
    with Dispatcher(endpoint) as dispatcher:
        for number in range(count):
            dispatcher.produce(f'{{"order_id": {number}}}')


def copy(source: Endpoint, dispatcher: Dispatcher, path: Path, end: str | None, rows: int) -> None:
    """Finish the range of an earlier run, then copy range after range."""
    state = State(**json.loads(path.read_text())) if path.exists() else State(str(uuid.uuid4()))
    if state.last_id is not None:
        state = copy_again(source, dispatcher, state)
        save(path, state)
    print(f"reading from {state.position}", flush=True)
    copied = 0
    with read(source, state.position, end, rows) as reader:
        for batch in reader:
            state = replace(state, version=state.version + 1, last_id=batch.last_id, rows=batch.num_rows)
            save(path, state)
            send(dispatcher, state, [batch])
            state = replace(state, position=batch.position, last_id=None)
            save(path, state)
            copied += batch.num_rows
    print(f"copied {copied:,}")


def copy_again(source: Endpoint, dispatcher: Dispatcher, state: State) -> State:
    """Read the same range, send the same messages under the same token, and return the state after it."""
    print(f"copying again: {state.rows:,} entries up to {state.last_id}", flush=True)
    with read(source, state.position, state.last_id, state.rows) as reader:
        batches = list(reader)
        position = reader.position
    if (left := sum(batch.num_rows for batch in batches)) != state.rows:
        sys.exit(f"{left:,} of {state.rows:,} entries up to {state.last_id} are left: it is unknown which were copied")
    send(dispatcher, state, batches)
    return replace(state, position=position, last_id=None)


def read(source: Endpoint, start: str, end: str | None, rows: int) -> Reader:
    """Read all fields of each entry, byte for byte, including those whose names occur twice."""
    return Reader(source, start=start, end=end, batch_rows=rows, metadata=[], fields_as="list", names="binary")


def send(dispatcher: Dispatcher, state: State, batches: Iterable[ReadBatch]) -> None:
    """Write those entries of a range that are not yet in the target.

    Raises:
        DeliveryError: Some were not written. The range stays in the file, and the next run begins with it.
    """
    dispatcher.begin(state.token, state.version)
    for batch in batches:
        dispatcher.produce_batch(batch, fields_from="fields")
    dispatcher.flush().raise_for_failures()


def save(path: Path, state: State) -> None:
    """Replace the file in one step: a crash or a power failure leaves either the old one or the new one."""
    new = path.with_suffix(".new")
    with new.open("w") as file:
        json.dump(asdict(state), file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


if __name__ == "__main__":
    sys.exit(main())
