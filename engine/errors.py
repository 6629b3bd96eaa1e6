"""Errors that end a command: one sentence for a person, one exit status for a script.

Every front door prints `error: <sentence>` and exits with `exit_code`; a traceback is for bugs only. The
sentence says what to do next and never holds a secret.
"""

from __future__ import annotations

from typing import ClassVar


class HarnessError(Exception):
    """An operating error with a sentence for a person and an exit status (architecture.md, "Front doors")."""

    exit_code: ClassVar[int]


class UsageError(HarnessError):
    """What was asked for cannot be meant: a bad argument, a bad config. Exit status 2."""

    exit_code = 2


class InfrastructureError(HarnessError):
    """What was asked for cannot be had here: no Postgres, no engine, no privilege. Exit status 3."""

    exit_code = 3
