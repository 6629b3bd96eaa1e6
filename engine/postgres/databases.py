"""The harness's own databases: made, marked, guarded, dropped; on a user's server nothing else is touched.

Rules:

1. A database of ours is named `pgreferee_<random>` *and* carries a comment with a JSON marker that names its
   owner. The name alone proves nothing.
2. Nothing destructive runs in, or on, a database without both (`assert_ours`).
3. Before a database is dropped, the logical replication slots that belong to it are, and the transactions
   prepared in it are rolled back: both would block the drop, and both can belong to that database only.
4. Only databases whose owner is dead, on this host and in this boot, and that were not to be kept, are
   reaped.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from engine.errors import InfrastructureError
from engine.postgres import conninfo
from engine.postgres.deadline import until
from engine.postgres.owners import Owner, current_owner, is_dead

PREFIX: Final = "pgreferee_"
MARKER_KEY: Final = "pgreferee"
DROP_TIMEOUT_S: Final = 30

_NAME = re.compile(r"pgreferee_[0-9a-f]{12}")


def new_name() -> str:
    """A name that no database has yet."""
    return PREFIX + secrets.token_hex(6)


def check_may_create(conn: psycopg.Connection[Any]) -> None:
    """Raise `InfrastructureError` when the role of `conn` may not create databases."""
    allowed = conninfo.fetch_one(
        conn, "SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user"
    )[0]
    if not allowed:
        raise InfrastructureError(_may_not_create(conn))


def _may_not_create(conn: psycopg.Connection[Any]) -> str:
    return (
        f'the role "{conn.info.user}" may not create databases on this server: '
        "give it the privilege (ALTER ROLE ... CREATEDB) or use another role"
    )


def create(
    conn: psycopg.Connection[Any], name: str, *, template: str = "template0", keep: bool = False
) -> None:
    """Create and mark a database, in UTF8 and the C locale, so that text sorts the same on every server.

    `conn` is an autocommit connection to another database. With `keep` nobody reaps it later. Raises
    `InfrastructureError` when the role may not.
    """
    assert _NAME.fullmatch(name), name
    statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
        sql.Identifier(name), sql.Identifier(template)
    )
    if template == "template0":
        statement += sql.SQL(" ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'")
    owner = json.loads(current_owner().to_json())
    marker = json.dumps({MARKER_KEY: 1, "keep": keep, "owner": owner}, sort_keys=True)
    failure = ""
    try:
        conn.execute(statement)
        conn.execute(
            sql.SQL("COMMENT ON DATABASE {} IS {}").format(sql.Identifier(name), sql.Literal(marker))
        )
    except psycopg.errors.InsufficientPrivilege:
        failure = _may_not_create(conn)
    except psycopg.Error as error:
        failure = f"cannot create a database on this server: {_one_line(error)}"
    if failure:
        raise InfrastructureError(failure)


@dataclass(frozen=True, slots=True)
class Marker:
    """What the comment on a database of ours says: who made it, and whether it is to stay."""

    owner: Owner
    keep: bool


def marker_of(conn: psycopg.Connection[Any], name: str) -> Marker | None:
    """The marker of a database; None when there is no such database, or none of ours."""
    row = conn.execute(
        "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = %s", (name,)
    ).fetchone()
    return _parse_marker(name, row[0] if row else None)


def _parse_marker(name: str, comment: str | None) -> Marker | None:
    if not comment or not _NAME.fullmatch(name):
        return None
    try:
        marker = json.loads(comment)
        if not isinstance(marker, dict) or marker.get(MARKER_KEY) != 1:
            return None
        return Marker(Owner.from_object(marker.get("owner")), keep=marker.get("keep") is True)
    except ValueError:
        return None


def assert_ours(conn: psycopg.Connection[Any]) -> None:
    """Raise `InfrastructureError` unless `conn` is connected to a database that carries our name and our
    marker.

    To be called before anything destructive: schema drops, truncates, settings of the database, terminating
    sessions.
    """
    name = conn.info.dbname
    if marker_of(conn, name) is None:
        raise InfrastructureError(
            f'the database "{name}" does not belong to the harness (it lacks the name or the marker): '
            "nothing was changed"
        )


def drop(conn: psycopg.Connection[Any], name: str) -> bool:
    """Drop a database of ours with what hangs on it; False when it is gone already or is none of ours.

    `conn` is an autocommit connection to another database of the same server.
    """
    if marker_of(conn, name) is None:
        return False
    for _ in until(DROP_TIMEOUT_S):
        try:
            _drop_slots(conn, name)
            _roll_back_prepared(conn, name)
            conn.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
            return True
        except psycopg.errors.ObjectInUse:
            continue  # a session or a slot that is just ending
    raise InfrastructureError(f'cannot drop the database "{name}": something still uses it')


def _drop_slots(conn: psycopg.Connection[Any], name: str) -> None:
    slots = conn.execute(
        "SELECT slot_name, active_pid FROM pg_replication_slots"
        " WHERE database = %s AND slot_type = 'logical'",
        (name,),
    ).fetchall()
    for slot, active_pid in slots:
        if active_pid is not None:
            conn.execute("SELECT pg_terminate_backend(%s)", (active_pid,))
        try:
            conn.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        except psycopg.errors.UndefinedObject:
            pass  # a temporary one whose session has ended


def _roll_back_prepared(conn: psycopg.Connection[Any], name: str) -> None:
    prepared = conn.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", (name,)).fetchall()
    if not prepared:
        return
    params = {**conninfo.complete(conn, {}), "dbname": name}  # only from inside of the database
    with conninfo.connect(params) as inside:
        assert_ours(inside)
        for (gid,) in prepared:
            inside.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))


def reap(conn: psycopg.Connection[Any]) -> list[str]:
    """Drop the marked databases of dead owners of this host and boot; returns their names."""
    rows = conn.execute(
        "SELECT datname, shobj_description(oid, 'pg_database') FROM pg_database"
        " WHERE left(datname, 10) = 'pgreferee_'"
    ).fetchall()
    dropped = []
    for name, comment in rows:
        marker = _parse_marker(name, comment)
        if marker is None or marker.keep or not is_dead(marker.owner, record_is_local=False):
            continue
        try:
            if drop(conn, name):
                dropped.append(name)
        except (psycopg.Error, InfrastructureError):
            continue  # another role's, or another harness is at it: theirs to drop
    return dropped


def _one_line(error: psycopg.Error) -> str:
    return (error.diag.message_primary or str(error)).splitlines()[0]
