"""How soon a race catches the mutants that the picker's own history knows (known-bugs.md, part 1): measured.

`python -m stress.schedules.catches` explores the race of each, as `python -m stress explore --race X --mutant M` does,
and writes what it took to `results/baselines/races.json`; docs/races.md shows it. Steps are those of the table that is
printed: what a session sends in one message is one, where nobody came in between.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import msgspec

from engine.postgres import provision, signals_stop
from stress.schedules.explore import Request, default_workers, explore

BASELINE: Final = Path(__file__).parents[2] / "results" / "baselines" / "races.json"
# The mutants of known-bugs.md, part 1, that are races, and the race that catches each.
HISTORY: Final[dict[str, str]] = {
    "wake-filtered-in-where": "lost-wakeup",
    "park-without-recheck": "lost-wakeup",
    "buckets-unordered": "gates-from-both-ends",
    "insert-many-unordered": "batches-in-opposite-orders",
    "config-upsert-unordered": "boots-in-opposite-orders",
    "outcome-unguarded": "stale-outcome",
    "rider-reads-snapshot": "stale-outcome-with-inbox",
    "reclaim-without-margin": "namesake-boots",
    "recheck-ignores-presented": "park-again",
    "recheck-by-watermark": "ids-out-of-order",
    "maintenance-unordered": "sweeps-from-both-ends",
    "guard-only-no-arbiter": "one-key-two-queues",
    "admit-doubles-shard": "warm-rate-two-picks",
    "no-check": "gate-warm-shards",
    "continue-credits-held-slot": "slot-kept-in-line",
    "children-without-parent-lock": "reaper-meets-birth",
    "admit-before-continue-commit": "reaped-row-goes-on",
    "credit-without-cap": "lowered-gate-credited",
}
MAX_STEPS: Final = 6
SECONDS: Final = 10.0


class Catch(msgspec.Struct, frozen=True, kw_only=True):
    """A mutant and what catching it took. `steps`, of the smallest schedule; `schedules` that were run, and `seconds`
    from the start of the processes to the end of shrinking. `violated` as the race saw it."""

    mutant: str
    race: str
    violated: tuple[str, ...]
    steps: int
    schedules: int
    seconds: float


class Catches(msgspec.Struct, frozen=True, kw_only=True):
    """All of them, on one Postgres, with so many worker processes."""

    schema: int = 1
    postgres: str
    workers: int
    catches: tuple[Catch, ...]


def recorded() -> Catches:
    """Those of the baseline."""
    return msgspec.json.decode(BASELINE.read_bytes(), type=Catches)


def measure() -> Catches:
    """Explore the race of each. Raises SystemExit where one is not caught in time, in few enough steps."""
    found: list[Catch] = []
    workers = default_workers(1)
    with signals_stop(), provision("embedded") as server:
        for mutant, race in HISTORY.items():
            request = Request(
                names=(race,), mutant=mutant, schedules=20_000, seconds=SECONDS, seed=1, workers=workers
            )
            exploration = explore(server, request, lambda _: None)
            failure = exploration.tallies[race].failure
            if failure is None or failure.schedule is None or not failure.confirmed:
                raise SystemExit(f"{race} has not caught {mutant} in {SECONDS:.0f} s")
            if failure.steps > MAX_STEPS or exploration.seconds > SECONDS:
                raise SystemExit(f"{mutant}: {failure.steps} steps, {exploration.seconds:.1f} s")
            catch = Catch(
                mutant=mutant,
                race=race,
                violated=tuple(failure.schedule.violated),
                steps=failure.steps,
                schedules=exploration.runs,
                seconds=round(exploration.seconds, 1),
            )
            sys.stderr.write(f"{catch}\n")
            found.append(catch)
        return Catches(postgres=server.version_text, workers=workers, catches=tuple(found))


if __name__ == "__main__":
    measured = msgspec.json.format(msgspec.json.encode(measure()), indent=2)
    BASELINE.write_bytes(measured + b"\n")
