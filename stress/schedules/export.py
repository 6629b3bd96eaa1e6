"""A failing schedule, carried elsewhere: a pytest file, and a `.spec` of Postgres's isolation tester. Pure.

The pytest file names the schedule and takes it in a lab on an embedded Postgres; it fails with the mutant named in it,
and passes when `MUTANT` is set to None.

The `.spec` holds the SQL that was sent, with its arguments as literals, in the order of the schedule. The isolation
tester stops a session between statements only, so a stop inside of a statement is written as its own pattern: the
session takes an advisory lock in front of the first row, in a trigger, which a `gate` session holds. Ids are those of
the run: setup and sequences are the same on an empty database.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from engine.statements import Statement
from stress.schedules.gates import GATES
from stress.schedules.record import Schedule

_PYTEST: Final = '''"""{title}

Taken from an exploration; `python -m stress replay` shows it as a table. Set MUTANT to None to see the engine hold.
"""

from __future__ import annotations

import msgspec
from engine.postgres import provision, signals_stop
from invariants.mutants import REGISTRY
from stress.schedules.lab import open_lab
from stress.schedules.record import Schedule
from stress.schedules.replay import replayed

SCHEDULE = msgspec.json.decode(
    r"""
{schedule}
""",
    type=Schedule,
)
MUTANT = SCHEDULE.mutant


def test_{name}() -> None:
    mutant = None if MUTANT is None else REGISTRY[MUTANT]
    with signals_stop(), provision("embedded") as server, open_lab(server, mutant) as lab:
        judged = replayed(lab, SCHEDULE)
    assert judged.violated == (), judged.summaries
'''


@dataclass(frozen=True, slots=True)
class Sent:
    """A statement as it was sent: by whom, at which step of the schedule; `stopped`: it stood at a gate before its
    first row until step `until`."""

    session: str
    step: int
    sql: str
    stopped: bool = False
    until: int = 0


def pytest_file(schedule: Schedule) -> str:
    """A test that fails with the schedule's mutant, and passes without."""
    title = f"{schedule.race}: {', '.join(schedule.violated) or 'held'}."
    text = msgspec.json.format(msgspec.json.encode(schedule), indent=2).decode()
    name = re.sub(r"\W+", "_", f"{schedule.race}_{schedule.mutant or 'sound'}")
    return _PYTEST.format(title=title, schedule=text, name=name)


def literal(statement: Statement, arguments: tuple[Any, ...]) -> str:
    """A statement with its arguments as literals, for a tool that knows no parameters."""
    encoded = statement.encode(arguments)

    def value(match: re.Match[str]) -> str:
        text = encoded[int(match[1]) - 1]
        return "NULL" if text is None else "'" + text.replace("'", "''") + "'"

    return re.sub(r"\$(\d+)\b", value, statement.text)


def isolation_spec(
    schedule: Schedule, schema: Sequence[str], setup: Sequence[str], sent: Sequence[Sent], settings: Mapping[str, str]
) -> str:
    """The `.spec`: schema and rows, a session with numbered steps each, and one permutation.

    A step that stood at a gate is followed by the `gate` session's step that opens it.
    """
    sessions: dict[str, list[tuple[str, str]]] = {}
    order: list[tuple[int, int, str]] = []
    opens: list[tuple[str, str]] = []
    gates: dict[str, int] = {}
    for number, one in enumerate(sent, 1):
        name = _word(f"{one.session}_{number}")
        gate = gates.setdefault(one.session, len(gates) + 1)
        sql = one.sql
        if one.stopped:
            sql = f"SET gate.number = {gate}; {sql}; RESET gate.number"
            opening = f"open_{number}"
            opens.append((opening, f"SELECT pg_advisory_unlock({GATES}, {gate})"))
            order.append((one.until, 0, opening))
        sessions.setdefault(one.session, []).append((name, sql))
        order.append((one.step, 1, name))
    lines = [
        f"# {schedule.race}, mutant {schedule.mutant or 'none'}: {', '.join(schedule.violated)}",
        *(f"# {line}" for summary in schedule.summaries for line in summary.splitlines()),
        "",
        "setup",
        _block("\n".join((*schema, *setup))),
        "",
        "teardown",
        _block("DROP SCHEMA public CASCADE; CREATE SCHEMA public;"),
    ]
    if gates:
        taken = " ".join(f"SELECT pg_advisory_lock({GATES}, {gate});" for gate in gates.values())
        lines += ["", "session gate", "setup", _block(taken)]
        lines += [f"step {name} {_block(sql)}" for name, sql in opens]
    for session, steps in sessions.items():
        told = " ".join(f"SET {name} = '{value}';" for name, value in settings.items())
        lines += ["", f"session {_word(session)}", *(["setup", _block(told)] if told else [])]
        lines += [f"step {name} {_block(sql)}" for name, sql in steps]
    names = " ".join(name for _, _, name in sorted(order))
    return "\n".join((*lines, "", f"permutation {names}", ""))


def _block(text: str) -> str:
    # A closing brace would end the block: none of the engine's SQL holds one but in array literals, which are quoted.
    return "{\n" + "\n".join(f"  {line}" for line in text.splitlines()) + "\n}"


def _word(text: str) -> str:
    return re.sub(r"\W", "_", text)
