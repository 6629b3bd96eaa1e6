"""The reference picker as a subject."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import psycopg

from engine.operation import Operation, perform
from engine.picker import Picker
from stress.subjects.subject import Subject
from stress.swarm.mutation import limiter_for


def _settling(
    scenario: Any, mutant: str | None
) -> Sequence[tuple[str, Callable[[psycopg.Connection[Any]], object]]]:
    """A killed node credits nothing, and who booted last may have changed the limits: both are mended by sweeps, and
    the nodes have made their last."""
    limiter = limiter_for(mutant, scenario.limits)
    if limiter is None:
        return ()
    return (
        ("reconcile", lambda connection: perform(connection, limiter.reconcile())),
        ("sweep_buckets", lambda connection: perform(connection, limiter.sweep_buckets())),
    )


def _poison(random: Random, scenario: Any) -> tuple[dict[str, Any], Operation[list[int | None]]]:
    """A few of each kind, ahead of everything in their queues: of a machine that no node knows, with a state that is
    none of its machine's, with a result that no database holds."""
    from stress.scenarios.poison import poisonous

    planned = [poisonous(random, queue.name) for queue in scenario.queues]
    jobs = [each.job for each in planned]
    return {"jobs": [each.described() for each in planned]}, Picker().insert_many(jobs)


PICKER = Subject(
    name="picker",
    areas=("picker",),
    node="stress.swarm.node_process",
    user="stress.swarm.picker_users:PickerUser",
    # One that waits for a signal without a deadline cannot move: the clients are gone. Whether its wait is in order is
    # for the rules to say. Nor can one that is due when nobody will be there.
    unfinished="""
        SELECT count(*), max(updated_at)::text FROM gen_durable
        WHERE
            status < 'done'
            AND (status <> 'awaiting_signal' OR await_deadline IS NOT NULL)
            AND (status <> 'runnable' OR eligible_at < now() + interval '1 hour')
    """,
    # Two index scans: during the load finished jobs must not slow the nodes.
    waiting="""
        SELECT count(*), max(updated_at)::text FROM (
            SELECT updated_at FROM gen_durable WHERE status = 'runnable' AND eligible_at < now() + interval '1 hour'
            UNION ALL
            SELECT updated_at FROM gen_durable WHERE status = 'executing'
        ) AS waiting
    """,
    ended="SELECT count(*), max(id)::text FROM gen_durable WHERE status IN ('done', 'failed')",
    settling=_settling,
    poison=_poison,
)
