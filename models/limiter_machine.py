"""The Hypothesis machine that holds the limiter on a real server against its model, after every step.

It draws limits, weights, partitions and the clock's steps; rows are claimed, admitted, ended, their slots credited
late, twice counted or never; shards are held by another session; configurations change. After each step the shards must
be what the model says; always: no slot is given twice, no rate is overdrawn, nothing violates a constraint, and who is
alone at the head of the queue is admitted in time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.limiter import Gate, Limit, PostgresLimiter, RateLimit
from engine.limits import Admission, Slot
from engine.picker import Claimed, Commit, Hold, Job, Picker
from engine.statements import Catalogue
from models import limiter as model
from models.limiter import Asking, Budget, Owed, Shard
from models.machine import OutOfTime, Tally
from models.sessions import CLOCK_RUNS, PLANNERS, Sessions
from models.strategies import START

ALWAYS = datetime(2000, 1, 1, tzinfo=UTC)
MAX_ROWS = 12
LEASE_MS = 1e12

GATE_KEYS = ("g", "g:1", "g:2", "h:1")
RATE_KEYS = ("r", "r:1", "r:1:x", "s:1")
UNKNOWN_RATE = "nobody:1"

# Dyadic and not, huge and tiny.
_NUMBERS = (0.125, 1.0, 8.0, 1_024.0, 0.1, 0.3, 3.3, 1 / 3, 1e-6, 1e9, 1e12, 1e-9)
_NAMES = ("r", "s")
_SHARDS = (1, 2, 3, 4, 7, 8, 16)


@st.composite
def rate_limits(draw: st.DrawFn, name: str) -> RateLimit:
    """Any legal rate limit of that name, mostly such that seconds matter."""
    burst = draw(st.sampled_from(_NUMBERS) | st.floats(1e-9, 1e12))
    fill = draw(st.sampled_from((1.0, 0.5, 8.0, 60.0, 1e-3)) | st.floats(1e-3, 1e9))
    rate = min(1e12, max(1e-9, burst / fill))
    return RateLimit(name, rate, burst, draw(st.sampled_from(_SHARDS)))


@st.composite
def gates(draw: st.DrawFn, name: str, most: int = 9) -> Gate:
    """Gates of a few slots, in any number of shards."""
    capacity = draw(st.integers(1, most))
    return Gate(name, capacity, draw(st.integers(1, capacity)))


limits = st.tuples(gates("g"), gates("h"), rate_limits("r"), rate_limits("s"))

# Parts of the burst, or a weight as it is.
weights = st.one_of(
    st.sampled_from(
        (Fraction(1), Fraction(1, 2), Fraction(1, 3), Fraction(1, 8), Fraction(1, 10), Fraction(9, 8))
    ),
    st.sampled_from((1.0, 0.1, 5e-324, 1e-13, 1.7e308)),
)

demands = st.tuples(
    st.sampled_from((None, None, *GATE_KEYS[:1] * 4, *GATE_KEYS[1:])),
    st.sampled_from((*[None] * 4, *RATE_KEYS, *RATE_KEYS, UNKNOWN_RATE)),
    weights,
    st.sampled_from((0, 0, 1, -1)),
)
Demand = tuple[str | None, str | None, Fraction | float, int]


def limiter_machine(
    sessions: Sessions, tally: Tally, catalogue: Catalogue | None = None
) -> type[RuleBasedStateMachine]:
    """The machine bound to a server's sessions and a catalogue of statements."""
    bound = {"sessions": sessions, "tally": tally, "catalogue": catalogue or Catalogue.load()}
    return type("LimiterMachine", (LimiterMachine,), {**bound, "__doc__": LimiterMachine.__doc__})


