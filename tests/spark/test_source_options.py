"""The options of a Spark read, its columns, and the next micro-batch. No Spark and no server runs here."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest
from pyspark.sql.types import StructType

from headrace import ConfigError, DataLossError, SchemaError, StreamReplacedError
from headrace._headrace import StreamInfo
from headrace.spark.datasource import RedisStreams
from headrace.spark.names import ADVICE, OTHER_NAMES
from headrace.spark.settings import known
from headrace.spark.settings import read as read_of_write
from headrace.spark.source.bounds import Moment, last_id, start_place
from headrace.spark.source.columns import Columns, read_schema
from headrace.spark.source.entry_ids import LOWEST, MAX
from headrace.spark.source.offset import StreamOffset
from headrace.spark.source.options import ReadSettings, read
from headrace.spark.source.place import Place
from headrace.spark.source.planning import News, find_news, is_due, quotas
from headrace.spark.source.stream import HAS_LIMITS, StreamReader

HERE = {"host": "h", "stream_key": "s"}

#: 100 entries were added, 1-0 to 100-0; the first 60 were trimmed.
TRIMMED = StreamInfo(40, (61, 0), (100, 0), 100)


def settings(streaming: bool | None = False, /, **options: str) -> ReadSettings:
    return read({**HERE, **options}, streaming=streaming)


def refused(given: dict[str, str], streaming: bool | None = False) -> str:
    with pytest.raises(ConfigError) as caught:
        read(given, streaming=streaming)
    text = str(caught.value)
    assert text[0].islower()
    return text


def test_defaults() -> None:
    made = settings()
    assert (made.keys, made.start.usual, made.end.usual, made.fail_on_data_loss) == (("s",), "earliest", "latest", True)
    assert made.reader["batch_rows"] == 10_000
    assert settings(True).start.usual == "latest"
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"host": "h"}, "one of stream_key, stream_keys, stream_pattern must name the streams, got none"),
        ({**HERE, "stream_pattern": "*"}, "got stream_key and stream_pattern"),
        ({"host": "h", "stream_keys": "a,b,a"}, "got 'a' twice"),
        ({**HERE, "startin": "latest"}, "unknown option 'startin'; did you mean 'starting'?"),
        ({**HERE, "path": "x"}, "load() takes no path"),
        ({**HERE, "starting": "newest"}, "starting must be 'earliest', 'latest', an entry ID"),
        ({**HERE, "starting": "5"}, "got '5'"),
        ({**HERE, "starting": "(5"}, "got '(5'"),
        ({**HERE, "starting": f"({MAX}-{MAX}"}, "'(' and an entry ID for the entries after it"),
        ({**HERE, "ending": "(5-0"}, "got '(5-0'"),
        ({**HERE, "starting": "{"}, "starting is not valid JSON"),
        ({**HERE, "starting": '{"s": 5}'}, "got 5"),
        ({**HERE, "starting": '{"t": "5-0"}'}, "starting names the stream 't', which is not read"),
        ({**HERE, "ending": "earliest"}, "ending must be 'latest', an entry ID"),
        ({**HERE, "starting": "5-0", "starting_timestamp": "5"}, "starting and starting_timestamp are mutually"),
        ({**HERE, "starting_timestamp": "yesterday"}, "starting_timestamp must be milliseconds since 1970"),
        ({**HERE, "starting_timestamp": "2026-11-22T10:00:00"}, "an ISO 8601 time with a zone"),
        ({**HERE, "ending_timestamp": '{"s": "-5"}'}, "got '-5' for 's'"),
        ({**HERE, "batch_rows": "20000"}, "batch_rows must be an integer from 1 to 10000"),
        ({**HERE, "min_partitions": "0"}, "min_partitions must be"),
        ({**HERE, "fail_on_data_loss": "maybe"}, "fail_on_data_loss must be a boolean"),
        ({**HERE, "max_entries_per_trigger": "5"}, "max_entries_per_trigger is for spark.readStream"),
        ({**HERE, "min_entries_per_trigger": "5"}, "min_entries_per_trigger is for spark.readStream"),
        ({**HERE, "max_trigger_delay": "5"}, "max_trigger_delay is for spark.readStream"),
        ({**HERE, "commit_group": "spark"}, "commit_group is for spark.readStream"),
        ({**HERE, "fields_as": "array"}, "fields_as must be one of 'map', 'list'"),
        ({"url": "redis://:secret@h", "stream_key": "s"}, "url must not hold a password"),
    ],
)
def test_invalid_options_are_refused(given: dict[str, str], text: str) -> None:
    assert text in refused(given)


def test_ending_is_refused_for_streaming_queries() -> None:
    text = "ending is for spark.read: a streaming query has no end; leave it out"
    assert refused({**HERE, "ending": "5-0"}, streaming=True) == text
    assert read({**HERE, "ending": "5-0", "poll_interval": "1"}, streaming=None).poll_interval == 1


def test_trigger_options_are_parsed_and_checked() -> None:
    made = settings(True, min_entries_per_trigger="5", max_trigger_delay="1.5", max_entries_per_trigger="5")
    assert (made.min_entries, made.max_delay, settings(True).max_delay) == (5, 1.5, 900)
    given = {**HERE, "max_trigger_delay": "5"}
    assert refused(given, streaming=True) == "max_trigger_delay needs min_entries_per_trigger"
    given = {**HERE, "min_entries_per_trigger": "6", "max_entries_per_trigger": "5"}
    expected = "min_entries_per_trigger must not exceed max_entries_per_trigger=5, got 6"
    assert refused(given, streaming=True) == expected


@pytest.mark.parametrize("name", ADVICE)
def test_options_of_other_sources_are_refused_with_their_equivalent(name: str) -> None:
    """Spark passes names in lower case; the text has them as the other source documents them."""
    assert refused({**HERE, name.lower(): "x"}) == f"unknown option {name!r}: {ADVICE[name]}"
    with pytest.raises(ConfigError) as caught:
        read_of_write({**HERE, name.lower(): "x"}, streaming=False)
    assert str(caught.value) == f"unknown option {name!r}: {ADVICE[name]}"


def test_equivalents_are_options() -> None:
    assert len(OTHER_NAMES) > 50
    for name, here in OTHER_NAMES.items():
        words = re.split(r", | ", here)
        assert words[0] in known(), name
        assert {word for word in words if "_" in word} <= set(known()), name


def test_all_unknown_options_are_named_at_once() -> None:
    given = {**HERE, "startin": "latest", "startingoffsets": "latest", "zzz": "1"}
    assert refused(given) == (
        "unknown options 'startin' (did you mean 'starting'?), 'startingOffsets' (here it is starting), "
        "'zzz'; headrace.spark.options() lists all options"
    )


@pytest.mark.parametrize("name", ["zzz", "nope", "buffer", "compression"])
def test_only_a_name_that_is_near_is_suggested(name: str) -> None:
    assert refused({**HERE, name: "1"}) == f"unknown option {name!r}; headrace.spark.options() lists all options"


def test_a_read_does_not_check_write_options() -> None:
    made = settings(message_id="id", exactly_once="script", maxlen="5", on_failure="never")
    assert made.keys == ("s",)
    with pytest.raises(ConfigError, match="on_failure"):
        RedisStreams({**HERE, "on_failure": "never"}).writer(StructType().add("payload", "string"), overwrite=False)


# --- where to begin and end -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"starting": "earliest"}, Place(LOWEST, 60)),
        ({"starting": "latest"}, Place((100, 0), 100)),
        ({"starting": "5-0"}, Place((4, MAX), 60)),
        ({"starting": "61-0"}, Place((60, MAX), 60)),
        ({"starting": "(60-5"}, Place((60, 5), 60)),
        ({"starting": f'{{"s": "(61-{MAX}"}}'}, Place((61, MAX), None, 60)),
        ({"starting": "62-0"}, Place((61, MAX), None, 60)),
        ({"starting": "0-0"}, Place(LOWEST, 60)),
        ({"starting_timestamp": "62"}, Place((61, MAX), None, 60)),
        ({"starting_timestamp": "1970-01-01T00:00:00.0615+00:00"}, Place((61, MAX), None, 60)),
        ({"starting_timestamp": '{"s": 62}'}, Place((61, MAX), None, 60)),
        ({"starting_timestamp": "101", "starting_timestamp_past_end": "latest"}, Place((100, 0), 100)),
    ],
)
def test_starting_options_set_the_start_position(options: dict[str, str], place: Place) -> None:
    made = settings(**options)
    assert start_place(made.start, "s", TRIMMED, past_end=made.past_end) == place
    assert start_place(made.start, "s", StreamInfo(), past_end=made.past_end) == Place(LOWEST, 0)


@pytest.mark.parametrize("options", [{"starting": "101-0"}, {"starting_timestamp": "101"}])
def test_a_start_after_the_newest_entry_is_refused(options: dict[str, str]) -> None:
    made = settings(**options)
    with pytest.raises(ConfigError, match="is after the newest entry of stream 's', 100-0"):
        start_place(made.start, "s", TRIMMED, past_end=made.past_end)


def test_ending_options_set_the_end_position() -> None:
    def end(**options: str) -> object:
        return last_id(settings(**options).end, "s", TRIMMED)

    assert (end(), end(ending="70-1"), end(ending="200-0")) == ((100, 0), (70, 1), (100, 0))
    assert end(ending_timestamp="1970-01-01T00:00:00.070999Z") == (70, MAX)
    assert settings(ending_timestamp="70").end.usual == Moment(70)


# --- the next micro-batch ---------------------------------------------------------------------------------------------


def news(ms: int, added: int | None, info: StreamInfo = TRIMMED, *, fails: bool = True, lost: int = 0) -> News | None:
    return find_news("s", StreamOffset(Place((ms, 0), added), lost), info, fails=fails)


def test_new_entries_are_found_after_the_last_position() -> None:
    assert news(100, 100) is None
    assert news(70, 70) == News(Place((70, 0), 70), Place((100, 0), 100), 0)
    # Everything up to the place was trimmed, and nothing behind it.
    assert news(60, 60) == News(Place((60, 0), 60), Place((100, 0), 100), 0)
    assert find_news("s", None, TRIMMED, fails=True) == News(Place(LOWEST, 60), Place((100, 0), 100), 0)
    assert find_news("s", None, StreamInfo(), fails=True) is None


def test_trimmed_entries_are_counted() -> None:
    with pytest.raises(DataLossError, match="10 entries of stream 's' after 50-0 were trimmed") as caught:
        news(50, 50)
    assert (caught.value.lost, caught.value.exact) == (10, True)
    found = news(50, 50, fails=False, lost=5)
    assert found is not None
    assert (found.start, found.lost, len(found.warnings)) == (Place((50, 0), 60), 15, 1)
    emptied = StreamInfo(0, None, (100, 0), 100)
    with pytest.raises(DataLossError, match="50 entries"):
        news(50, 50, emptied)
    deleted = StreamInfo(39, (61, 0), (100, 0), 100, (90, 0))
    with pytest.raises(DataLossError, match="at most 11 entries"):
        news(50, 50, deleted)
    # One that was deleted earlier may be missing from the count up to the position.
    deleted = StreamInfo(40, (61, 0), (100, 0), 100, (20, 0))
    with pytest.raises(DataLossError, match="at most 10 entries"):
        news(50, 50, deleted)
    # Before Redis 7.0 no server counts.
    uncounted = StreamInfo(40, (61, 0), (100, 0), None)
    assert news(50, None, uncounted) == News(Place((50, 0), None), Place((100, 0), None), 0)


@pytest.mark.parametrize(
    ("info", "text"),
    [
        (StreamInfo(), "it was deleted"),
        (StreamInfo(5, (1, 0), (5, 0), 5), "its newest entry is 5-0"),
        (StreamInfo(5, (196, 0), (200, 0), 5), "5 entries were ever added, and 70 had been"),
    ],
)
def test_a_replaced_stream_is_detected(info: StreamInfo, text: str) -> None:
    with pytest.raises(StreamReplacedError, match=text):
        news(70, 70, info)
    found = news(70, 70, info, fails=False)
    assert found is not None
    assert text in found.warnings[0]
    assert found.end.id >= found.start.id == (70, 0)


def test_a_cap_is_divided_among_streams_by_their_entries() -> None:
    assert quotas({"a": 900, "b": 100}, 100) == {"a": 90, "b": 10}
    assert quotas({"a": 10_000, "b": 1}, 100) == {"a": 99, "b": 1}
    assert quotas({"a": 5, "b": 5, "c": 5}, 2) == {"a": 1, "b": 1}
    assert sum(quotas({"a": 7, "b": 11, "c": 13}, 10).values()) == 10


@pytest.mark.parametrize(
    ("entries", "now", "last", "due"),
    [
        (99, 10.0, None, True),  # the first one
        (99, 10.0, 0.5, False),
        (99, 10.5, 0.5, True),
        (100, 0.5, 0.5, True),
        (0, 10.0, 9.0, False),
    ],
)
def test_a_micro_batch_begins_at_the_minimum_or_after_the_delay(
    entries: int, now: float, last: float | None, due: bool
) -> None:
    assert is_due(entries, 100, now=now, last=last, delay=10.0) is due


# --- columns ----------------------------------------------------------------------------------------------------------


def columns(schema: str | StructType, **options: str) -> dict[str, Any]:
    made = schema if isinstance(schema, StructType) else StructType()
    if isinstance(schema, str):
        for column in schema.split(", "):
            name, kind = column.split(" ")
            made.add(name, kind)
    return Columns(settings(**options), made).arguments


def test_columns_without_a_schema() -> None:
    assert read_schema(settings()).simpleString() == (
        "struct<stream:string,entry_id:string,timestamp:timestamp,fields:map<string,binary>>"
    )
    named = settings(fields="a,stream", metadata="entry_seq,row_in_entry")
    assert (
        read_schema(named).simpleString() == "struct<entry_seq:decimal(20,0),row_in_entry:int,a:string,stream:string>"
    )
    assert columns(read_schema(settings())) == {"metadata": None}
    assert read_schema(settings(fields_as="list", metadata="stream")).simpleString() == (
        "struct<stream:string,fields:array<struct<name:string,value:binary>>>"
    )
    assert columns("a string, b string", fields="a,b") == {"metadata": None, "fields": ["a", "b"]}


def test_every_column_of_a_schema_is_a_field_unless_metadata_names_it() -> None:
    made = columns("id long, entry_id string, stream string", metadata="entry_id")
    assert made["metadata"] == {"entry_id": "entry_id"}
    assert made["schema"].names == ["id", "stream"]


def test_metadata_columns_can_be_renamed() -> None:
    renamed = '{"entry_id": "at", "stream": "entry_id"}'
    assert read_schema(settings(metadata=renamed)).simpleString() == (
        "struct<at:string,entry_id:string,fields:map<string,binary>>"
    )
    named = settings(fields="a,stream", metadata=renamed)
    assert read_schema(named).simpleString() == "struct<at:string,entry_id:string,a:string,stream:string>"
    made = columns("id long, at string, entry_id string, stream string", metadata=renamed)
    assert made["metadata"] == {"entry_id": "at", "stream": "entry_id"}
    assert made["schema"].names == ["id", "stream"]


@pytest.mark.parametrize(
    ("schema", "options", "text"),
    [
        ("id long", {"fields": "id"}, "fields and a schema are mutually exclusive"),
        ("id long", {"metadata": "entry_id"}, "metadata names 'entry_id', which is not a column of the schema"),
        ("id long", {"metadata": "id"}, "metadata must be some of stream, entry_id"),
        ("id long, entry_seq long", {"metadata": "entry_seq"}, r"must be decimal\(20,0\), got bigint"),
        ("entry_id string", {"metadata": "entry_id"}, "metadata columns only"),
    ],
)
def test_invalid_schemas_are_refused(schema: str, options: dict[str, str], text: str) -> None:
    with pytest.raises((ConfigError, SchemaError), match=text):
        columns(schema, **options)


def test_invalid_columns_without_a_schema_are_refused() -> None:
    for options, text in (
        ({"unpack": "json"}, "unpack needs fields or a schema"),
        ({"fields": "a", "metadata": "id"}, "metadata must be some of"),
        ({"fields": "stream", "metadata": "stream"}, "metadata and fields both name the column 'stream'"),
        ({"fields": "*"}, "fields must name the fields: Spark needs the columns before it reads"),
        ({"fields": "a", "metadata": '{"stream": "a"}'}, "metadata and fields both name the column 'a'"),
        ({"metadata": '{"stream": "fields"}'}, "which the column of all fields has"),
        ({"metadata": '{"stream": "a", "entry_id": "a"}'}, "metadata must give each column a name of its own, got 'a'"),
        ({"metadata": '{"stream": 1}'}, "or a JSON object from columns to the names that they get"),
        ({"metadata": '{"strem": "a"}'}, "metadata must be some of stream, entry_id"),
    ):
        with pytest.raises(ConfigError, match=text):
            read_schema(settings(**options))


def test_min_entries_per_trigger_needs_spark_4_2() -> None:
    schema = read_schema(settings())
    waiting = settings(True, min_entries_per_trigger="5")
    if HAS_LIMITS:
        StreamReader(waiting, schema)
        return
    with pytest.raises(ConfigError, match=r"min_entries_per_trigger needs Spark 4\.2 or later"):
        StreamReader(waiting, schema)


def test_max_entries_per_trigger_needs_a_trigger_option_before_spark_4_2() -> None:
    schema = read_schema(settings())
    capped = settings(True, max_entries_per_trigger="5")
    if HAS_LIMITS:
        StreamReader(capped, schema)
        return
    with pytest.raises(ConfigError, match=r"needs available_now on Spark 4\.0 and 4\.1"):
        StreamReader(capped, schema)
    StreamReader(settings(True, max_entries_per_trigger="5", available_now="false"), schema)
