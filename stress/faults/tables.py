"""Faults of the tables and of the planner: vacuumed without a pause, kept from being cleaned, planned otherwise,
planned blindly."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql
from typing_extensions import override

from stress.faults.ground import Background, Fault

TABLES = """
SELECT n.nspname, c.relname FROM pg_class AS c INNER JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND n.nspname NOT IN ('pg_catalog', 'information_schema')
ORDER BY 1, 2
"""
FORGET = """
DELETE FROM pg_statistic AS s USING pg_class AS c INNER JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE s.starelid = c.oid AND n.nspname = %s AND c.relname = %s
"""
# Each leads to plans of another shape. The engine's sessions switch sequential and bitmap scans off: without index
# scans, what is cheapest of all that is switched off is taken.
SETTINGS: tuple[dict[str, str], ...] = (
    {"enable_indexscan": "off", "random_page_cost": "1000"},
    {"enable_indexscan": "off", "enable_indexonlyscan": "off", "enable_tidscan": "off"},
    {"enable_nestloop": "off", "enable_hashjoin": "off"},
    {"plan_cache_mode": "force_generic_plan", "enable_hashjoin": "off"},
    {"plan_cache_mode": "force_custom_plan", "enable_nestloop": "off"},
    {"random_page_cost": "0.1", "seq_page_cost": "100", "enable_mergejoin": "off"},
)
# Of a system whose sessions leave the planner's settings alone, that leads to a plan which runs a subquery once a row.
NESTED: dict[str, str] = {
    "enable_hashjoin": "off", "enable_mergejoin": "off", "enable_hashagg": "off", "enable_sort": "off",
    "enable_material": "off", "enable_seqscan": "off",
}  # fmt: skip


def tables(connection: psycopg.Connection[Any]) -> list[sql.Identifier]:
    """Those of the run."""
    return [sql.Identifier(schema, name) for schema, name in connection.execute(TABLES)]


class Vacuum(Fault):
    """VACUUM (FREEZE) of each table, then ANALYZE, over and over."""

    @override
    def begin(self) -> None:
        self._work = Background(self.ground, self.server, self._vacuum)

    @override
    def heal(self) -> None:
        self._work.stop()

    @override
    def abandon(self) -> None:
        self._work.stop()

    def _vacuum(self, connection: psycopg.Connection[Any]) -> None:
        for table in tables(connection):
            try:
                connection.execute(sql.SQL("VACUUM (FREEZE, ANALYZE) {}").format(table))
                self.did["tables vacuumed"] += 1
            except psycopg.errors.LockNotAvailable:
                pass


class Xmin(Fault):
    """A transaction that looked once and stays: nothing that dies after it can be cleaned away."""

    @override
    def begin(self) -> None:
        self._holder: psycopg.Connection[Any] | None = None
        self._hold()

    @override
    def tick(self) -> None:
        try:
            if self._holder is not None:
                self._holder.execute("SELECT 1")
                return
        except psycopg.Error:
            self._holder = None
        self._hold()

    @override
    def heal(self) -> None:
        if self._holder is None:
            return
        try:
            row = self._holder.execute(
                "SELECT age(backend_xmin) FROM pg_stat_activity WHERE pid = pg_backend_pid()"
            )
            self.did["transactions it was held for"] += max(
                (int(age) for (age,) in row if age is not None), default=0
            )
        except psycopg.Error:
            pass
        self._holder.close()

    def _hold(self) -> None:
        if self.ground.down:
            return
        try:
            self._holder = self.ground.connect(self.server)
            self._holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            self._holder.execute("SELECT count(*) FROM pg_class")
            self.did["old snapshots"] += 1
        except psycopg.Error:
            pass


class Plan(Fault):
    """New sessions of the database get other planner settings; the node starts anew, with others still. Heal: reset,
    and a node without."""

    @override
    def begin(self) -> None:
        everybody, node = self.random.sample(SETTINGS, 2)
        if not self.ground.subject.areas:
            node = self.random.choice((node, NESTED))
        self._changed = tuple(everybody)
        for name, value in everybody.items():
            self._alter(sql.SQL("SET {} = {}").format(sql.Identifier(name), sql.Literal(value)))
        self.ground.swarm.replace_node(self.place, settings=node)
        self.did["planner settings flipped"] = len(everybody) + len(node)

    @override
    def heal(self) -> None:
        for name in self._changed:
            self._alter(sql.SQL("RESET {}").format(sql.Identifier(name)))
        self.ground.swarm.replace_node(self.place)

    def _alter(self, change: sql.Composed) -> None:
        try:
            with self.ground.connect(self.server) as connection:
                database = sql.Identifier(self.server.database)
                connection.execute(sql.SQL("ALTER DATABASE {} ").format(database) + change)
        except psycopg.Error:
            self.did["settings not changed"] += 1


class Stats(Fault):
    """The statistics of all tables are deleted, and autovacuum may not make them anew. Heal: it may, and ANALYZE."""

    @override
    def begin(self) -> None:
        self._each("forgotten", "SET (autovacuum_enabled = off)", forget=True)

    @override
    def heal(self) -> None:
        self._each("analysed again", "RESET (autovacuum_enabled)", forget=False)

    def _each(self, said: str, change: str, *, forget: bool) -> None:
        """Altering the table also tells every session to plan anew."""
        if self.ground.down and forget:
            return
        try:
            # A server of the harness's own: the role of its database is the superuser, whom statistics belong to.
            with self.ground.connect(self.server) as connection:
                for schema, name in connection.execute(TABLES).fetchall():
                    table = sql.Identifier(schema, name)
                    if forget:
                        connection.execute(FORGET, (schema, name))
                    connection.execute(sql.SQL("ALTER TABLE {} ").format(table) + sql.SQL(change))
                    if not forget:
                        connection.execute(sql.SQL("ANALYZE {}").format(table))
                    self.did[f"tables' statistics {said}"] += 1
        except psycopg.Error:
            self.did["statements that failed"] += 1
