"""The relay of an all-Postgres stack: store and transport in one database, so that every hand-over is one transaction.

Rules:

1. What is handed over is removed in the same transaction. Whoever dies, and when: it is here or there.
2. The outbox is emptied in lanes (`outbox_lane`), each by one relay at a time and in the order of `seq`. The emits of
   one emitter to one target are therefore published in the order of its commits: an earlier commit's rows have lower
   seqs, lie in the same lane, and are visible wherever the later ones are.
3. Nothing remembers a place in the outbox. A row is done when it is gone, so a seq that was drawn early and committed
   late is found.
4. A child is made before what was emitted to it is handed over, and its start event is published with it.
5. A timer that fires becomes a row of the outbox, in the transaction that removes it.

Each function returns an `Operation` for `engine.operation`'s drivers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.operation import Begin, Commit, Operation, Row, call
from engine.relay.children import Birth, birth, context_of
from engine.statements import Catalogue
from engine.store import execution as stored
from engine.store.encoding import Prepared, event_of, execution_of, prepare
from engine.store.execution import Event
from engine.transport.queue import event_text
from engine.values import MAX_SENT_BYTES

# Lanes of the outbox; `outbox_lane` and `relay/move` know this number too.
LANES = 16
# How long a relay may leave a transaction alone that holds spawns or its turn, before its session is ended.
PATIENCE_MS = 10_000


@dataclass(frozen=True, slots=True)
class Fired:
    """A timer that fired: it is the outbox row `seq` now."""

    execution_id: str
    path: str
    fire_at: float
    seq: int


@dataclass(frozen=True, slots=True)
class Spawned:
    """One page of spawns. `seqs`: those done. `made`: the children that were not there before. `refused`: spawns
    that can never be done (no such parent, unreadable data, a child that cannot be stored), left where they are.
    `last`: the page's last seq, None where it was empty."""

    seqs: tuple[int, ...] = ()
    made: tuple[str, ...] = ()
    refused: tuple[int, ...] = ()
    last: int | None = None


class Handover:
    """The operations, over a catalogue of statements."""

    def __init__(self, catalogue: Catalogue | None = None) -> None:
        self._sql = Catalogue.load() if catalogue is None else catalogue

    def move(self, lanes: int, limit: int, first_lane: int) -> Operation[list[int]]:
        """Publish up to `limit` outbox rows of each of up to `lanes` free lanes. Returns their outbox seqs."""
        rows = yield call(self._sql["relay/move"], lanes, limit, first_lane)
        return [int(seq) for [seqs, _] in rows for seq in seqs]

    def broadcasts(self, limit: int) -> Operation[list[tuple[int, Event]]]:
        """The oldest outbox rows without a target."""
        rows = yield call(self._sql["relay/broadcast"], limit)
        return [(int(seq), event_of(event)) for seq, event in rows]

    def ack(self, seqs: Sequence[int]) -> Operation[list[int]]:
        """Remove outbox rows. Returns those that were there."""
        rows = yield call(self._sql["relay/ack"], list(seqs))
        return [int(seq) for [seq] in rows]

    def spawn(self, after: int, limit: int) -> Operation[Spawned]:
        """Make up to `limit` children of the spawns behind seq `after`."""
        yield (Begin(), call(self._sql["relay/patience"], str(PATIENCE_MS)))
        # Sent alone: a pipeline ends with a message that makes the server forget to watch the idle session.
        rows = yield call(self._sql["relay/spawns"], after, limit)
        born, refused, last = _births(rows)
        if not born:
            yield Commit()
            return Spawned(refused=tuple(refused), last=last)
        births, children = zip(*born, strict=True)
        [[made, _, _]], _ = yield (
            call(
                self._sql["relay/make"],
                [each.seq for each in births],
                [child.id for child in children],
                [child.definition_id for child in children],
                [child.data for child in children],
                [child.parent_id for child in children],
                [event_text(each.start) for each in births],
                [each.child.priority for each in births],
            ),
            Commit(),
        )
        return Spawned(tuple(each.seq for each in births), tuple(made), tuple(refused), last)

    def turn(self) -> Operation[bool]:
        """Within a transaction of the caller's: have the outbox and the spawns of this database to oneself until it
        ends. False where another has them."""
        [[mine]] = yield call(self._sql["relay/turn"])
        if mine:
            yield call(self._sql["relay/patience"], str(PATIENCE_MS))
        return bool(mine)

    def sweep(self, limit: int, now: float | None) -> Operation[list[Fired]]:
        """Fire up to `limit` due timers. `now`, in seconds since the epoch, is for tests; None: the server's clock."""
        rows = yield call(self._sql["relay/sweep"], now, limit)
        return [Fired(*row) for row in rows]


def _births(rows: Sequence[Row]) -> tuple[list[tuple[Birth, Prepared]], list[int], int | None]:
    """The children of the first rows, as many as can be sent at once; what can be no child's; the last row's seq."""
    births: list[tuple[Birth, Prepared]] = []
    refused: list[int] = []
    last, size = None, 0
    for seq, _parent_id, child_id, root_path, context, definition_id, data in rows:
        try:
            if definition_id is None:
                raise ValueError("it has no parent")
            one = birth(seq, execution_of(data, 1), child_id, root_path, context_of(context))
            prepared = prepare(stored.Commit(execution=one.child))
        except (ValueError, RecursionError):
            refused.append(seq)
        else:
            size += prepared.bytes_sent
            if births and size > MAX_SENT_BYTES // 2:
                break
            births.append((one, prepared))
        last = seq
    return births, refused, last
