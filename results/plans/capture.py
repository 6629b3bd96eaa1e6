"""Explain every statement of the catalogue on a seeded database; the thin edge of the room.

A statement is prepared with the types of its casts and executed with real arguments, in a session with the engine's
settings and a transaction that is rolled back, first with a custom plan and then with the generic one. Each is run once
to warm up and then `repetitions` times; the run with the median of buffers is kept. What a rolled-back run leaves is
vacuumed before the next statement, for dead rows and pages that are no longer all visible would be counted for it.

Functions in PL/pgSQL hide their statements from EXPLAIN. Where the server has auto_explain and lets this role load it,
they are captured through it (`log_nested_statements`), one plan for each text: the costliest run. Where it does not,
`Captured.functions` says so, and only the call's own buffers and WAL are known.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec
import psycopg
from psycopg import sql

from engine import sessions
from engine.schema import migrate
from engine.statements import AREAS, Catalogue, Statement, load_migrations
from results.plans import profiles, sample
from results.plans.arguments import CASES, Case
from results.plans.folder import MODES, Captured, Environment, Explained, Index, Inner, Mode, Table
from results.plans.profiles import Profile
from results.plans.sample import Sample
from results.plans.tree import CHANGES, Node, NoPlan, Plan, anonymous, blanked, parse, shape, walk

# What decides what a statement is asked with, and what is kept of the answer.
ASKED_BY: Final = ("arguments.py", "sample.py", "capture.py", "kept.py", "tree.py")
STATEMENT_TIMEOUT_MS: Final = 120_000
# Inner statements of one call that are read: a runaway loop must not fill the memory.
MAX_NOTICES: Final = 20_000
EXPLAIN: Final = "EXPLAIN (ANALYZE, BUFFERS, WAL, SETTINGS, TIMING OFF, FORMAT JSON)"
AUTO_EXPLAIN: Final = {
    "log_min_duration": "0",
    "log_analyze": "on",
    "log_buffers": "on",
    "log_wal": "on",
    "log_timing": "off",
    "log_nested_statements": "on",
    "log_format": "json",
    "log_level": "notice",
}
# Settings of the session that a capture makes itself, whatever the server's are.
SESSION: Final = {
    "jit": "off",
    "statement_timeout": str(STATEMENT_TIMEOUT_MS),
    "client_min_messages": "warning",
}

# Of whatever schema; EXPLAIN names tables without it, and so do these.
_TABLES: Final = """
SELECT n.nspname, c.relname, c.relpages FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname <> 'information_schema' AND n.nspname !~ '^pg_' AND c.relkind IN ('r', 'm') ORDER BY 2, 1
"""
_INDEXES: Final = """
SELECT c.relname, t.relname, coalesce(pg_get_expr(i.indpred, i.indrelid), '')
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_class AS t ON t.oid = i.indrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname <> 'information_schema' AND n.nspname !~ '^pg_' ORDER BY 1
"""
_CHANGED: Final = """
SELECT n.nspname, c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname <> 'information_schema' AND n.nspname !~ '^pg_' AND c.relkind IN ('r', 'p')
AND c.relname = ANY (%s) ORDER BY 2, 1
"""
_SETTINGS: Final = """
SELECT name, current_setting(name) FROM pg_settings
WHERE (category LIKE 'Query Tuning%' OR name IN ('work_mem', 'shared_buffers', 'full_page_writes', 'block_size'))
AND name <> 'plan_cache_mode' ORDER BY 1
"""
_FUNCTIONS: Final = """
SELECT DISTINCT p.proname FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
JOIN pg_namespace AS n ON n.oid = p.pronamespace
WHERE n.nspname <> 'information_schema' AND n.nspname !~ '^pg_' AND l.lanname = 'plpgsql' ORDER BY 1
"""

Tick = Callable[[str], None]


def create(dsn: str) -> None:
    """Migrate an empty database, and leave it vacuumed. Background vacuuming is off there, for it would come in
    between."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for area in AREAS:
            migrate(connection, area)
        for (table,) in connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        ).fetchall():
            connection.execute(
                sql.SQL("ALTER TABLE {} SET (autovacuum_enabled = off)").format(sql.Identifier(table))
            )
        connection.execute("VACUUM (ANALYZE)")


