"""Prometheus metrics, read from the service when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from spinf_core.server.state import ServerState


def registry_of(state: ServerState) -> CollectorRegistry:
    """A registry that holds this server's metrics alone."""
    registry = CollectorRegistry()
    registry.register(_ServiceCollector(state))
    return registry


class _ServiceCollector(Collector):
    def __init__(self, state: ServerState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        service = self._state.service
        ready = service is not None and not service.degraded and not self._state.draining
        yield GaugeMetricFamily("spinf_ready", "Whether the server takes requests.", int(ready))
        if service is None:
            return
        now = service.statistics()
        requests = CounterMetricFamily("spinf_requests", "Requests finished, by outcome.", labels=["outcome"])
        for outcome, count in sorted(now.requests.items()):
            requests.add_metric([outcome], count)
        yield requests
        yield CounterMetricFamily("spinf_questions", "Questions scored.", now.questions)
        yield CounterMetricFamily("spinf_passes", "Passes run.", now.passes)
        yield CounterMetricFamily("spinf_rows", "Token rows run, padding excluded.", now.rows)
        yield CounterMetricFamily("spinf_padding_rows", "Rows of padding run.", now.padding)
        yield CounterMetricFamily("spinf_busy_seconds", "Seconds spent in passes.", now.busy_seconds)
        yield GaugeMetricFamily("spinf_waiting_requests", "Requests accepted and not finished.", now.waiting)
        yield GaugeMetricFamily("spinf_cached_floors", "Floors in the cache.", now.floors)
        yield GaugeMetricFamily("spinf_cached_floor_bytes", "Memory of the floor cache.", now.floor_bytes)
