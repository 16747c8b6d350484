"""The exported metrics of each node of a cluster: their names and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from headrace.stats import NodeStats

__all__ = ["NODE_COUNTERS", "NODE_GAUGES", "NodeMetric"]


class NodeMetric(NamedTuple):
    """One metric: its names by the conventions of the two libraries, and its value."""

    prometheus: str
    opentelemetry: str
    unit: str
    help: str
    value: Callable[[NodeStats], float]


NODE_COUNTERS: Final = [
    NodeMetric(
        "headrace_node_connections",
        "headrace.node.connections",
        "{connection}",
        "Connections that were made to the node",
        lambda node: node.connections,
    ),
    NodeMetric(
        "headrace_node_redirects",
        "headrace.node.redirects",
        "{redirect}",
        "Redirects that the node sent",
        lambda node: node.redirects,
    ),
]

NODE_GAUGES: Final = [
    NodeMetric(
        "headrace_node_in_flight",
        "headrace.node.in_flight",
        "{message}",
        "Messages in the window for the node",
        lambda node: node.in_flight,
    ),
    NodeMetric(
        "headrace_node_in_flight_bytes",
        "headrace.node.in_flight.size",
        "By",
        "Bytes of the messages in the window for the node",
        lambda node: node.in_flight_bytes,
    ),
    NodeMetric(
        "headrace_node_down_seconds",
        "headrace.node.down.time",
        "s",
        "Time since the node became unreachable, 0 if it is not down",
        lambda node: node.seconds_down or 0.0,
    ),
    NodeMetric(
        "headrace_node_fills_window",
        "headrace.node.fills_window",
        "1",
        "Whether the window is full and waits for the node",
        lambda node: float(node.fills_window),
    ),
]
