"""Which node's replicas confirm what was written before its slot moved."""

from __future__ import annotations

import pyarrow as pa

from headrace import Dispatcher
from headrace.testing import LocalCluster
from support.clusters import another_master, endpoint_of, rows_of
from support.patience import NEVER
from support.processes import stopped, wait_until


def test_replicas_of_the_old_node_do_not_confirm_moved_entries(cluster: LocalCluster, key: str) -> None:
    """They have the rows, but it is those of the new node that will count when that one fails."""
    with Dispatcher(endpoint_of(cluster, key), wait_replicas=1, wait_timeout=NEVER, wait_every=1_000) as dispatcher:

        def produce(rows: range) -> None:
            dispatcher.produce_batch(pa.table({"payload": [b"%d" % row for row in rows]}), payload="payload")

        produce(range(1))
        assert dispatcher.flush().ok
        produce(range(1, 11))
        wait_until(lambda: len(rows_of(cluster, key)) == 11)
        produce(range(11, 11))  # receives their IDs, and requests no WAIT
        target = another_master(cluster, key)
        cluster.move_slot(key, target)
        wait_until(lambda: cluster.replicas_of(target))
        (replica,) = cluster.replicas_of(target)
        with stopped(replica):
            produce(range(11, 21))
            # In vain: the replicas of the old node would confirm them at once.
            report = dispatcher.flush(timeout=2)
        assert report.delivered == 0
        assert {(failure.code, failure.written) for failure in report.failed} == {("NOT_REPLICATED", "unknown")}
    assert rows_of(cluster, key) == list(range(21))
