"""Admissions, credits, counts and sweeps meet: slots are conserved, nobody waits in a circle, nobody gets an error.

Each race is run with the engine's statements and with the mutant that the race would ruin.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import psycopg
import pytest
from msgspec import structs

from engine.limiter import Gate, Limit, PostgresLimiter, RateLimit, Reconciled, Swept, cold_lock
from engine.limits import Admission, Slot
from engine.picker import Claimed, Commit, Hold, Job, Picker
from engine.statements import Catalogue
from invariants.mutants import REGISTRY
from stress.scripts.race import TIMEOUT_S, Race

# Any number; what waits for it is the test's.
PAUSE = 4_711

_PAUSES = """
CREATE FUNCTION pause_at_bucket() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('pause.bucket', true) = NEW.key THEN
        PERFORM pg_advisory_xact_lock_shared(current_setting('pause.number')::bigint);
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER pause_at_bucket BEFORE INSERT ON gen_durable_buckets
FOR EACH ROW EXECUTE FUNCTION pause_at_bucket();
"""


class Limited:
    """A race over limits: `variant` names a mutant, None is the engine's own form."""

    def __init__(self, race: Race, limits: Sequence[Limit], variant: str | None = None) -> None:
        self.race = race
        self.catalogue = Catalogue.load() if variant is None else REGISTRY[variant].apply(Catalogue.load())
        self.picker = Picker(self.catalogue)
        self.limiter = PostgresLimiter(limits, self.catalogue)
        self.claims = 0
        race.do(self.limiter.sync_config())

    def insert(self, *keys: str, **fields: object) -> None:
        for key in keys:
            job = Job(fsm="m", step="s", concurrency_key=key, **fields)  # type: ignore[arg-type]
            self.race.do(self.picker.insert(job))

    def claim(
        self, batch: int = 100, *, lease_ms: float = 60_000, gates: Sequence[str] | None = None
    ) -> tuple[Claimed, ...]:
        self.claims += 1
        gates = self.limiter.gates if gates is None else gates
        claim = self.picker.claim(
            queue="default", batch=batch, claim=f"claim {self.claims}", lease_ms=lease_ms, gates=gates
        )
        return self.race.do(claim).rows

    def admit(self, rows: Sequence[Claimed], session: str = "one") -> Admission:
        return self.race.do(self.limiter.admit(rows), session)

    def pick(self, batch: int = 100) -> tuple[Claimed, ...]:
        """Claim, admit, give the denied back."""
        admission = self.admit(self.claim(batch))
        self.race.do(self.picker.release([_hold(row) for row in admission.denied]))
        return admission.admitted

    def finish(self, *rows: Claimed) -> int:
        commits = [Commit(id=row.id, claim=row.claim, kind="done", result="1") for row in rows]
        xid = self.race.do(self.picker.flush(commits)).xid
        assert xid is not None
        return xid

    def credit(self, xid: int, *rows: Claimed) -> tuple[Slot, ...]:
        return self.race.do(self.limiter.credit([_slot(row) for row in rows], xid))

    def reconcile(self, limit: int = 1_000, idle_ms: float = 60_000) -> Reconciled:
        return self.race.do(self.limiter.reconcile(limit, idle_ms))

    def sweep(self) -> Swept:
        return self.race.do(self.limiter.sweep_buckets())

    def executing(self) -> int:
        query = "SELECT count(*) FROM gen_durable WHERE status = 'executing' AND concurrency_shard >= 0"
        return int(self.race.rows(query)[0][0])

    def levels(self, key: str) -> list[float]:
        query = "SELECT available FROM gen_durable_buckets WHERE key = %s ORDER BY shard"
        return [row[0] for row in self.race.rows(query, key)]

    def paused(self) -> PostgresLimiter:
        """A limiter whose admit waits for PAUSE after its snapshot and before its first lock."""
        text = self.catalogue["limiter/admit"].text
        old = "WHERE g.id = c.id AND g.locked_by = c.claim AND g.status::text = 'executing'\n"
        assert text.count(old) == 1
        text = text.replace(
            old, f"{old}            AND (SELECT pg_advisory_xact_lock_shared({PAUSE})) IS NOT NULL\n"
        )
        return PostgresLimiter(self.limiter.limits, self.catalogue.patched({"limiter/admit": text}))

    def stop_at_bucket(self, session: str, key: str, number: int) -> None:
        """That session will wait for `number` before it makes a shard of the key."""
        if not self.race.rows("SELECT 1 FROM pg_trigger WHERE tgname = 'pause_at_bucket'"):
            self.race.rows(_PAUSES)
        self.race.session(session, {"pause.bucket": key, "pause.number": str(number)})
        self.lock(number)

    def lock(self, number: int) -> None:
        self.race.session("gatekeeper").execute("SELECT pg_advisory_lock(%s)", (number,))


