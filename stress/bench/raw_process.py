"""The floor of a drain: batches claimed and completed on a bare table by psycopg, one after the other, until no row is
left. No lease, no fence, no order but the key's, nobody to take over."""

from __future__ import annotations

import msgspec
import psycopg

from stress.swarm.child import receive_config

# The limit is a literal: known to the planner, it is worth a good deal to the floor.
CLAIM = """
    WITH candidate AS MATERIALIZED (
        SELECT j.id FROM job AS j WHERE j.status = 'queued' ORDER BY j.id LIMIT {} FOR UPDATE SKIP LOCKED
    )
    UPDATE job AS j SET status = 'taken' FROM candidate AS c WHERE j.id = c.id RETURNING j.id
"""
COMPLETE = b"UPDATE job SET status = 'ended' WHERE id = ANY ($1::bigint[])"


class RawSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Where, and how many rows at once."""

    dsn: str
    name: str
    batch: int


def drain(setup: RawSetup) -> None:
    """Until nothing is queued."""
    claim = CLAIM.format(setup.batch).encode()
    with psycopg.connect(
        setup.dsn, autocommit=True, prepare_threshold=0, application_name=setup.name
    ) as connection:
        cursor = psycopg.RawCursor(connection)
        while ids := [row[0] for row in cursor.execute(claim).fetchall()]:
            cursor.execute(COMPLETE, [ids])


if __name__ == "__main__":
    drain(receive_config(RawSetup))
