"""A few episodes; the laboratory `campaign-cluster` does many."""

from __future__ import annotations

import pytest

from cluster_faults.episode import MODES, Verdict, judge, run
from cluster_faults.proxied import ProxiedCluster
from cluster_faults.tables import faults_table
from support import Certs, Program

pytestmark = pytest.mark.thorough


@pytest.mark.needs("redis-8.6")
@pytest.mark.parametrize("tls", [False, True])
def test_outcomes_match_what_is_in_the_streams(program: Program, certs: Certs, tls: bool) -> None:
    with ProxiedCluster(program.path, certs if tls else None) as cluster:
        for seed, mode in enumerate(mode for mode in MODES if ("tls" in mode) is tls):
            verdict = run(cluster, mode, seed, f"s{seed}", most=1)
            assert not verdict.wrong, verdict


def test_wrong_outcomes_are_detected() -> None:
    cases: list[tuple[str, list[list[int]], set[int], set[int], str]] = [
        ("plain", [[0, 1, 1]], {0, 1}, set(), "1 rows were written twice"),
        ("plain", [[0, 1]], {0}, set(), "1 rows are there that were reported as not written"),
        ("plain", [[0]], {0, 1}, set(), "1 acknowledged rows are not there"),
        ("plain", [[1, 0]], {0, 1}, set(), "1 rows were written behind later ones"),
        ("wait", [[0]], {0, 1}, set(), "1 acknowledged rows are not there"),
        ("plain", [[0, 1]], {0}, {1, 2}, ""),
        ("streams", [[0, 1], [3]], {0, 1, 3}, set(), "1 rows are in another stream"),
        ("streams", [[0, 2], [3, 1]], {0, 1, 2, 3}, set(), "1 rows were written behind later ones"),
    ]
    for mode, there, acknowledged, unknown, wrong in cases:
        verdict = Verdict(mode, ["kill"] if mode == "wait" else ["move"])
        judge(verdict, there, acknowledged, unknown)
        assert verdict.wrong == [wrong] * bool(wrong)
    explained = Verdict("plain", ["kill"])
    judge(explained, [[1, 0]], {0, 1, 2}, set())
    assert (explained.wrong, explained.lost, explained.reordered) == ([], 1, 1)


def test_the_table_of_faults_has_a_column_for_each_client() -> None:
    verdicts = {
        ("redis-8.6", "tls"): [Verdict("tls", ["cut", "kill"])],
        ("redis-8.6", "redis-rs, streams"): [Verdict("redis-rs, streams", ["cut"])],
    }
    assert faults_table(verdicts).splitlines() == [
        "| fault         | to headrace | to redis-rs |  share |",
        "| ------------- | ----------: | ----------: | -----: |",
        "| cut           |           1 |           1 |  66.7% |",
        "| kill          |           1 |           0 |  33.3% |",
        "| **failovers** |           1 |           0 |  33.3% |",
        "| **all**       |           2 |           1 | 100.0% |",
    ]