def _hold(row: Claimed) -> Hold:
    return Hold(row.id, row.claim)


def _slot(row: Claimed) -> Slot:
    assert row.concurrency_key is not None
    assert row.concurrency_shard is not None
    return Slot(row.concurrency_key, row.concurrency_shard)


def ids(rows: Sequence[Claimed]) -> list[int]:
    return [row.id for row in rows]


# ---- slots ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("variant", "executing"), [(None, 1), ("credit-after-count", 2)])
def test_a_slot_that_a_count_gave_back_is_not_credited_again(
    race: Race, variant: str | None, executing: int
) -> None:
    limited = Limited(race, [Gate("g", 1)], variant)
    limited.insert("g", "g", "g")
    (first,) = limited.pick()
    xid = limited.finish(first)
    assert limited.reconcile().corrected == 1
    (second,) = limited.pick()

    limited.credit(xid, first)
    limited.pick()

    assert limited.executing() == executing
    if variant is None:
        assert limited.credit(limited.finish(second), second) == (Slot("g", 0),)
        assert limited.levels("g") == [1.0]


@pytest.mark.parametrize(("variant", "executing"), [(None, 2), ("credit-after-count", 3)])
def test_a_free_shard_that_covers_for_another_is_not_credited_away(
    race: Race, variant: str | None, executing: int
) -> None:
    limited = Limited(race, [Gate("g", 4, 2)])
    limited.insert(*["g"] * 9)
    rows = limited.pick()
    limited.credit(limited.finish(*rows[2:]), *rows[2:])  # the two on shard 0 stay
    limited = Limited(race, [Gate("g", 2, 2)], variant)
    limited.reconcile()
    assert limited.levels("g") == [0.0, 0.0]
    xid = limited.finish(rows[0])
    limited.reconcile()
    assert limited.levels("g") == [0.0, 1.0]

    limited.credit(xid, rows[0])
    limited.pick()

    assert limited.executing() == executing


@pytest.mark.parametrize("variant", [None, "credit-without-cap"])
def test_more_credits_than_a_shard_holds_are_cut_and_found_by_the_next_count(
    race: Race, variant: str | None
) -> None:
    limited = Limited(race, [Gate("g", 4, 2)])
    limited.insert(*["g"] * 4)
    rows = limited.pick()
    limited.credit(limited.finish(*rows[2:]), *rows[2:])  # the two on shard 0 stay
    limited = Limited(race, [Gate("g", 2, 2)], variant)
    limited.reconcile()
    xid = limited.finish(*rows[:2])
    if variant is not None:
        with pytest.raises(psycopg.errors.CheckViolation):
            limited.credit(xid, *rows[:2])
        return

    limited.credit(xid, *rows[:2])

    assert limited.levels("g") == [1.0, 0.0]
    limited.reconcile()
    assert limited.levels("g") == [1.0, 1.0]


def test_a_slot_freed_while_a_count_runs_is_credited(race: Race) -> None:
    limited = Limited(race, [Gate("g", 2)])
    limited.insert("g", "g")
    first, _ = limited.pick()
    race.install_gates()
    gate = race.gate_at_row("flusher", first.id)
    flush = race.begin("flusher", limited.picker.flush([Commit(id=first.id, claim=first.claim, kind="done")]))
    assert limited.reconcile() == Reconciled(counted=1)
    race.open_gate(gate)
    xid = flush.result(TIMEOUT_S).xid
    assert xid is not None

    assert limited.credit(xid, first) == (Slot("g", 0),)

    assert limited.levels("g") == [1.0]


