"""Entry IDs, splits and offsets of the Spark source: no Spark and no server runs here."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from headrace import StateError
from headrace._headrace import StreamInfo
from headrace.spark.source.entry_ids import HIGHEST, LOWEST, MAX, Id, after, before, parse, show
from headrace.spark.source.offset import Offset, StreamOffset
from headrace.spark.source.place import Place
from headrace.spark.source.ranges import Range, StreamRange
from headrace.spark.source.splits import borders, cut, share

IDS: list[Id] = [(0, 1), (4, MAX), (5, 0), (1795324724029, 361), (MAX, MAX - 1)]


@pytest.mark.parametrize("entry_id", IDS)
def test_ids_have_neighbours(entry_id: Id) -> None:
    assert parse(show(entry_id)) == entry_id
    higher, lower = after(entry_id), before(entry_id)
    assert higher is not None
    assert lower is not None
    assert lower < entry_id < higher
    assert before(higher) == after(lower) == entry_id


def test_the_first_and_the_last_id_have_one_neighbour() -> None:
    assert (before(LOWEST), after(HIGHEST)) == (None, None)
    assert before((5, 0)) == (4, MAX)


@pytest.mark.parametrize(
    "text", ["", "5", "5-", "-5", "a-1", "1-1-1", "+1-1", " 1-1", "٣-1", f"{2**64}-0", f"0-{2**64}"]
)
def test_invalid_entry_ids_are_not_parsed(text: str) -> None:
    assert parse(text) is None


def test_ranges_are_cut_by_time() -> None:
    assert cut((1000, 5), (1999, 7), 4) == [(1250, 0), (1500, 0), (1750, 0)]
    assert cut((1000, 5), (1999, 7), 1) == []
    assert cut((0, 0), HIGHEST, 2) == [(2**63, 0)]


def test_ranges_within_one_millisecond_are_cut_by_sequence_number() -> None:
    assert cut((7, 0), (7, 99), 4) == [(7, 25), (7, 50), (7, 75)]
    assert cut((7, 0), (7, MAX), 2) == [(7, 2**63)]
    assert cut((7, 3), (7, 4), 9) == [(7, 4)]
    assert cut((7, 3), (7, 3), 9) == []
    # Fewer milliseconds than parts: each is a part.
    assert cut((1, 0), (3, 5), 8) == [(2, 0), (3, 0)]


def test_cuts_are_disjoint_and_cover_the_range() -> None:
    source = random.Random(4)
    for _ in range(2_000):
        scale = 2 ** source.randrange(1, 64)
        first, last = sorted((source.randrange(scale), source.randrange(scale)) for _ in range(2))
        inner = cut(first, last, source.randrange(1, 20))
        assert inner == sorted(set(inner))
        assert all(first < border <= last for border in inner)


def test_streams_share_partitions_by_their_entries() -> None:
    assert share(1, [5, 5]) == [1, 1]
    assert share(8, [300, 100]) == [6, 2]
    assert share(7, [1, 1, 1]) == [3, 2, 2]
    assert share(4, [0, 0]) == [1, 1]
    assert share(5, [0, 10]) == [1, 4]
    source = random.Random(5)
    for _ in range(500):
        weights = [source.randrange(1, 1000) for _ in range(source.randrange(1, 9))]
        parts = source.randrange(1, 40)
        shares = share(parts, weights)
        assert min(shares) >= 1
        assert sum(shares) == max(parts, len(weights))


def test_empty_parts_are_merged_with_their_neighbours() -> None:
    assert borders([(1, 0), None, (5, 0), None, (9, 1)]) == ((1, 0), [(5, 0), (9, 1)])
    assert borders([None, None, (5, 0), (9, 1)]) == ((5, 0), [(9, 1)])
    assert borders([None, None]) == (None, [])


def test_parts_of_a_range_are_contiguous() -> None:
    one = StreamRange("orders", Place((1, 0), 7), (9, 9), 12, 20)
    assert one.parts([((5, 0), 9), ((8, 3), None)]) == [
        Range("orders", Place((1, 0), 7), (4, MAX), counted=9, total=20),
        Range("orders", Place((4, MAX), 9), (8, 2), (5, 0), counted=None, total=20),
        Range("orders", Place((8, 2), None), (9, 9), (8, 3), counted=12, total=20),
    ]
    whole = Range("orders", Place((1, 0), 7), (9, 9), (1, 4), counted=12, total=20, is_replay=True)
    assert one.parts([], (1, 4), is_replay=True) == [whole]


def test_an_offset_is_read_as_it_was_written() -> None:
    splits: tuple[tuple[Id, int | None], ...] = (((6, 0), None), ((8, MAX), 12))
    offset = Offset(
        {
            "orders": StreamOffset(Place((9, 9), 20), 3, Place((1, 0), 7), splits),
            "ä": StreamOffset(Place(LOWEST, None)),
        }
    )
    text = json.dumps(offset.to_json())
    assert Offset.from_json(json.loads(text)) == offset
    assert json.dumps(Offset.from_json(json.loads(text)).to_json()) == text
    assert json.loads(text)["streams"]["orders"] == {
        "id": "9-9",
        "n": 20,
        "lost": 3,
        "from": {"id": "1-0", "n": 7},
        "splits": [["6-0", None], [f"8-{MAX}", 12]],
    }


@pytest.mark.parametrize(
    ("whole", "text"),
    [
        ({}, "its version is None, but this headrace reads version 1"),
        ({"v": 2, "streams": {}}, "its version is 2"),
        ({"v": 1}, "lacks a member"),
        ({"v": 1, "streams": {"a": {"n": 1, "lost": 0}}}, "lacks a member"),
        ({"v": 1, "streams": {"a": {"id": "x", "n": 1, "lost": 0}}}, "lacks a member"),
        ({"v": 1, "streams": {"a": {"id": "1-1", "n": None}}}, "lacks a member"),
        ({"v": 1, "streams": []}, "lacks a member"),
    ],
)
def test_invalid_checkpoints_are_refused(whole: dict[str, Any], text: str) -> None:
    with pytest.raises(StateError, match=text):
        Offset.from_json(whole)


def test_entries_after_a_position_are_counted() -> None:
    info = StreamInfo(40, (61, 0), (100, 0), 100)
    assert info.removed == 60
    places = [Place((0, 0), 60), Place((50, 0), 50), Place((90, 0), 90), Place((90, 0), None), Place((100, 0), None)]
    assert [place.entries_after(info) for place in places] == [40, 40, 10, 40, 0]
