"""Dead letters: entries that a consumer gave up on, and rows that the Spark writer could not write."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from headrace import _headrace
from headrace.endpoint import Endpoint
from headrace.notices import notice
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
    """Read a stream of dead letters of a `Consumer` or of the Spark writer.

    ```python
    endpoint = Endpoint(host="localhost", stream_key="order-events")
    with Dispatcher(endpoint) as dispatcher:
        for letters in read_dead_letters(endpoint, "order-events:dead"):
            dispatcher.produce_batch(letters, fields_from="fields")  # write the entries again
    ```

    Each item holds the rows of one batch of a `Reader`, for any Arrow library, as `pyarrow.table(letters)`, or as
    Python objects: `letters.to_pylist()`. An entry that is not a dead letter has nulls, and all its fields in `fields`.
    The columns:

    - `entry_id` and `timestamp`: those of the dead letter;
    - `stream` and `original_id`: where the entry was, or would have been written; the ID is null if the server would
      have chosen it;
    - `code`: as in `headrace.Failure`; null if a consumer gave up on the entry;
    - `reason`: the reason passed to `Consumer.fail`, or the message of the failure;
    - `failures`: how often the entry failed in the group; null for rows of Spark;
    - `fields`: a `map<binary, binary>` of the entry's own fields, in order, byte for byte. For a row of Spark without a
      payload it holds `row`, which `headrace.unpack_arrow` reads; for one that was too large for the server it is
      empty.

    The connection is opened when the first rows are requested. Nothing is removed: trim the stream by `entry_id` once
    the entries are written again.

    Args:
        endpoint: The server.
        key: The key of the stream of dead letters. Default: the stream of the endpoint.
        start: Where to begin, as for `Reader`: "earliest", an entry ID, or a time.
        end: Where to end. None: wait for further dead letters.
        limit: The maximum number of dead letters.

    Raises:
        ConnectionFailedError: The server could not be reached, or the connection to it was lost.
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
    is_first = True
    with Reader(endpoint, None if key is None else [key], **options) as reader:
        for batch in reader:
            letters, others = _headrace.split_dead_letters(batch)
            if is_first and others:
                stream = _headrace.shown_names([batch.stream])
                notice(
                    f"{others:,} of the first {batch.num_rows:,} entries of {stream} are no dead letters: they have "
                    "nulls, and all their fields in `fields`; a Reader reads ordinary streams"
                )
            is_first = False
            yield letters