def test_a_late_credit_finds_nothing_in_a_key_that_was_dropped_and_made_anew(race: Race) -> None:
    limited = Limited(race, [Gate("g", 1)])
    limited.insert("g", "g", "g")
    (first,) = limited.pick(1)
    xid = limited.finish(first)
    limited.reconcile(idle_ms=0)
    assert limited.reconcile(idle_ms=0).dropped == 1
    assert limited.credit(xid, first) == ()
    assert len(limited.pick()) == 1

    assert limited.credit(xid, first) == ()
    limited.pick()

    assert limited.executing() == 1


def test_a_slot_whose_row_was_reaped_comes_back_with_the_next_count(race: Race) -> None:
    limited = Limited(race, [Gate("g", 3, 2)])
    limited.insert(*["g"] * 4)
    rows = limited.pick()
    race.rows("UPDATE gen_durable SET lease_expires_at = '-infinity' WHERE id = %s", rows[0].id)
    race.do(limited.picker.reap(10))
    assert limited.levels("g") == [0.0, 0.0]

    assert limited.reconcile() == Reconciled(counted=1, corrected=1)

    assert limited.levels("g") == [1.0, 0.0]
    assert limited.reconcile() == Reconciled(counted=1)


@pytest.mark.parametrize(("variant", "level"), [(None, 2.0), ("provisional-is-a-shard", 0.0)])
def test_a_row_that_only_asks_for_a_slot_is_not_counted(
    race: Race, variant: str | None, level: float
) -> None:
    limited = Limited(race, [Gate("g", 2)], variant)
    limited.insert("g")
    (row,) = limited.pick()
    limited.credit(limited.finish(row), row)
    limited.insert("g", "g")
    limited.claim()

    limited.reconcile()

    assert limited.levels("g") == [level]


@pytest.mark.parametrize(("variant", "executing"), [(None, 2), ("lowered-capacity-forgotten", 4)])
def test_a_capacity_that_was_lowered_below_what_executes_lets_nobody_start_until_enough_have_ended(
    race: Race, variant: str | None, executing: int
) -> None:
    limited = Limited(race, [Gate("g", 4, 2)], variant)
    limited.insert(*["g"] * 9)
    rows = limited.pick()
    assert len(rows) == 4
    limited = Limited(race, [Gate("g", 2, 2)], variant)
    limited.reconcile()
    for row in rows[:2]:
        limited.credit(limited.finish(row), row)
        limited.pick()
    assert limited.executing() == executing
    if variant is None:
        for row in rows[2:]:
            limited.credit(limited.finish(row), row)
        limited.reconcile()
        assert len(limited.pick()) == 2


def test_a_gate_has_all_its_shards_again_after_the_sweep_that_follows_a_change(race: Race) -> None:
    limited = Limited(race, [Gate("g", 7, 2)])
    limited.insert(*["g:a"] * 9)
    rows = limited.pick(3)
    for limit in (Gate("g", 7, 5), Gate("g", 7, 1), Gate("g", 3, 3), Gate("g", 9, 4)):
        limited = Limited(race, [limit])
        limited.reconcile()
        assert sum(limited.levels("g:a")) == limit.capacity - len(rows)
        assert len(limited.levels("g:a")) == limit.shards
    assert len(limited.pick()) == 6
    assert limited.levels("g:a") == [0.0] * 4


