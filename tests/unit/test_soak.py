"""A soak's rounds, its folder and its verdict, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.errors import UsageError
from stress.growth import TableSize
from stress.rounds import Round, draw_round
from stress.soak import possible_rounds
from stress.soak_folder import ROUNDS, Finished, Request, Sample, SoakFolder
from stress.soak_verdict import conclude

POSSIBLE = {"mixed": ("kill", "pause", "crash"), "store": ("kill",), "quiet": ()}
REQUEST = Request(
    seed=7, minutes=1, seconds=5, nodes=2, pg="embedded", scenarios=("mixed", "store"), faults="all",
    subject="reference", mutant=None,
)  # fmt: skip


def finished(number: int, **changes: Any) -> Finished:
    held = Finished(
        round=Round(number, "mixed", ("kill",), 1), verdict="held", reason=None, server=0, took_s=30.0, rested=True,
        kept=0, transactions=100, invariants={"single-owner": "held", "gate-cap": "not_exercised"},
    )  # fmt: skip
    return msgspec.structs.replace(held, **changes)


def sample(number: int, megabytes: float) -> Sample:
    tables = {"public.jobs": TableSize(round(megabytes * 2**20), 0, 5, 0, 20_000 * number, 0)}
    memory = {"harness": (80 + number) * 2**20}
    return Sample(at_s=30.0 * number, server=0, round=number, between=True, memory=memory, tables=tables)


def test_a_round_is_its_number_and_the_seed_and_nothing_else() -> None:
    drawn = [draw_round(7, number, POSSIBLE) for number in range(60)]
    assert drawn == [draw_round(7, number, POSSIBLE) for number in range(60)]
    assert drawn != [draw_round(8, number, POSSIBLE) for number in range(60)]
    assert all(set(each.faults) <= set(POSSIBLE[each.scenario]) for each in drawn)
    assert len({each.seed for each in drawn}) == 60


def test_every_scenario_comes_once_before_any_comes_twice() -> None:
    for cycle in range(10):
        names = [draw_round(7, 3 * cycle + place, POSSIBLE).scenario for place in range(3)]
        assert set(names) == set(POSSIBLE)


def test_rounds_have_those_of_the_faults_asked_for_that_can_be_done_to_their_subject() -> None:
    request = msgspec.structs.replace(REQUEST, faults="kill,poison")
    assert possible_rounds(request, "embedded") == {"mixed": ("kill", "poison"), "store": ("kill",)}
    none = msgspec.structs.replace(REQUEST, faults="none")
    assert possible_rounds(none, "embedded") == {"mixed": (), "store": ()}


def test_what_was_written_is_read_again_and_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    folder = SoakFolder.create(tmp_path, REQUEST)
    folder.add(finished(0))
    with (tmp_path / ROUNDS).open("ab") as file:
        file.write(b'{"round": {"numb')
    folder.add(finished(1))
    assert [each.round.number for each in folder.finished()] == [0, 1]
    assert folder.request() == REQUEST


def test_a_round_that_did_not_end_leaves_nothing_for_the_one_that_is_taken_again(tmp_path: Path) -> None:
    folder = SoakFolder.create(tmp_path, REQUEST)
    (folder.new_round(3) / "history-node-1.1.msgpack").write_bytes(b"half")
    again = folder.new_round(3)
    assert [path.name for path in again.iterdir()] == ["logs"]


def test_of_a_round_that_held_the_verdict_stays(tmp_path: Path) -> None:
    folder = SoakFolder.create(tmp_path, REQUEST)
    path = folder.new_round(0)
    for name in ("verdict.json", "run.json", "ledger.pgoutput", "history-a.msgpack", "logs/a.log"):
        (path / name).write_bytes(b"")
    folder.thin(path)
    assert sorted(each.name for each in path.iterdir()) == ["run.json", "verdict.json"]


def test_a_folder_without_a_soak_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no soak that could go on"):
        SoakFolder(tmp_path).request()


def test_the_verdict_is_the_worst_of_all_rounds() -> None:
    held, unknown, violated = (
        finished(0),
        finished(1, verdict="unknown", reason="a node died"),
        finished(2, verdict="violated", invariants={"single-owner": "violated"}),
    )
    assert conclude(REQUEST, [held], [], None, "").verdict == "held"
    found = conclude(REQUEST, [held, unknown], [], None, "")
    assert (found.verdict, found.reason) == ("unknown", "round 1, mixed: a node died")
    found = conclude(REQUEST, [held, unknown, violated], [], "interrupted", "")
    assert (found.verdict, found.invariants["single-owner"]) == ("violated", "violated")
    assert found.invariants["gate-cap"] == "not_exercised"
    assert not found.complete


def test_a_soak_that_was_interrupted_or_had_no_round_is_unknown() -> None:
    assert conclude(REQUEST, [finished(0)], [], "interrupted", "").verdict == "unknown"
    assert conclude(REQUEST, [], [], None, "").verdict == "unknown"


def test_rows_that_nobody_collected_make_it_violated_where_the_round_was_at_rest() -> None:
    found = conclude(REQUEST, [finished(0), finished(1, kept=12)], [], None, "")
    assert found.verdict == "violated"
    assert "12 rows had ended, were past their retention and were never collected" in found.findings[0]
    cut_short = finished(1, kept=12, rested=False, verdict="unknown", reason="it was cut short")
    assert conclude(REQUEST, [finished(0), cut_short], [], None, "").verdict == "unknown"


def test_a_table_that_grows_without_bound_makes_it_violated() -> None:
    samples = [sample(number, 10.0 * number) for number in range(13)]
    found = conclude(REQUEST, [finished(0)], samples, None, "")
    assert found.verdict == "violated"
    assert "public.jobs grew by" in found.findings[0]
    assert found.memory_mb["harness"] == {"first": 80.0, "last": 92.0, "most": 92.0}
    assert found.dead_rows == {"first": 5, "last": 5, "most": 5}
