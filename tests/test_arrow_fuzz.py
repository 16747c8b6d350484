"""Random structures of the Arrow C data interface; `make fuzz TARGET=arrow` does many."""

from __future__ import annotations

from arrow_fuzz.campaign import run

EXECUTIONS = 20_000


def test_no_structure_costs_an_outcome() -> None:
    results = run(seed=1, first=0, executions=EXECUTIONS)
    assert not results.findings, results.findings[0]
    assert results.executions == EXECUTIONS
    ends = {name: count for name, count in results.counts.items() if "," in name}
    kinds = ["valid array, taken", "valid stream, taken", "failing stream, refused", "odd stream, refused"]
    kinds += [
        f"{kind}, {end}" for kind in ("broken array", "broken stream", "other type") for end in ("refused", "taken")
    ]
    assert sorted(ends) == sorted(kinds)
    assert min(ends.values()) >= EXECUTIONS / 1_000, ends
    assert sum(ends.values()) == EXECUTIONS
    assert results.counts["rows delivered"] > EXECUTIONS
