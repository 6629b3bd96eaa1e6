"""Which races there are, and which pairs of operations they decide: the text of `docs/races.md`.

`python -m stress.schedules.coverage` prints it; a test holds the file against it. Pure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations_with_replacement
from typing import Final

from stress.schedules.pairs import OPERATIONS, PAIRS, Pair, apart, quiet
from stress.schedules.race import Race
from stress.schedules.races import ALL
from stress.schedules.stored_pairs import STORED_OPERATIONS, STORED_PAIRS, stored_apart, stored_quiet

# picker.md §7: which constraint settles which race, and the races that put it to the test.
CONSTRAINTS: Final = (
    ("`gen_durable_concurrency_active`", "two picks claiming one K = 1 key",
     ("one-key-two-queues", "two-keys-opposite-orders", "flush-meets-claim", "key-handed-from-row-to-row",
      "lapsed-key-comes-back", "released-while-claimed")),
    ("`gen_durable_buckets` CHECK", "gate over-admission, double credit",
     ("gate-two-picks", "gate-warm-shards", "credit-meets-count", "count-meets-claim", "slot-lost-with-its-lease",
      "counters-meet", "resharded-while-used", "slot-handed-on", "slot-kept-in-line", "cold-gate-dropped-and-made")),
    ("`gen_durable_buckets` PK", "two picks minting one cold rate key",
     ("cold-rate-two-picks", "cold-keys-opposite", "swept-while-drawn", "sweepers-meet")),
    ("`gen_durable_correlation`", "one business identity inserted twice",
     ("identity-twice", "batches-in-opposite-orders", "identity-retaken", "identity-given-up-by-a-claim",
      "identities-swapped", "spawn-meets-batch", "identity-given-up-by-collection")),
    ("`signals (target_id, dedup_key)`", "one delivery made twice",
     ("delivery-twice", "delivery-again-after-consumption")),
)  # fmt: skip
# The races that show each mutant to be one. `tests/integration/test_schedule_mutants.py` holds them to it.
CAUGHT_BY_RACE: Final[dict[str, str]] = {
    "identity-unguarded": "identity-twice",
    "outcome-unguarded": "stale-outcome",
    "guard-only-no-arbiter": "one-key-two-queues",
    "insert-many-unordered": "batches-in-opposite-orders",
    "claim-without-key-lock": "two-keys-opposite-orders",
    "flush-locks-late": "flush-meets-claim",
    "worker-not-claim": "one-worker-twice",
    "scope-reentered": "identity-retaken",
    "maintenance-unordered": "sweeps-from-both-ends",
    "rider-reads-snapshot": "stale-outcome-with-inbox",
    "wake-filtered-in-where": "lost-wakeup",
    "park-without-recheck": "lost-wakeup",
    "recheck-ignores-presented": "park-again",
    "recheck-by-watermark": "ids-out-of-order",
    "signal-to-the-dead": "signal-to-the-dead",
    "dedup-forgets": "delivery-again-after-consumption",
    "children-without-parent-lock": "reaper-meets-birth",
    "children-after-update": "identities-swapped",
    "reclaim-without-margin": "namesake-boots",
    "consume-whole-inbox": "consumed-exactly",
    "continue-credits-held-slot": "slot-kept-in-line",
    "continue-unfenced": "continued-twice",
    "duplicate-wakes": "delivery-again-to-the-parked",
    "join-counts-a-batch-once": "siblings-end-together",
    "scope-reentered-by-a-wake": "identity-given-up-by-a-park",
    "collects-beside-the-parent": "child-collected-beside-its-parent",
    "admit-stamps-unguarded": "admission-comes-late",
    "admit-doubles-shard": "warm-rate-two-picks",
    "credit-after-count": "credit-meets-count",
    "provisional-is-a-shard": "gate-two-picks",
    "cold-keys-wait": "cold-keys-opposite",
    "config-upsert-unordered": "boots-in-opposite-orders",
    "lowered-capacity-forgotten": "lowered-while-used",
    "collectors-wait": "collectors-meet",
    "credit-without-cap": "lowered-while-used",
    "no-check": "gate-warm-shards",
    "cas-without-version": "two-writers",
    "first-save-raises": "first-save-twice",
    "conflict-without-found": "two-writers",
    "dedupe-before-load": "event-redelivered",
    "pages-by-offset": "listed-while-saved",
    "ack-without-token": "taken-over",
    "nack-without-token": "taken-over-and-given-back",
    "extend-without-token": "taken-over-and-renewed",
    "token-is-worker": "taken-over",
    "publish-clears-lease": "published-into-a-lease",
    "publish-holds-nothing": "published-while-drained",
    "remove-without-look": "published-while-drained",
    "publishers-unordered": "publishers-in-opposite-orders",
    "head-from-snapshot": "head-acked-while-claimed",
    "relays-skip-locked": "relays-of-one-lane",
    "relay-keeps-cursor": "emit-committed-late",
    "emit-overtakes-birth": "child-before-its-events",
    "spawn-overwrites": "child-made-by-hand",
    "sweep-deletes-any": "stale-sweep-meets-rearm",
    "sweep-in-steps": "cancel-meets-sweep",
    "timer-event-repeats": "rearm-meets-sweeps",
}
# Mutants without a race here, and why.
NO_RACE: Final[dict[str, str]] = {
    "key-collides-with-id": "one claim by itself shows it",
    "json-double-encoded": "one insert by itself shows it",
    "too-many-parameters": "one insert by itself shows it",
    "serialise-outside-guard": "a node by itself shows it",
    "min-demand-unclamped": "a node by itself shows it",
    "poked-only": "a node by itself shows it",
    "admit-before-continue-commit": "a node by itself shows it",
    "inline-unconfigured-key": "a node by itself shows it",
    "reclaim-uncounted": "one sweep by itself shows it",
    "reclaim-by-bare-prefix": "one sweep by itself shows it",
    "retention-from-birth": "one sweep by itself shows it",
    "bucket-swept-while-asleep": "one sweep by itself shows it",
    "shards-grow-unhealed": "one sweep by itself shows it",
    "surplus-credited": "one sweep by itself shows it",
    "admit-unclamped": "one admission after another shows it",
    "burst-raised-wedges": "one admission after another shows it",
    "cold-bucket-lags": "one admission after another shows it",
    "draws-in-order": "one admission after another shows it",
    "full-is-a-sum": "one admission after another shows it",
    "refill-counts-back": "one admission after another shows it",
    "counts-back-in-races": "one admission after another shows it",
    "reclaim-beside-the-living": "it looks at sessions of other processes, which a race does not open",
    "parents-locked-late": "a race, and none here finds it yet",
    "buckets-unordered": "a race, and none here finds it yet: it needs a stop between two locks of one scan",
    "conflict-keeps-transaction": "one stale commit by itself shows it",
    "outbox-outside": "one commit by itself shows it",
    "ring-one-longer": "one step after another shows it",
    "ring-renumbered": "one step after another shows it",
    "read-keeps-snapshot": "it is the driver's: a session of a race ends its transactions itself",
    "lost-is-refused": "it is the client's: a session of a race loses no answer and lives on",
    "ack-any-message": "one ack by itself shows it",
    "publishers-hide-groups": "the rule counts rounds, and a race is too short for one",
    "new-groups-first": "the rule counts rounds, and a race is too short for one",
    "ack-keeps-turn": "the rule counts rounds, and a race is too short for one",
    "publishers-race": "a race, and no rule sees it: `group-fifo` lets a sequence commit out of order",
    "acks-unordered": "a race, and none here finds it yet: it needs a stop between two locks of one scan",
    "sweep-by-instant": "it is a relay's through the contracts, which a race does not drive",
    "relay-acks-first": "one relay by itself shows it",
}

_HEAD: Final = """# Races

