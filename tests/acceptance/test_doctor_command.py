"""`python -m stress doctor`, as a person starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from engine.postgres import Server


def doctor(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stress", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ, **env})


def test_a_machine_that_runs_these_tests_is_well_and_every_check_is_told(server: Server) -> None:
    told = doctor("--pg", f"dsn:{server.admin_dsn or server.dsn}", "--json")
    assert told.returncode == 0, told.stdout + told.stderr
    findings = {each["check"]: each for each in json.loads(told.stdout)["checks"]}
    assert set(findings) >= {
        "python", "encoding", "account", "cores", "memory", "open files", "processes", "disk: servers",
        "disk: downloads", "disk: results", "disk: temporary", "loopback", "postgres: embedded", "postgres: versions",
        "postgres: cached", "postgres: system", "containers", "server", "logical replication", "clock",
    }  # fmt: skip
    assert findings["logical replication"]["state"] == findings["loopback"]["state"] == "ok"
    assert f"PostgreSQL {server.version_text} (dsn)" in findings["server"]["found"]


def test_what_is_missing_is_named_with_what_to_do_and_ends_with_3() -> None:
    told = doctor("--pg", "dsn:postgresql://127.0.0.1:1/none", PGREFEREE_RUN_DIR="/dev/null/nowhere")
    assert told.returncode == 3
    words = " ".join(told.stdout.split())
    assert "set PGREFEREE_RUN_DIR to one where that works" in words
    assert "Connection refused → give another with --pg" in words
    assert told.stdout.endswith("doctor: mend what failed first\n")
    assert "Traceback" not in told.stderr
