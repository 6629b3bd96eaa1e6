"""A bench, small: what is measured is proved from the write-ahead log, and a worker that cheats is not counted."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from engine.postgres import Server
from stress.bench.commits import commits, writers
from stress.bench.contenders import Contender, engine, raw
from stress.bench.drain import drain

JOBS = 40

# Ends what it has not taken: quicker than anybody who does the work.
CHEATS = """
import json, sys, psycopg
config = json.loads(sys.stdin.readline())
with psycopg.connect(config["dsn"], autocommit=True, application_name=config["name"]) as connection:
    connection.execute("UPDATE job SET status = 'ended'")
"""


def cheating() -> Contender:
    return replace(raw(10), command=(sys.executable, "-c", CHEATS))


@pytest.mark.parametrize("contender", [raw(10), engine()], ids=["raw", "engine"])
def test_a_drain_holds_with_two_processes(server: Server, tmp_path: Path, contender: Contender) -> None:
    sample = drain(server, replace(contender, jobs=JOBS), 2, 0, tmp_path)
    assert (sample.verdict, sample.reason) == ("held", None)
    assert sample.figures["per_s"] > 0


def test_a_worker_that_ends_what_it_never_took_is_not_counted(server: Server, tmp_path: Path) -> None:
    sample = drain(server, replace(cheating(), jobs=JOBS), 1, 0, tmp_path)
    assert (sample.verdict, sample.reason) == ("violated", f"{JOBS} jobs were ended that nobody had taken")


def test_commits_hold(server: Server, tmp_path: Path) -> None:
    sample = commits(server, writers()[2], 1, 0, tmp_path)
    assert (sample.verdict, sample.contender) == ("held", "store")
    assert sample.figures["per_s"] > 0