def fill(dsn: str, profile: Profile, *, analysed: bool = True) -> None:
    """Fill a created database, and leave it vacuumed and analysed, or as the inserts left it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        profiles.fill(connection, profile)
        if analysed:
            connection.execute("VACUUM (ANALYZE)")


def empty(dsn: str) -> None:
    """Delete all rows. Statistics, plans and pages stay as they are."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for (table,) in connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'pgreferee_migrations'"
        ).fetchall():
            connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))


def prepare(dsn: str, profile: Profile) -> None:
    """Create and fill."""
    create(dsn)
    fill(dsn, profile)


def key_of(
    statement: Statement, label: str, profile: Profile, version: str, settings: Mapping[str, str]
) -> str:
    """A hash of all that a statement's plans depend on: while it stays, there is nothing to capture anew."""
    schema = [migration.text for area in AREAS for migration in load_migrations(area)]
    seeds = [profiles.seed_text(name) for name in profiles.SEEDS]
    parts = [statement.text, label, repr(profile), version, sorted(settings.items()), schema, seeds, _asked()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


@cache
def _asked() -> list[str]:
    return [(files("results.plans") / name).read_text("utf-8") for name in ASKED_BY]


class Session:
    """One connection to a seeded database, which explains statements there and changes nothing. `settings`: what a
    session of the engine begins with; empty for statements that are not the engine's."""

    def __init__(self, dsn: str, *, repetitions: int = 3, settings: str = sessions.SETTINGS) -> None:
        # Psycopg's own prepared statements would take ours along when they are discarded.
        self.connection = psycopg.connect(dsn, autocommit=True, prepare_threshold=None)
        self.repetitions = repetitions
        self._notices: list[str] = []
        self._dirty: set[str] = set()
        if settings:
            self.connection.execute(settings.encode())
        for name, value in SESSION.items():
            self.set(name, value)
        self._plpgsql = tuple(row[0] for row in self.connection.execute(_FUNCTIONS).fetchall())
        self._why_no_inner = self._load_auto_explain()
        self.connection.add_notice_handler(self._note)

    def close(self) -> None:
        """End the session."""
        self.connection.close()

    def set(self, name: str, value: str) -> None:
        """A setting of this session."""
        self.connection.execute("SELECT set_config(%s, %s, false)", [name, value])

    def capture(self, statement: Statement, arguments: Sequence[Any], label: str, key: str) -> Captured:
        """Explain one statement in both modes. What the server refuses is `Captured.error`, in its words."""
        calls = [name for name in self._plpgsql if re.search(rf"\b{re.escape(name)}\s*\(", statement.text)]
        functions = (self._why_no_inner or "auto_explain") if calls else ""
        about = Captured(
            label=label, statement=statement.name, text=statement.text, key=key, functions=functions
        )
        self._clean()
        try:
            plans = {
                mode: self._explained(statement, arguments, mode, inner=functions == "auto_explain")
                for mode in MODES
            }
        except (psycopg.Error, NoPlan) as error:
            if self.connection.closed:
                raise
            self.connection.execute("ROLLBACK")
            return msgspec.structs.replace(about, error=str(error).strip().splitlines()[0])
        if calls:
            # What a function changes its call's plan does not show.
            self._dirty = {"*"}
        for explained in plans.values():
            self._dirty |= {node.relation for node in walk(explained.plan) if node.kind in CHANGES}
        return msgspec.structs.replace(about, plans=plans)

    def estimated(self, statement: Statement, arguments: Sequence[Any], mode: Mode) -> Node:
        """The plan alone, without running it."""
        given = [text for text in statement.encode(tuple(arguments)) if text is not None]
        with self._prepared(statement, mode) as execute:
            root = self.plan(execute(arguments), "EXPLAIN (FORMAT JSON)").root
        return blanked(root, given) if mode == "custom" else root

    def environment(
        self, *, source: str, profile: Profile, labels: Iterable[str], note: str = ""
    ) -> Environment:
        """What there is to say of the server and its data."""
        fetch = self.connection.execute
        return Environment(
            version=self.version(),
            major=self.connection.info.server_version // 10000,
            source=source,
            settings=self.settings(),
            profile=profile,
            repetitions=self.repetitions,
            tables={
                name: Table(self._count(schema, name), pages)
                for schema, name, pages in fetch(_TABLES).fetchall()
            },
            indexes={name: Index(table, predicate) for name, table, predicate in fetch(_INDEXES).fetchall()},
            labels=list(labels),
            note=note,
        )

    def version(self) -> str:
        """Such as `18.6`."""
        return str(self.connection.info.parameter_status("server_version")).split()[0]

    def settings(self) -> dict[str, str]:
        """What the planner reads."""
        return dict(self.connection.execute(_SETTINGS).fetchall())

    def _count(self, schema: str, table: str) -> int:
        # Not the statistics': a rolled-back insert is counted there.
        row = self.connection.execute(
            sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(schema, table))
        ).fetchone()
        return 0 if row is None else int(row[0])

    def _load_auto_explain(self) -> str:
        try:
            self.connection.execute("LOAD 'auto_explain'")
        except psycopg.Error as error:
            return f"not captured: {str(error).strip().splitlines()[0]}"
        return ""

    def _note(self, notice: psycopg.errors.Diagnostic) -> None:
        if len(self._notices) < MAX_NOTICES:
            self._notices.append(notice.message_primary or "")

    def _clean(self) -> None:
        if "*" in self._dirty:
            self.connection.execute("VACUUM (INDEX_CLEANUP TRUE, TRUNCATE FALSE)")
        else:
            for name in self.connection.execute(_CHANGED, [sorted(self._dirty)]).fetchall():
                self.connection.execute(
                    sql.SQL("VACUUM (INDEX_CLEANUP TRUE, TRUNCATE FALSE) {}").format(sql.Identifier(*name))
                )
        self._dirty = set()

    def _explained(
        self, statement: Statement, arguments: Sequence[Any], mode: Mode, *, inner: bool
    ) -> Explained:
        with self._prepared(statement, mode) as execute:
            line = execute(arguments)
            self.plan(line)
            runs = sorted((self.plan(line).root for _ in range(self.repetitions)), key=lambda n: n.buffers)
            given = [text for text in statement.encode(tuple(arguments)) if text is not None]
            plan = blanked(runs[len(runs) // 2], given) if mode == "custom" else runs[len(runs) // 2]
            return Explained(plan=plan, inner=self._inner(line) if inner else ())

    def plan(self, line: sql.Composable, explain: str = EXPLAIN) -> Plan:
        """What EXPLAIN says of an EXECUTE, in a transaction that is rolled back."""
        with self.connection.transaction(force_rollback=True):
            row = self.connection.execute(sql.SQL("{} {}").format(sql.SQL(explain), line)).fetchone()
        assert row is not None
        return parse(row[0])

    def _inner(self, line: sql.Composable) -> tuple[Inner, ...]:
        """The statements inside the functions, by text, in the order in which they first ran."""
        for name, value in AUTO_EXPLAIN.items():
            self.set(f"auto_explain.{name}", value)
        self.set("client_min_messages", "notice")
        self._notices.clear()
        try:
            with self.connection.transaction(force_rollback=True):
                self.connection.execute(line.as_bytes(self.connection))
        finally:
            self.set("client_min_messages", SESSION["client_min_messages"])
            self.set("auto_explain.log_min_duration", "-1")
        return gathered(self._notices)

    def _prepared(self, statement: Statement, mode: Mode) -> _Prepared:
        return _Prepared(self, statement, mode)


class _Prepared:
    """A prepared statement for the length of a block, in one plan cache mode."""

    def __init__(self, session: Session, statement: Statement, mode: Mode) -> None:
        self._session = session
        self._statement = statement
        self._mode = mode

    def __enter__(self) -> Callable[[Sequence[Any]], sql.Composable]:
        session, statement = self._session, self._statement
        session.connection.execute("DISCARD PLANS")
        session.set("plan_cache_mode", f"force_{self._mode}_plan")
        # In binary: that way the server takes one statement and no more.
        session.connection.execute(preparation("captured", statement).encode(), binary=True)
        return self._execute

    def __exit__(self, *_: object) -> None:
        if not self._session.connection.closed:
            self._session.connection.execute("DEALLOCATE captured")
            self._session.set("plan_cache_mode", "auto")

    def _execute(self, arguments: Sequence[Any]) -> sql.Composable:
        return execution("captured", self._statement.encode(tuple(arguments)))


def preparation(name: str, statement: Statement) -> str:
    """The PREPARE of a statement, with the types of its casts."""
    types = f" ({', '.join(statement.types)})" if statement.types else ""
    return f"PREPARE {name}{types} AS {statement.text}"


def execution(name: str, values: Sequence[Any]) -> sql.Composed:
    """The EXECUTE of a prepared statement."""
    if not values:
        return sql.SQL("EXECUTE {}").format(sql.Identifier(name))
    return sql.SQL("EXECUTE {} ({})").format(
        sql.Identifier(name), sql.SQL(", ").join(map(sql.Literal, values))
    )


def gathered(notices: Iterable[str]) -> tuple[Inner, ...]:
    """auto_explain's messages as one `Inner` a text; the outermost statement is left out. Pure."""
    found: dict[str, list[Node]] = {}
    for notice in notices:
        head, _, body = notice.partition("plan:\n")
        if not head.startswith("duration:"):
            continue
        told = json.loads(body)
        # Before 14, PL/pgSQL makes a query of each expression.
        text = " ".join(told["Query Text"].split()).removeprefix("SELECT ")
        if not text.upper().startswith(("EXECUTE CAPTURED", "PREPARE CAPTURED", "EXPLAIN")):
            found.setdefault(text, []).append(anonymous(parse([told]).root))
    return tuple(
        Inner(text=text, calls=len(plans), plan=max(plans, key=lambda plan: plan.buffers))
        for text, plans in found.items()
    )


def capture_all(
    session: Session,
    catalogue: Catalogue,
    profile: Profile,
    *,
    cases: Sequence[Case] = CASES,
    known: Mapping[str, Captured] | None = None,
    tick: Tick = lambda _: None,
) -> dict[str, Captured]:
    """Every case, by label; those in `known` are taken from there. Needs `prepare` to have been here."""
    there: Sample | None = None
    captured: dict[str, Captured] = {}
    version, settings = session.version(), session.settings()
    for case in cases:
        tick(case.label)
        if known and case.label in known:
            captured[case.label] = known[case.label]
            continue
        there = there or sample.read(session.connection, profile.rows, profile.batch)
        statement = catalogue[case.statement]
        key = key_of(statement, case.label, profile, version, settings)
        captured[case.label] = session.capture(statement, case.make(there), case.label, key)
    return captured


def with_ties(
    session: Session,
    catalogue: Catalogue,
    profile: Profile,
    captured: Mapping[str, Captured],
    cases: Sequence[Case] = CASES,
) -> dict[str, Captured]:
    """What was captured of the catalogue, `tied`."""
    there = sample.read(session.connection, profile.rows, profile.batch)
    return tied(
        session, captured, {case.label: (catalogue[case.statement], case.make(there)) for case in cases}
    )


def tied(
    session: Session, captured: Mapping[str, Captured], asked: Mapping[str, tuple[Statement, Sequence[Any]]]
) -> dict[str, Captured]:
    """What was captured, with the plans that a second ANALYZE brings where they are others (a tie of costs)."""
    session.connection.execute("ANALYZE")
    answer = dict(captured)
    for label, (statement, arguments) in asked.items():
        was = captured[label]
        plans = dict(was.plans)
        for mode in MODES:
            if mode not in was.plans:
                continue
            explained = was.plans[mode]
            again = session.estimated(statement, arguments, mode)
            if shape(again) != shape(explained.plan):
                plans[mode] = Explained(plan=explained.plan, inner=explained.inner, alternate=again)
        answer[label] = msgspec.structs.replace(was, plans=plans)
    return answer
