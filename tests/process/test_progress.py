"""Progress: how long a start may take depends on what it lacks, not on how long it takes."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.testing.progress import Progress, wait_for


def stillness(*seen: tuple[str, float]) -> list[float]:
    progress = Progress()
    return [progress.still_for(missing, now) for missing, now in seen]


def test_the_time_since_the_last_change_counts() -> None:
    assert stillness(("two", 100.0), ("two", 107.0), ("one", 130.0), ("one", 131.5)) == [0, 7, 0, 1.5]


def test_what_was_missing_before_is_no_progress() -> None:
    assert stillness(("two", 0.0), ("one", 1.0), ("two", 2.0), ("one", 3.0), ("none but this", 4.0)) == [0, 0, 1, 2, 0]


def test_waiting_ends_as_soon_as_nothing_is_missing() -> None:
    answers = iter(["two", "one", "", "not asked"])
    assert wait_for(lambda: next(answers), patience=3600) == ""
    assert next(answers) == "not asked"


def test_waiting_ends_when_nothing_changes() -> None:
    def answers() -> Iterator[str]:
        yield from ("two", "two", "one")
        while True:
            yield "one or two"

    said = answers()
    assert wait_for(lambda: next(said), patience=0.01) in ("two", "one", "one or two")
