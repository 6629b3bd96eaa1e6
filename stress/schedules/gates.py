"""Gates: how a session is stopped inside of a statement, after its snapshot and before its first row.

Rules:

1. A gate is a statement-level BEFORE trigger on every table. It fires when the statement's snapshot has been taken and
   no row was touched, and it is in no plan. For a statement whose first lock is that of a SELECT no trigger fires in
   time; there `with_gate` puts a call in front of the WHERE of the first locking scan, which is computed once, before
   the scan. That is the one thing it adds to the plan (`tests/integration/test_schedule_gates.py`).
2. A session stops at its gate when its setting `gate.number` names one, once a statement: a NOTICE tells the controller
   that it has come there, and an advisory lock that the controller holds keeps it until it is let through.
3. A gate is two locks, which a session meets in turn: while one is opened and closed again behind it, it may be at the
   next stop of its statement already. The NOTICE says at which lock it is.
4. A row gate stops it once more, before it writes the row (by id, identity, key or name) that its setting `gate.row`
   names: between two rows of one statement. It is a row trigger, which changes when a row is locked, so only races that
   ask for it have it.
5. Gates exist in databases of the harness only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from engine.statements import Catalogue, Statement

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
CREATE FUNCTION schedule_stop(number integer) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    turn integer := 1 - coalesce(nullif(current_setting('gate.turn', true), ''), '1')::integer;
    lock integer := 2 * number + turn;
BEGIN
    PERFORM set_config('gate.turn', turn::text, false);
    RAISE NOTICE '{NOTICE}%', lock;
    PERFORM pg_advisory_lock_shared({GATES}, lock);
    PERFORM pg_advisory_unlock_shared({GATES}, lock);
END $$;
CREATE FUNCTION schedule_open(lock integer, pid integer) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    deadline timestamptz := clock_timestamp() + interval '5 s';
BEGIN
    -- It has said that it comes, but may not wait yet.
    WHILE NOT pg_blocking_pids(pid) @> ARRAY[pg_backend_pid()] LOOP
        IF clock_timestamp() > deadline THEN
            RETURN false;
        END IF;
    END LOOP;
    PERFORM pg_advisory_unlock({GATES}, lock);
    -- Granted when the session has gone through: the gate is closed again behind it.
    PERFORM pg_advisory_lock({GATES}, lock);
    RETURN true;
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
    IF current_setting('gate.row', true) IN (met ->> 'id', met ->> 'correlation_key', met ->> 'key', met ->> 'name')
    THEN
        PERFORM schedule_stop(current_setting('gate.number')::integer);
    END IF;
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;
"""
ROW_GATED: Final = ("gen_durable", "gen_durable_buckets", "gen_durable_bucket_configs")
ROW_GATE: Final = "".join(
    f"CREATE TRIGGER schedule_row BEFORE INSERT OR UPDATE OR DELETE ON {table} "
    "FOR EACH ROW EXECUTE FUNCTION schedule_gate_row(); "
    for table in ROW_GATED
)
NO_ROW_GATE: Final = "".join(f"DROP TRIGGER IF EXISTS schedule_row ON {table}; " for table in ROW_GATED)

_LOCK = re.compile(r"\bFOR (?:NO KEY )?UPDATE\b|\bFOR (?:KEY )?SHARE\b")
_MAIN = re.compile(r"^(SELECT|UPDATE|INSERT|DELETE)\b", re.MULTILINE)
_CALL = "(SELECT schedule_gate())"


def triggers(tables: Iterable[str]) -> str:
    """The statements that put a gate before every table."""
    return "".join(
        f"CREATE TRIGGER schedule_gate BEFORE INSERT OR UPDATE OR DELETE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION schedule_gate_statement();\n"
        for table in tables
    )


def needs_call(statement: Statement) -> bool:
    """Whether the first lock is taken by a scan that no trigger comes before."""
    main = _MAIN.findall(statement.text)
    return bool(main) and main[-1] == "SELECT" and _LOCK.search(statement.text) is not None


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
    for match in re.finditer(r"[()]|\bWHERE\b|\bORDER BY\b|\bLIMIT\b", text):
        if match[0] == "(":
            depth += 1
            tails[depth] = None
        elif match[0] == ")":
            depth -= 1
        elif match[0] == "WHERE":
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
    """The tables that a statement names; a deletion also those that hang on its target by a foreign key."""
    names = set(re.findall(r"\w+", statement.text))
    found = {table for table in tables if table in names}
    if "DELETE FROM gen_durable AS" in statement.text:
        found |= {"signals", "signal_receipts"}
    return frozenset(found)


def only_reads(statement: Statement) -> bool:
    """Whether it neither locks nor changes a row."""
    return (
        _LOCK.search(statement.text) is None
        and re.search(r"\b(UPDATE|INSERT|DELETE)\b", statement.text) is None
    )