def test_gates_are_counted_in_pages_and_the_unused_ones_dropped_when_a_later_sweep_finds_them_so(
    race: Race,
) -> None:
    limited = Limited(race, [Gate("g", 1), Gate("h", 1)])
    limited.insert("g:1", "g:2", "h:1", "h:2", "h:3")
    rows = limited.pick()
    limited.finish(*rows[1:])  # credits lost
    assert limited.reconcile(limit=2, idle_ms=0) == Reconciled(counted=5, corrected=4)
    race.rows("DELETE FROM gen_durable_bucket_configs WHERE name = 'g'")
    assert limited.reconcile(limit=2, idle_ms=60_000) == Reconciled(counted=5, dropped=1)
    assert limited.reconcile(limit=1, idle_ms=0) == Reconciled(counted=4, dropped=3)
    assert race.rows("SELECT key FROM gen_durable_buckets") == [("g:1",)]


def test_a_gate_of_which_another_holds_a_shard_is_left_for_the_next_count(race: Race) -> None:
    limited = Limited(race, [Gate("g", 2, 2)])
    limited.insert("g", "h")
    limited.finish(*limited.pick())
    holder = race.session("holder")
    with holder.transaction():
        holder.execute("SELECT FROM gen_durable_buckets WHERE shard = 1 FOR UPDATE")
        assert limited.reconcile() == Reconciled()
    assert limited.reconcile().corrected == 1


# ---- late admissions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("variant", "executing"), [(None, 1), ("admit-stamps-unguarded", 2)])
def test_an_admission_that_comes_after_the_reaper_leaves_the_row_to_its_next_owner(
    race: Race, variant: str | None, executing: int
) -> None:
    limited = Limited(race, [Gate("g", 1)], variant)
    limited.insert("g")
    late = limited.claim(lease_ms=-1)
    race.do(limited.picker.reap(10))
    # Claimed by a node that does not know the gate: at most one row of the key may execute.
    limited.claim(1, gates=())
    limited.insert("g")

    admission = limited.admit(late)
    limited.claim(gates=())

    assert race.rows("SELECT count(*) FROM gen_durable WHERE status = 'executing'") == [(executing,)]
    if variant is None:
        assert admission == Admission((), late)
        assert limited.levels("g") == []


# ---- cold keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", [None, "cold-keys-wait"])
@pytest.mark.parametrize("plan", ["stock", "generic", "hashes", "merges"])
def test_admissions_that_make_each_others_keys_never_deadlock(
    race: Race, variant: str | None, plan: str
) -> None:
    settings = {
        "stock": {},
        "generic": {"plan_cache_mode": "force_generic_plan"},
        "hashes": {"enable_nestloop": "off", "enable_mergejoin": "off", "enable_indexscan": "off"},
        "merges": {
            "enable_nestloop": "off",
            "enable_hashjoin": "off",
            "plan_cache_mode": "force_generic_plan",
        },
    }[plan]
    for session in ("early", "late"):
        race.session(session, {**settings, "deadlock_timeout": "50ms"})
    limited = Limited(race, [Gate("g", 4)], variant)
    limited.insert("g:1", "g:3")
    early = limited.claim()
    limited.insert("g:1", "g:3")
    late = limited.claim()
    limited.insert("g:3")
    limited.lock(PAUSE)
    limited.stop_at_bucket("late", "g:1", PAUSE + 1)

    first = race.begin("early", limited.paused().admit(early))  # both keys are cold to its snapshot
    assert len(limited.pick()) == 1  # g:3 is made
    second = race.begin("late", limited.limiter.admit(late))  # has drawn on g:3, is about to make g:1
    race.open_gate(PAUSE)
    if variant is None:
        # What another makes or holds is left to it: nothing is waited for.
        assert first.result(TIMEOUT_S) == Admission((), early, contended=1)
    else:
        _until_waiting_for_a_row(race, "early")  # has made g:1, is at g:3
    race.open_gate(PAUSE + 1)

    first.result(TIMEOUT_S)
    second.result(TIMEOUT_S)
    assert (_deadlocks(race) > 0) == (variant is not None)
    if variant is None:
        assert (ids(second.result().admitted), second.result().contended) == (ids(late), 0)


def _until_waiting_for_a_row(race: Race, session: str) -> None:
    pid = race.session(session).info.backend_pid
    _until(race, "SELECT 1 FROM pg_locks WHERE pid = %s AND locktype = 'transactionid' AND NOT granted", pid)


