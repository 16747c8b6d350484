"""Random tables come back as they were written; the laboratory `fuzz read` does many."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.testing import LocalServer
from read_fuzz.campaign import run
from read_fuzz.compare import difference
from read_fuzz.layouts import LAYOUTS
from read_fuzz.tables import random_table

pytestmark = pytest.mark.thorough

TABLES = 200


def test_every_type_round_trips_in_every_layout(any_server: LocalServer) -> None:
    counts, finding = run(any_server, seed=1, first=0, tables=TABLES)
    assert finding is None
    for layout in LAYOUTS:
        assert counts[f"tables by {layout.name}"] > TABLES / 10, counts


def test_random_tables_contain_many_types() -> None:
    found = {type(field.type) for number in range(2_000) for field in random_table(1, number).schema}
    assert len(found) > 12, found


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        ([1, 2], [1, 3]),
        ([1, None], [1, 0]),
        ([0.0], [-0.0]),
        ([float("nan")], [1.0]),
        ([[1], []], [[], [1]]),
        ([{"a": 1}], [{"a": None}]),
        (["a"], ["a", "b"]),
    ],
)
def test_differences_are_found(got: list[object], wanted: list[object]) -> None:
    ours, theirs = pa.chunked_array([got]), pa.chunked_array([wanted])
    assert difference(ours, ours, "column") is None
    assert difference(ours, theirs.cast(ours.type), "column") is not None


def test_differences_in_maps_are_found() -> None:
    kind = pa.map_(pa.string(), pa.int64())
    one, other = (pa.chunked_array([pa.array([None, [("k", value)]], kind).slice(1)]) for value in (1, 2))
    assert difference(one, one, "column") is None
    assert difference(one, other, "column") is not None
