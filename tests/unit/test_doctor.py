"""The doctor tells what is well from what is scarce and from what is missing, and says what to do about it."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from engine.postgres.availability import Availability, Way
from stress import doctor
from stress.doctor import GB, Finding, State

WELL = {"files": "utf-8", "locale": "UTF-8", "output": "utf8"}
INFINITE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("finding", "state"),
    [
        (doctor.python((3, 11), "Linux"), "ok"),
        (doctor.python((3, 14), "Darwin"), "ok"),
        (doctor.python((3, 10), "Linux"), "fail"),
        (doctor.python((3, 15), "Linux"), "fail"),
        (doctor.python((3, 12), "FreeBSD"), "warn"),
        (doctor.encoding(WELL), "ok"),
        (doctor.encoding({**WELL, "output": "ascii"}), "warn"),
        (doctor.encoding({**WELL, "locale": "ISO-8859-1"}), "warn"),
        (doctor.open_files(INFINITE, INFINITE), "ok"),
        (doctor.open_files(1024, INFINITE), "ok"),
        (doctor.open_files(1023, 4096), "warn"),
        (doctor.open_files(255, 4096), "fail"),
        (doctor.processes(INFINITE, 9), "ok"),
        (doctor.processes(1000, 600), "ok"),
        (doctor.processes(1000, 601), "warn"),
        (doctor.processes(1000, 901), "fail"),
        (doctor.disk("disk", Path("/x"), 2 * GB, "ext4", "do"), "ok"),
        (doctor.disk("disk", Path("/x"), 2 * GB, "tmpfs", "do"), "warn"),
        (doctor.disk("disk", Path("/x"), 2 * GB - 1, "ext4", "do"), "warn"),
        (doctor.disk("disk", Path("/x"), GB // 2 - 1, "ext4", "do"), "fail"),
        (doctor.shared_memory(64 * 1024**2), "ok"),
        (doctor.shared_memory(1024), "warn"),
        (doctor.shared_memory(None), "warn"),
        (doctor.clock(0.2, 0.1), "ok"),
        (doctor.clock(-150.0, 0.1), "warn"),
        (doctor.clock(0.2, 3_600_000.0), "warn"),
        (doctor.ledger(None), "ok"),
        (doctor.ledger("set wal_level = logical and restart it"), "fail"),
    ],
)
def test_a_fact_is_judged_and_what_is_not_well_comes_with_what_to_do(finding: Finding, state: State) -> None:
    assert finding.state == state
    assert bool(finding.do) == (state != "ok")
    assert finding.found


def a_machine(**states: str) -> list[Availability]:
    ways = (Way(name, state, name, f"{name} told") for name, state in states.items())  # type: ignore[arg-type]
    return [Availability(18, tuple(ways))]


def test_a_machine_without_the_default_server_warns_and_one_without_any_fails() -> None:
    def first(**states: str) -> State:
        return next(iter(doctor.sources(a_machine(**states)))).state

    assert first(embedded="ready", system="unavailable") == "ok"
    assert first(embedded="unavailable", system="ready") == "warn"
    assert first(embedded="unavailable", system="unavailable") == "fail"


def test_each_source_of_a_postgres_is_told() -> None:
    found = {
        each.check: each
        for each in doctor.sources(
            a_machine(npm="ready", embedded="ready", system="ready", container="fetchable")
        )
    }
    assert found["postgres: versions"].found == "here: 18"
    assert found["postgres: cached"].found == "18 (npm)"
    assert found["postgres: system"].found == "system told"
    assert found["containers"].state == "ok"
    none = {each.check: each for each in doctor.sources(a_machine(embedded="unavailable"))}
    assert none["postgres: versions"].state == none["containers"].state == "warn"


def test_the_worst_finding_is_the_verdict() -> None:
    def verdict(*states: State) -> State:
        return doctor.worst([Finding("a", state, "b", "c") for state in states])

    assert verdict("ok", "ok") == "ok"
    assert verdict("ok", "warn", "ok") == "warn"
    assert verdict("warn", "fail", "ok") == "fail"
    assert [doctor.EXIT_CODES[state] for state in ("ok", "warn", "fail")] == [0, 0, 3]