def _deadlocks(race: Race) -> int:
    # From version 15 on a figure lags until its backend has ended.
    pids = [race.session(session).info.backend_pid for session in ("early", "late")]
    for session in ("early", "late"):
        race.session(session).close()
    _until(race, "SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = ANY (%s))", pids)
    return int(race.rows("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")[0][0])


def _until(race: Race, query: str, *parameters: object) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not race.rows(query, *parameters):
        assert time.monotonic() < deadline, query


@pytest.mark.parametrize("limit", [Gate("g", 3, 2), RateLimit("g", 1e-8, 3, 2)])
def test_of_two_admissions_of_one_cold_key_the_later_denies_at_once(race: Race, limit: Limit) -> None:
    limited = Limited(race, [limit])
    fields = {"rate_limit": "g:1"} if isinstance(limit, RateLimit) else {}
    limited.insert("g:1", "g:1" if not fields else "h:1", **fields)
    early = limited.claim()
    limited.insert("g:1" if not fields else "i:1", **fields)
    late = limited.claim()
    limited.stop_at_bucket("early", "g:1", PAUSE)
    first = race.begin("early", limited.limiter.admit(early))

    assert limited.admit(late, "late") == Admission((), late)

    race.open_gate(PAUSE)
    assert len(first.result(TIMEOUT_S).admitted) == 2
    assert len(limited.admit(late, "late").admitted) == 1
    assert sum(limited.levels("g:1")) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("key", ["r", "r:", "r:a b", "r:é€𐍈", "r:" + "x" * 500])
def test_the_lock_of_a_cold_key_is_the_one_that_the_engine_names(race: Race, key: str) -> None:
    limited = Limited(race, [RateLimit("r", rate=1, burst=1)])
    race.do(limited.picker.insert(Job(fsm="m", step="s", rate_limit=key)))
    [row] = limited.claim()
    holder = race.session("holder")
    holder.execute("SELECT pg_advisory_lock(1735681637, %s)", (cold_lock("rate", key),))
    assert ids(limited.admit([row]).denied) == [row.id]
    holder.execute("SELECT pg_advisory_unlock_all()")
    assert ids(limited.admit([row]).admitted) == [row.id]


@pytest.mark.parametrize("limit", [Gate("g", 3, 2), RateLimit("g", 1e-8, 3, 2)])
def test_an_admission_to_which_a_key_was_cold_is_computed_anew_when_another_has_made_it(
    race: Race, limit: Limit
) -> None:
    limited = Limited(race, [limit])
    fields = {"rate_limit": "g:1"} if isinstance(limit, RateLimit) else {}
    keys = ["g:1"] * 4 if not fields else ["a", "b", "c", "d"]
    limited.insert(*keys[:2], **fields)
    old = limited.claim()
    limited.insert(*keys[2:], **fields)
    new = limited.claim()
    limited.lock(PAUSE)
    waiting = race.begin("old", limited.paused().admit(old))
    assert len(limited.admit(new).admitted) == 2
    race.open_gate(PAUSE)

    admission = waiting.result(TIMEOUT_S)

    assert admission.contended == 1
    assert ids(admission.admitted) == [old[0].id]
    assert sum(limited.levels("g:1")) == pytest.approx(0, abs=1e-6)


# ---- warm keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [Gate("g", 4, 2), RateLimit("g", 1e-8, 4, 2)])
def test_an_admission_draws_on_what_others_have_left_since_its_snapshot(race: Race, limit: Limit) -> None:
    limited = Limited(race, [limit])
    fields = {"rate_limit": "g:1"} if isinstance(limit, RateLimit) else {}
    keys = ["g:1"] * 6 if not fields else list("abcdef")
    limited.insert(keys[0], **fields)
    assert len(limited.pick()) == 1
    limited.insert(*keys[1:4], **fields)
    old = limited.claim()
    limited.insert(*keys[4:], **fields)
    new = limited.claim()
    limited.lock(PAUSE)
    waiting = race.begin("old", limited.paused().admit(old))
    assert len(limited.admit(new).admitted) == 2
    race.open_gate(PAUSE)

    admission = waiting.result(TIMEOUT_S)

    assert (admission.contended, ids(admission.admitted)) == (0, [old[0].id])
    assert sum(limited.levels("g:1")) == pytest.approx(0, abs=1e-6)


