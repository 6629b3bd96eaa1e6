"""What a store does on Postgres: the operations of store.md, for the drivers of `engine.operation`.

Rules:

1. One commit is one transaction: state, outbox, marker, spawns, timers and trace are all there or none is. Whoever
   holds the version that is stored wins; there is no lock but the row's.
2. The version of an execution in memory moves when its commit is known to have happened, and not before: whatever is
   raised, cancellations too, leaves it where it was.
3. An event's marker comes with a new version of its execution, so the version guards it: a commit whose event was
   processed before is refused, whatever its caller looked up.
4. All rows that exist are locked first, in id order; then new ones are inserted, in id order. Batches wait for each
   other in no circle. Where a caller names rows that are not there yet, or two appenders meet before there is a row,
   the transaction fails whole and is done anew, a bounded number of times.
5. Several commits of one execution in a batch take turns within its transaction, as if one came after the other.
6. Every reading is one statement and a transaction of its own, so the next one sees what was committed since.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from engine import operation
from engine.operation import Begin, Call, Operation, Row, call
from engine.statements import Catalogue
from engine.store.encoding import (
    MAX_BATCH,
    ROWS,
    TRACE_MAX,
    Prepared,
    bounded,
    event_of,
    execution_of,
    instant,
    key,
    page_of_rows,
    place_of,
    prepare,
    ring,
    seq_of,
    statuses_of,
    step,
    steps_of,
)
from engine.store.execution import (
    Commit,
    ConflictUnexplained,
    Event,
    EventAlreadyProcessed,
    Execution,
    Page,
    StoreConflict,
)
from engine.values import MAX_SENT_BYTES, TooLarge, UnstorableValue

# How often a transaction that the server undid is done again. Rule 4 says when that can be.
ATTEMPTS = 10
# How often a store asks why a commit was refused, where the answer is lost.
QUESTIONS = 3
# Deadlock detected; unique violation, which only a trace's index can be.
_UNDONE = ("40P01", "23505")

Json = dict[str, Any]
Answer = StoreConflict | UnstorableValue | None


class Operations:
    """The operations over one catalogue. `trace_max`: steps that a trace keeps, 1 or more."""

    def __init__(self, catalogue: Catalogue | None = None, *, trace_max: int = TRACE_MAX) -> None:
        self._sql = Catalogue.load() if catalogue is None else catalogue
        self._trace_max = ring(trace_max)

    def load(self, execution_id: str) -> Operation[Execution | None]:
        """The execution as it is stored."""
        rows = yield call(self._sql["store/load"], key("execution_id", execution_id))
        return execution_of(*rows[0]) if rows else None

    def load_for_event(self, execution_id: str, event_id: str) -> Operation[tuple[Execution | None, bool]]:
        """The execution, and whether it processed the event, at one moment."""
        arguments = (key("execution_id", execution_id), key("event_id", event_id))
        rows = yield call(self._sql["store/load_for_event"], *arguments)
        return (execution_of(*rows[0][:2]), rows[0][2]) if rows else (None, False)

    def is_processed(self, execution_id: str, event_id: str) -> Operation[bool]:
        """Whether the event's effect was committed."""
        arguments = (key("execution_id", execution_id), key("event_id", event_id))
        rows = yield call(self._sql["store/is_processed"], *arguments)
        return bool(rows[0][0])

    def commit(self, commit: Commit) -> Operation[None]:
        """One commit, in one round trip. Raises StoreConflict, EventAlreadyProcessed, UnstorableValue."""
        prepared = prepare(commit)
        if prepared.state_only:
            refusal = yield from self._compare_and_set(prepared)
        else:
            (refusal,) = yield from self._transaction([prepared])
        if refusal is not None:
            raise refusal

    def commit_many(self, commits: Sequence[Commit]) -> Operation[list[Answer]]:
        """Many commits in one transaction, as if one came after the other; one answer each, None where it happened.

        One round trip, and one more for each further commit of the same execution. A refused commit harms no other.
        Raises ValueError for a batch above its limits.
        """
        check_batch(commits)
        answers: list[Answer] = [None] * len(commits)
        prepared: list[Prepared] = []
        places: list[int] = []
        for place, commit in enumerate(commits):
            try:
                prepared.append(prepare(commit))
            except UnstorableValue as error:
                answers[place] = error
            else:
                places.append(place)
        check_size(prepared)
        refusals = (yield from self._transaction(prepared)) if prepared else []
        for place, refusal in zip(places, refusals, strict=True):
            answers[place] = refusal
        return answers

    def explain(self, conflict: ConflictUnexplained) -> Operation[StoreConflict]:
        """Ask again what a commit was refused for."""
        rows = yield call(self._sql["store/why"], conflict.execution_id, conflict.event_id)
        return refusal_of(conflict.execution_id, conflict.expected, *rows[0])

    def pending_outbox(self, limit: int = ROWS) -> Operation[list[tuple[int, str | None, Event]]]:
        """Events that are yet to be delivered, by seq."""
        rows = yield call(self._sql["store/outbox"], bounded(limit))
        return [(seq, target_id, event_of(event)) for seq, target_id, event in rows]

    def ack_outbox(self, seq: int) -> Operation[None]:
        """The event was delivered. Acking it again changes nothing."""
        yield call(self._sql["store/ack_outbox"], seq_of(seq))

    def pending_spawns(self, limit: int = ROWS) -> Operation[list[tuple[int, str, str, str, Json]]]:
        """Children that are yet to be made, by seq: (seq, parent_id, child_id, root_path, context)."""
        rows = yield call(self._sql["store/spawns"], bounded(limit))
        return [(*row[:4], json.loads(row[4])) for row in rows]

    def ack_spawn(self, seq: int) -> Operation[None]:
        """The child was made. Acking it again changes nothing."""
        yield call(self._sql["store/ack_spawn"], seq_of(seq))

    def due_timers(self, now: float, limit: int = ROWS) -> Operation[list[tuple[str, str, float]]]:
        """Timers due at `now`, oldest first: (execution_id, path, fire_at)."""
        rows = yield call(self._sql["store/due_timers"], instant("now", now), bounded(limit))
        return list(rows)

    def delete_timer(self, execution_id: str, path: str, fire_at: float) -> Operation[None]:
        """The timer was fired; one that was re-armed to another time stays, to the same it does not."""
        arguments = (key("execution_id", execution_id), key("path", path), instant("fire_at", fire_at))
        yield call(self._sql["store/delete_timer"], *arguments)

    def append_trace(self, execution_id: str, entry: Json) -> Operation[None]:
        """One step more, outside of any commit."""
        execution_id, text = key("execution_id", execution_id), step(entry)
        for _ in range(ATTEMPTS):
            answers = yield (
                Begin(),
                call(self._sql["store/lock"], [execution_id]),
                call(self._sql["store/append_trace"], execution_id, text, self._trace_max),
                operation.Commit(),
            )
            if answers[2]:
                return
        raise StoreBusy(f"execution {execution_id}: {ATTEMPTS} other steps took this one's index")

    def read_trace(self, execution_id: str) -> Operation[list[Json]]:
        """The steps that the ring holds, oldest first, each with its "index"."""
        rows = yield call(self._sql["store/trace"], key("execution_id", execution_id))
        return steps_of(rows)

    def list_executions(
        self,
        status: str | Iterable[str] | None = None,
        definition_id: str | None = None,
        roots_only: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Operation[Page]:
        """One page in id order. `status`: one or several, any of which will do."""
        statuses = statuses_of(status)
        if definition_id is not None:
            key("definition_id", definition_id)
        arguments = (place_of(cursor), definition_id, bool(roots_only), bounded(limit) + 1)
        if statuses is None:
            rows = yield call(self._sql["store/page"], *arguments)
        else:
            rows = yield call(self._sql["store/page_of_status"], *arguments, statuses)
        return page_of_rows(rows, limit)

    def _compare_and_set(self, commit: Prepared) -> Operation[StoreConflict | None]:
        rows = yield call(
            self._sql["store/commit_cas"],
            commit.id, commit.definition_id, commit.data, commit.expected, commit.event,
            commit.status, commit.outcome, commit.active_path, commit.parent_id,
        )  # fmt: skip
        if rows[0][0]:
            commit.execution.version = commit.expected + 1
            return None
        return (yield from self._why(commit, commit.expected))

    def _transaction(self, commits: Sequence[Prepared]) -> Operation[list[StoreConflict | None]]:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return (yield from self._attempt(commits))
            except Exception as error:
                if sqlstate(error) not in _UNDONE or attempt == ATTEMPTS:
                    raise
        raise AssertionError

    def _attempt(self, commits: Sequence[Prepared]) -> Operation[list[StoreConflict | None]]:
        waves = _waves(commits)
        steps: Counter[int] = Counter()  # versions won so far, by the identity of the object
        lost: dict[int, Row] = {}
        ids = sorted({commit.id for commit in commits})
        opening: tuple[operation.Request, ...] = (Begin(), call(self._sql["store/lock"], ids))
        for wave in waves:
            batch = [(place, commits[place]) for place in wave]
            expected = [commit.expected + steps[id(commit.execution)] for _, commit in batch]
            closing = (operation.Commit(),) if wave is waves[-1] else ()
            answers = yield (*opening, self._commit_call([commit for _, commit in batch], expected), *closing)
            for (place, commit), row in zip(batch, answers[len(opening)], strict=True):
                if row[1]:
                    steps[id(commit.execution)] += 1
                else:
                    lost[place] = (expected[row[0] - 1], *row[2:])
            opening = ()
        for commit in commits:
            commit.execution.version = commit.expected + steps[id(commit.execution)]
        answers_: list[StoreConflict | None] = [None] * len(commits)
        for place, (expected_, found, processed) in lost.items():
            if found is None and expected_ == 0 and not processed:
                # The rival's first save is not in the snapshot that lost against it.
                answers_[place] = yield from self._why(commits[place], expected_)
            else:
                answers_[place] = refusal_of(commits[place].id, expected_, found, processed)
        return answers_

    def _why(self, commit: Prepared, expected: int) -> Operation[StoreConflict]:
        unexplained = ConflictUnexplained(commit.id, expected, commit.event)
        try:
            return (yield from self.explain(unexplained))
        except Exception:  # noqa: BLE001  # of whatever driver
            # It was refused, and the rest of a batch is committed: nobody is told otherwise for want of a number.
            return unexplained

    def _commit_call(self, commits: Sequence[Prepared], expected: Sequence[int]) -> Call:
        numbered = list(enumerate(commits, 1))
        outbox = [(n, *emit) for n, commit in numbered for emit in commit.outbox]
        spawns = [(n, *spawn) for n, commit in numbered for spawn in commit.spawns]
        timers = [(n, *timer) for n, commit in numbered for timer in commit.timers]
        return call(
            self._sql["store/commit"],
            [commit.id for commit in commits],
            [commit.definition_id for commit in commits],
            [commit.data for commit in commits],
            list(expected),
            [commit.status for commit in commits],
            [commit.outcome for commit in commits],
            [commit.active_path for commit in commits],
            [commit.parent_id for commit in commits],
            [commit.event for commit in commits],
            [commit.trace for commit in commits],
            *_columns(outbox, 3),
            *_columns(spawns, 4),
            *_columns(timers, 3),
            self._trace_max,
        )


class StoreBusy(Exception):
    """The same race was lost too often; nothing was written."""


def check_batch(commits: Sequence[Commit]) -> None:
    """Raises ValueError for more commits than a batch may have."""
    if len(commits) > MAX_BATCH:
        raise ValueError(f"a batch has {len(commits)} commits; the limit is {MAX_BATCH}")


def check_size(commits: Iterable[Prepared]) -> None:
    """Raises TooLarge for a batch that is too big to be sent."""
    size = sum(commit.bytes_sent for commit in commits)
    if size > MAX_SENT_BYTES:
        raise TooLarge(f"a batch is {size} bytes with its effects; the limit is {MAX_SENT_BYTES}")


def refusal_of(execution_id: str, expected: int, found: int | None, processed: bool) -> StoreConflict:
    """The exception that says why a commit did not happen."""
    kind = EventAlreadyProcessed if processed else StoreConflict
    return kind(execution_id, expected, found)


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of a database error, of any driver; None where the server did not say one."""
    for name in ("sqlstate", "pgcode"):
        code = getattr(error, name, None)
        if isinstance(code, str):
            return code
    fields = error.args[0] if error.args else None
    code = fields.get("C") if isinstance(fields, dict) else None
    return code if isinstance(code, str) else None


def _waves(commits: Sequence[Prepared]) -> list[list[int]]:
    """Places of the commits: the first of each execution, then the second ones, and so on."""
    seen: Counter[str] = Counter()
    waves: list[list[int]] = []
    for place, commit in enumerate(commits):
        turn = seen[commit.id]
        seen[commit.id] += 1
        if turn == len(waves):
            waves.append([])
        waves[turn].append(place)
    return waves


def _columns(rows: Sequence[tuple[object, ...]], width: int) -> list[list[object]]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]
