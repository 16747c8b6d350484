"""Calls that panic on purpose, in a separate process, with a build of headrace with the feature `failpoints`.

    python -m support.panic_cases SOCKET

Prints one JSON object per case: what the calls raised, what the reports say, and what the log says. The caller checks
the content of the streams.
"""

from __future__ import annotations

import io
import itertools
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from headrace import Dispatcher, Endpoint, InternalError, RetryPolicy, _headrace
from support.patience import NEVER

ROWS = 300
#: Exists only in a build with the feature.
panic_at: Any = getattr(_headrace, "_panic_at", None)

#: Must occur in payloads and nowhere else.
SECRET = "content-of-a-payload"

PLACES = ("import", "bind", "encode", "scan", "settle", "report")
MODES = ("off", "script", "idmp")
LAYOUTS = ("payload", "fields", "fields_from", "json", "rows_per_entry", "arrow_ipc")


def table(first: int) -> pa.Table:
    """Rows with nested columns, in three record batches."""
    numbers = range(first, first + ROWS)
    whole = pa.table(
        {
            "payload": [f"{SECRET} {number}" for number in numbers],
            "id": pa.array(numbers, pa.int64()),
            "nested": [{"inner": {"number": number}} for number in numbers],
            "map": pa.array(
                [[("payload", f"{SECRET} {number}")] for number in numbers], pa.map_(pa.string(), pa.string())
            ),
        }
    )
    return pa.Table.from_batches(whole.to_batches(max_chunksize=ROWS // 3))


def layout(name: str) -> dict[str, Any]:
    """The keyword arguments of a layout."""
    options: dict[str, dict[str, Any]] = {
        "payload": {},
        "fields": {"fields": ["payload", "id"]},
        "fields_from": {"fields_from": "map"},
        "json": {"json": True},
        "rows_per_entry": {"rows_per_entry": 7},
        "arrow_ipc": {"arrow_ipc": True, "rows_per_entry": 50},
    }
    return {"message_id": "id", **options[name]}


def cases() -> Iterator[dict[str, Any]]:
    """Each place in each mode, with and without retries and WAITAOF, and each layout."""
    for place, mode, retries, waits in itertools.product(PLACES, MODES, (False, True), (False, True)):
        yield {"place": place, "mode": mode, "retries": retries, "waits": waits, "layout": "payload"}
    for place, name in itertools.product(("bind", "encode"), LAYOUTS[1:]):
        yield {"place": place, "mode": "off", "retries": False, "waits": False, "layout": name}
    for mode in MODES:
        yield {"place": "encode", "mode": mode, "retries": False, "waits": False, "layout": "produce"}


def passed_before(case: dict[str, Any]) -> int:
    """How often the place is passed before the panic, which comes in the second record batch or in an early reply."""
    if case["place"] == "encode":
        return 2 if case["layout"] == "arrow_ipc" else 130
    return {"import": 1, "bind": 1, "report": 0}.get(case["place"], 2)


def run(socket: str, key: str, case: dict[str, Any]) -> dict[str, Any]:
    """Run one case: rows before, rows while headrace panics, rows after."""
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger("headrace").addHandler(handler)
    policy = RetryPolicy(initial_backoff=0, max_backoff=0, deadline=NEVER)
    retry = None if not case["retries"] else policy
    raised: list[str] = []
    outcomes: list[dict[str, Any]] = []

    def call(run: Any) -> Any:
        try:
            return run()
        except Exception as error:
            raised.append(f"{type(error).__name__}: {error}")
            return None

    def report(dispatcher: Dispatcher) -> None:
        got = call(dispatcher.flush) or dispatcher.flush()
        table = call(lambda: pa.table(got.to_arrow())) or pa.table(got.to_arrow())
        outcomes.extend(table.to_pylist())

    endpoint = Endpoint(unix_socket=socket, stream_key=key)
    options: dict[str, Any] = {"retry": retry, "exactly_once": case["mode"]}
    if case["waits"]:
        options |= {"wait_aof": True, "wait_timeout": 30}
    with Dispatcher(endpoint, **options) as dispatcher:
        if case["mode"] != "off":
            dispatcher.begin("token")
        dispatcher.produce_batch(table(0), message_id="id")
        panic_at(case["place"], passed_before(case))
        if case["layout"] == "produce":
            for number in range(ROWS, 2 * ROWS):
                call(lambda number=number: dispatcher.produce(f"{SECRET} {number}", message_id=number))
        else:
            call(lambda: dispatcher.produce_batch(table(ROWS), **layout(case["layout"])))
        report(dispatcher)
        armed = panic_at(None)
        if case["mode"] != "off":
            dispatcher.skip_failed()
        dispatcher.produce_batch(table(2 * ROWS), message_id="id")
        report(dispatcher)
        stats = dispatcher.stats()
    logging.getLogger("headrace").removeHandler(handler)
    return {
        **case,
        "key": key,
        "raised": raised,
        "panicked": not armed,
        "messages": stats.messages,
        "outcomes": outcomes,
        "log": log.getvalue(),
        "is_internal": issubclass(InternalError, RuntimeError),
    }


def main() -> None:
    for number, case in enumerate(cases()):
        print(json.dumps(run(sys.argv[1], f"stream-{number}", case)), flush=True)


if __name__ == "__main__":
    main()
