"""The lab: a database with the schema and the gates, sessions that stay open, and a judge of what was committed.

One run after another takes place on the same tables, which are emptied in between; a row of `schedule_marks`, written
by the transaction that empties them, says in the write-ahead log where the next run begins. The log is read for many
runs at once and judged run by run, with the very rules of `invariants`, at every commit.

What a race's set-up leaves is kept for a while (`start`): the next runs begin with a copy of its rows, as they lay in
the tables, and are judged with the transactions and operations that made them. A schedule that is looked at by itself
runs its own set-up.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from engine.operation import Begin, Call, Commit, Operation
from engine.postgres import Server, fresh_database
from engine.schema import migrate
from engine.sessions import describe_error
from engine.statements import AREAS, Catalogue, load_migrations
from invariants.evidence import Evidence, LedgerSummary
from invariants.history.operations import Operation as Recorded
from invariants.judge import judge
from invariants.ledger.pgoutput import Decoder, Row, Transaction
from invariants.ledger.reader import Stream, create_slot, drop_slot
from invariants.mutants import Mutant
from invariants.verdict import Report
from stress.schedules.actions import TRACE_MAX, Action, Answer, World, variant_of
from stress.schedules.controller import Controller, Run, Uncontrolled
from stress.schedules.gates import FUNCTIONS, INNER, NO_ROW_GATE, ROW_GATE, gated, triggers, with_inner_gates
from stress.schedules.race import PLANNERS, Race
from stress.schedules.search import Search
from stress.schedules.session import Link, Session, literal, requests
from stress.schedules.start import Keeping, Start

SLOT: Final = "schedules"
MARKS: Final = "schedule_marks"
# The number of the session that does what is done alone; it has no gate.
KEEPER: Final = -1
READ_TIMEOUT_S: Final = 30.0
# Set-ups that are remembered: more than can be used between two judgements.
MAX_STARTS: Final = 64
# Dead rows and closed transactions are cleared away after so many runs.
VACUUM_RUNS: Final = 200
# For the sessions: a deadlock shows at once, and the server's log is not filled with those that are looked for.
_QUICK: Final = (
    "SET deadlock_timeout = '1ms'",
    "SET log_lock_waits = on",
    "SET log_min_messages = 'panic'",
    "SET client_min_messages = 'log'",
    "SET lc_messages = 'C'",
)
# Nobody reads the log before the mark behind it is written, and that is flushed.
_LAZY: Final = "SET synchronous_commit = off"
_MARK: Final = "UPDATE schedule_marks SET number = {}; "
# What races may tell the planner of a session.
_PLANNER_RESET: Final = "".join(
    f"RESET {setting}; "
    for setting in (
        "plan_cache_mode", "enable_hashagg", "enable_hashjoin", "enable_mergejoin", "enable_nestloop", "enable_sort",
        "enable_material", "enable_seqscan", "enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Judged:
    """A run and what the rules say of it."""

    run: Run
    report: Report
    left: str = ""

    @property
    def violated(self) -> tuple[str, ...]:
        """The names of the violated invariants."""
        return tuple(j.invariant for j in self.report.judgements if j.verdict == "violated")

    @property
    def outcome(self) -> str:
        """What callers were answered and what is left in the tables: what the order of a race may change."""
        return f"{sorted(self.run.answers.items())} {self.left}"

    @property
    def undecided(self) -> str | None:
        """Why a rule that had something to decide could not; None where none was in doubt."""
        doubts = [
            f"{j.invariant}: {j.reason}"
            for j in self.report.judgements
            if j.verdict == "unknown" and ("raised" in (j.reason or "") or "ledger" in (j.reason or ""))
        ]
        return doubts[0] if doubts else None


class Lab:
    """Runs races of one variant of the engine. Use `open_lab`.

    What is done to something else than the engine derives from it: `_install` makes the schema, `_prepare` what runs
    need, `_new_world` a memory, `_judge` the report. `planners` are those that a race may name; `stops_within`: the
    functions that have stops inside.
    """

    planners: ClassVar[Mapping[str, Mapping[str, str]]] = PLANNERS
    stops_within: ClassVar[tuple[str, ...]] = tuple(INNER)

    def __init__(self, dsn: str, stack: ExitStack, mutant: Mutant | None) -> None:
        self.dsn = dsn
        self.mutant = mutant
        self._stack = stack
        self._control = stack.enter_context(
            psycopg.connect(dsn, autocommit=True, application_name="controller")
        )
        self._install(self._control)
        self.tables = tuple(row[0] for row in self._control.execute(_TABLES))
        self._control.execute(
            f"CREATE TABLE {MARKS} (id integer PRIMARY KEY, number bigint NOT NULL)".encode()
        )
        self._control.execute("INSERT INTO schedule_marks VALUES (1, 0)")
        for table in (*self.tables, MARKS):
            # The harness empties the tables itself; nobody else may come in between.
            self._control.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)".encode())
        self._control.execute(FUNCTIONS.encode())
        self._control.execute(triggers(self.tables).encode())
        self._inner = tuple(
            with_inner_gates(name, definition)
            for name in self.stops_within
            for [definition] in self._control.execute(_FUNCTION, (name,)).fetchall()
        )
        for definition in self._inner:
            self._control.execute(definition.encode())
        self._control.execute(_LAZY)
        self._settings = self._quick_settings()
        self._prepare()
        self._controller = Controller(self._control, told=len(self._settings) == len(_QUICK))
        self._links: list[Link] = []
        stack.callback(self._close)
        self._ledger = _Ledger(dsn, stack)
        self._number = 0
        self._planner: Mapping[str, str] = {}
        self._configured: tuple[str, ...] | None = None
        deletes = "".join(f"DELETE FROM {table}; " for table in self.tables)  # noqa: S608  # names of our own
        # Without the triggers of foreign keys, where the role may.
        quick = "SET LOCAL session_replication_role = replica; " if self._is_superuser() else ""
        self._emptying = f"{quick}{deletes}"
        self._keeping = Keeping(self._control, self.tables)
        self._start: Start | None = None
        self._keeper = Link(dsn, KEEPER, ("SET plan_cache_mode = force_generic_plan", _LAZY), self.tables)
        stack.callback(self._keeper.connection.close)

    def _install(self, control: psycopg.Connection[Any]) -> None:
        for area in AREAS:
            migrate(control, area)
        for statement in () if self.mutant is None else self.mutant.alterations():
            control.execute(statement.encode())

    def _prepare(self) -> None:
        self._variant = variant_of(self.mutant, gated)

    def _new_world(self, race: Race) -> World:
        return World(self._variant, race.limits)

    def _judge(self, race: Race, run: Run, transactions: Sequence[Transaction]) -> Judged:
        return _judge(race, run, transactions)

    def _quick_settings(self) -> tuple[str, ...]:
        """What this role may set: on a user's server it may be no superuser, and deadlocks show later there."""
        allowed = []
        for setting in _QUICK:
            try:
                self._control.execute(setting.encode())
            except psycopg.errors.InsufficientPrivilege:
                continue
            allowed.append(setting)
        return tuple(allowed)

    def _close(self) -> None:
        for link in self._links:
            link.connection.close()

    def _is_superuser(self) -> bool:
        return self._control.info.parameter_status("is_superuser") == "on"

    def become(self, mutant: Mutant | None) -> None:
        """From here on run another variant of the engine, one that leaves the schema as it is."""
        assert mutant is None or not mutant.alterations()
        self.mutant = mutant
        self._variant = variant_of(mutant, gated)
        self._configured = None

    @property
    def schema(self) -> tuple[str, ...]:
        """What makes such a database, for those who have none: the schema, the mutant's part of it, the gates."""
        migrations = tuple(migration.text for area in AREAS for migration in load_migrations(area))
        own = () if self.mutant is None else self.mutant.alterations()
        inner = tuple(f"{one};" for one in self._inner)
        return (*migrations, *(f"{one};" for one in own), FUNCTIONS, triggers(self.tables), *inner)

    @property
    def catalogue(self) -> Catalogue:
        """The statements that sessions send."""
        return self._variant.catalogue

    def run(
        self, race: Race, planner: str, search: Search, *, deaths: int = 0, into: Run | None = None
    ) -> Run:
        """Take one run. It is judged by `judged`, later, in order, also where this raises Uncontrolled or Diverged."""
        self._configure(race, planner)
        run = Run() if into is None else into
        world = self._begun(race, run)
        run.told = {name: dict(race.settings.get(name, {})) for name in race.sessions}
        for name in race.inner:
            run.told[name]["gate.deep"] = "on"
        if race.row_gates:
            self._name_rows(race, world, run)
        sessions = [
            Session(name, link, actions, world, run.operations.append, whole=not race.stops_inside(name))
            for (name, actions), link in zip(race.sessions.items(), self._links, strict=False)
        ]
        try:
            self._controller.run(sessions, search, run, deaths=deaths)
        finally:
            self._replace_dead(race)
        if run.complete:
            for action in race.finish:
                self._alone("finish", action, world, run)
        return run

    def _begun(self, race: Race, run: Run) -> World:
        """Tables, and a memory, as the set-up leaves them."""
        start = self._start
        if start is not None and start.fits(race) and not run.keeps_sql:
            self._empty(start.restoring)
            run.start = start.number
            run.operations += start.operations
            return start.world.copy()
        world = self._new_world(race)
        self._empty()
        for action in race.setup:
            self._alone("setup", action, world, run)
        if race.setup and not run.keeps_sql and not world.relays and self._is_superuser():
            restoring = self._keeping.restoring()
            self._start = Start(race, self._number, world.copy(), tuple(run.operations), restoring)
            self._command(_MARK.format(-self._number))
        return world

    def judged(self, runs: Sequence[tuple[Race, Run]]) -> list[Judged]:
        """Those of the last runs that are complete. `runs`: all since the last call, in their order."""
        self._empty(flushed=True)
        first = self._number - len(runs)
        committed = self._ledger.until(self._number)
        found = [
            self._judge(race, run, (*self._ledger.started(run.start), *committed.get(first + place, ())))
            for place, (race, run) in enumerate(runs)
            if run.complete
        ]
        self._ledger.forget(self._number)
        return found

    def refresh(self) -> None:
        """Tables as they were at first: where rows lie may decide in which order a plan finds them."""
        tables = ", ".join(self.tables)
        self._control.execute(f"TRUNCATE {tables}".encode())
        self._configured = self._start = None

    def _configure(self, race: Race, planner: str) -> None:
        """Open the sessions, and tell each what the race wants of it."""
        wanted = (race.name, planner, *race.sessions)
        if self._configured == wanted:
            return
        self._command(f"{NO_ROW_GATE}{ROW_GATE if race.row_gates else ''}")
        while len(self._links) < len(race.sessions):
            self._links.append(self._link(len(self._links)))
        self._planner = self.planners[planner]
        for name, link in zip(race.sessions, self._links, strict=False):
            self._tell(race, name, link)
        self._configured = wanted

    def _link(self, number: int) -> Link:
        link = Link(self.dsn, number, (*self._settings, _LAZY), self.tables)
        if number >= len(self._links):
            self._controller.close_gate(number)
        return link

    def _tell(self, race: Race, name: str, link: Link) -> None:
        gate = str(link.gate) if race.stops_inside(name) else ""
        settings = {
            **self._planner,
            **race.settings.get(name, {}),
            "gate.number": gate,
            "gate.row": "",
            "gate.deep": "on" if name in race.inner and gate else "",
        }
        told = "".join(f"SET {setting} = '{value}'; " for setting, value in settings.items())
        link.execute(f"{_PLANNER_RESET}{told}DISCARD PLANS".encode())

    def _name_rows(self, race: Race, world: World, run: Run) -> None:
        for (name, _), link in zip(race.sessions.items(), self._links, strict=False):
            if (label := race.row_gates.get(name)) is not None:
                run.told[name]["gate.row"] = str(world.rows.get(label, label))
                link.connection.execute(
                    "SELECT set_config('gate.row', %s, false)", (run.told[name]["gate.row"],)
                )

    def _replace_dead(self, race: Race) -> None:
        for place, name in enumerate(race.sessions):
            if self._links[place].pgconn.status != pq.ConnStatus.OK:
                self._links[place].connection.close()
                self._links[place] = self._link(place)
                self._tell(race, name, self._links[place])

    def _empty(self, restoring: str | None = None, *, flushed: bool = False) -> None:
        """Empty the tables, or bring back what was kept, and write the next mark, in one transaction."""
        self._number += 1
        if self._number % VACUUM_RUNS == 0:
            self._control.execute(f"VACUUM {', '.join((*self.tables, MARKS))}".encode())
        lasting = "SET LOCAL synchronous_commit = on; " if flushed else ""
        rows = self._keeping.rewinding if restoring is None else restoring
        self._command(f"BEGIN; {lasting}{self._emptying}{rows}{_MARK.format(self._number)}COMMIT")

    def _command(self, text: str) -> None:
        """Commands of the control session, past psycopg, which forgets what is prepared when it sees a DROP."""
        result = self._control.pgconn.exec_(text.encode())
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(result)

    def _alone(self, process: str, action: Action, world: World, run: Run) -> None:
        """One action with nobody about."""
        prepared = action.prepare(world, process)
        if prepared is None:
            return
        for step in prepared.steps:
            now = time.monotonic_ns()
            run.operations.append(Recorded(process, len(run.operations), "step", "ok", step, {}, now, now))
        started, offset = time.monotonic_ns(), time.time_ns() - time.monotonic_ns()
        if run.keeps_sql:
            prepared = replace(prepared, operation=_kept(prepared.operation, run.setup))
        try:
            result = self._keeper.perform(prepared.operation)
        except psycopg.Error as error:
            answers = [Answer("fail", describe_error(error))] * len(prepared.values)
        else:
            prepared.absorb(result)
            answers = prepared.answers(result)
        ended = time.monotonic_ns()
        for value, (kind, told) in zip(prepared.values, answers, strict=True):
            index = len(run.operations)
            run.operations.append(
                Recorded(process, index, prepared.f, kind, value, told, started, ended, offset)
            )


