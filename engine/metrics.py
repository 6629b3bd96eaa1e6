"""What a node and a client do, as Prometheus metrics. Needs the extra: `pip install pgreferee[metrics]`.

    observer = Observers(LoggingObserver(), PrometheusObserver())
    node = Node(dsn, policy, machines, observer=observer)
    prometheus_client.start_http_server(9000)

| metric | labels | what |
|---|---|---|
| `pgreferee_events_total` | event | `contended`, `throttled`, `stale`, `reclaimed`, `reaped`, `expired`, `swept`, … |
| `pgreferee_operations_total` | operation, completion | ended `ok`, `fail`, or unknown: `info` |
| `pgreferee_operation_seconds` | operation | how long they took; for `step`, how long the step ran |
| `pgreferee_operation_rows` | operation | rows of one: outcomes of a flush, rows of a pick, holds of a heartbeat |
| `pgreferee_operations_in_progress` | operation | begun and not ended |

No label holds a queue, a key or an id: their number has no bound.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from engine.errors import InfrastructureError
from engine.observer import Completion, Pending

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

# Seconds, from a look at one row to a step of minutes.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
ROWS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000)


class PrometheusObserver:
    """An observer that counts. `registry`: where the metrics go, by default the client's own; two observers of one
    process need one registry each. Raises InfrastructureError where the Prometheus client is not installed."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        try:
            prometheus = importlib.import_module("prometheus_client")
        except ImportError:
            raise InfrastructureError(
                "metrics need the Prometheus client: pip install 'pgreferee[metrics]'"
            ) from None
        target = prometheus.REGISTRY if registry is None else registry
        self._events = prometheus.Counter(
            "pgreferee_events", "Events that a node counts.", ["event"], registry=target
        )
        self._operations = prometheus.Counter(
            "pgreferee_operations", "Operations that ended.", ["operation", "completion"], registry=target
        )
        self._seconds = prometheus.Histogram(
            "pgreferee_operation_seconds",
            "Duration of operations.",
            ["operation"],
            buckets=SECONDS,
            registry=target,
        )
        self._rows = prometheus.Histogram(
            "pgreferee_operation_rows", "Rows of operations.", ["operation"], buckets=ROWS, registry=target
        )
        self._in_progress = prometheus.Gauge(
            "pgreferee_operations_in_progress",
            "Operations begun and not ended.",
            ["operation"],
            registry=target,
        )
        self._pending = Pending()

    def invoke(self, operation: str, value: object) -> int:
        self._in_progress.labels(operation).inc()
        return self._pending.begin(operation, value)

    def complete(self, token: int, kind: Completion, value: object) -> None:
        operation, rows, took_s = self._pending.end(token, value)
        self._in_progress.labels(operation).dec()
        self._operations.labels(operation, kind).inc()
        self._seconds.labels(operation).observe(took_s)
        if rows is not None and kind == "ok":
            self._rows.labels(operation).observe(rows)

    def count(self, event: str, amount: int = 1) -> None:
        self._events.labels(event).inc(amount)
