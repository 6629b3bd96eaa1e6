"""Locust's page beside a swarm: it answers on loopback, says how the run is, takes no order, and ends with the load."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from stress.swarm.child import Child
from stress.swarm.configs import Live, LocustMasterConfig

NOW = Live(
    phase="load", seconds=3.0, of_seconds=20.0, nodes=1, of_nodes=2, faults=("kill 1",), waiting=1_234,
    transactions=5_678, violations=2,
    invariants={"lifecycle": (40, 0), "single-owner": (90, 2), "told-is-done": (0, 0)},
)  # fmt: skip
UP_WITHIN_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fetched(
    port: int, path: str, headers: Mapping[str, str] | None = None, data: bytes | None = None
) -> bytes:
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, dict(headers or {}))
    with urllib.request.urlopen(asked, timeout=20) as answer:
        told: bytes = answer.read()
        return told


@pytest.fixture
def master(tmp_path: Path) -> Iterator[tuple[Child, int]]:
    """The master of a swarm whose workers have not come yet."""
    port = free_port()
    config = LocustMasterConfig(port=free_port(), workers=1, users=1, scenario="mixed", ui=port)
    child = Child.start("locust", "stress.swarm.locust_master", config, tmp_path / "log", answers=True)
    try:
        deadline = time.monotonic() + UP_WITHIN_S
        while True:
            try:
                fetched(port, "/live")
                break
            except urllib.error.URLError:
                assert child.status is None, child.last_words()
                assert time.monotonic() < deadline, "no page came up"
        yield child, port
    finally:
        child.destroy()


def test_the_page_says_how_the_run_is_on_loopback_alone_takes_no_order_and_ends_with_the_load(
    master: tuple[Child, int],
) -> None:
    child, port = master
    listening = {
        connection.laddr.ip
        for connection in psutil.Process(child.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}

    child.tell(NOW)
    deadline = time.monotonic() + UP_WITHIN_S
    while (told := json.loads(fetched(port, "/live")))["phase"] != "load":
        assert time.monotonic() < deadline, told
    stats: dict[str, Any] = json.loads(fetched(port, "/stats/requests"))
    invariants, run = (table["data"] for table in stats["extended_stats"])
    assert [(row["invariant"], row["state"]) for row in invariants] == [
        ("single-owner", "violated"),
        ("lifecycle", "held so far"),
        ("told-is-done", "nothing yet, or judged at the end"),
    ]
    shown = {row["what"]: row["now"] for row in run}
    assert (shown["faults in force"], shown["waiting in the queues"], shown["nodes"]) == (
        "kill 1",
        "1,234",
        "1 of 2",
    )
    page = fetched(port, "/").decode()
    assert '"title": "Invariants"' in page
    assert '"title": "Run"' in page

    refused: tuple[dict[str, Any], ...] = (
        {"path": "/stop", "data": b""},
        {"path": "/swarm", "data": b"user_count=1&spawn_rate=1"},
        {"path": "/live", "headers": {"Host": "elsewhere.example"}},
        {"path": "/live", "headers": {"Origin": "http://elsewhere.example"}},
    )
    for asked in refused:
        with pytest.raises(urllib.error.HTTPError) as caught:
            fetched(port, **asked)
        assert caught.value.code == 403, asked


def test_the_page_ends_with_its_process(master: tuple[Child, int]) -> None:
    child, port = master
    child.destroy()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
