"""`python -m engine postgres`: what a person and a script see."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from engine.postgres import conninfo
from tests.integration.harness_process import traces

COMMAND = [sys.executable, "-m", "engine", "postgres"]


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], env={**os.environ, **env}, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_a_dsn_that_works_and_removes_everything_when_told_to_stop(number: signal.Signals) -> None:
    process = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    dsn = process.stdout.readline().strip()
    with psycopg.connect(dsn) as conn:
        assert conn.execute("SELECT 1").fetchone() == (1,)
    process.send_signal(number)
    rest, hints = process.communicate(timeout=30)
    assert process.returncode == 0
    assert rest == ""
    assert f"psql '{dsn}'" in hints
    assert "Traceback" not in hints
    assert traces({"socket_dir": conninfo.parse(dsn)["host"]}) == []


def test_json_is_all_that_standard_output_holds() -> None:
    process = subprocess.Popen(
        [*COMMAND, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    shown = json.loads(process.stdout.readline())
    assert shown["source"] == "embedded"
    assert shown["settings"]["fsync"] == "off"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[0] == ""


def test_the_list_says_for_each_major_version_whether_and_how() -> None:
    listed = json.loads(run("--list", "--json").stdout)
    assert [each["major"] for each in listed["majors"]] == [13, 14, 15, 16, 17, 18]
    for each in listed["majors"]:
        assert [way["source"] for way in each["ways"]] == ["npm", "embedded", "system", "container"]
        assert all(way["detail"] for way in each["ways"])
    assert listed["majors"][-1]["state"] == "ready", "the wheel is a dependency"
    table = run("--list").stdout
    for each in listed["majors"]:
        assert f"│ {each['major']} " in table


def test_the_list_works_where_nothing_can_be_had(tmp_path: Path) -> None:
    listed = run("--list", "--json", PGREFEREE_CACHE_DIR="/proc/no", DOCKER_HOST="tcp://127.0.0.1:1", PATH="")
    assert listed.returncode == 0, listed.stderr
    ways = {way["source"]: way for way in json.loads(listed.stdout)["majors"][0]["ways"]}
    assert (ways["npm"]["state"], ways["npm"]["detail"]) == ("unavailable", "npm is not installed")
    assert (ways["container"]["state"], ways["container"]["detail"]) == (
        "unavailable",
        "no container engine can be reached",
    )


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["--pg", "12"], 2, 'error: "12" names no supported Postgres: use a major version from 13 to 18\n'),
        (["--pg", "foo"], 2, None),
        (["--pg", "dsn:"], 2, None),
        (
            ["--keep"],
            2,
            "error: only the database on a server of your own can be kept: use keep with --pg dsn:...\n",
        ),
        (
            ["--pg", "dsn:postgresql://u:geheim@127.0.0.1:1/d"],
            3,
            "error: cannot connect to u@127.0.0.1:1/d: Connection refused\n",
        ),
        (["--pg", "dsn:postgresql://u:ge@heim@127.0.0.1:1/d"], 2, None),
        (["--pg", "container:no-such-image:1"], 3, None),
    ],
)
def test_what_does_not_work_ends_with_one_sentence_and_the_right_status(
    arguments: list[str], status: int, sentence: str | None
) -> None:
    result = run(*arguments, DOCKER_HOST="unix:///no/such/socket")
    assert result.returncode == status
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "heim" not in result.stderr
    if sentence is not None:
        assert result.stderr == sentence


def test_an_unknown_option_is_wrong_usage() -> None:
    assert run("--nonsense").returncode == 2
    assert run("--profile", "slow").returncode == 2
