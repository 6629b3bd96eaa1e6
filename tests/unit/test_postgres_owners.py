"""When an owner counts as dead: only when it certainly is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from engine.postgres.owners import Owner, current_owner, is_dead


def test_this_process_is_alive_and_survives_its_own_record() -> None:
    owner = Owner.from_object(json.loads(current_owner().to_json()))
    assert owner == replace(current_owner(), created=owner.created)
    assert not is_dead(owner, record_is_local=True)


@pytest.mark.parametrize(
    ("change", "local", "dead"),
    [
        ({"started": "1"}, True, True),  # the PID was given to another process
        ({"started": "1"}, False, True),
        ({"boot": "earlier"}, True, True),
        ({"boot": "earlier"}, False, False),
        ({"host": "elsewhere", "started": "1"}, True, False),
        ({"host": "elsewhere", "started": "1"}, False, False),
        ({"pid_namespace": "another container", "started": "1"}, True, False),
    ],
)
def test_doubt_means_alive(change: dict[str, str], local: bool, dead: bool) -> None:
    assert is_dead(replace(current_owner(), **change), record_is_local=local) is dead  # type: ignore[arg-type]


def test_a_zombie_is_dead() -> None:
    code = """
from engine.postgres.owners import current_owner
print(current_owner().to_json(), flush=True)
input()
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    owner = Owner.from_object(json.loads(process.stdout.readline()))
    assert not is_dead(owner, record_is_local=True)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, not yet collected
    assert is_dead(owner, record_is_local=True)
    process.wait(10)
    process.stdout.close()
    assert process.stdin is not None
    process.stdin.close()
    assert is_dead(owner, record_is_local=True)


@pytest.mark.parametrize(
    "value", [None, [], {}, {"pid": 1}, {**json.loads(current_owner().to_json()), "pid": "x"}]
)
def test_anything_else_is_no_owner(value: object) -> None:
    with pytest.raises(ValueError, match="not an owner"):
        Owner.from_object(value)
