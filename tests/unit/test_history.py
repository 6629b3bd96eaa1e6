from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from engine.observer import Observer
from invariants.history import HistoryError, Recorder, merge, merge_folder, read_events
from invariants.history.export import latencies_ms, throughput, write_elle_json, write_parquet


def record(folder: Path) -> None:
    with Recorder(folder, "a") as a, Recorder(folder, "b") as b:
        first = a.invoke("claim", {"queue": "q", "batch": 2, "claim": "a.1"})
        second = a.invoke("step", {"id": 2**60})
        other = b.invoke("insert", {"job": {"fsm": "é\n"}})
        a.complete(second, "ok", {"kind": "done"})
        b.complete(other, "fail", {"error": "UniqueViolation", "sqlstate": "23505", "message": "x"})
        a.complete(first, "ok", {"ids": [1, 2], "contended": 0})
        a.count("contended", 3)
        b.invoke("flush", {"outcomes": []})


def test_what_is_recorded_is_merged_in_order_of_start(tmp_path: Path) -> None:
    record(tmp_path)
    operations = merge_folder(tmp_path)
    assert [(o.process, o.f, o.type) for o in operations] == [
        ("a", "claim", "ok"),
        ("a", "step", "ok"),
        ("b", "insert", "fail"),
        ("a", "count", "ok"),
        ("b", "flush", "info"),
    ]
    claim, step, insert, count, flush = operations
    assert (claim.value["claim"], claim.result["ids"]) == ("a.1", [1, 2])
    assert step.value == {"id": 2**60}
    assert insert.value["job"]["fsm"] == "é\n"
    assert count.value == {"event": "contended", "amount": 3}
    assert (flush.end_ns, flush.latency_ms) == (None, None)
    assert claim.end_ns is not None
    assert claim.start_ns < claim.end_ns


def test_the_recorder_is_an_observer(tmp_path: Path) -> None:
    observer: Observer = Recorder(tmp_path, "a")
    observer.complete(observer.invoke("claim", {}), "ok", {})


def test_every_cut_of_a_file_reads_as_a_prefix(tmp_path: Path) -> None:
    record(tmp_path)
    path = tmp_path / "history-a.msgpack"
    whole = path.read_bytes()
    events = list(read_events(path)[1])
    counts = set()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        kept = list(read_events(path)[1])
        assert kept == events[: len(kept)]
        counts.add(len(kept))
    assert counts == set(range(len(events)))


def test_an_invoke_outlives_a_process_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, signal, sys\n"
        "from invariants.history import Recorder\n"
        "Recorder(pathlib.Path(sys.argv[1]), 'dying').invoke('flush', {'outcomes': [[1, 'c', 'done']]})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    status = subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=30).returncode
    assert status == -signal.SIGKILL
    [operation] = merge_folder(tmp_path)
    assert (operation.process, operation.f, operation.type) == ("dying", "flush", "info")


def test_one_name_is_one_process(tmp_path: Path) -> None:
    Recorder(tmp_path, "a").close()
    with pytest.raises(FileExistsError):
        Recorder(tmp_path, "a")


@pytest.mark.parametrize("name", ["", "../a", "a/b", "a b", "x" * 101])
def test_a_name_that_is_no_file_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot name a process"):
        Recorder(tmp_path, name)


def test_a_completion_without_its_invoke_is_refused(tmp_path: Path) -> None:
    with Recorder(tmp_path, "a") as recorder:
        token = recorder.invoke("claim", {})
        recorder.complete(token, "ok", {})
        with pytest.raises(KeyError):
            recorder.complete(token, "ok", {})
        recorder._append(7, "ok", "claim", {})
    with pytest.raises(HistoryError, match="never began"):
        merge_folder(tmp_path)


@pytest.mark.parametrize("content", [b"x" * 40, b"PGRFLEDG\x00\x01"])
def test_another_file_is_no_history(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "history-x.msgpack"
    path.write_bytes(content)
    with pytest.raises(HistoryError):
        merge([path])


def test_a_full_disk_is_an_error_and_not_half_a_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Recorder(tmp_path, "a") as recorder:
        monkeypatch.setattr(os, "write", lambda file, data: len(data) - 1)
        with pytest.raises(OSError, match="could not be written whole"):
            recorder.invoke("claim", {})
        monkeypatch.undo()


def test_latencies_keep_what_is_below_a_millisecond(tmp_path: Path) -> None:
    record(tmp_path)
    figures = latencies_ms(merge_folder(tmp_path))
    assert set(figures) == {"claim", "step"}
    assert 0 < figures["step"]["p50"] <= figures["step"]["p99"] <= figures["step"]["max"] < 1000
    assert figures["step"]["p50"] != round(figures["step"]["p50"])


def test_throughput_counts_jobs_and_not_only_calls(tmp_path: Path) -> None:
    with Recorder(tmp_path, "a") as a:
        a.complete(a.invoke("insert_many", {"jobs": [{}, {}]}), "ok", {"ids": [1, None]})
        outcomes = [[1, "c", "done"], [2, "c", "next"], [3, "c", "stop"]]
        a.complete(
            a.invoke("flush", {"outcomes": outcomes}), "ok", {"xid": 1, "committed": [[1, "c"], [2, "c"]]}
        )
    figures = throughput(merge_folder(tmp_path))
    assert figures["jobs_inserted"] == figures["insert_many"] == figures["jobs_ended"]


def test_throughput_of_the_store_counts_commits_messages_and_events(tmp_path: Path) -> None:
    with Recorder(tmp_path, "a") as a:
        a.complete(a.invoke("store.commit", {}), "ok", {"version": 1})
        a.complete(a.invoke("store.commit", {}), "fail", {"error": "StoreConflict", "found": 2})
        a.complete(a.invoke("transport.ack", {"messages": [{}, {}]}), "ok", [True, False])
        a.complete(a.invoke("relay.deliver", {}), "ok", {"seqs": [1]})
        a.complete(a.invoke("relay.deliver", {"seqs": [2, 3]}), "ok", {})
    figures = throughput(merge_folder(tmp_path))
    assert figures["commits"] == figures["messages"] == figures["store.commit"]
    assert figures["events_delivered"] == pytest.approx(3 * figures["commits"], abs=0.01)
    assert "jobs_inserted" not in figures


def test_the_columnar_file_is_read_by_anyone(tmp_path: Path) -> None:
    record(tmp_path)
    write_parquet(merge_folder(tmp_path), tmp_path / "history.parquet")
    frame = pl.read_parquet(tmp_path / "history.parquet")
    assert frame["f"].to_list() == ["claim", "step", "insert", "count", "flush"]
    assert json.loads(frame["value"][0])["claim"] == "a.1"


def test_the_elle_file_has_one_operation_at_a_time_per_process(tmp_path: Path) -> None:
    record(tmp_path)
    write_elle_json(merge_folder(tmp_path), tmp_path / "history.json")
    rows = json.loads((tmp_path / "history.json").read_text())
    assert [row["index"] for row in rows] == list(range(len(rows)))
    assert {row["type"] for row in rows} == {"invoke", "ok", "fail"}
    open_processes: set[int] = set()
    for row in rows:
        assert isinstance(row["process"], int)
        if row["type"] == "invoke":
            assert row["process"] not in open_processes
            open_processes.add(row["process"])
        else:
            open_processes.remove(row["process"])