def test_an_admission_takes_the_shards_that_nobody_holds_and_never_waits(race: Race) -> None:
    limited = Limited(race, [Gate("g", 4, 2)])
    limited.insert("g", "h")
    limited.pick()
    limited.insert(*["g"] * 3)
    rows = limited.claim()
    holder = race.session("holder")
    with holder.transaction():
        holder.execute("SELECT FROM gen_durable_buckets WHERE shard = 0 FOR UPDATE")
        admission = limited.admit(rows)
        assert [row.concurrency_shard for row in admission.admitted] == [1, 1]
        holder.execute("SELECT FROM gen_durable_buckets FOR UPDATE")
        assert limited.admit(admission.denied) == Admission((), admission.denied)
    assert len(limited.admit(admission.denied).admitted) == 1


def test_a_credit_waits_for_its_shards_before_it_changes_one(race: Race) -> None:
    # An admission with an older snapshot, to which the first shard's key is cold, would wait for a changed row.
    limited = Limited(race, [Gate("g", 2)])
    limited.insert("g:1", "g:2")
    rows = limited.pick()
    xid = limited.finish(*rows)
    holder = race.session("holder")
    with holder.transaction():
        holder.execute("SELECT FROM gen_durable_buckets WHERE key = 'g:2' FOR UPDATE")
        waiting = race.begin("late", limited.limiter.credit([_slot(row) for row in reversed(rows)], xid))
        assert race.rows(
            "SELECT xmax::text <> '0', available FROM gen_durable_buckets WHERE key = 'g:1'"
        ) == [(True, 1.0)]
        holder.execute("INSERT INTO gen_durable_buckets SELECT 'conc', 'g:0', 0, 1, 1")
    assert waiting.result(TIMEOUT_S) == (Slot("g:1", 0), Slot("g:2", 0))


# ---- configuration ----------------------------------------------------------------------------------------------


def test_nodes_with_differently_ordered_configurations_boot_together(race: Race) -> None:
    limits = (RateLimit("a", 1, 1), RateLimit("b", 1, 1), Gate("b", 1), Gate("a", 1))
    one = race.session("one")
    with one.transaction():
        one.execute("INSERT INTO gen_durable_bucket_configs VALUES ('conc', 'a', NULL, 1, 1)")
        waiting = race.begin("two", PostgresLimiter(limits).sync_config())
        # Whoever waits for the first name holds none of the later ones.
        one.execute("INSERT INTO gen_durable_bucket_configs VALUES ('rate', 'b', 1, 1, 1)")
        one.execute("INSERT INTO gen_durable_bucket_configs VALUES ('conc', 'b', NULL, 2, 1)")
    assert waiting.result(TIMEOUT_S) == (("conc", "b"), ("rate", "a"))
    assert race.do(PostgresLimiter(limits).sync_config(), "two") == ()


@pytest.mark.parametrize(("variant", "admitted"), [(None, 2), ("burst-raised-wedges", 0)])
def test_a_burst_that_was_raised_does_not_wedge_the_keys_in_use(
    race: Race, variant: str | None, admitted: int
) -> None:
    limited = Limited(race, [RateLimit("r", 1e6, 1)], variant)
    limited.insert("a", rate_limit="r")
    assert len(limited.pick()) == 1
    limited = Limited(race, [RateLimit("r", 1e6, 8)], variant)
    race.rows("UPDATE gen_durable_buckets SET last_refill = last_refill - interval '1 minute'")
    limited.insert("b", "c", rate_limit="r", weight=3.0)

    admission = limited.admit(limited.claim())

    assert len(admission.admitted) == admitted
    assert admission.contended == (0 if variant is None else 4)


