"""Dead letters: entries that a consumer gave up, and rows that the Spark writer could not write."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from headrace import _headrace
from headrace.endpoint import Endpoint
from headrace.reader import Reader, ReaderOptions

__all__ = ["read_dead_letters"]


def read_dead_letters(
    endpoint: Endpoint,
    key: str | bytes | None = None,
    *,
    start: str | datetime = "earliest",
    end: str | datetime | None = "latest",
    limit: int | None = None,
) -> Iterator[_headrace.Rows]:
    """Read a stream of dead letters, those of a `Consumer` and those of the Spark writer.

    ```python
    endpoint = Endpoint(host="localhost", stream_key="order-events")
    with Dispatcher(endpoint) as dispatcher:
        for letters in read_dead_letters(endpoint, "order-events:dead"):
            dispatcher.produce_batch(letters, fields_from="fields")  # write the entries again
    ```

    The rows are those of a batch of `Reader`, for any Arrow library: `pyarrow.table(letters)`. One that is no dead
    letter has nulls and all its fields. The columns:

    - `entry_id` and `timestamp` of the dead letter;
    - `stream` and `original_id`, where the entry was, or was to be written; the ID is null if the server was to choose
      it;
    - `code`, of `headrace.Failure`; null if a consumer gave the entry up;
    - `reason`, the one that was given to `Consumer.fail`, or the message of the failure;
    - `failures`, how often the entry failed in the group; null for rows of Spark;
    - `fields`, a `map<binary, binary>` of the entry's own fields, in their order, byte for byte. Of a row of Spark that
      has no payload it is `row`, which `headrace.unpack_arrow` reads; of one that was too large for the server it is
      empty.

    It connects when the first rows are asked for. Nothing is removed: trim the stream by `entry_id` when the entries
    are written again.

    Args:
        endpoint: The server.
        key: The key of the stream of dead letters. Default: the stream of the endpoint.
        start: Where to begin, as for `Reader`: "earliest", an entry ID, a time.
        end: Where to end. None: wait for further dead letters.
        limit: Dead letters at most.

    Raises:
        ConnectionFailedError: The server was not reached, or was lost.
        CommandError: The server refused a command.
    """
    options: ReaderOptions = {
        "start": start,
        "end": end,
        "limit": limit,
        "on_loss": "report",
        "metadata": ["entry_id", "timestamp"],
        "fields_as": "list",
        "names": "binary",
    }
    with Reader(endpoint, None if key is None else [key], **options) as reader:
        for batch in reader:
            yield _headrace.split_dead_letters(batch)
