"""What the exports of counters say."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headrace.metrics import PrometheusCollector


def scrape(collector: PrometheusCollector) -> dict[tuple[str, ...], float]:
    """The samples by name, stream key and group."""
    registry = CollectorRegistry()
    registry.register(collector)
    write: Any = generate_latest
    parse: Any = text_string_to_metric_families
    samples = [sample for family in parse(write(registry).decode()) for sample in family.samples]
    labels = [(sample.labels["stream_key"], sample.labels.get("group", "")) for sample in samples]
    return {(sample.name, *label): sample.value for sample, label in zip(samples, labels, strict=True)}