def test_a_rate_whose_shards_were_changed_is_whole_after_the_sweep_and_no_richer(race: Race) -> None:
    limited = Limited(race, [RateLimit("r", 1e-8, 8, 2)])
    limited.insert("a", rate_limit="r", weight=2.0)
    limited.pick()
    for shards, levels in ((4, [3.0, 3.0, 0.0, 0.0]), (1, [3.0])):
        limited = Limited(race, [RateLimit("r", 1e-8, 8, shards)])
        limited.sweep()
        assert limited.levels("r") == levels
    assert limited.sweep() == Swept()
    race.rows("DELETE FROM gen_durable_bucket_configs")
    assert limited.sweep() == Swept(dropped=1)


def test_a_rate_key_is_dropped_once_it_is_full_and_is_full_when_it_is_next_used(race: Race) -> None:
    limited = Limited(race, [RateLimit("r", 1, 60, 3)])
    limited.insert("a", rate_limit="r:x", weight=60.0)
    limited.insert("b", rate_limit="r:y", weight=60.0)
    assert len(limited.pick()) == 2
    race.rows("UPDATE gen_durable_buckets SET last_refill = now() - interval '59 s' WHERE key = 'r:x'")
    assert limited.sweep() == Swept()
    race.rows(
        "UPDATE gen_durable_buckets SET last_refill = now() - interval '61 s' WHERE key = 'r:x' AND shard > 0"
    )
    assert limited.sweep() == Swept()
    race.rows("UPDATE gen_durable_buckets SET last_refill = now() - interval '61 s' WHERE key = 'r:x'")
    holder = race.session("holder")
    with holder.transaction():
        holder.execute("SELECT FROM gen_durable_buckets WHERE key = 'r:x' AND shard = 2 FOR UPDATE")
        assert limited.sweep() == Swept()
    race.rows("UPDATE gen_durable_bucket_configs SET rate = 0")
    assert limited.sweep() == Swept()
    race.rows("UPDATE gen_durable_bucket_configs SET rate = 1")
    assert limited.sweep() == Swept(dropped=1)
    assert limited.levels("r:x") == []
    limited.insert("c", rate_limit="r:x", weight=60.0)
    assert len(limited.pick()) == 1


# ---- what is wrong with a row -----------------------------------------------------------------------------------


def test_a_row_that_could_never_start_is_told_apart_and_stands_in_nobodys_way(race: Race) -> None:
    limited = Limited(race, [RateLimit("r", 1e-8, 3, 2), Gate("g", 1)])
    limited.insert("a", rate_limit="r", weight=3.5)
    limited.insert("b", rate_limit="q:x")
    limited.insert("g", rate_limit="r", weight=1.7e308)
    limited.insert("h", rate_limit="r:" + "x" * 3_000)
    limited.insert("i", rate_limit="r", weight=1.7e308)
    limited.insert("g", rate_limit="r", weight=3.0)
    limited.insert("c")
    admission = limited.admit(limited.claim(gates=("g", "h", "i")))
    assert [(refusal.row.id, refusal.reason.split(":")[0]) for refusal in admission.refused] == [
        (1, "weight above burst"),
        (2, "unknown rate limit"),
        (3, "weight above burst"),
        (4, "unknown gate"),
        (5, "unknown gate"),
    ]
    assert (ids(admission.admitted), admission.contended) == ([6, 7], 0)
    assert set(ids(admission.denied)) == {1, 2, 3, 4, 5}
    limited.insert("d", rate_limit="r:" + "x" * 3_000)
    (refusal,) = limited.admit(limited.claim()).refused
    assert refusal.reason.startswith("rate limit too long")


@pytest.mark.parametrize("weight", [5e-324, 1e-300, 1e-12, 1.0])
def test_a_weight_of_any_size_is_computed_without_an_error(race: Race, weight: float) -> None:
    limited = Limited(race, [RateLimit("r", 1e12, 1e12, 1_024)])
    for key in "abc":
        limited.insert(key, rate_limit="r", weight=weight)
        assert [row.id for row in limited.pick()]