def _kept(operation: Operation[Any], into: list[str]) -> Operation[Any]:
    """The same operation; what it sends is noted as SQL."""
    requests_of = requests(operation)
    try:
        sent = next(requests_of)
        while True:
            match sent.request:
                case Call(statement, arguments):
                    into.append(f"{literal(statement, arguments)};")
                case Begin():
                    into.append("BEGIN;")
                case Commit():
                    into.append("COMMIT;")
            try:
                rows = yield sent.request
            except psycopg.Error as error:
                sent = requests_of.throw(error)
            else:
                sent = requests_of.send(rows)
    except StopIteration as stop:
        return stop.value


class _Ledger:
    """The stream of the lab's database, cut at the marks."""

    def __init__(self, dsn: str, stack: ExitStack) -> None:
        # Slots are named for the whole server, which may have several labs.
        slot = f"{SLOT}_{conninfo_to_dict(dsn)['dbname']}"
        start = create_slot(dsn, slot, SLOT)
        stack.callback(drop_slot, dsn, slot, SLOT)
        self._stream = Stream(dsn, slot, SLOT, start)
        stack.callback(self._stream.close)
        self._decoder = Decoder()
        self._run = 0
        self._runs: dict[int, list[Transaction]] = {}
        self._starts: dict[int, tuple[Transaction, ...]] = {}

    def until(self, number: int) -> Mapping[int, Sequence[Transaction]]:
        """The transactions by run, up to the mark of that number. Raises Uncontrolled where it does not come."""
        deadline = time.monotonic() + READ_TIMEOUT_S
        while self._run < number:
            for _, message in self._stream.messages(0.05):
                transaction = self._decoder.feed(message)
                if transaction is not None:
                    self._take(transaction)
            self._stream.record(self._stream.passed if not self._decoder.open else 0)
            if time.monotonic() > deadline:
                raise Uncontrolled("the write-ahead log was not decoded in time")
        return self._runs

    def started(self, number: int | None) -> tuple[Transaction, ...]:
        """What the set-up of that run committed; nothing where there was none apart."""
        return () if number is None else self._starts[number]

    def forget(self, number: int) -> None:
        """What was judged needs no remembering; the last set-ups do."""
        self._runs = {run: found for run, found in self._runs.items() if run >= number}
        self._starts = {run: self._starts[run] for run in sorted(self._starts)[-MAX_STARTS:]}

    def _take(self, transaction: Transaction) -> None:
        for change in transaction.changes:
            if change.relation.name == MARKS and change.new is not None:
                number = int(change.new[1] or 0)
                if number < 0:
                    self._starts[-number] = tuple(self._runs[-number])
                else:
                    self._run = number
                    self._runs[number] = []
                return
        self._runs.setdefault(self._run, []).append(transaction)


