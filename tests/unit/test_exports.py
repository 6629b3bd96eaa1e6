"""Exported histories: what Knossos and Elle read, of a recorded run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import edn_format
import pytest
from click.testing import CliRunner
from edn_format import Keyword

from invariants.__main__ import main
from invariants.history import Operation
from invariants.history.checkers import cas_register, executions, rw_register, to_edn, to_json
from invariants.witness import Witness
from tests.fixtures.recordings import recording, unpack


def parsed(text: str) -> list[dict[str, Any]]:
    """Lines of EDN, with keywords as strings that begin with a colon."""

    def plain(value: Any) -> Any:
        if isinstance(value, Keyword):
            return f":{value.name}"
        if isinstance(value, edn_format.ImmutableList | list | tuple):
            return [plain(each) for each in value]
        return value

    return [
        {key.name: plain(value) for key, value in edn_format.loads(line).items()}
        for line in text.splitlines()
    ]


def operation(
    index: int, f: str, value: Any, result: Any, kind: Any = "ok", end: int | None = None
) -> Operation:
    start = 100 * (index + 1)
    return Operation(
        "p", index, f, kind, value, result, start, start + 50 if end is None and kind != "info" else end
    )


def committed(index: int, expected: int, result: Any, kind: Any = "ok", name: str = 'an "x"\n') -> Operation:
    value = {"execution": name, "expected": expected, "event": None, "emits": 0, "to": []}
    return operation(index, "store.commit", value, result, kind)


HAND_MADE = Witness(
    [
        operation(0, "store.load", {"execution": 'an "x"\n'}, {"version": None}),
        committed(1, 0, {"version": 1}),
        committed(2, 0, {"error": "StoreConflict", "found": 1}, "fail"),
        committed(3, 1, {"error": "CommitOutcomeUnknown"}, "info"),
        committed(4, 1, {"error": "EventAlreadyProcessed", "found": None}, "fail"),
    ]
)


def test_a_register_begins_at_zero_and_a_refusal_that_tells_the_version_found_is_a_read() -> None:
    rows = parsed(to_edn(cas_register(HAND_MADE, 'an "x"\n')))
    assert [(row["type"], row["f"], row["value"]) for row in rows] == [
        (":invoke", ":write", 0), (":ok", ":write", 0),
        (":invoke", ":read", None), (":ok", ":read", 0),
        (":invoke", ":cas", [0, 1]), (":ok", ":cas", [0, 1]),
        (":invoke", ":read", None), (":ok", ":read", 1),
        (":invoke", ":cas", [1, 2]),
        (":invoke", ":cas", [1, 2]), (":fail", ":cas", [1, 2]),
        (":info", ":cas", [1, 2]),
    ]  # fmt: skip
    assert [row["index"] for row in rows] == list(range(len(rows)))


def test_a_commit_is_a_transaction_that_reads_what_it_expects_and_writes_the_next_version() -> None:
    rows = parsed(to_edn(rw_register(HAND_MADE)))
    x = 'an "x"\n'
    assert [(row["type"], row["value"]) for row in rows][:6] == [
        (":invoke", [[":r", x, None]]), (":ok", [[":r", x, None]]),
        (":invoke", [[":r", x, None], [":w", x, 1]]), (":ok", [[":r", x, None], [":w", x, 1]]),
        (":invoke", [[":r", x, None], [":w", x, 1]]), (":fail", [[":r", x, None], [":w", x, 1]]),
    ]  # fmt: skip
    assert {row["f"] for row in rows} == {":txn"}
    assert (rows[-1]["type"], rows[-1]["value"]) == (":info", [[":r", x, None], [":w", x, 2]])


def test_a_version_that_a_relay_may_have_made_has_a_writer_of_unknown_outcome() -> None:
    spawned = Witness([*HAND_MADE.operations, operation(9, "relay.spawn", {}, {"seqs": [1]})])
    child = Witness([operation(0, "store.load", {"execution": "c"}, {"version": 1}), spawned.operations[-1]])
    infos = [row for row in cas_register(child, "c") if row["type"] == "info"]
    assert [(row["f"], row["value"]) for row in infos] == [("cas", [0, 1])]
    infos = [row for row in rw_register(child) if row["type"] == "info"]
    assert [row["value"] for row in infos] == [[["w", "c", 1]]]


@pytest.mark.parametrize("model", ["cas", "rw"])
def test_a_recorded_run_exports_to_processes_with_one_operation_at_a_time(model: str) -> None:
    witness = Witness(recording("store").operations)
    lines = cas_register(witness, executions(witness)[0]) if model == "cas" else rw_register(witness)
    rows = parsed(to_edn(lines))
    assert len(rows) > 100
    assert [row["index"] for row in rows] == list(range(len(rows)))
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
    pending: set[int] = set()
    gone: set[int] = set()
    for row in rows:
        if row["type"] == ":invoke":
            assert row["process"] not in pending | gone
            pending.add(row["process"])
        else:
            pending.remove(row["process"])
            if row["type"] == ":info":
                gone.add(row["process"])
    assert not pending
    assert [{**row} for row in json.loads(to_json(lines))] == lines


def test_the_command_writes_what_was_asked_for(tmp_path: Path) -> None:
    unpack("store", tmp_path)
    run = CliRunner().invoke(main, ["export", str(tmp_path), "--model", "rw-register", "--form", "json"])
    assert (run.exit_code, run.stdout) == (0, "")
    assert json.loads((tmp_path / "exported" / "rw-register.json").read_text())[0]["f"] == "txn"
    target = ["--model", "cas-register", "--most", "3", "--to", str(tmp_path / "to")]
    assert CliRunner().invoke(main, ["export", str(tmp_path), *target]).exit_code == 0
    assert len(list((tmp_path / "to").glob("cas-register-*.edn"))) == 3


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("store", ["--model", "rw-register", "--execution", "x"], "goes with --model cas-register"),
        ("store", ["--model", "cas-register", "--execution", "nobody"], "nothing was done to an execution"),
        ("mixed", ["--model", "rw-register"], "has no executions"),
        (None, ["--model", "operations"], "holds no history"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_a_sentence(
    name: str | None, arguments: list[str], said: str, tmp_path: Path
) -> None:
    if name is not None:
        unpack(name, tmp_path)
    run = CliRunner().invoke(main, ["export", str(tmp_path), *arguments])
    assert run.exit_code == 2
    assert said in run.stderr
    assert "Traceback" not in run.stderr


def test_the_help_shows_an_example() -> None:
    assert (
        "python -m invariants export results/runs/" in CliRunner().invoke(main, ["export", "--help"]).stdout
    )
