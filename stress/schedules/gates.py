"""Gates: how a session is stopped inside of a statement, after its snapshot and before its first row.

Rules:

1. A gate is a statement-level BEFORE trigger on every table. It fires when the statement's snapshot has been taken and
   no row was touched, and it is in no plan. For a statement whose first lock is that of a SELECT no trigger fires in
   time; there `with_gate` puts a call in front of the WHERE of the first locking scan, which is computed once, before
   the scan. That is the one thing it adds to the plan (`tests/integration/test_schedule_gates.py`).
2. A session stops at its gate when its setting `gate.number` names one, once a statement: a NOTICE tells the controller
   that it has come there, and an advisory lock that the controller holds keeps it until it is let through.
3. A gate is two locks, of which the controller holds one at least. A session stops at one that is held: the NOTICE says
   at which. To let it through, the controller takes the other, which the session is done with, and gives up this one;
   the session may come to the next stop of its statement at once, and finds the other. Nobody waits for a hand-over.
4. A row gate stops it once more, before it writes the row (by id, identity, key, name or target) that its setting
   `gate.row` names: between two rows of one statement. It is a row trigger, which changes when a row is locked, so only
   races that ask for it have it.
5. A function of several statements has a snapshot for each. A session whose setting `gate.deep` is on stops in front
   of those of `INNER` as well, also more than once in a call; only races that ask for it have that.
6. Gates exist in databases of the harness only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

from engine.statements import AREAS, Catalogue, Statement, load_migrations

# The advisory locks of gate n are (GATES, 2 * n) and (GATES, 2 * n + 1); "gate" in ASCII.
GATES: Final = 0x67617465
NOTICE: Final = "pgreferee: at lock "

FUNCTIONS: Final = f"""
CREATE FUNCTION schedule_gate() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    number text := current_setting('gate.number', true);
BEGIN
    IF number <> '' AND current_setting('gate.passed', true) IS DISTINCT FROM statement_timestamp()::text THEN
        PERFORM set_config('gate.passed', statement_timestamp()::text, false);
        PERFORM schedule_stop(number::integer);
    END IF;
    RETURN true;
END $$;
CREATE FUNCTION schedule_inner() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF current_setting('gate.deep', true) = 'on' THEN
        PERFORM schedule_stop(current_setting('gate.number')::integer);
    END IF;
END $$;
CREATE FUNCTION schedule_stop(number integer) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    lock integer := 2 * number;
BEGIN
    -- The lock that it went through last is open still.
    IF pg_try_advisory_lock_shared({GATES}, lock) THEN
        PERFORM pg_advisory_unlock_shared({GATES}, lock);
        lock := lock + 1;
    END IF;
    RAISE NOTICE '{NOTICE}%', lock;
    PERFORM pg_advisory_lock_shared({GATES}, lock);
    PERFORM pg_advisory_unlock_shared({GATES}, lock);
END $$;
CREATE FUNCTION schedule_gate_statement() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM schedule_gate();
    RETURN NULL;
