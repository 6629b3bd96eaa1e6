"""A failing schedule, carried elsewhere: a pytest file, and a `.spec` of Postgres's isolation tester. Pure.

The pytest file names the schedule and takes it in a lab on an embedded Postgres; it fails with the mutant named in it,
and passes when `MUTANT` is set to None.

The `.spec` holds the SQL that was sent, with its arguments as literals, in the order of the schedule. The isolation
tester stops a session between statements only, so the gates are part of the `.spec`: a session `gate` holds their
locks, opens the one at which a session stands, and closes the one behind it. Ids are those of the run: on an empty
database the sequences give the same ones.

A session that dies between two statements is terminated by a session `death`. The tester itself would end with one that
dies inside of a statement, so there the statement is cancelled: what it did is rolled back and its locks are gone, as
with the connection. What a `.spec` cannot say: which plan a prepared statement has, for arguments are literals there;
so a race that needs two plans of one statement may go another way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from stress.schedules.controller import STOPS, Step
from stress.schedules.gates import GATES
from stress.schedules.record import Schedule

# What a spec shows last: the rows that are left.
LEFT: Final = {
    "jobs": "SELECT id, status, locked_by, attempt, awaits, children_pending FROM gen_durable ORDER BY id",
    "inbox": "SELECT id, target_id, name FROM signals ORDER BY id",
    "counters": "SELECT kind, key, shard, capacity, available FROM gen_durable_buckets ORDER BY kind, key, shard",
}

_SESSIONS: Final = "CREATE TABLE spec_sessions (name text PRIMARY KEY, pid integer NOT NULL);"
_NOTE: Final = " INSERT INTO spec_sessions VALUES ('{session}', pg_backend_pid());"
_CANCEL: Final = "SELECT pg_cancel_backend(pid) FROM spec_sessions WHERE name = '{session}'"
# Dead is who is gone: its locks are, then.
_TERMINATE: Final = """
DO $$
DECLARE
    dying integer := (SELECT pid FROM spec_sessions WHERE name = '{session}');
    deadline timestamptz := clock_timestamp() + interval '10 s';
BEGIN
    PERFORM pg_terminate_backend(dying);
    WHILE EXISTS (SELECT FROM pg_stat_activity WHERE pid = dying) AND clock_timestamp() < deadline LOOP
        PERFORM pg_sleep(0.01);
        PERFORM pg_stat_clear_snapshot();
    END LOOP;
END $$
"""

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


def pytest_file(schedule: Schedule) -> str:
    """A test that fails with the schedule's mutant, and passes without."""
    title = f"{schedule.race}: {', '.join(schedule.violated) or 'held'}."
    text = msgspec.json.format(msgspec.json.encode(schedule), indent=2).decode()
    name = re.sub(r"\W+", "_", f"{schedule.race}_{schedule.mutant or 'sound'}")
    return _PYTEST.format(title=title, schedule=text, name=name)


def isolation_spec(
    schedule: Schedule,
    schema: Sequence[str],
    setup: Sequence[str],
    steps: Sequence[Step],
    planner: Mapping[str, str],
    told: Mapping[str, Mapping[str, str]],
) -> str:
    """The `.spec`: schema, gates and rows, a session with numbered steps each, and one permutation. `told`: settings of
    single sessions, beside the planner's."""
    sessions: dict[str, list[tuple[str, str]]] = {step.choice.session: [] for step in steps}
    gate: list[tuple[str, str]] = []
    deaths: list[tuple[str, str]] = []
    order: list[str] = []
    turns: dict[str, int] = {}
    armed: set[str] = set()
    opened: set[str] = set()
    numbers = {name: number for number, name in enumerate(sessions)}

    def do(session: str, sql: str, name: str) -> None:
        sessions[session].append((name, sql))
        order.append(name)

    for number, step in enumerate(steps, 1):
        session = step.choice.session
        word, stops = _word(session), step.came.endswith(STOPS)
        if step.choice.dies:
            if not sessions[session]:
                # It has not begun: nobody there sees it go.
                continue
            inside = number > 1 and _state(steps[number - 2], session) in ("gate", "blocked")
            deaths.append(
                (f"{word}_{number}_dies", (_CANCEL if inside else _TERMINATE).format(session=session))
            )
            order.append(f"{word}_{number}_dies")
        elif step.began:
            # Told to stop, or not to, by a step of its own: in one string with the statement it would come too late.
            if stops != (session in armed):
                value = str(numbers[session]) if stops else ""
                do(session, f"SET gate.number = '{value}'", f"{word}_{number}_{'stops' if stops else 'goes'}")
                armed ^= {session}
            for place, sql in enumerate(step.sql):
                do(session, sql, f"{word}_{number}" + (f"_{place + 1}" if len(step.sql) > 1 else ""))
        else:
            lock = 2 * numbers[session] + turns.get(session, 0)
            turns[session] = 1 - turns.get(session, 0)
            unlock = f"pg_advisory_unlock({GATES}, {lock})"
            behind = f"pg_advisory_lock({GATES}, {lock ^ 1}), " if session in opened else ""
            opened.add(session)
            gate.append((f"open_{number}", f"SELECT {behind}{unlock}"))
            order.append(f"open_{number}")
    locks = " ".join(f"SELECT pg_advisory_lock({GATES}, {lock});" for lock in range(2 * len(numbers)))
    lines = [
        f"# {schedule.race}, mutant {schedule.mutant or 'none'}: {', '.join(schedule.violated) or 'held'}",
        *(f"# {line}" for summary in schedule.summaries for line in summary.splitlines()),
        *(_block("setup", text) for text in (*schema, *([_SESSIONS] if deaths else []), *setup)),
        _block("teardown", "DROP SCHEMA public CASCADE; CREATE SCHEMA public;"),
    ]
    if gate:
        lines += [
            "session gate",
            _block("setup", locks),
            *(_block(f"step {name}", sql) for name, sql in gate),
        ]
    if deaths:
        lines += ["session death", *(_block(f"step {name}", sql) for name, sql in deaths)]
    for session, sent in sessions.items():
        if not sent:
            continue
        # Who waits last in a circle finds it, as in the run.
        quick = {"client_min_messages": "error", "deadlock_timeout": "10ms"}
        settings = {**quick, **planner, **told.get(session, {})}
        begins = " ".join(f"SET {name} = '{value}';" for name, value in settings.items())
        begins += _NOTE.format(session=session) if deaths else ""
        lines += [f"session {_word(session)}", _block("setup", begins)]
        lines += [_block(f"step {name}", sql) for name, sql in sent]
        lines.append(_block("teardown", "ROLLBACK"))
    lines += ["session after", *(_block(f"step {name}", sql) for name, sql in LEFT.items())]
    return "\n".join((*lines, f"permutation {' '.join((*order, *LEFT))}", ""))


def _state(step: Step, session: str) -> str:
    return next(state for name, state, _ in step.states if name == session)


def _block(what: str, text: str) -> str:
    """A block of the tester's language, which a brace would end: those in literals are written as escapes."""

    def escaped(match: re.Match[str]) -> str:
        inner = match[0]
        if "{" not in inner and "}" not in inner:
            return inner
        return "E" + inner.replace("\\", "\\\\").replace("{", "\\x7b").replace("}", "\\x7d")

    text = re.sub(r"--[^\n]*", "", text)
    text = re.sub(r"'(?:[^']|'')*'", escaped, text)
    return f"{what} {{\n{text.strip()}\n}}"


def _word(text: str) -> str:
    return re.sub(r"\W", "_", text)
