"""Whatever a person gets wrong on a command line is answered with status 2 and one sentence that says what to do."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from engine.__main__ import engine
from engine.front_door import Door
from invariants.__main__ import main as invariants
from models.commands import command as models
from results.__main__ import results
from stress.__main__ import stress
from stress.reference import leaves

ROOMS: dict[str, click.Command] = {
    "stress": stress,
    "invariants": invariants,
    "results": results,
    "engine": engine,
    "models": models("python -m models", {}),
}
# What stands for the file or folder of that kind.
EMPTY, NONSENSE, FOLDER, NOWHERE = "{EMPTY}", "{NONSENSE}", "{FOLDER}", "/nowhere/at/all"
DSN = "postgresql://127.0.0.1:1/none"

# words: what the sentence must hold
WRONG: dict[str, str] = {
    "stress nothing": "No such command 'nothing'",
    "stress run --bogus": "No such option '--bogus'",
    "stress run extra": "unexpected extra argument",
    "stress run --pg 12": "use a major version from 13 to 18",
    "stress run --pg nonsense": "use embedded, 13 to 18",
    "stress run --pg system:99": "use a major version from 13 to 18",
    "stress run --pg container:": "container:18",
    "stress run --pg dsn:postgresql://u:p@ss@h/d": "percent-encoded",
    "stress run --pg 15 --pg 16": "--pg may be given several times for: store, statechart",
    "stress run --seconds 0": "must be 1 to 86400, not 0",
    "stress run --seconds nan": "must be 1 to 86400, not nan",
    "stress run --seconds soon": "not a valid float",
    "stress run --nodes 0": "must be 1 to 64, not 0",
    "stress run --nodes 65": "must be 1 to 64, not 65",
    "stress run --seed x": "not a valid integer",
    "stress run --faults nope": "choose from: cancel, crash",
    "stress run --faults kill,,pause": "there is no fault ''",
    "stress run --faults kil": "did you mean 'kill'?",
    "stress run --faults crash --pg dsn:postgresql://h/d": "leave it out, or use another --pg",
    "stress run --scenario mixxed": "did you mean 'mixed'?",
    "stress run --subject nope": "choose from: absurd",
    "stress run --mutant outcome-ungarded": "did you mean 'outcome-unguarded'?",
    "stress run --mutant outcome-unguarded --scenario store": "use one of mixed, signals",
    "stress run --mutant outbox-outside --scenario mixed": "use one of store, statechart",
    "stress run --profile nope": "'run', 'ci', 'soak'",
    "stress run --minutes 3": "--minutes is for --profile soak",
    "stress run --profile soak --minutes 0": "must be above 0",
    "stress run --profile soak --minutes nan": "must be above 0",
    "stress run --profile soak --until-violated": "leave it out",
    "stress run --profile ci --seconds 3": "leave it out",
    "stress run --profile ci --scenario store": "leave it out",
    "stress run --profile ci --pg 15 --pg 16": "give --pg once",
    f"stress run --resume {NOWHERE}": "holds no soak",
    "stress run --judge-seconds -1": "not in the range",
    "stress run --judge-seconds nan": "nan is no amount",
    f"stress run --out {EMPTY}": "give one with --out that can be written to",
    f"stress run --junit {NOWHERE}": "make it first",
    f"stress run --summary {FOLDER}": "is a directory",
    "stress explore --race lost-wakeups": "did you mean 'lost-wakeup'?",
    "stress explore --race nothing-like-it": "choose from: ",
    "stress explore --mutant nope": "there is no mutant 'nope'",
    "stress explore --schedules 0": "not in the range",
    "stress explore --seconds nan": "nan is no amount",
    "stress explore --workers 0": "not in the range",
    "stress explore --seed -1": "not in the range",
    "stress explore --pg 12": "use a major version from 13 to 18",
    f"stress explore --race lost-wakeup --out {EMPTY}": "give one with --out that can be written to",
    "stress replay": "Missing argument 'FILE'",
    f"stress replay {NOWHERE}": "cannot be read",
    f"stress replay {FOLDER}": "cannot be read",
    f"stress replay {EMPTY}": "is no schedule",
    f"stress replay {EMPTY} --html {NOWHERE}": "make it first",
    f"stress replay {NONSENSE}": "is no schedule",
    "stress fuzz --machine nope": "is not one of",
    "stress fuzz --seconds 0": "not in the range",
    "stress fuzz --seconds nan": "nan is no amount",
    "stress fuzz --pg 12": "use a major version from 13 to 18",
    "models --profile nope": "is not one of",
    "models extra": "unexpected extra argument",
    "stress mutants --only outcome-ungarded": "did you mean 'outcome-unguarded'?",
    "stress mutants --only zzz": "--list shows them",
    "stress mutants --instrument nope": "is not one of",
    "stress mutants --workers 0": "not in the range",
    "stress mutants --pg 12": "use a major version from 13 to 18",
    f"stress mutants --resume {NOWHERE}": "does not exist",
    f"stress mutants --resume {NONSENSE}": "is no verdict of a run of mutants",
    f"stress mutants --document {NOWHERE}": "make it first",
    f"stress mutants --out {EMPTY}": "give one with --out that can be written to",
    "stress ablate --rounds 0": "not in the range",
    "stress ablate --pg 12": "use a major version from 13 to 18",
    f"stress ablate --again {NONSENSE}": "is no ablation.json",
    f"stress ablate --out {EMPTY}": "give one with --out that can be written to",
    "stress figures --profile nope": "is not one of",
    "stress figures --pg 12": "use a major version from 13 to 18",
    f"stress figures --out {FOLDER}": "is a directory",
    f"stress figures --out {NOWHERE}": "make it first",
    "stress doctor --pg 12": "use a major version from 13 to 18",
    "stress doctor extra": "unexpected extra argument",
    "stress bench --pg 12": "use a major version from 13 to 18",
    "stress bench --repetitions 0": "not in the range",
    "stress time": "Missing argument 'SUBJECT'",
    f"results bench {NOWHERE}": "give the folder of one",
    "invariants check": "Missing argument 'RUN'",
    f"invariants check {NOWHERE}": "is no folder",
    f"invariants check {EMPTY}": "is no folder",
    f"invariants check {FOLDER}": "holds no run",
    f"invariants check {FOLDER} --judge-seconds nan": "nan is no amount",
    f"invariants export {FOLDER}": "Missing option '--model'",
    f"invariants export {NOWHERE} --model operations": "is no folder",
    f"invariants export {FOLDER} --model operations": "holds no history",
    f"invariants export {FOLDER} --model operations --execution x": "goes with --model cas-register",
    "invariants list extra": "unexpected extra argument",
    "results report": "say which run",
    f"results report {NOWHERE}": "/nowhere/at/all",
    f"results report {FOLDER}": "verdict.json",
    f"results report --all {NOWHERE}": "/nowhere/at/all",
    "results report --all a b": "one folder of runs",
    "results plans capture --pg 12": "use a major version from 13 to 18",
    "results plans capture --profile nope": "is not one of",
    f"results plans capture --sql {FOLDER}": "go together",
    f"results plans capture --seed {EMPTY}": "with them",
    "results plans capture --under nope": "give all, or some of",
    "results plans capture --repetitions 0": "not in the range",
    f"results plans capture --pg embedded --out {EMPTY}": "is a file",
    "results plans compare 18": "Missing argument 'B'",
    "results plans compare 17 12": "no major version from 13 to 18",
    "results plans compare 17 no-such-revision:18": "no-such-revision",
    f"results plans compare {FOLDER} 18": "capture.json",
    f"results plans compare 17 18 --markdown {NOWHERE}": "make it first",
    f"results plans compare 17 18 --explanations {NONSENSE}": "nonsense.json",
    "engine postgres --pg 12": "use a major version from 13 to 18",
    "engine postgres --profile nope": "is not one of",
    "engine postgres --keep": "use keep with --pg dsn:",
    "engine node": "Missing argument",
    "engine node json:loads": "set PGREFEREE_DSN or give --dsn",
    f"engine node json --dsn {DSN}": "write it as module:name",
    f"engine node no_such_module:X --dsn {DSN}": "cannot be imported",
    f"engine node json:loads --dsn {DSN}": "is not a Machine class",
    f"engine node json:nothing --dsn {DSN}": "is not a Machine class",
    f"engine node stress.scenarios.mailbox:Mailbox --dsn {DSN} --queue a:b": "name:concurrency",
    f"engine node stress.scenarios.mailbox:Mailbox --dsn {DSN} --queue a:0": "must be 1 to",
    f"engine node stress.scenarios.mailbox:Mailbox --dsn {DSN} --lease-ms nan": "must be positive and finite",
}


def called(words: str, folder: Path) -> Result:
    nonsense, empty = folder / "nonsense.json", folder / "empty.json"
    nonsense.write_text("no JSON, no TOML", encoding="utf-8")
    empty.write_text("{}", encoding="utf-8")
    (folder / "folder").mkdir()
    files = {EMPTY: str(empty), NONSENSE: str(nonsense), FOLDER: str(folder / "folder")}
    room, *arguments = (files.get(word, word) for word in words.split())
    return CliRunner().invoke(
        ROOMS[room], arguments, prog_name=f"python -m {room}", env={"PGREFEREE_DSN": None}
    )


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_argument_is_one_sentence_and_status_2(words: str, tmp_path: Path) -> None:
    told = called(words, tmp_path)
    assert told.exit_code == 2, told.output
    assert told.stdout == ""
    usage, error, sentence = re.split(r"^([Ee]rror: )", told.stderr, maxsplit=1, flags=re.MULTILINE)
    assert WRONG[words] in sentence
    # click says how the command is used, and where its help is; our own sentences stand alone.
    assert usage.startswith("Usage: ") if error == "Error: " else not usage
    assert "Traceback" not in told.output


def commands() -> Iterator[tuple[str, click.Command]]:
    yield from leaves()


def test_every_command_is_given_something_wrong() -> None:
    asked = {words for line in WRONG for words in (line.rsplit(" ", n)[0] for n in range(8))}
    assert {words for words, _ in commands() if words != "invariants record"} <= asked | set(WRONG)


def test_a_recorder_that_is_given_nonsense_says_so_on_its_channel() -> None:
    # Its parent is a program: it is answered in the form that it reads.
    command = [sys.executable, "-m", "invariants", "record"]
    told = subprocess.run(command, input=b"nonsense\n", capture_output=True, timeout=60)
    assert told.returncode == 2
    assert json.loads(told.stdout)["event"] == "failed"
    assert told.stderr == b""


@pytest.mark.parametrize("words", [words for words, _ in commands()])
def test_every_help_has_an_example_and_the_exit_status(words: str) -> None:
    command = dict(commands())[words]
    shown = CliRunner().invoke(command, ["--help"]).stdout
    assert re.search(r"^ +(nox -s|python -m|echo|export) ", shown, re.MULTILINE), shown
    assert "Exit status: 0" in " ".join(shown.split())
    undescribed = [
        parameter.name
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.help
    ]
    assert undescribed == []


def test_every_command_answers_for_its_errors() -> None:
    def groups(command: click.Command) -> Iterator[click.Command]:
        if isinstance(command, click.Group):
            yield command
            for each in command.commands.values():
                yield from groups(each)

    assert all(isinstance(group, Door) for room in ROOMS.values() for group in groups(room))