def test_a_row_that_keeps_its_slot_asks_for_tokens_only(race: Race) -> None:
    limited = Limited(race, [Gate("g", 1), RateLimit("r", 1e-8, 1)])
    limited.insert("g", rate_limit="r")
    (row,) = limited.pick()
    race.rows("UPDATE gen_durable_buckets SET available = 1 WHERE kind = 'rate'")

    assert ids(limited.admit([structs.replace(row, concurrency_key=None)]).admitted) == [row.id]

    assert limited.levels("g") == [0.0]
    assert limited.levels("r") == [0.0]
    assert limited.admit([structs.replace(row, concurrency_key=None)]).denied


def test_rows_without_a_limit_are_admitted_without_a_statement() -> None:
    row = Claimed(1, "m", 1, "s", "{}", 0, "default", 0, "key", None, None, 1.0, "claim")
    with pytest.raises(StopIteration) as ended:
        next(PostgresLimiter().admit([row]))
    assert ended.value.value == Admission((row,), ())


@pytest.mark.parametrize(("variant", "admitted"), [(None, 1), ("full-is-a-sum", 0)])
def test_a_weight_of_the_whole_burst_starts_whatever_its_parts_add_up_to(
    race: Race, variant: str | None, admitted: int
) -> None:
    limited = Limited(race, [RateLimit("r", 1.0, 3.3, 6)], variant)
    limited.insert("a", rate_limit="r", weight=3.3)
    assert len(limited.pick()) == 1 or variant  # cold
    race.rows("UPDATE gen_durable_buckets SET last_refill = last_refill - interval '1 day'")
    limited.insert("b", rate_limit="r", weight=3.3)

    assert len(limited.pick()) == admitted


@pytest.mark.parametrize("variant", [None, "counts-back-in-races"])
def test_a_refill_that_another_has_counted_is_not_counted_again_by_an_older_admission(
    race: Race, variant: str | None
) -> None:
    limited = Limited(race, [RateLimit("r", 1e-8, 8)], variant)
    limited.insert("a", rate_limit="r")
    limited.pick()
    limited.insert("b", rate_limit="r")
    old = limited.claim()
    limited.insert("c", rate_limit="r")
    new = limited.claim()
    limited.lock(PAUSE)
    waiting = race.begin("old", limited.paused().admit(old))
    limited.admit(new)
    counted_to = race.rows("SELECT last_refill FROM gen_durable_buckets")
    race.open_gate(PAUSE)
    assert len(waiting.result(TIMEOUT_S).admitted) == 1

    kept = race.rows("SELECT last_refill FROM gen_durable_buckets") == counted_to

    assert kept == (variant is None)


@pytest.mark.parametrize(("variant", "admitted", "contended"), [(None, 1, 0), ("admit-unclamped", 0, 4)])
def test_parts_that_round_up_to_more_than_their_shard_violate_nothing(
    race: Race, variant: str | None, admitted: int, contended: int
) -> None:
    assert 2.5 * ((2.5 / 3) / 2.5) > 2.5 / 3
    limited = Limited(race, [RateLimit("r", 1.0, 2.5, 3)], variant)
    limited.insert("a", rate_limit="r", weight=2.5)

    admission = limited.admit(limited.claim())

    assert (len(admission.admitted), admission.contended) == (admitted, contended)


def test_a_claim_that_lost_a_row_holds_it_and_the_winner_is_denied(race: Race) -> None:
    limited = Limited(race, [RateLimit("r", rate=1, burst=5)])
    for priority in (0, 1):
        race.do(limited.picker.insert(Job(fsm="m", step="s", priority=priority, rate_limit="r")))
    race.install_gates()
    start = race.gate_at_start("late")  # its snapshot sees both rows runnable
    row = race.gate_at_row("late", 2)

    claim = limited.picker.claim(queue="default", batch=2, claim="late", lease_ms=60_000)
    late = race.begin("late", claim)
    (won,) = limited.claim(1)
    race.open_gate(start)
    race.until_blocked("late")
    assert limited.admit([won]).denied == (won,)
    race.open_gate(row)

    assert [row.id for row in late.result(TIMEOUT_S).rows] == [2]
    assert limited.admit([won]).admitted == (won,)