class LimiterMachine(RuleBasedStateMachine):
    """Not to be run as it is: `limiter_machine` binds it."""

    sessions: ClassVar[Sessions]
    tally: ClassVar[Tally]
    catalogue: ClassVar[Catalogue]

    planners = st.sampled_from(tuple(PLANNERS))
    some_row = precondition(lambda self: self.asking)
    some_slot = precondition(lambda self: self.running)
    some_owed = precondition(lambda self: self.owed)
    some_rate = precondition(lambda self: self.rates)

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        # Seconds that have really passed: the clock may be set back, the sun is not.
        self.elapsed = Fraction(0)
        self.limiter = PostgresLimiter((), self.catalogue)
        self.picker = Picker(self.catalogue)
        self.by_name: dict[tuple[type[Limit], str], Limit] = {}
        self.asking: dict[int, Claimed] = {}
        self.running: dict[int, Claimed] = {}
        self.owed: list[Owed] = []
        self.eras: dict[str, int] = {}
        self.rates: dict[str, dict[int, Shard]] = {}
        self.budgets: dict[str, Budget] = {}
        # Gate shards as they are stored: capacity, available, debt.
        self.gates: dict[str, dict[int, tuple[float, float, float]]] = {}
        # Keys whose shards are not those of the configuration until the next sweep.
        self.unhealed: set[str] = set()
        self.locked: dict[str, frozenset[int]] = {}
        self.rows_made = 0
        self.claims_made = 0
        self.steps: list[str] = []
        self.sessions.reset(START)

    def teardown(self) -> None:
        self.sessions.let_go()
        self.tally.examples += not self.tally.out_of_time

    # ---- configuration -----------------------------------------------------------------------------------------

    @initialize(limits=limits)
    def begin(self, limits: tuple[Limit, ...]) -> None:
        self._configure(limits)

    @rule(limits=limits, which=st.integers(0, 3))
    def reconfigure(self, limits: tuple[Limit, ...], which: int) -> None:
        kept = list(self.limiter.limits)
        kept[which] = limits[which]
        self._configure(tuple(kept))

    @some_rate
    @rule(which=st.sampled_from((2, 3)), times=st.sampled_from((2.0, 8.0, 0.5)))
    def scale(self, which: int, times: float) -> None:
        """Another burst for keys in use, with as many shards, so that no sweep makes them anew."""
        kept = list(self.limiter.limits)
        limit = kept[which]
        assert isinstance(limit, RateLimit)
        rate, burst = limit.rate * times, limit.burst * times
        if all(1e-9 <= number <= 1e12 for number in (rate, burst)):
            kept[which] = RateLimit(limit.name, rate, burst, limit.shards)
            self._configure(tuple(kept))

    @some_slot
    @rule(planner=planners, gate=gates("g", most=3))
    def resize(self, planner: str, gate: Gate) -> None:
        """Another capacity, counted at once: what executes then may be more than it allows."""
        self._configure((gate, *self.limiter.limits[1:]))
        self._reconcile(planner, 1_000, 60_000.0)

    def _configure(self, limits: tuple[Limit, ...]) -> None:
        with self._step(f"configure({limits})"):
            self.limiter = PostgresLimiter(limits, self.catalogue)
            self.sessions.perform("stock", self.limiter.sync_config())
            for limit in limits:
                old = self.by_name.get((type(limit), limit.name))
                self.by_name[type(limit), limit.name] = limit
                if limit == old:
                    continue
                for key in (*self.rates, *self.gates):
                    if key.partition(":")[0] == limit.name:
                        self.unhealed.add(key)
                for key in [key for key in self.budgets if key.partition(":")[0] == limit.name]:
                    del self.budgets[key]

    # ---- rows --------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.asking) + len(self.running) < MAX_ROWS)
    @rule(planner=planners, demands=st.lists(demands, min_size=1, max_size=6))
    def claim(self, planner: str, demands: list[Demand]) -> None:
        with self._step(f"claim({planner}, {demands})"):
            for key, rate, weight, priority in demands:
                self._insert(key, rate, weight, priority)
            self._claim(planner)

    def _insert(self, key: str | None, rate: str | None, weight: Fraction | float, priority: int) -> None:
        if isinstance(weight, Fraction):
            limit = None if rate is None else self._rate(rate)
            weight = float(weight * Fraction(1 if limit is None else limit.burst))
        job = Job(
            fsm="m", step="s", concurrency_key=key, rate_limit=rate, weight=weight, priority=priority,
            eligible_at=ALWAYS,
        )  # fmt: skip
        self.sessions.perform("stock", self.picker.insert(job))

    def _claim(self, planner: str) -> None:
        self.claims_made += 1
        operation = self.picker.claim(
            queue="default",
            batch=100,
            claim=f"claim {self.claims_made}",
            lease_ms=LEASE_MS,
            gates=self.limiter.gates,
        )
        for row in self.sessions.perform(planner, operation).rows:
            self.asking[row.id] = row

    @some_row
    @rule(planner=planners, left_out=st.sets(st.integers(1, 30), max_size=3))
    def admit(self, planner: str, left_out: set[int]) -> None:
        rows = [row for row in self.asking.values() if row.id not in left_out]
        with self._step(f"admit({planner}, {[row.id for row in rows]})"):
            self._admit(planner, rows)

    def _admit(self, planner: str, rows: list[Claimed]) -> Admission:
        admission = self.sessions.perform(planner, self.limiter.admit(rows))
        assert admission.contended == 0, "a lone admission violated a constraint"
        admitted = {row.id: row for row in admission.admitted}
        assert {row.id for row in admission.denied} == {row.id for row in rows} - set(admitted)

        asked = [
            Asking(row.id, row.concurrency_key, row.rate_limit, row.weight, row.priority) for row in rows
        ]
        rates = {row.rate: limit for row in asked if row.rate and (limit := self._rate(row.rate))}
        levels = {key: self._levels(key, limit) for key, limit in rates.items()}
        tokens = {key: sum(level.values(), Fraction(0)) for key, level in levels.items()}
        seats = {row.gate: self._seats(row.gate) for row in asked if row.gate is not None}
        decision = model.decide(
            asked,
            free={key: len(seat) for key, seat in seats.items()},
            tokens=tokens,
            bursts={key: limit.burst for key, limit in rates.items()},
            engine=admitted,
        )
        _same("admitted", sorted(decision.passed), sorted(admitted))
        _same("refused", sorted(decision.refused), sorted(r.row.id for r in admission.refused))

        drawn: dict[str, list[float]] = {}
        for row in sorted(asked, key=lambda row: row.order):
            if row.id not in admitted:
                continue
            if row.gate is not None:
                shard = seats[row.gate].pop(0)
                _same(f"the shard of row {row.id}", shard, admitted[row.id].concurrency_shard)
                self._take(row.gate, shard)
            if row.rate is not None:
                drawn.setdefault(row.rate, []).append(row.weight)
        touched = {row.rate for row in asked if row.id not in decision.refused}
        for key, limit in rates.items():
            if key in touched:
                self._draw(key, limit, levels[key], tokens[key], drawn.get(key, []))
        for claimed in admitted.values():
            del self.asking[claimed.id]
            self.running[claimed.id] = claimed
        return admission

    def _rate(self, key: str) -> RateLimit | None:
        limit = self.by_name.get((RateLimit, key.partition(":")[0]))
        return limit if isinstance(limit, RateLimit) else None

    def _gate(self, key: str) -> Gate:
        limit = self.by_name[Gate, key.partition(":")[0]]
        assert isinstance(limit, Gate)
        return limit

    def _levels(self, key: str, limit: RateLimit) -> dict[int, Fraction]:
        """What an admission finds in the shards that nobody holds."""
        if key not in self.rates:
            return dict.fromkeys(range(limit.shards), Fraction(limit.burst) / limit.shards)
        return {
            shard: model.refilled(limit, stored, self.now)
            for shard, stored in self.rates[key].items()
            if shard < limit.shards and shard not in self.locked.get(key, ())
        }

    def _seats(self, key: str) -> list[int]:
        """The shard of each free slot, in the order in which they are taken."""
        if key not in self.gates:
            gate = self._gate(key)
            free: dict[int, float] = dict(enumerate(model.shares(gate.capacity, gate.shards)))
        else:
            held = self.locked.get(key, ())
            free = {shard: s[1] for shard, s in self.gates[key].items() if shard not in held}
        return [shard for shard in sorted(free) for _ in range(int(free[shard]))]

    def _take(self, key: str, shard: int) -> None:
        if key not in self.gates:
            gate = self._gate(key)
            self.gates[key] = {
                number: (share, share, 0.0)
                for number, share in enumerate(model.shares(gate.capacity, gate.shards))
            }
            self.eras[key] = self.eras.get(key, 0) + 1
        capacity, available, debt = self.gates[key][shard]
        self.gates[key][shard] = (capacity, available - 1, debt)

    def _draw(
        self, key: str, limit: RateLimit, levels: dict[int, Fraction], total: Fraction, weights: list[float]
    ) -> None:
        amount = sum((model.charge(weight) for weight in weights), Fraction(0))
        if weights and key not in self.rates:
            self.rates[key] = dict.fromkeys(levels, Shard(Fraction(0), self.now))
        for shard, level in levels.items():
            stored = self.rates.get(key, {}).get(shard)
            if stored is None:
                continue
            if weights and level > 0:
                left = max(Fraction(0), level - amount * level / total)
                ahead = stored.at > self.now + CLOCK_RUNS
                self.rates[key][shard] = Shard(left, self.now if ahead else max(stored.at, self.now))
            elif stored.at > self.now + CLOCK_RUNS:
                # The clock was set back: the shard starts anew.
                self.rates[key][shard] = Shard(level, self.now)
        if weights:
            budget = self.budgets.get(key) or Budget.full(limit, self.elapsed)
            self.budgets[key] = budget.granted(weights, self.elapsed)

    @some_slot
    @rule(planner=planners, count=st.integers(1, 4))
    def finish(self, planner: str, count: int) -> None:
        self._finish(planner, list(self.running.values())[:count])

    @some_slot
    @rule(planner=planners)
    def count_before_credit(self, planner: str) -> None:
        """A row ends, its gate is counted, and only then the slot comes back."""
        seats = Counter((row.concurrency_key, row.concurrency_shard) for row in self.running.values())
        # Best from a shard that others hold slots of as well.
        row = max(
            self.running.values(),
            key=lambda row: (
                row.concurrency_key is not None,
                seats[row.concurrency_key, row.concurrency_shard],
            ),
        )
        self._finish(planner, [row])
        self._reconcile(planner, 1_000, 60_000.0)
        if self.owed:
            self._credit(planner, self.owed[-1].xid, lost=False)

    def _finish(self, planner: str, rows: list[Claimed]) -> None:
        with self._step(f"finish({planner}, {[row.id for row in rows]})"):
            commits = [Commit(id=row.id, claim=row.claim, kind="done", result="1") for row in rows]
            xid = self.sessions.perform(planner, self.picker.flush(commits)).xid
            assert xid is not None
            for row in rows:
                del self.running[row.id]
                if row.concurrency_key is not None:
                    assert row.concurrency_shard is not None
                    era = self.eras[row.concurrency_key]
                    self.owed.append(Owed(row.concurrency_key, row.concurrency_shard, xid, era))

    @some_slot
    @rule(planner=planners)
    def crash(self, planner: str) -> None:
        """Every row goes back to the queue, its slot with nobody to give it back; another claims them all."""
        with self._step(f"crash({planner})"):
            rows = [*self.running.values(), *self.asking.values()]
            self.sessions.perform(planner, self.picker.release([Hold(row.id, row.claim) for row in rows]))
            self.running.clear()
            self.asking.clear()
            self._claim(planner)

    @some_owed
    @rule(planner=planners, first=st.integers(0, 5), lost=st.booleans())
    def credit(self, planner: str, first: int, lost: bool) -> None:
        """Give back the slots of one transaction, or lose them with the process that owes them."""
        self._credit(planner, self.owed[first % len(self.owed)].xid, lost=lost)

    def _credit(self, planner: str, xid: int, *, lost: bool) -> None:
        due = [owed for owed in self.owed if owed.xid == xid]
        if any(owed.shard in self.locked.get(owed.key, ()) for owed in due):
            return  # it would wait
        with self._step(f"credit({planner}, {due}, lost={lost})"):
            self.owed = [owed for owed in self.owed if owed.xid != xid]
            if lost:
                return
            slots = [Slot(owed.key, owed.shard) for owed in due]
            self.sessions.perform(planner, self.limiter.credit(slots, xid))
            for owed in due:
                shards = self.gates.get(owed.key, {})
                if owed.era == self.eras[owed.key] and owed.shard in shards:
                    capacity, available, debt = shards[owed.shard]
                    paid = debt > 0
                    level = available if paid else min(capacity, available + 1)
                    shards[owed.shard] = (capacity, level, debt - 1 if paid else debt)

    # ---- sweeps ------------------------------------------------------------------------------------------------

    @rule(planner=planners, limit=st.sampled_from((1, 2, 1_000)), idle_ms=st.sampled_from((-1.0, 60_000.0)))
    def reconcile(self, planner: str, limit: int, idle_ms: float) -> None:
        self._reconcile(planner, limit, idle_ms)

    def _reconcile(self, planner: str, limit: int, idle_ms: float) -> None:
        with self._step(f"reconcile({planner}, {limit}, {idle_ms})"):
            self.sessions.perform(planner, self.limiter.reconcile(limit, idle_ms))
            stored = self._stored_gates()
            for key in list(self.gates):
                if self.locked.get(key):
                    continue  # compared after the step like everything else
                gate = self._gate(key)
                executing = self._executing(key)
                self.eras[key] += 1
                self.unhealed.discard(key)
                if key not in stored:
                    _same(f"rows under {key}, which was dropped", 0, executing)
                    del self.gates[key]
                    continue
                shards = stored[key]
                _same(f"shards of {key}", list(range(gate.shards)), list(shards))
                parts = [float(share) for share in model.shares(gate.capacity, gate.shards)]
                _same(f"capacity of {key}", parts, [shard[0] for shard in shards.values()])
                free = sum(shard[1] for shard in shards.values())
                _same(f"free slots of {key}", model.slots_at_rest(gate, executing), int(free))
                debts = [shard[2] for shard in shards.values()]
                _same(f"debt of {key}", model.debts(gate, self._executing_by_shard(key)), debts)
                self.gates[key] = shards

    @rule(planner=planners, limit=st.sampled_from((1, 1_000)))
    def sweep(self, planner: str, limit: int) -> None:
        with self._step(f"sweep({planner}, {limit})"):
            self.sessions.perform(planner, self.limiter.sweep_buckets(limit))
            stored = self._stored_rates()
            for key, shards in list(self.rates.items()):
                limit_of_key = self._rate(key)
                assert limit_of_key is not None
                if key not in stored:
                    assert not self.locked.get(key), f"{key} was dropped while a shard was held"
                    for shard in shards.values():
                        level = model.refilled(limit_of_key, shard, self.now)
                        assert level == Fraction(limit_of_key.burst) / limit_of_key.shards, (
                            f"{key} was dropped before it was full"
                        )
                    _same(
                        f"shards of {key}, which was dropped",
                        list(range(limit_of_key.shards)),
                        sorted(shards),
                    )
                    del self.rates[key]
                    self.unhealed.discard(key)
                elif sorted(stored[key]) != sorted(shards):
                    _same(f"shards of {key}", list(range(limit_of_key.shards)), sorted(stored[key]))
                    self.rates[key] = {
                        shard: shards.get(shard, Shard(Fraction(0), self.now)) for shard in stored[key]
                    }
            if limit == 1_000 and not self.locked:
                for key, shards in self.rates.items():
                    limit_of_key = self._rate(key)
                    assert limit_of_key is not None
                    _same(f"shards of {key} after a sweep", list(range(limit_of_key.shards)), sorted(shards))

    # ---- time and other people's locks -------------------------------------------------------------------------

    @rule(
        passed=st.sampled_from((1, 1_000, 125_000, 1_000_000, 61_000_000, 86_400_000_000))
        | st.integers(0, 10**8)
    )
    def pass_time(self, passed: int) -> None:
        with self._step(f"pass_time({passed} us)"):
            self._pass(timedelta(microseconds=passed))

    def _pass(self, passed: timedelta) -> None:
        self.now += passed
        self.elapsed += Fraction(passed // timedelta(microseconds=1), 10**6)
        self.sessions.set_time(self.now)

    @rule(back=st.sampled_from((1, 1_000_000, 3_600_000_000)))
    def set_clock_back(self, back: int) -> None:
        with self._step(f"set_clock_back({back} us)"):
            self.now -= timedelta(microseconds=back)
            self.sessions.set_time(self.now)

    @precondition(lambda self: not self.locked and (self.gates or self.rates))
    @rule(which=st.integers(0, 7), shards=st.sets(st.integers(0, 3), min_size=1))
    def lock(self, which: int, shards: set[int]) -> None:
        keys = sorted((*self.gates, *self.rates))
        key = keys[which % len(keys)]
        there = shards & {*self.gates.get(key, ()), *self.rates.get(key, ())}
        with self._step(f"lock({key}, {there})"):
            if there:
                self.sessions.hold_shards(key, there)
                self.locked = {key: frozenset(there)}

    @precondition(lambda self: self.locked)
    @rule()
    def let_go(self) -> None:
        with self._step("let_go()"):
            self.sessions.let_go()
            self.locked = {}

    # ---- what a lone picker can count on -----------------------------------------------------------------------

    @precondition(lambda self: not self.locked and not self.asking)
    @rule(planner=planners, key=st.sampled_from(RATE_KEYS), part=st.sampled_from((1, 1, 0.5, 0.3, 1e-3)))
    def a_lone_row_is_admitted_in_time(self, planner: str, key: str, part: float) -> None:
        limit = self._rate(key)
        assert limit is not None
        if key in self.unhealed and key in self.rates:
            return
        weight = limit.burst * part
        with self._step(f"a_lone_row_is_admitted_in_time({planner}, {key!r}, {weight})"):
            self._insert(None, key, weight, 0)
            self._claim(planner)
            (row,) = self.asking.values()
            if self._admit(planner, [row]).denied:
                self._pass(model.wait_for(limit, weight))
                assert self._admit(planner, [row]).admitted, "it was not admitted in time"

    # ---- after every step --------------------------------------------------------------------------------------

    def _executing(self, key: str) -> int:
        return sum(row.concurrency_key == key for row in self.running.values())

    def _executing_by_shard(self, key: str) -> Counter[int | None]:
        rows = self.running.values()
        return Counter(row.concurrency_shard for row in rows if row.concurrency_key == key)

    def _stored_gates(self) -> dict[str, dict[int, tuple[float, float, float]]]:
        gates: dict[str, dict[int, tuple[float, float, float]]] = {}
        for kind, key, shard, capacity, available, _, debt in self.sessions.buckets():
            if kind == "conc":
                gates.setdefault(key, {})[shard] = (capacity, available, debt)
        return gates

    def _stored_rates(self) -> dict[str, dict[int, tuple[float, datetime]]]:
        rates: dict[str, dict[int, tuple[float, datetime]]] = {}
        for kind, key, shard, _, available, last_refill, _ in self.sessions.buckets():
            if kind == "rate":
                rates.setdefault(key, {})[shard] = (available, last_refill)
        return rates

    def _check(self) -> None:
        gates, rates = self._stored_gates(), self._stored_rates()
        _same("gates", self.gates, gates)
        for key, shards in gates.items():
            free = sum(shard[1] for shard in shards.values())
            room = sum(shard[0] for shard in shards.values()) - self._executing(key)
            assert free <= max(0, room), f"{key}: {free} slots are free where there is room for {room}"
        _same("rate keys", sorted(self.rates), sorted(rates))
        for key, stored in rates.items():
            _same(f"shards of {key}", sorted(self.rates[key]), sorted(stored))
            limit = self._rate(key)
            assert limit is not None
            for shard, (level, at) in stored.items():
                expected = self.rates[key][shard]
                _same(f"last_refill of {key}, {shard}", expected.at, at)
                off = abs(float(expected.level) - level)
                allowed = 1e-11 * max(limit.burst, level)
                assert off <= allowed, (
                    f"{key}, {shard}: the model says {float(expected.level)}, the engine {level}"
                )
                # Roundings do not add up over an example.
                self.rates[key][shard] = replace(expected, level=Fraction(level))

    @contextmanager
    def _step(self, text: str) -> Iterator[None]:
        if time.monotonic() > self.tally.deadline:
            self.tally.out_of_time = True
            raise OutOfTime
        self.tally.steps += 1
        self.steps.append(text)
        try:
            yield
            self._check()
        except Exception as error:
            self.tally.note_failure(self.steps, error)
            raise


def _same(what: str, expected: object, answer: object) -> None:
    assert answer == expected, f"{what}: the model says {expected!r}, the engine {answer!r}"