What `python -m stress explore` decides, written by `python -m stress.schedules.coverage`; do not edit. A race is a
small file in `stress/schedules/races/`, or a pair of operations from the tables in `stress/schedules/pairs.py` (the
picker's) and `stress/schedules/stored_pairs.py` (those of store, relay and transport). Every schedule of a race is
judged by all invariants; those named here must have had something to decide.
"""


def document() -> str:
    """The whole text."""
    return "\n".join((*_lines(), ""))


def _lines() -> Iterator[str]:
    yield _HEAD
    yield "## Constraints (picker.md §7)\n"
    yield "| constraint | race it settles | races |"
    yield "|---|---|---|"
    for constraint, settles, names in CONSTRAINTS:
        yield f"| {constraint} | {settles} | {', '.join(f'`{name}`' for name in names)} |"
    yield "\n## Written races\n"
    yield "| race | what meets | invariants that it exercises |"
    yield "|---|---|---|"
    for race in ALL.values():
        yield f"| `{race.name}` | {race.summary} | {', '.join(race.invariants)} |"
    yield from _mutants()
    yield from _matrix("Pairs of operations", list(OPERATIONS), PAIRS, apart, quiet)
    yield from _matrix(
        "Pairs of operations of store, relay and transport",
        list(STORED_OPERATIONS), STORED_PAIRS, stored_apart, stored_quiet,
    )  # fmt: skip


def _mutants() -> Iterator[str]:
    yield "\n## Mutants\n"
    yield "| mutant | caught by the race |"
    yield "|---|---|"
    for mutant, race in CAUGHT_BY_RACE.items():
        yield f"| `{mutant}` | `{race}` |"
    for mutant, reason in NO_RACE.items():
        yield f"| `{mutant}` | no race: {reason} |"


def _matrix(
    title: str,
    names: list[str],
    races: Sequence[Race],
    apart_: Callable[[Pair], str | None],
    quiet_: Callable[[Pair], str | None],
) -> Iterator[str]:
    pairs_ = list(combinations_with_replacement(names, 2))
    reasons = list(
        dict.fromkeys(reason for pair in pairs_ if not apart_(pair) and (reason := quiet_(pair)) is not None)
    )

    def cell(pair: Pair) -> str:
        if apart_(pair) is not None:
            return ""
        reason = quiet_(pair)
        return "x" if reason is None else _letter(reasons.index(reason))

    yield f"\n## {title}\n"
    yield (
        f"{len(races)} pairs touch a common table, and each is a race of its own, `pair:<one>+<other>`. **x**: the two "
        "get into each other's way. A letter: they are run as well, and cannot, for the reason below. Empty: no common "
        "table, and no race."
    )
    yield ""
    yield f"| | {' | '.join(str(number) for number in range(1, len(names) + 1))} |"
    yield f"|---|{'---|' * len(names)}"
    for row, one in enumerate(names):
        cells = ["" if column < row else cell((one, other)) for column, other in enumerate(names)]
        yield f"| {row + 1} {one} | {' | '.join(cells)} |"
    yield ""
    for place, reason in enumerate(reasons):
        yield f"- {_letter(place)}: {reason}."
    yield "\nPairs that written races decide besides:\n"
    yield "| pair | races |"
    yield "|---|---|"
    for pair, written in sorted(_written(names).items()):
        yield f"| {pair[0]}, {pair[1]} | {', '.join(f'`{race.name}`' for race in written)} |"


def _letter(place: int) -> str:
    return chr(ord("a") + place % 26) * (1 + place // 26)


def _written(order: list[str]) -> dict[Pair, list[Race]]:
    found: dict[Pair, list[Race]] = {}
    for race in ALL.values():
        for one, other in race.covers:
            if one in order and other in order:
                pair = (one, other) if order.index(one) <= order.index(other) else (other, one)
                found.setdefault(pair, []).append(race)
    return found


if __name__ == "__main__":
    sys.stdout.write(document())
