"""What a system says of itself, and where it keeps its jobs: what those who judge it, and its author, speak of.

Python alone is needed for it, since it is read in the system's own interpreter too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a system says of itself. What it does not claim is not held against it.

    `delivery`: "at-least-once" says that an acknowledged job is run until a run of it ends well, and again only when
    there was cause to: a run that failed, a worker that was disturbed, a lease that ran out. "at-most-once" says that
    no job is run twice, whatever happens, and that none is lost while nothing happens.
    `lease_ms`: for how long a job is its worker's alone without a sign of life; None: for as long as its session lives.
    `heartbeat`: whether the lease is renewed while the job runs.
    `per_key`: how many jobs of one key run at once at most. `in_order`: jobs begin in the order in which they were
    accepted, which only a run of one worker without faults can tell. `retries`: a job whose work raises is run again.
    `recovery_ms`: how soon after its worker's death a job is run again, beside the time that any job waits.
    `side_by_side`: how many jobs one worker runs at once at most. `fenced`: the end of a job is committed once, by the
    worker whose claim it is under; taken for claimed unless it is said not to be.
    """

    delivery: Literal["at-least-once", "at-most-once"] = "at-least-once"
    lease_ms: float | None = None
    heartbeat: bool = True
    per_key: int | None = None
    in_order: bool = False
    retries: bool = False
    recovery_ms: float | None = None
    side_by_side: int | None = None
    fenced: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Where the system keeps a job, so that the write-ahead log can be read: the table, its status column, and which
    statuses mean that a job waits, runs, or has ended. `deleted`: a row that is deleted has ended. `claim`: columns
    that change with every claim, such as a worker's name or an attempt."""

    table: str
    status: str
    waiting: tuple[str, ...]
    running: tuple[str, ...]
    ended: tuple[str, ...] = ()
    deleted: bool = False
    claim: tuple[str, ...] = ()