END $$;
CREATE FUNCTION schedule_gate_row() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    met jsonb := CASE WHEN TG_OP = 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;
BEGIN
    IF current_setting('gate.row', true) IN (
        met ->> 'id', met ->> 'correlation_key', met ->> 'key', met ->> 'name', met ->> 'target_id'
    ) THEN
        PERFORM schedule_stop(current_setting('gate.number')::integer);
    END IF;
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;
"""
ROW_GATED: Final = ("gen_durable", "gen_durable_buckets", "gen_durable_bucket_configs", "outbox")
ROW_GATE: Final = "".join(
    f"CREATE TRIGGER schedule_row BEFORE INSERT OR UPDATE OR DELETE ON {table} "
    "FOR EACH ROW EXECUTE FUNCTION schedule_gate_row(); "
    for table in ROW_GATED
)
NO_ROW_GATE: Final = "".join(f"DROP TRIGGER IF EXISTS schedule_row ON {table}; " for table in ROW_GATED)

# By function, the statements in it before which a session may stop: between a look at a group and its lock, between
# that lock and what it is for. None of them stands where the one before is asked whether it FOUND anything.
INNER: Final[Mapping[str, tuple[str, ...]]] = {
    "transport_publish": ("IF wanted = (",),
    "transport_remove": ("PERFORM FROM transport_groups AS g", "DELETE FROM transport_groups AS g"),
    "transport_claim": ("PERFORM FROM transport_groups AS g",),
}
# What stands among the tables for the time of day: leases are compared with it and written from it, so the order of
# two looks at it matters as that of two changes does.
CLOCK: Final = "clock"
_INNER_CALL: Final = "PERFORM schedule_inner();\n"

_LOCK = re.compile(r"\bFOR (?:NO KEY )?UPDATE\b|\bFOR (?:KEY )?SHARE\b", re.IGNORECASE)
_MAIN = re.compile(r"^(SELECT|UPDATE|INSERT|DELETE)\b", re.MULTILINE | re.IGNORECASE)
_CALL = "(SELECT schedule_gate())"


def triggers(tables: Iterable[str]) -> str:
    """The statements that put a gate before every table."""
    return "".join(
        f"CREATE TRIGGER schedule_gate BEFORE INSERT OR UPDATE OR DELETE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION schedule_gate_statement();\n"
        for table in tables
    )


def with_inner_gates(name: str, definition: str) -> str:
    """A function's definition with the stops of `INNER`. Of a mutant's, those that it has left."""
    for statement in INNER[name]:
        definition = definition.replace(statement, f"{_INNER_CALL}{statement}")
    return definition


def needs_call(statement: Statement) -> bool:
    """Whether the first lock is taken by a scan that no trigger comes before."""
    main = _MAIN.findall(statement.text)
    return bool(main) and main[-1].upper() == "SELECT" and _LOCK.search(statement.text) is not None


def with_gate(statement: Statement) -> str:
    """The text of such a statement with a gate. Raises ValueError where there is no place for one."""
    text = statement.text
    lock = _LOCK.search(text)
    if lock is None:
        raise ValueError(f"{statement.name} locks nothing")
    where, tail = _places(text[: lock.start()])
    if where is not None:
        return f"{text[:where]}WHERE {_CALL} AND {text[where + len('WHERE') :].lstrip()}"
    at = lock.start() if tail is None else tail
    return f"{text[:at]}WHERE {_CALL}\n    {text[at:]}"


def _places(text: str) -> tuple[int | None, int | None]:
    """The last WHERE that is in no more parentheses than the text's end; and where a clause begins that would come
    after a WHERE, in the query that the text ends in."""
    depth = 0
    wheres: dict[int, int] = {}
    tails: dict[int, int | None] = {}
    for match in re.finditer(r"[()]|\bWHERE\b|\bORDER BY\b|\bLIMIT\b", text, re.IGNORECASE):
        if match[0] == "(":
            depth += 1
            tails[depth] = None
        elif match[0] == ")":
            depth -= 1
        elif match[0].upper() == "WHERE":
            wheres[depth] = match.start()
        elif tails.get(depth) is None:
            tails[depth] = match.start()
    return wheres.get(depth), tails.get(depth)


def gated(catalogue: Catalogue) -> Catalogue:
    """The catalogue with gates where triggers do not reach."""
    return catalogue.patched(
        {name: with_gate(statement) for name, statement in catalogue.items() if needs_call(statement)}
    )


def touched(statement: Statement, tables: Iterable[str]) -> frozenset[str]:
    """The tables that a statement names, or a function that it calls, and `CLOCK`; a deletion also those that hang on
    its target by a foreign key."""
    text = _whole(statement)
    names = set(re.findall(r"\w+", text))
    found = {table for table in tables if table in names}
    if "DELETE FROM gen_durable AS" in text:
        found |= {"signals", "signal_receipts"}
    if "transport_clock" in names:
        found.add(CLOCK)
    return frozenset(found)


def calls_function(statement: Statement) -> bool:
    """Whether it calls a function of the engine's that works on tables: the gate of its first change comes when other
    statements of that function have locked rows."""
    return _whole(statement) != statement.text


def only_reads(statement: Statement) -> bool:
    """Whether it neither locks nor changes a row."""
    text = _whole(statement)
    return (
        _LOCK.search(text) is None and re.search(r"\b(UPDATE|INSERT|DELETE)\b", text, re.IGNORECASE) is None
    )


def _whole(statement: Statement) -> str:
    return _with_functions(statement.text)


@cache
def _with_functions(whole: str) -> str:
    """A statement's text with those of the functions that it calls, and that they call."""
    todo = [whole]
    bodies = dict(_functions())
    while todo:
        text = todo.pop()
        for name in [name for name in bodies if re.search(rf"\b{name}\(", text)]:
            todo.append(bodies.pop(name))
            whole += todo[-1]
    return whole


@cache
def _functions() -> tuple[tuple[str, str], ...]:
    """The engine's functions by name, as the last migration that has one makes it. A mutant's name the same tables."""
    found = {}
    for area in AREAS:
        for migration in load_migrations(area):
            for match in re.finditer(
                r"CREATE (?:OR REPLACE )?FUNCTION (\w+)\(.*?\$\$(.*?)\$\$;", migration.text, re.DOTALL
            ):
                found[match[1]] = match[2]
    return tuple(found.items())
