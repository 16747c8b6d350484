"""The data source's options and layouts, as the driver checks them. No Spark runs here."""

from __future__ import annotations

import os
import pickle
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType

from headrace import ConfigError, SchemaError
from headrace.spark.datasource import BatchWriter, RedisStreams
from headrace.spark.layout import ColumnLayout, resolve
from headrace.spark.settings import FailurePolicy, WriteSettings, known, read
from support.endpoints import CANARY, Pem

HERE = {"host": "h", "stream_key": "s"}


def batch(**options: str) -> WriteSettings:
    return read({**HERE, **options}, streaming=False)


def stream(**options: str) -> WriteSettings:
    return read({**HERE, **options}, streaming=True)


def refused(**options: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        batch(**options)
    assert str(caught.value)[0].islower()
    return caught.value


NESTED: dict[str, DataType] = {
    "struct": StructType().add("x", "string"),
    "map": MapType(StringType(), BinaryType()),
    "items": ArrayType(StructType().add("name", "string").add("value", "binary")),
}


def schema(**columns: str) -> StructType:
    made = StructType()
    for name, kind in columns.items():
        made.add(name, NESTED.get(kind, kind))
    return made


def layout(columns: dict[str, str], **options: str) -> ColumnLayout:
    return resolve(batch(**options), schema(**columns))


# --- options ----------------------------------------------------------------------------------------------------------


def test_options_are_parsed() -> None:
    settings = batch(port="6380", maxlen="1000", maxlen_approximate="FALSE", window_max_entries="10", classify="strict")
    assert (settings.endpoint.port, settings.endpoint.maxlen, settings.endpoint.maxlen_approximate) == (
        6380,
        1000,
        False,
    )
    assert settings.dispatcher == {
        "window_max_entries": "10",
        "classify": "strict",
        "retry": "true",
        "retry_unknown": "true",
    }
    assert settings.failure == FailurePolicy()
    assert settings.transaction is None
    assert not settings.exactly_once
    from_url = read({"url": "rediss://h2:1/3?maxlen=5", "stream_key": "s"}, streaming=False).endpoint
    assert (from_url.host, from_url.port, from_url.db, from_url.tls, from_url.maxlen) == ("h2", 1, 3, True, 5)
    assert batch(ts_field="").dispatcher["ts_field"] is None


def test_retry_is_on_by_default() -> None:
    assert batch(retry="false").dispatcher == {"retry": "false"}
    limited = batch(retry_max_attempts="3", retry_unknown="false", retry_deadline="1.5").dispatcher
    assert limited == {
        "retry": "true",
        "retry_max_attempts": "3",
        "retry_unknown": "false",
        "retry_deadline": "1.5",
    }


@pytest.mark.parametrize(
    ("options", "option", "text"),
    [
        ({"strem_key": "x"}, "strem_key", "unknown option 'strem_key'; did you mean 'stream_key'?"),
        ({"ca_cert": "x"}, "ca_cert", "'tls_ca_cert'"),
        ({"attempts": "3"}, "attempts", "'retry_max_attempts'"),
        (
            {"checkpointlocation": "/tmp"},
            "checkpointLocation",
            "unknown option 'checkpointLocation': it belongs to writeStream",
        ),
        ({"path": "orders"}, "path", "stream_key names the stream"),
        ({"port": "70000"}, "port", "port must be an integer from 1 to 65535, got '70000'"),
        ({"tls": "yes"}, "tls", "tls must be a boolean"),
        ({"window_max_entries": "0"}, "window_max_entries", "at least 1, got '0'"),
        ({"classify": "lax"}, "classify", "'default', 'failover', 'strict', got 'lax'"),
        ({"error_overrides": "OOM"}, "error_overrides", "a mapping from codes"),
        ({"retry": "maybe"}, "retry", "retry must be a boolean"),
        ({"retry": "false", "retry_deadline": "3"}, "retry", "retry"),
        ({"retry_max_attempts": "0"}, "retry_max_attempts", "an integer from 1"),
        ({"rows_per_entry": "0"}, "rows_per_entry", "from 1 to 65536, got '0'"),
        ({"rows_per_entry": "ten"}, "rows_per_entry", "from 1 to 65536, got 'ten'"),
        ({"arrow_ipc": "1"}, "arrow_ipc", "true or false), got '1'"),
        ({"fields": "a,,b"}, "fields", "got 'a,,b'"),
        ({"fields": "[1]"}, "fields", "a JSON array), got '[1]'"),
        ({"fields": "[a"}, "fields", "a JSON array), got '[a'"),
        ({"on_failure": "ignore"}, "on_failure", "'fail', 'report', 'dead_letter', got 'ignore'"),
        ({"on_failure": "dead_letter"}, "dead_letter_key", "dead_letter_key is missing"),
        ({"dead_letter_key": "dead"}, "dead_letter_key", "on_failure='dead_letter', got on_failure='fail'"),
        ({"on_failure": "dead_letter", "dead_letter_key": "s"}, "dead_letter_key", "must differ from stream_key"),
        ({"max_failed_rows": "3"}, "max_failed_rows", "'fail' allows no failed row"),
        ({"on_failure": "report", "max_failed_rows": "-1"}, "max_failed_rows", "at least 0, got '-1'"),
        ({"on_failure": "report", "max_failed_ratio": "2"}, "max_failed_ratio", "from 0 to 1, got '2'"),
        ({"on_failure": "report", "max_failed_ratio": "nan"}, "max_failed_ratio", "from 0 to 1, got 'nan'"),
        ({"txn_app_id": "job"}, "txn_app_id", "needs txn_version"),
        ({"txn_version": "1"}, "txn_version", "needs txn_app_id"),
        ({"txn_app_id": "", "txn_version": "1"}, "txn_app_id", "non-empty"),
        ({"txn_app_id": "job", "txn_version": "-1"}, "txn_version", "at least 0, got '-1'"),
        ({"txn_app_id": "job", "txn_version": "1", "exactly_once": "off"}, "exactly_once", "are mutually exclusive"),
        ({"exactly_once": "auto"}, "exactly_once", "needs txn_app_id and txn_version"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, str], option: str, text: str) -> None:
    error = refused(**options)
    assert text in str(error)
    assert error.option == option


def test_streaming_queries_are_exactly_once_by_default() -> None:
    settings = stream(checkpointlocation="/tmp/x", queryname="orders")
    assert settings.exactly_once
    assert settings.dispatcher == {"exactly_once": "auto", "retry": "true", "retry_unknown": "false"}
    off = stream(exactly_once="off")
    assert not off.exactly_once
    assert off.dispatcher["retry_unknown"] == "true"
    with pytest.raises(ConfigError, match="checkpoint"):
        stream(txn_app_id="job", txn_version="1")


def test_a_batch_write_with_a_transaction_is_exactly_once() -> None:
    settings = batch(txn_app_id="job", txn_version="7")
    assert settings.exactly_once
    assert settings.transaction is not None
    assert (settings.transaction.app_id, settings.transaction.version) == ("job", 7)


def test_every_option_is_defined_once() -> None:
    options = known()
    assert len(options) > 50
    assert len(options) == len(set(options))
    # Columns and endpoint options have different names.
    assert {"stream_key", "stream_key_column", "payload", "url", "retry_deadline", "exactly_once", "token_ttl"} <= set(
        options
    )


def test_dead_letters_are_not_trimmed() -> None:
    settings = batch(
        on_failure="dead_letter",
        dead_letter_key="dead",
        maxlen="5",
        trim_every="2",
        nomkstream="true",
        consumer_group="g",
        password="p",
        username="u",
    )
    letters = settings.dead_letters
    assert (letters.host, letters.stream_key, letters.username) == ("h", "dead", "u")
    assert (letters.maxlen, letters.trim_every, letters.nomkstream, letters.consumer_group) == (None, 1, False, None)
    assert letters._state()[0]["password"] == "p"


# --- secrets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", [f"redis://u:{CANARY}@h", f"redis://h?password={CANARY}"])
def test_a_url_with_a_password_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read({"url": url, "stream_key": "s"}, streaming=False)
    assert caught.value.option == "url"
    assert "password_env" in str(caught.value)
    assert "password_file" in str(caught.value)
    assert CANARY not in str(caught.value)
    assert read({"url": "redis://u@h", "password": CANARY, "stream_key": "s"}, streaming=False).endpoint.username == "u"


@pytest.mark.parametrize("name", ["password", "sentinel_password"])
@pytest.mark.parametrize("callable_", [lambda: CANARY, Path("p").exists, os.getcwd, dict, partial(os.getenv, CANARY)])
def test_a_callable_that_spark_turned_into_text_is_refused(callable_: object, name: str) -> None:
    error = refused(**{name: str(callable_)})
    assert error.option == name
    assert str(error).startswith(f"{name} must be text, got a callable; give {name}_env or {name}_file")
    assert CANARY not in str(error)
    batch(password="<function>")


@pytest.mark.parametrize("of", ["", "sentinel_"])
def test_an_inline_private_key_is_refused(of: str, tmp_path: Path) -> None:
    pem = Pem(tmp_path, "client")
    sentinels = {"topology": "sentinel", "nodes": "s:26379", "sentinel_master": "main", "stream_key": "s"}
    given = {f"{of}tls": "true", f"{of}tls_cert": str(pem.cert), f"{of}tls_key": str(pem.key)}
    given |= sentinels if of else HERE
    read(given, streaming=False)
    with pytest.raises(ConfigError, match="path") as caught:
        read({**given, f"{of}tls_key": pem.key.read_text()}, streaming=False)
    assert caught.value.option == f"{of}tls_key"
    assert "PRIVATE" not in str(caught.value)


@pytest.mark.parametrize("wrong", ["post=1", "port=0", "payload=nope", "url=redis://x:SECRET@y", "username="])
@pytest.mark.parametrize("secret", ["password", "sentinel_password", "tls_key", "sentinel_tls_key"])
def test_tracebacks_with_locals_show_no_secret(secret: str, wrong: str) -> None:
    """Spark 4.3 prints them with spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled."""
    option, value = wrong.split("=")

    def as_spark_does(options: dict[str, str]) -> None:
        RedisStreams(options).writer(schema(a="long", b="string"), overwrite=False)

    try:
        as_spark_does({**HERE, secret: CANARY, option: value.replace("SECRET", CANARY)})
    except Exception as error:
        text = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    else:
        pytest.fail("nothing was refused")
    assert "as_spark_does" in text
    assert "***" in text
    assert CANARY not in text


def test_a_writer_can_be_pickled_and_its_repr_shows_no_secret() -> None:
    options = {**HERE, "password": CANARY}
    writer = RedisStreams(options).writer(schema(payload="string"), overwrite=False)
    again = pickle.loads(pickle.dumps(writer))
    assert isinstance(again, BatchWriter)
    assert again._settings == writer._settings
    assert CANARY not in repr(writer) + repr(writer._settings) + repr(options)


# --- layouts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "options", "arguments"),
    [
        # By convention.
        ({"payload": "string"}, {}, {"payload": "payload"}),
        ({"payload": "binary", "message_id": "long"}, {}, {"payload": "payload", "message_id": "message_id"}),
        ({"body": "string"}, {}, {"payload": "body"}),
        ({"body": "binary", "message_id": "string"}, {}, {"payload": "body", "message_id": "message_id"}),
        ({"n": "long"}, {}, {"json": ["n"]}),
        ({"a": "string", "b": "string"}, {}, {"json": ["a", "b"]}),
        ({"a": "struct"}, {}, {"json": ["a"]}),
        (
            {"a": "long", "message_id": "long", "stream_key": "string", "entry_id": "string"},
            {},
            {
                "json": ["a", "message_id", "entry_id"],
                "message_id": "message_id",
                "stream_key": "stream_key",
            },
        ),
        # By option.
        ({"payload": "string", "b": "string"}, {"json": "true"}, {"json": ["payload", "b"]}),
        ({"a": "string", "b": "string"}, {"json": "b", "ignore_columns": "a"}, {"json": ["b"]}),
        ({"a": "string", "b": "string"}, {"json": "false"}, {"json": ["a", "b"]}),
        ({"a": "long", "b, c": "long"}, {"fields": '["b, c", "a"]'}, {"fields": ["b, c", "a"]}),
        ({"a": "long", "b": "long"}, {"fields": " b , a "}, {"fields": ["b", "a"]}),
        (
            {"id": "long", "body": "string", "to": "string", "at": "string"},
            {"payload": "body", "message_id": "id", "stream_key_column": "to", "entry_id": "at"},
            {"payload": "body", "message_id": "id", "stream_key": "to", "entry_id": "at"},
        ),
        ({"id": "long", "n": "long"}, {"message_id": "id"}, {"json": ["id", "n"], "message_id": "id"}),
        (
            {"message_id": "string", "n": "long"},
            {"payload": "message_id", "ignore_columns": "n"},
            {"payload": "message_id"},
        ),
        (
            {"stream_key": "string", "to": "string", "n": "long"},
            {"stream_key_column": "to"},
            {"json": ["stream_key", "n"], "stream_key": "to"},
        ),
        ({"a": "string"}, {"rows_per_entry": "5"}, {"payload": "a", "rows_per_entry": 5}),
        (
            {"a": "struct", "b": "long", "c": "long"},
            {"arrow_ipc": "true", "codec": "zstd", "ignore_columns": "c", "rows_per_entry": "9"},
            {"arrow_ipc": True, "fields": ["a", "b"], "codec": "zstd", "rows_per_entry": 9},
        ),
        (
            {"stream": "string", "entry_id": "string", "fields": "map"},
            {"fields_from": "fields", "stream_key_column": "stream", "entry_id": "entry_id"},
            {"fields_from": "fields", "stream_key": "stream", "entry_id": "entry_id"},
        ),
        (
            {"items": "items", "payload": "string"},
            {"fields_from": "items", "ignore_columns": "*"},
            {"fields_from": "items"},
        ),
        ({"entry_id": "map"}, {"fields_from": "entry_id"}, {"fields_from": "entry_id"}),
        # Columns that are left out by name.
        ({"payload": "string", "n": "long"}, {"ignore_columns": "*"}, {"payload": "payload"}),
        ({"payload": "string", "stream_key": "long"}, {"ignore_columns": "stream_key"}, {"payload": "payload"}),
        ({"payload": "struct", "body": "string"}, {"ignore_columns": "payload"}, {"payload": "body"}),
    ],
)  # fmt: skip
def test_layouts(columns: dict[str, str], options: dict[str, str], arguments: dict[str, Any]) -> None:
    found = layout(columns, **options)
    assert found.arguments == arguments
    assert set(found.columns) <= set(columns)


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ({}, {}, "no column"),
        ({"payload": "string", "a": "long", "b": "long"}, {}, "these columns would not be written: 'a', 'b'"),
        ({"a": "long", "b": "long"}, {"fields": "a"}, "these columns would not be written: 'b'"),
        ({"a": "long", "b": "long"}, {"json": "a"}, "these columns would not be written: 'b'"),
        (
            {"n": "long", "body": "string"},
            {"payload": "bdy"},
            "payload names an unknown column 'bdy'; did you mean 'body'? (columns: n, body)",
        ),
        (
            {"id": "long", "city": "string", "total": "double"},
            {"payload": "nope"},
            "payload names an unknown column 'nope' (columns: id, city, total)",
        ),
        ({f"column {n}": "long" for n in range(22)}, {"payload": "x"}, "column 19 and 2 more)"),
        ({"a": "long"}, {"message_id": "A"}, "message_id names an unknown column"),
        ({"a": "long"}, {"stream_key_column": "key"}, "stream_key_column names an unknown column"),
        ({"a": "long"}, {"entry_id": "key"}, "entry_id names an unknown column"),
        ({"a": "long"}, {"fields": "a,z"}, "fields names an unknown column"),
        ({"a": "long"}, {"json": "z"}, "json names an unknown column"),
        ({"a": "long"}, {"ignore_columns": "z"}, "ignore_columns names an unknown column"),
        ({"a": "string"}, {"payload": "a", "ignore_columns": "a"}, "both name the column 'a'"),
        ({"a": "string"}, {"payload": "a", "json": "true"}, "json and payload are mutually exclusive"),
        ({"a": "string", "m": "map"}, {"fields_from": "m"}, "these columns would not be written: 'a'"),
        ({"m": "map"}, {"fields_from": "n"}, "fields_from names an unknown column 'n'"),
        ({"m": "map"}, {"fields_from": "m", "ignore_columns": "m"}, "ignore_columns and fields_from both name"),
        ({"m": "map"}, {"fields_from": "m", "fields": "m"}, "fields_from and fields are mutually exclusive"),
        ({"m": "map"}, {"fields_from": "m", "json": "true"}, "json and fields_from are mutually exclusive"),
        ({"m": "map"}, {"fields_from": "m", "arrow_ipc": "true"}, "fields_from and arrow_ipc are mutually exclusive"),
        ({"m": "map"}, {"fields_from": "m", "rows_per_entry": "2"}, "rows_per_entry and fields_from are mutually"),
        ({"a": "string"}, {"fields_from": "a"}, '"a" cannot hold the fields of entries'),
        ({"a": "string"}, {"payload": "a", "arrow_ipc": "true"}, "payload and arrow_ipc are mutually exclusive"),
        ({"a": "string"}, {"codec": "lz4"}, "codec needs arrow_ipc=True"),
        ({"a": "string"}, {"arrow_ipc": "true", "codec": "gzip"}, "codec"),
        ({"a": "string"}, {"ignore_columns": "a"}, "no column is left"),
        ({"payload": "long"}, {}, '"payload" cannot be the payload'),
        ({"payload": "string", "message_id": "double"}, {}, '"message_id" cannot hold message IDs'),
        ({"payload": "string", "stream_key": "long"}, {}, '"stream_key" cannot hold stream keys'),
        ({"a": "struct"}, {"fields": "a"}, '"a" cannot be a field'),
        ({"a": "variant"}, {}, '"a" cannot be in JSON'),
        ({"b": "string", "stream_key": "string"}, {"rows_per_entry": "2"}, "rows_per_entry puts several rows into one"),
        (
            {"n": "long", "entry_id": "string"},
            {"arrow_ipc": "true", "entry_id": "entry_id"},
            "arrow_ipc puts several rows into one entry",
        ),
        (
            {"stream": "string", "entry_id": "string", "timestamp": "timestamp", "fields": "map"},
            {},
            "these are the columns of a read: fields_from='fields'",
        ),
        ({"ts": "string", "n": "long"}, {"fields": "ts,n"}, '"ts" cannot be a field'),
    ],
)  # fmt: skip
def test_invalid_layouts_are_refused(columns: dict[str, str], options: dict[str, str], text: str) -> None:
    with pytest.raises((ConfigError, SchemaError)) as caught:
        layout(columns, **options)
    assert text in str(caught.value)


@pytest.mark.parametrize("packing", [{"rows_per_entry": "2"}, {"arrow_ipc": "true"}])
def test_exactly_once_refuses_several_rows_per_entry(packing: dict[str, str]) -> None:
    for options in ({}, {"exactly_once": "script"}):
        with pytest.raises(ConfigError, match="are mutually exclusive: set exactly_once='off'"):
            resolve(stream(**packing, **options), schema(payload="string"))
    resolve(stream(**packing, exactly_once="off"), schema(payload="string"))
    resolve(stream(rows_per_entry="1"), schema(payload="string"))


def test_overwrite_is_refused() -> None:
    source = RedisStreams(dict(HERE))
    with pytest.raises(ConfigError, match=r"mode\('append'\)"):
        source.writer(schema(payload="string"), overwrite=True)
    with pytest.raises(ConfigError, match="'append', or foreachBatch"):
        source.streamWriter(schema(payload="string"), overwrite=True)