def lab_of(dsn: str, stack: ExitStack, mutant: Mutant | None, subject: str | None = None) -> Lab:
    """A lab in an empty database: of the engine, or of the system that these words name. Raises LedgerUnavailable, and
    UsageError where the words name none."""
    if subject is None:
        return Lab(dsn, stack, mutant)
    from stress.subjects.own_lab import OwnLab
    from stress.subjects.own_races import queue_of

    return OwnLab(dsn, stack, queue_of(subject))


@contextmanager
def open_lab(server: Server, mutant: Mutant | None = None, subject: str | None = None) -> Iterator[Lab]:
    """A lab on a database of its own, which is dropped at the end. Raises as `lab_of`."""
    with fresh_database(server) as dsn, ExitStack() as stack:
        yield lab_of(dsn, stack, mutant, subject)


def _judge(race: Race, run: Run, transactions: Sequence[Transaction]) -> Judged:
    operations = sorted(run.operations, key=lambda one: (one.start_ns, one.process, one.index))
    # What a dead session held is at rest only when its lease has run out.
    at_rest = race.at_rest and run.complete and not any(step.choice.dies for step in run.steps)
    evidence = Evidence(
        at_rest=at_rest, deadlocks=run.deadlocks, clock_slack_ms=0.0, exercises=(), trace_max=TRACE_MAX
    )
    summary = LedgerSummary(len(transactions), 0, complete=True)
    return Judged(run, judge(lambda: transactions, operations, evidence, summary), left_by(transactions))


def left_by(transactions: Sequence[Transaction]) -> str:
    """The rows at the end, without what names moments and transactions."""
    rows: dict[tuple[str, Row], list[str]] = {}
    for transaction in transactions:
        for change in transaction.changes:
            relation, row = change.relation, change.old if change.new is None else change.new
            if row is None:
                continue
            key = (relation.name, tuple(row[place] for place in relation.key))
            if change.new is None:
                rows.pop(key, None)
            else:
                rows[key] = [
                    str(value)
                    for name, value in zip(relation.columns, row, strict=True)
                    if not name.endswith(("_at", "_deadline", "_refill", "counted", "idle_since", "_expiry"))
                ]
    return str(sorted(rows.items(), key=str))


_FUNCTION: Final = "SELECT pg_get_functiondef(p.oid) FROM pg_proc AS p WHERE p.proname = %s"
_TABLES: Final = """
SELECT c.relname FROM pg_class AS c INNER JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'public' AND c.relkind = 'r' AND c.relname NOT LIKE 'pgreferee%' ORDER BY 1
"""
