"""Documented and once broken forms of the coordinating statements: a script asks a question that has one right answer.

Every form is a mutant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.limits import Slot
from engine.picker import Hold, Picker
from stress.scripts.race import TIMEOUT_S, Race
from stress.scripts.steps import Pause, claim, held, job, outcome, parked

Script = Callable[[Race, Picker], object]


@dataclass(frozen=True, slots=True)
class Form:
    script: Script
    sound: object
    broken: object


def status(race: Race, row_id: int) -> str:
    (value,) = race.row(row_id, "status::text")
    return str(value)


def park_first(race: Race, picker: Picker) -> str:
    """The delivery's snapshot is older than the park that it waits for."""
    hold = held(race)
    with race.locked(hold.id):
        ended = race.begin("parker", picker.flush([outcome(hold, "await", awaits=("go",))]))
        delivered = race.begin("deliverer", picker.signal(hold.id, "go"))
    ended.result(TIMEOUT_S)
    delivered.result(TIMEOUT_S)
    return status(race, hold.id)


def delivery_first(race: Race, picker: Picker) -> str:
    """The park's snapshot is older than the delivery that it waits for."""
    hold = held(race)
    with race.session("deliverer").transaction():
        race.do(picker.signal(hold.id, "go"), "deliverer")
        ended = race.begin("parker", picker.flush([outcome(hold, "await", awaits=("go",))]))
    ended.result(TIMEOUT_S)
    return status(race, hold.id)


def park_again(race: Race, picker: Picker) -> str:
    """The step was handed the signal and parks all the same."""
    hold = held(race)
    signal = race.do(picker.signal(hold.id, "go")).signal or 0
    race.do(picker.flush([outcome(hold, "await", awaits=("go",), presented=(signal,))]))
    return status(race, hold.id)


def ids_out_of_order(race: Race, picker: Picker) -> str:
    """The step was handed the later id; the earlier one committed while it ran."""
    hold = held(race)
    race.do(picker.signal(hold.id, "go"))
    later = race.do(picker.signal(hold.id, "go")).signal or 0
    race.do(picker.flush([outcome(hold, "await", awaits=("go",), presented=(later,))]))
    return status(race, hold.id)


def signal_to_the_dead(race: Race, picker: Picker) -> str:
    """The delivery waits for a terminal outcome that has not committed."""
    hold = held(race)
    pause = Pause("picker/flush_drop")
    ended = race.start("ender", pause.of(picker.flush([outcome(hold, "done")])))
    pause.reached()
    delivered = race.begin("deliverer", picker.signal(hold.id, "go"))
    pause.end()
    ended.result(TIMEOUT_S)
    return delivered.result(TIMEOUT_S).outcome


def sent_again(race: Race, picker: Picker) -> str:
    """A delivery is made again after its signal was consumed."""
    hold = held(race)
    signal = race.do(picker.signal(hold.id, "go", dedup_key="d")).signal or 0
    race.do(picker.flush([outcome(hold, "next", consumed=(signal,))]))
    return race.do(picker.signal(hold.id, "go", dedup_key="d")).outcome


def duplicate_wakes(race: Race, picker: Picker) -> str:
    """A delivery is made again while its target waits for more, having seen the first."""
    row_id = parked(race, "go")
    signal = race.do(picker.signal(row_id, "go", dedup_key="d")).signal or 0
    claim(race, "c")
    race.do(picker.flush([outcome(Hold(row_id, "c"), "await", awaits=("go",), presented=(signal,))]))
    race.do(picker.signal(row_id, "go", dedup_key="d"))
    return status(race, row_id)


def consumed_too_much(race: Race, picker: Picker) -> int:
    """A signal arrives after its target was claimed, and the step goes on."""
    hold = held(race)
    first = race.do(picker.signal(hold.id, "go")).signal or 0
    race.do(picker.signal(hold.id, "go"))
    race.do(picker.flush([outcome(hold, "next", consumed=(first,))]))
    [(left,)] = race.rows("SELECT count(*) FROM signals")
    return int(left)


def kept_slot(race: Race, picker: Picker) -> tuple[Slot, ...]:
    """A continuation keeps its gate's key."""
    hold = held(race)
    race.rows("UPDATE gen_durable SET concurrency_key = 'g:1', concurrency_shard = 3")
    return race.do(picker.flush([outcome(hold, "continue", lease_ms=60_000.0)])).freed


def identity_after_a_park(race: Race, picker: Picker) -> str:
    """A park leaves its scope, another row takes the identity, and a signal wakes the first."""
    hold = held(race, correlation_key="k", correlation_scope=("runnable", "executing"))
    race.do(picker.flush([outcome(hold, "await", awaits=("go",))]))
    race.do(picker.insert(job(correlation_key="k")))
    error = race.start("deliverer", picker.signal(hold.id, "go")).exception(TIMEOUT_S)
    return type(error).__name__


def siblings_not_summed(race: Race, picker: Picker) -> tuple[str, int]:
    """Three siblings end in one batch."""
    parent = held(race, "parent")
    race.do(picker.flush([outcome(parent, "childs", children=tuple(job(queue="x") for _ in range(3)))]))
    rows = claim(race, "c", queue="x")
    race.do(picker.flush([outcome(Hold(row.id, "c"), "done") for row in rows]))
    found: tuple[str, int] = race.row(parent.id, "status::text, children_pending")
    return found


FORMS: dict[str, Form] = {
    "wake-filtered-in-where": Form(park_first, "runnable", "awaiting_signal"),
    "park-without-recheck": Form(delivery_first, "runnable", "awaiting_signal"),
    "recheck-ignores-presented": Form(park_again, "awaiting_signal", "runnable"),
    "recheck-by-watermark": Form(ids_out_of_order, "runnable", "awaiting_signal"),
    "signal-to-the-dead": Form(signal_to_the_dead, "no_target", "delivered"),
    "dedup-forgets": Form(sent_again, "duplicate", "delivered"),
    "duplicate-wakes": Form(duplicate_wakes, "awaiting_signal", "runnable"),
    "consume-whole-inbox": Form(consumed_too_much, 1, 0),
    "continue-credits-held-slot": Form(kept_slot, (), (Slot("g:1", 3),)),
    "scope-reentered-by-a-wake": Form(identity_after_a_park, "NoneType", "UniqueViolation"),
    "join-counts-a-batch-once": Form(siblings_not_summed, ("runnable", 0), ("awaiting_children", 2)),
}
