"""How much data a capture is made on, and how it is laid out (plans.md, "The data").

The data are a function of the profile alone: nothing is drawn, and the statuses are where the INSERT put them.
"""

from __future__ import annotations

from importlib.resources import files
from math import gcd
from typing import Any, Final

import msgspec
import psycopg

# The stride of `seed/picker.sql`.
STRIDE: Final = 7919
SEEDS: Final = ("picker", "limiter", "store", "transport")
# What may stand at the head of a backlog.
TROUBLES: Final = ("hot-key", "far-future", "saturated-gate")


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of `gen_durable` by what they are; the other tables follow `rows`. `batch`: what statements are asked for.

    `expired`: leases and deadlines that have passed, more than a batch. `terminal` is what is left.
    """

    name: str
    rows: int
    runnable: int
    executing: int
    parked: int
    joining: int
    signals: int
    expired: int
    batch: int

    def parameters(self) -> dict[str, int]:
        """What the seeds are told. Raises ValueError where the stride would not reach every row."""
        if gcd(STRIDE, self.rows) != 1:
            raise ValueError(f"{self.rows} rows are a multiple of {STRIDE}")
        first_parked = self.runnable + self.executing
        return {
            "rows": self.rows,
            "runnable": self.runnable,
            "executing": self.executing,
            "parked": self.parked,
            "first_parked": first_parked,
            "first_joining": first_parked + self.parked,
            "joining": self.joining,
            "signals": self.signals,
            "expired": self.expired,
            # Five children to a parent.
            "child_stride": max(5, self.rows // (5 * self.joining)),
            "keys": max(1, self.runnable // 4),
            "inverse": pow(STRIDE, -1, self.rows),
        }


def sized(name: str, rows: int, *, batch: int) -> Profile:
    """The mix of plans.md at any size: 30 % runnable, 0.5 % executing, the rest terminal; 1 % parked, 0.1 % joining."""
    executing = rows // 200
    return Profile(
        name=name,
        rows=rows,
        runnable=rows * 3 // 10,
        executing=executing,
        parked=rows // 50,
        joining=rows // 500,
        signals=rows // 20,
        expired=executing * 7 // 10,
        batch=batch,
    )


def grown(rows: int, *, like: Profile, batch: int) -> Profile:
    """`like` with another table around the same jobs at work: what a batch is about stays, and its surroundings
    grow."""
    busy = like.executing + like.parked + like.joining
    share = min(1.0, (rows - busy) * 0.6 / max(1, like.runnable))
    return msgspec.structs.replace(
        like, name=f"{rows}x{batch}", rows=rows, batch=batch, runnable=int(like.runnable * share)
    )


PROFILES: Final = {
    profile.name: profile
    for profile in (
        sized("small", 10_000, batch=20),
        sized("medium", 100_000, batch=100),
        sized("large", 1_000_000, batch=100),
    )
}


def fill(connection: psycopg.Connection[Any], profile: Profile) -> None:
    """Fill a migrated, empty database; nothing is vacuumed or analysed. About 25 µs a row of the profile."""
    parameters = profile.parameters()
    with psycopg.ClientCursor(connection) as cursor:
        for name in SEEDS:
            cursor.execute(seed_text(name).encode(), parameters)


def add_trouble(connection: psycopg.Connection[Any], name: str, backlog: int) -> None:
    """Put one of `TROUBLES` on top of a filled database, of so many jobs; nothing is vacuumed or analysed."""
    with psycopg.ClientCursor(connection) as cursor:
        cursor.execute(seed_text(f"trouble/{name}").encode(), {"backlog": backlog})


def seed_text(name: str) -> str:
    """The text of one seed, with psycopg's named placeholders."""
    return (files("results.plans") / "seed" / f"{name}.sql").read_text("utf-8")
