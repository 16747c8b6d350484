"""Arrow data that is nested too deeply for the stack: refused by name, and released."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from headrace import Dispatcher, Endpoint, ReaderError, SchemaError, _headrace
from headrace.testing import LocalServer
from support.deep_arrow import COLUMN, LAYOUTS, Deep, formats
from support.fixture_types import BySize
from support.marks import thorough

#: The stack size of a thread in musl. The build of `make test` is not optimised, and needs more; a release is tested by
#: `make wheels`, and by .ci/run with this file.
STACK = (1024 if hasattr(_headrace, "_panic_at") else 128) * 1024
#: The maximum levels of a column, including its leaf: the same as in pyarrow.
LIMIT = 64
#: The maximum levels of a column that is written as Arrow IPC.
IPC_LIMIT = 32
#: Levels of which the stack above has no room for a frame each.
DEEP, DEEPEST = 20_000, 100_000
#: Nested release callbacks: those of the deepest column that is read, below the record batch.
FRAMES = LIMIT + 1

_T = TypeVar("_T")


def in_small_thread(call: Callable[[], _T]) -> _T:
    results: list[_T | BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            results.append(error)

    before = threading.stack_size(STACK)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


def here(call: Callable[[], _T]) -> _T:
    return call()


@pytest.fixture
def dispatcher(any_server: LocalServer) -> Iterator[Dispatcher]:
    with Dispatcher(Endpoint(unix_socket=any_server.unix_socket, stream_key="s")) as dispatcher:
        dispatcher.produce(b"before")
        yield dispatcher
        dispatcher.produce(b"after")
        report = dispatcher.flush()
        assert report.ok
        assert report.delivered == 2


def check_refused(dispatcher: Dispatcher, deep: Deep, call: Callable[..., Any], message: str, **layout: Any) -> None:
    # A bad schema is reported before any data is read, a bad array when it is read.
    with pytest.raises((SchemaError, ReaderError), match=f'"{COLUMN}".*{message}') as caught:
        call(lambda: dispatcher.produce_batch(deep, **layout))
    assert dispatcher.unreported == 1
    del caught
    deep.give_up()
    for chain in deep.chains:
        assert chain.released_once
        assert chain.deepest <= FRAMES


@pytest.mark.parametrize("call", [*thorough(here), in_small_thread])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_deep_columns_are_refused_by_name(
    dispatcher: Dispatcher, layout: str, call: Callable[..., Any], by_size: BySize
) -> None:
    for levels in (LIMIT + 1, LIMIT + 2, 1_000, by_size(DEEP, DEEPEST)):
        both = formats(layout, levels)
        check_refused(dispatcher, Deep(both, both), call, f"nested deeper than {LIMIT}", json=True)


@pytest.mark.parametrize("arguments", [{}, {"fields": ["x"]}, {"arrow_ipc": True}], ids=str)
def test_deep_columns_are_refused_by_every_layout(dispatcher: Dispatcher, arguments: dict[str, Any]) -> None:
    deep = formats("list", 1_000)
    check_refused(dispatcher, Deep(deep, deep), in_small_thread, f"nested deeper than {LIMIT}", **arguments)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_deep_schema_of_shallow_data_is_refused_by_name(dispatcher: Dispatcher, layout: str, by_size: BySize) -> None:
    for levels in (LIMIT + 1, by_size(DEEP, DEEPEST)):
        deep = Deep(formats(layout, levels), formats(layout, 3))
        check_refused(dispatcher, deep, in_small_thread, f"nested deeper than {LIMIT}", json=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_data_that_is_deeper_than_its_schema_is_refused(dispatcher: Dispatcher, layout: str, by_size: BySize) -> None:
    for levels in (4, LIMIT + 1, by_size(DEEP, DEEPEST)):
        array = [*formats(layout, 3)[:-1], *formats("list", levels)[1:]]
        check_refused(dispatcher, Deep(formats(layout, 3), array), in_small_thread, "", json=True)


@pytest.mark.parametrize("call", [here, in_small_thread])
@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if "dictionary" not in layout])
def test_columns_as_deep_as_the_limit_are_accepted(
    any_server: LocalServer, connect: Callable[..., Any], layout: str, call: Callable[..., Any]
) -> None:
    levels, of_ipc, deeper = formats(layout, LIMIT), formats(layout, IPC_LIMIT), formats(layout, IPC_LIMIT + 1)
    deep = Deep(levels, levels), Deep(of_ipc, of_ipc), Deep(deeper, deeper)
    with Dispatcher(Endpoint(unix_socket=any_server.unix_socket, stream_key="s")) as dispatcher:
        call(lambda: dispatcher.produce_batch(deep[0], json=True))
        call(lambda: dispatcher.produce_batch(deep[1], arrow_ipc=True))
        with pytest.raises(SchemaError, match=f"column .*{COLUMN}.* nested deeper than {IPC_LIMIT} levels"):
            call(lambda: dispatcher.produce_batch(deep[2], arrow_ipc=True))
        assert call(dispatcher.flush).raise_for_failures().delivered == 2
    (_, row), _ = connect(any_server).xrange("s")
    value = json.loads(row[b"payload"])[COLUMN]
    depth = 1
    while isinstance(value, list | dict):
        depth += 1
        (value,) = value if isinstance(value, list) else value.values()
    maps = sum(level == b"+m" for level in levels)  # map entries are no level of the JSON
    assert (value, depth) == (0, LIMIT - maps)
    for one in deep:
        one.give_up()
        assert all(chain.released_once and chain.deepest <= FRAMES for chain in one.chains)
