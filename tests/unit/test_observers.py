"""Observers are told the same things, and each tells them on in its own way."""

from __future__ import annotations

import logging
import sys

import pytest
from prometheus_client import CollectorRegistry

from engine.errors import InfrastructureError
from engine.metrics import PrometheusObserver
from engine.observer import LoggingObserver, Observer, Observers, wants_steps
from stress.scripts.node import Notes


def play(observer: Observer) -> None:
    """What a node does in a moment; two operations overlap."""
    claim = observer.invoke("claim", {"queue": "q", "batch": 10, "claim": "c"})
    flush = observer.invoke("flush", {"outcomes": [[1, "c", "done"], [2, "c", "done"]]})
    observer.complete(claim, "ok", {"ids": [1, 2, 3], "contended": 0})
    observer.complete(flush, "fail", {"error": "Boom", "sqlstate": "XX000", "message": "no"})
    again = observer.invoke("flush", {"outcomes": [[1, "c", "done"], [2, "c", "done"]]})
    observer.complete(again, "ok", {"xid": 1, "committed": [[1, "c"]]})
    observer.count("stale")
    observer.count("swept", 7)


def test_logging_gives_every_record_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "engine.node")
    play(LoggingObserver())

    operations = [
        (record.levelname, vars(record)["operation"], vars(record)["completion"], vars(record)["rows"])
        for record in caplog.records
        if hasattr(record, "operation")
    ]
    events = [
        (vars(record)["event"], vars(record)["amount"])
        for record in caplog.records
        if hasattr(record, "event")
    ]
    assert operations == [
        ("DEBUG", "claim", "ok", 3),
        ("WARNING", "flush", "fail", 2),
        ("DEBUG", "flush", "ok", 2),
    ]
    assert events == [("stale", 1), ("swept", 7)]
    [failed] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert vars(failed)["sqlstate"] == "XX000"


def test_who_logs_is_not_told_of_steps_unless_another_wants_them() -> None:
    notes = Notes()
    assert [wants_steps(each) for each in (LoggingObserver(), notes, Observers(LoggingObserver()))] == [
        False,
        True,
        False,
    ]
    assert wants_steps(Observers(LoggingObserver(), notes))


def test_metrics_count_events_operations_rows_and_time() -> None:
    registry = CollectorRegistry()
    play(PrometheusObserver(registry))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    assert value("pgreferee_events_total", event="swept") == 7
    assert value("pgreferee_operations_total", operation="flush", completion="ok") == 1
    assert value("pgreferee_operations_total", operation="flush", completion="fail") == 1
    assert value("pgreferee_operation_rows_sum", operation="claim") == 3
    assert value("pgreferee_operation_rows_sum", operation="flush") == 2
    assert value("pgreferee_operation_seconds_count", operation="flush") == 2
    assert value("pgreferee_operations_in_progress", operation="flush") == 0


def test_several_observers_are_told_everything() -> None:
    one, other = Notes(), Notes()
    other.invoke("an operation of its own", None)  # its tokens are not the first's
    play(Observers(one, other))

    assert one.operations == other.operations[1:]
    assert one.completions == other.completions
    assert one.counts == other.counts == {"stale": 1, "swept": 7}


def test_metrics_without_their_client_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(InfrastructureError, match=r"pgreferee\[metrics\]"):
        PrometheusObserver()
