"""Bad input: the class of each error, its whole message, and that nothing was sent."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from headrace import ClosedError, ConfigError, Dispatcher, Endpoint, HeadraceError, MessageError, SchemaError
from headrace.tables import LAYOUT
from headrace.testing import LocalServer
from support import Certs, Monitor
from support.endpoints import CANARY
from support.pipelines import endpoint_to

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]
Build = Callable[..., Endpoint]


@pytest.fixture
def untouched(tcp_server: LocalServer, connect: Connect) -> Iterator[LocalServer]:
    """A server that must see no command and no connection during the test."""
    client = connect(tcp_server)
    before = client.info("stats")["total_connections_received"]
    with Monitor(tcp_server) as seen:
        yield tcp_server
        assert seen.commands() == []
    assert client.info("stats")["total_connections_received"] == before + 2  # those of `Monitor`


@pytest.fixture
def dispatcher(untouched: LocalServer) -> Iterator[Dispatcher]:
    """A dispatcher for that server, which must hold no message at the end."""
    dispatcher = Dispatcher(Endpoint(host=untouched.host, port=untouched.port, stream_key="s"))
    yield dispatcher
    if not dispatcher.closed:
        assert dispatcher.unreported == 0
        assert len(dispatcher.flush()) == 0
        dispatcher.close()


def check(action: Callable[[], object], kind: type[HeadraceError], message: str) -> Any:
    with pytest.raises(HeadraceError) as caught:
        action()
    assert type(caught.value) is kind
    assert str(caught.value) == message
    return caught.value


# --- endpoints

PORT = "port must be an integer from 1 to 65535, got "
STREAM_KEY = "stream_key must be text or bytes, of 1 byte to 512 MiB, got "


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_len": 5}, "unknown option 'max_len'; did you mean 'maxlen'?"),
        ({"ssl": True}, "unknown option 'ssl'; here it is 'tls'"),
        ({"bootstrap.servers": "h"}, "unknown option 'bootstrap.servers'; here it is 'nodes'"),
        ({"group_id": "g"}, "unknown option 'group_id'; here it is 'group' of a Consumer"),
        ({"protocol": 3}, "unknown option 'protocol'; RESP2 is the only protocol"),
        ({"zzz": 1}, "unknown option 'zzz'; docs/options.md lists the options"),
        ({"streamkey": "s"}, "unknown option 'streamkey'; did you mean 'stream_key'?"),
        ({"ca_cert": "/ca"}, "unknown option 'ca_cert'; did you mean 'tls_ca_cert'?"),
        ({"pasword": CANARY}, "unknown option 'pasword'; did you mean 'password'?"),
        ({"port": 70_000}, f"{PORT}70000"),
        ({"port": 0}, f"{PORT}0"),
        ({"port": "abc"}, f"{PORT}'abc'"),
        ({"port": 6379.0}, f"{PORT}6379"),
        ({"maxlen": -1}, "maxlen must be an integer of at least 0, got -1"),
        ({"db": -1}, "db must be an integer from 0 to 2147483647, got -1"),
        (
            {"minid": "today"},
            "minid must be an integer of at least 0, or text of the form 'ms' or 'ms-seq' (64 bits each), got 'today'",
        ),
        ({"trim_every": 0}, "trim_every must be an integer of at least 1, got 0"),
        (
            {"trim_every": 11, "maxlen": 10},
            "trim_every must be at most maxlen, got trim_every 11 with maxlen 10: the stream would grow past twice its "
            "maximum",
        ),
        ({"connect_timeout": 0}, "connect_timeout must be a number of seconds from 0.001 to 3600, got 0"),
        ({"command_timeout": 3601}, "command_timeout must be a number of seconds from 0.001 to 3600, got 3601"),
        ({"stream_key": ""}, f"{STREAM_KEY}'' (empty)"),
        ({"stream_key": b""}, f"{STREAM_KEY}bytes (empty)"),
        ({"stream_key": 5}, f"{STREAM_KEY}5"),
        ({"stream_key": None}, "stream_key is missing: it names the stream that entries are added to"),
        ({"unix_socket": "/run/r.sock"}, "host and unix_socket are mutually exclusive"),
        ({"host": None, "port": None}, "host is missing (or unix_socket, or nodes): it names the server"),
        ({"username": "u"}, "username needs one of password, password_env and password_file (AUTH takes both)"),
        (
            {"password": CANARY, "password_env": "P"},
            "password, password_env and password_file are mutually exclusive",
        ),
        ({"tls_ca_cert": "/ca"}, "tls_ca_cert needs tls to be true; without it everything would be sent in plain text"),
    ],
)
def test_invalid_options_of_an_endpoint_are_refused(
    untouched: LocalServer, options: dict[str, Any], message: str
) -> None:
    given = {"host": untouched.host, "port": untouched.port, "stream_key": "s", **options}
    for build in (lambda: Endpoint(**given), lambda: Endpoint.from_mapping(given)):
        error = check(build, ConfigError, message)
        assert error.option in {*options, "host"}
        assert isinstance(error, ValueError)


def test_invalid_tls_files_are_refused(
    untouched: LocalServer, certs: Certs, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tmp_path = tmp_path_factory.mktemp("tls")  # a short name: messages cut long values
    client, missing, text = certs.client, tmp_path / "missing.pem", tmp_path / "text.pem"
    text.write_text("no PEM")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tls_cert": client.cert}, "tls_cert needs tls_key: give both or neither"),
        ({"tls_key": client.key}, "tls_key needs tls_cert: give both or neither"),
        ({"tls_ca_cert": missing}, f"tls_ca_cert: '{missing}' cannot be read: No such file or directory (os error 2)"),
        ({"tls_ca_cert": tmp_path}, f"tls_ca_cert: '{tmp_path}' cannot be read: Is a directory (os error 21)"),
    ]
    for options, message in cases:
        given = {"host": untouched.host, "port": untouched.port, "stream_key": "s", "tls": True, **options}
        check(lambda given=given: Endpoint(**given), ConfigError, message)  # type: ignore[misc]
    with pytest.raises(ConfigError, match=f"^tls_ca_cert: '{re.escape(str(text))}' holds no certificate"):
        Endpoint(host=untouched.host, port=untouched.port, stream_key="s", tls=True, tls_ca_cert=text)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://h:70000/?stream_key=s", "the URL does not parse: check that its host and port are valid"),
        ("redis://h:abc/?stream_key=s", "the URL does not parse: check that its host and port are valid"),
        ("redis://h/?stream_key=s&port=abc", f"{PORT}'abc'"),
        ("redis://h/?stream_key=s&maxlen=-1", "maxlen must be an integer of at least 0, got '-1'"),
        ("redis://h/?stream_kye=s", "unknown option 'stream_kye'; did you mean 'stream_key'?"),
    ],
)
def test_invalid_urls_are_refused(url: str, message: str) -> None:
    check(lambda: Endpoint.from_url(url), ConfigError, message)


# --- dispatchers

OVERRIDES = 'error_overrides must be a mapping from codes such as "OOM" to "permanent" or "retryable", got '


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window_max_entries": 0}, "window_max_entries must be an integer of at least 1, got 0"),
        ({"window_max_entries": 1.5}, "window_max_entries must be an integer of at least 1, got 1.5"),
        ({"window_max_entries": True}, "window_max_entries must be an integer of at least 1, got True"),
        ({"window_max_bytes": 65_535}, "window_max_bytes must be an integer of at least 65536, got 65535"),
        ({"window_max_bytes": "2 MiB"}, "window_max_bytes must be an integer of at least 65536, got '2 MiB'"),
        ({"classify": "lax"}, "classify must be one of 'default', 'failover', 'strict', got 'lax'"),
        ({"error_overrides": {"OOM": "later"}}, OVERRIDES + r"""'{\"OOM\": \"later\"}'"""),
        ({"error_overrides": {"oom": "retryable"}}, OVERRIDES + r"""'{\"oom\": \"retryable\"}'"""),
        ({"error_overrides": ["OOM"]}, f"{OVERRIDES}a value of type list"),
        ({"payload_field": ""}, "payload_field must be non-empty text, got '' (empty)"),
        ({"payload_field": b"x"}, "payload_field must be non-empty text, got bytes"),
        ({"ts_field": ""}, "ts_field must be non-empty text, got '' (empty)"),
        ({"ts_field": "payload"}, "ts_field must be another name than payload_field, got 'payload' for both"),
        ({"window_entries": 5}, "unknown option 'window_entries'; did you mean 'window_max_entries'?"),
    ],
)
def test_invalid_options_of_a_dispatcher_are_refused(
    untouched: LocalServer, options: dict[str, Any], message: str
) -> None:
    endpoint = Endpoint(host=untouched.host, port=untouched.port, stream_key="s")
    error = check(lambda: Dispatcher(endpoint, **options), ConfigError, message)
    assert error.option in options


def test_a_dispatcher_needs_an_endpoint() -> None:
    with pytest.raises(TypeError, match="Endpoint") as caught:
        Dispatcher(f"redis://u:{CANARY}@h/?stream_key=s")  # type: ignore[arg-type]
    assert CANARY not in str(caught.value)


# --- messages


@pytest.mark.parametrize(
    ("payload", "got"),
    [
        (5, "int; encode it, as with str(…) or json.dumps(…)"),
        (1.5, "float; encode it, as with str(…) or json.dumps(…)"),
        (["a"], "list; encode it, as with str(…) or json.dumps(…)"),
        ({"a": 1}, "dict; fields={…} sends a dict as fields, json.dumps(…) as text"),
    ],
)
def test_invalid_payloads_are_refused(dispatcher: Dispatcher, payload: Any, got: str) -> None:
    message = f"a payload must be bytes-like or a str: got {got}"
    check(lambda: dispatcher.produce(payload), MessageError, message)
    check(lambda: dispatcher.dispatch(payload), MessageError, message)


def test_a_payload_with_a_lone_surrogate_is_refused(dispatcher: Dispatcher) -> None:
    message = "a str payload must be valid Unicode: it has lone surrogates"
    check(lambda: dispatcher.produce("\ud800"), MessageError, message)


@pytest.mark.parametrize(
    ("message_id", "message"),
    [
        (True, "a message ID must be a str or an int: got bool"),
        (1.5, "a message ID must be a str or an int: got float"),
        (b"x", "a message ID must be a str or an int: got bytes"),
        (2**63, "an int message ID must fit 64 bits (-2**63 to 2**63-1): 9223372036854775808"),
        (-(2**63) - 1, "an int message ID must fit 64 bits (-2**63 to 2**63-1): -9223372036854775809"),
        pytest.param(10**5_000, "an int message ID must fit 64 bits (-2**63 to 2**63-1): a larger one", id="10**5000"),
        ("x" * 16_385, "a message ID has at most 16384 bytes: got 16385"),
        ("ä" * 8_193, "a message ID has at most 16384 bytes: got 16386"),
        ("\ud800", "a message ID must be valid Unicode: it has lone surrogates"),
    ],
)
def test_invalid_message_ids_are_refused(dispatcher: Dispatcher, message_id: Any, message: str) -> None:
    check(lambda: dispatcher.produce(b"x", message_id), MessageError, message)


def test_the_largest_message_ids_are_accepted(any_server: LocalServer) -> None:
    with Dispatcher(Endpoint(unix_socket=any_server.unix_socket, stream_key="s")) as dispatcher:
        given: list[int | str] = ["x" * 16_384, "ä" * 8_192, "", 2**63 - 1, -(2**63), 0]
        for message_id in given:
            dispatcher.produce(b"x", message_id)
        ids = pa.table(dispatcher.flush().raise_for_failures().to_arrow()).column("message_id").to_pylist()
    assert ids == [str(one) for one in given]


# --- record batches

BATCH = pa.record_batch(
    {
        "payload": ["a"],
        "id": [1],
        "list": [[1]],
        "struct": [{"a": 1}],
        "real": [1.0],
        "fixed": pa.array([b"12"], pa.binary(2)),
        "ts": ["now"],
    }
)
BYTES = "(supported: utf8, large_utf8, utf8_view, binary, large_binary, binary_view)"
VALUES = (
    "(supported: bool, integers, floats, decimals, date, time, timestamp, duration, interval, utf8 and binary of "
    "every kind, dictionaries of these)"
)
OTHERS = "; fields writes numbers and times, json also lists and structs"
NAMES = "a sequence of column names, such as ['id']"
IDS = "(supported: int8 to int64, uint8 to uint64, utf8, large_utf8, utf8_view, arrow.uuid)"
COLUMNS = "(columns: payload, id, list, struct, real, fixed, ts)"
COLUMN_OPTIONS = ("payload", "fields_from", "message_id", "stream_key", "shard_key", "entry_id")
ONE_OF = "payload and fields, fields_from and json are mutually exclusive"


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"payload": "paylod"}, f'the record batch has no column "paylod"; did you mean "payload"? {COLUMNS}'),
        ({"payload": "zzz"}, f'the record batch has no column "zzz" {COLUMNS}'),
        ({"message_id": "idd"}, f'the record batch has no column "idd"; did you mean "id"? {COLUMNS}'),
        ({"stream_key": "zzz"}, f'the record batch has no column "zzz" {COLUMNS}'),
        ({"entry_id": "zzz"}, f'the record batch has no column "zzz" {COLUMNS}'),
        ({"fields": ["id", "zzz"]}, f'the record batch has no column "zzz" {COLUMNS}'),
        ({"json": ["id", "zzz"]}, f'the record batch has no column "zzz" {COLUMNS}'),
        (
            {"payload": "list"},
            'column "list" cannot be the payload: it has the type List(Int64), which cannot be written '
            f"{BYTES}{OTHERS}",
        ),
        (
            {"payload": "struct"},
            f'column "struct" cannot be the payload: it has the type Struct("a": Int64), which cannot be '
            f"written {BYTES}{OTHERS}",
        ),
        (
            {"payload": "id"},
            f'column "id" cannot be the payload: it has the type Int64, which cannot be written {BYTES}{OTHERS}',
        ),
        (
            {"payload": "fixed"},
            f'column "fixed" cannot be the payload: it has the type FixedSizeBinary(2), which cannot be '
            f"written {BYTES}{OTHERS}",
        ),
        (
            {"fields": ["id", "list"]},
            f'column "list" cannot be a field: it has the type List(Int64), which cannot be written {VALUES}; '
            "json writes lists and structs",
        ),
        (
            {"stream_key": "id"},
            f'column "id" cannot hold stream keys: it has the type Int64, which cannot be written {BYTES}',
        ),
        (
            {"entry_id": "id"},
            'column "id" cannot hold entry IDs: it has the type Int64, which cannot be written '
            "(supported: utf8, large_utf8, utf8_view)",
        ),
        ({"message_id": "real"}, f'column "real" cannot hold message IDs: its type is Float64 {IDS}'),
        (
            {"fields": ["ts"]},
            'column "ts" cannot be a field: the entry\'s time has the same name (rename the column, or choose another '
            "ts_field)",
        ),
        ({"fields": []}, "fields names no column: at least one is needed"),
        ({"json": []}, "json names no column: at least one is needed"),
        ({"fields": ["id", "id"]}, 'fields names a column twice: "id"'),
        ({"json": "x"}, f"json must be True, False or {NAMES}: got 'x'"),
        ({"json": 1}, f"json must be True, False or {NAMES}: got 1"),
        ({"fields": "id"}, f"fields must be {NAMES}: got 'id'"),
        ({"fields": True}, f"fields must be {NAMES}: got True"),
        *(({name: 5}, f"{name} must be the name of a column, such as 'id': got 5") for name in COLUMN_OPTIONS),
        ({"arrow_ipc": "yes"}, "arrow_ipc must be True or False: got 'yes'"),
        ({"payload": "payload", "json": True}, ONE_OF),
        ({"fields": ["id"], "json": ["id"]}, ONE_OF),
    ],
)
def test_invalid_layouts_are_refused(dispatcher: Dispatcher, layout: dict[str, Any], message: str) -> None:
    for data in (BATCH, pa.Table.from_batches([BATCH, BATCH]), BATCH.slice(1)):
        error = check(lambda data=data: dispatcher.produce_batch(data, **layout), SchemaError, message)  # type: ignore[misc]
        assert isinstance(error, TypeError)


def test_each_keyword_of_a_layout_is_accepted(any_server: LocalServer) -> None:
    """The signature that `help()` shows and what the function reads are written apart from each other."""
    keywords: dict[str, Any] = dict.fromkeys(inspect.signature(Dispatcher.produce_batch).parameters)
    del keywords["self"], keywords["data"]
    assert list(keywords) == list(LAYOUT)
    with Dispatcher(endpoint_to(any_server)) as dispatcher:
        dispatcher.produce_batch(BATCH, **keywords)
        assert dispatcher.flush().delivered == len(BATCH)
        for value in (None, "payload"):
            unknown: dict[str, Any] = {"paylod": value}
            with pytest.raises(TypeError, match=r"^produce_batch\(\) got an unexpected keyword argument 'paylod'$"):
                dispatcher.produce_batch(BATCH, **unknown)


@pytest.mark.parametrize("layout", [{}, {"json": True}], ids=["payload", "json"])
def test_duplicate_column_names_are_refused(dispatcher: Dispatcher, layout: dict[str, Any]) -> None:
    twice = pa.record_batch([pa.array(["a"]), pa.array(["b"])], names=["payload", "payload"])
    message = 'the record batch has two columns with the same name, rename one: "payload"'
    check(lambda: dispatcher.produce_batch(twice, **layout), SchemaError, message)


@pytest.mark.parametrize("data", [None, 5, "text", b"text", ["a"], pa.schema([])])
def test_data_without_the_arrow_interface_is_refused(dispatcher: Dispatcher, data: Any) -> None:
    message = (
        "data must be an Arrow record batch, table or reader (an object with __arrow_c_array__ or __arrow_c_stream__): "
        f"got {type(data).__name__}"
    )
    check(lambda: dispatcher.produce_batch(data), SchemaError, message)


@pytest.mark.parametrize(
    "data",
    [pa.array(["a"]), pa.chunked_array([["a"]]), pl.Series("payload", ["a"])],
    ids=["array", "chunked array", "polars series"],
)
def test_arrow_data_without_columns_is_refused(dispatcher: Dispatcher, data: Any) -> None:
    with pytest.raises(SchemaError, match=r"^data must be an Arrow record batch, table or reader"):
        dispatcher.produce_batch(data)


def test_message_ids_in_a_column_have_the_same_length_limit(dispatcher: Dispatcher) -> None:
    batch = pa.record_batch({"payload": ["a", "b"], "id": ["x", "x" * 16_385]})
    with pytest.raises(HeadraceError, match=r"16384 bytes.*16385"):
        dispatcher.produce_batch(batch, message_id="id")


@pytest.mark.parametrize(
    ("bytes_", "text"), [(pa.binary(), pa.utf8()), (pa.large_binary(), pa.large_utf8())], ids=["utf8", "large_utf8"]
)
def test_message_ids_in_a_column_must_be_utf8(dispatcher: Dispatcher, bytes_: pa.DataType, text: pa.DataType) -> None:
    ids = pa.array([b"a", b"\xff"], bytes_).view(text)
    batch = pa.record_batch({"payload": [None, "b"], "id": ids})
    message = 'column "id" holds a message ID that is not UTF-8 in row 1'
    check(lambda: dispatcher.produce_batch(batch, message_id="id"), SchemaError, message)


@pytest.mark.parametrize("argument", ["payload", "message_id", "stream_key", "entry_id"])
def test_column_names_must_be_text(dispatcher: Dispatcher, argument: str) -> None:
    with pytest.raises(TypeError, match=argument):
        dispatcher.produce_batch(BATCH, **{argument: 5})  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [-1, float("nan"), "soon"])
def test_invalid_timeouts_of_flush_are_refused(dispatcher: Dispatcher, timeout: Any) -> None:
    with pytest.raises((ConfigError, TypeError), match="timeout"):
        dispatcher.flush(timeout)


def test_a_refused_call_has_no_effect(any_server: LocalServer, connect: Connect) -> None:
    with Dispatcher(Endpoint(unix_socket=any_server.unix_socket, stream_key="s")) as dispatcher:
        dispatcher.produce(b"before")
        refusals: list[Callable[[], object]] = [
            lambda: dispatcher.produce(5),  # type: ignore[arg-type]
            lambda: dispatcher.produce(b"x", True),
            lambda: dispatcher.produce(b"x", "x" * 16_385),
            lambda: dispatcher.produce_batch(BATCH, payload="list"),
            lambda: dispatcher.produce_batch("x"),  # type: ignore[arg-type]
        ]
        for refused in refusals:
            with pytest.raises(HeadraceError):
                refused()
        dispatcher.produce(b"after")
        report = dispatcher.flush().raise_for_failures()
    assert pa.table(report.to_arrow()).column("message_id").to_pylist() == ["0", "1"]
    entries = connect(any_server).xrange("s")
    assert [fields[b"payload"] for _, fields in entries] == [b"before", b"after"]


# --- after close


def test_calls_after_close_are_refused(dispatcher: Dispatcher) -> None:
    dispatcher.close()
    dispatcher.close()  # a second close does nothing
    empty = pa.table({"payload": pa.array([], pa.string())})
    actions: list[Callable[[], object]] = [
        lambda: dispatcher.produce(b"x"),
        lambda: dispatcher.dispatch(b"x"),
        dispatcher.poll,
        dispatcher.flush,
        lambda: dispatcher.produce_batch(BATCH),
        lambda: dispatcher.produce_batch(empty),
    ]
    for action in actions:
        error = check(action, ClosedError, "the dispatcher is closed; make a new one")
        assert isinstance(error, RuntimeError)
