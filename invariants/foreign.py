"""Rules for systems whose insides nobody here knows: what may be said of any job queue from outside.

Two views, each judged by itself. Pure.

1. From outside (`OUTSIDE`): what clients were told when they enqueued, and when jobs' work began and ended in which
   worker process, as those processes wrote down themselves. It needs nothing of the system.
2. From its rows (`ROWS`): the write-ahead log of the one table that the subject names, with the meaning of its
   statuses. Without such a table these rules are not exercised.

What counts against a system, and what does not:

3. At-least-once means that a job may be run again. It takes a *cause*: its run failed, its process ended, its process
   or the sessions between it and the server were disturbed by a fault, its process stood still of itself (`stalled`),
   or its lease ran out. The process of the later run counts as well, for its claim may be the older one. What was run
   again with a cause is counted, and never held against the system.
4. A run surely has its job, its key and its place from its begin until its end, its first disturbance, or, where no
   heartbeat renews it, the end of its lease, whichever comes first. Only what surely was so at once is an overlap.
5. A call whose outcome is unknown promises nothing, and forbids nothing.
6. Commits are compared with runs by the wall clock of one machine; `SLACK_US` stands between "before" and "after".
7. What a claim (`Claims`) does not say is not judged: such a rule is not exercised.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import msgspec

from invariants.claims import Claims, Rows
from invariants.evidence import Evidence, LedgerSummary
from invariants.history.operations import Operation
from invariants.ledger.pgoutput import Row, Transaction, format_lsn
from invariants.ledger.state import State
from invariants.verdict import MAX_VIOLATIONS, Judgement, Report, Violation, Witnessed
from invariants.verdict import Row as EvidenceRow

SUBJECT_FILE: Final = "subject.json"
AREA: Final = "own"
# Faults that may reach any worker's sessions, whoever they were aimed at.
EVERYBODY: Final = ("terminate", "cancel", "crash", "failover")
SLACK_US: Final = 20_000
# A worker may have claimed a job so long before it begins it, where no lease says better.
AHEAD_MS: Final = 2_000.0
# How long after its run's end an end is committed at most, where it is taken for that run's.
JUST_BEFORE_US: Final = 2_000_000
MAX_EVIDENCE: Final = 8
# How late a job may be that is run again after its worker's death, beside what the system claims.
NOISE_MS: Final = 500.0

OUTSIDE: Final = {
    "nothing-lost": "every job whose enqueueing was acknowledged has a run that ended well when nothing is left to do",
    "nothing-unasked": "every run is of a job that a client sent",
    "run-again-for-cause": "a job is run again only when a run failed, a worker was disturbed, or a lease ran out",
    "one-run-at-a-time": "no two runs of a job surely go on at one time",
    "key-limit": "no more jobs of one key surely run at one time than the system claims",
    "worker-limit": "a worker runs no more jobs at one time than the system claims",
    "claim-within-limit": "a claim brings no more jobs than were asked for, and none twice",
    "begun-in-order": "one worker begins jobs in the order in which they were accepted",
    "recovered-in-time": "a job whose worker died is run again within the time that the system claims",
    "done-was-run": "a job that the system says is done has a run that ended well",
}
ROWS: Final = {
    "ended-is-final": "a job that has ended neither waits nor runs again",
    "ends-once": "the end of a job is committed once",
    "claimed-when-free": "a job that runs is claimed by another only when a disturbance or its lease allows it",
    "ended-by-its-holder": "a job is ended by the worker whose claim it is under",
    "nothing-left": "no job waits or runs in the table when nothing is left to do",
}


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """`subject.json` of a run: what the rules have to know of the system."""

    claims: Claims
    rows: Rows | None = None
    observe: str | None = None
    jobs_per_s: float = 40.0
    left: str | None = None


# How a job's name looks wherever a system keeps it: in text, in JSON, in bytes.
NAME: Final = re.compile(r"job-[0-9]+-[0-9]+")


def job_in(value: object) -> str | None:
    """The name of the job in what a system keeps, None where there is none. Bytes may be written as Postgres does."""
    if isinstance(value, bytes | memoryview):
        value = bytes(value).decode("utf-8", "replace")
    said = "" if value is None else str(value)
    if said.startswith("\\x"):
        try:
            said = bytes.fromhex(said[2:]).decode("utf-8", "replace")
        except ValueError:
            return None
    found = NAME.search(said)
    return None if found is None else found[0]


class Run(msgspec.Struct, frozen=True, gc=False):
    """One run of a job's work: `end_ns` None where it never came to an end; `well`: whether it ended well."""

    job: str
    key: str | None
    process: str
    begin_ns: int
    end_ns: int | None
    well: bool
    operation: Operation


class Trouble(msgspec.Struct, frozen=True, gc=False):
    """What disturbed a process, or all (None), from when to when."""

    process: str | None
    begin_ns: int
    end_ns: int
    name: str


FOREVER: Final = 2**63


class Story:
    """A history, read for these rules."""

    def __init__(self, operations: Sequence[Operation], claims: Claims) -> None:
        self.claims = claims
        self.operations = operations
        self.enqueues: dict[str, Operation] = {o.value["job"]: o for o in operations if o.f == "enqueue"}
        self.runs: dict[str, list[Run]] = {}
        self.by_process: dict[str, list[Run]] = {}
        ends = [o.end_ns or o.start_ns for o in operations]
        self.over_ns = max(ends, default=0)
        for o in operations:
            if o.f == "run":
                run = Run(
                    o.value["job"],
                    o.value.get("key"),
                    o.process,
                    o.start_ns,
                    None if o.type == "info" else o.end_ns,
                    o.type == "ok",
                    o,
                )
                self.runs.setdefault(run.job, []).append(run)
                self.by_process.setdefault(run.process, []).append(run)
        self.troubles = list(_troubles(operations))
        self.exits = {o.value["process"]: o.start_ns for o in operations if o.f == "exited"}
        self.observed: dict[str, str] | None = None
        for o in operations:
            if o.f == "observe" and o.type == "ok":
                self.observed = dict(o.result["jobs"])

    @property
    def faulty(self) -> bool:
        """Whether anything at all was disturbed."""
        return bool(self.troubles or self.exits)

    def ended_at(self, run: Run) -> int:
        """When it ended, or its process did, at the latest."""
        if run.end_ns is not None:
            return run.end_ns
        return min(self.exits.get(run.process, FOREVER), self._killed(run.process), self.over_ns)

    def _killed(self, process: str) -> int:
        return min(
            (one.begin_ns for one in self.troubles if one.process == process and one.name == "kill"),
            default=FOREVER,
        )

    def lasts_surely(self, run: Run) -> int:
        """Until when it surely has what it has (rule 4)."""
        until = self.ended_at(run)
        if self.claims.lease_ms is not None and not self.claims.heartbeat:
            until = min(until, run.begin_ns + round(self.claims.lease_ms * 1e6))
        for trouble in self.troubles:
            if self._reaches(trouble, run.process) and trouble.end_ns >= self._since(run):
                until = min(until, max(trouble.begin_ns, run.begin_ns))
        return until

    def cause(self, run: Run, again_ns: int) -> str | None:
        """Why a job may be run again at that time, after that run; None where there is no cause."""
        if run.end_ns is not None and not run.well:
            return "its run failed"
        if run.process in self.exits and self.exits[run.process] <= again_ns:
            return "its process had ended"
        for trouble in self.troubles:
            if (
                self._reaches(trouble, run.process)
                and trouble.begin_ns <= again_ns
                and (trouble.end_ns >= self._since(run))
            ):
                return trouble.name
        return self._ran_out(run)

    def cause_of(self, run: Run) -> str | None:
        """Why a run may have begun late, with a claim that was gone by then; None where there is no cause."""
        for trouble in self.troubles:
            if (
                self._reaches(trouble, run.process)
                and trouble.begin_ns <= run.begin_ns
                and trouble.end_ns >= self._since(run)
            ):
                return trouble.name
        return None

    def _ran_out(self, run: Run) -> str | None:
        lease = self.claims.lease_ms
        # It runs from the claim on, of which the begin is the only evidence, and that may have come some time later.
        if (
            lease is not None
            and not self.claims.heartbeat
            and self.ended_at(run) - run.begin_ns > lease * 1e6 / 2
        ):
            return "its lease may have run out"
        return None

    def _since(self, run: Run) -> int:
        """From when on a disturbance may have touched it: it may have been claimed before it began."""
        return run.begin_ns - round((self.claims.lease_ms or AHEAD_MS) * 1e6)

    @staticmethod
    def _reaches(trouble: Trouble, process: str) -> bool:
        return trouble.process is None or trouble.process == process


def _troubles(operations: Iterable[Operation]) -> Iterator[Trouble]:
    for o in operations:
        if o.f == "fault":
            name = o.value["fault"]
            end = FOREVER if o.end_ns is None or name == "kill" else o.end_ns
            if name in EVERYBODY:
                yield Trouble(None, o.start_ns, end, name)
            elif o.value["target"] != "server":
                yield Trouble(o.value["target"], o.start_ns, end, name)
        elif o.f == "stalled":
            began = o.start_ns - round(o.value["ms"] * 1e6)
            yield Trouble(o.process, began, o.start_ns, "its process stood still")


class Findings:
    """What one rule decided."""

    def __init__(self) -> None:
        self.checked = 0
        self.count = 0
        self.first: list[Violation] = []
        self.reason: str | None = None
        # Why it has nothing to decide.
        self.off: str | None = None

    def add(
        self, summary: str, operations: Iterable[Operation] = (), transactions: Sequence[Witnessed] = ()
    ) -> None:
        """A violation."""
        self.count += 1
        if len(self.first) < MAX_VIOLATIONS:
            told = tuple(one.describe() for one in operations)[:MAX_EVIDENCE]
            self.first.append(Violation(summary, tuple(transactions)[-MAX_EVIDENCE:], told))

    def judged(self, name: str) -> Judgement:
        """Violated beats unknown; what was off, or had nothing to decide, was not exercised."""
        if self.count and self.off is None:
            return Judgement(name, "violated", self.checked, self.count, tuple(self.first))
        if self.off is not None:
            return Judgement(name, "not_exercised", 0, reason=self.off)
        if self.reason is not None:
            return Judgement(name, "unknown", self.checked, reason=self.reason)
        if not self.checked:
            return Judgement(name, "not_exercised", 0)
        return Judgement(name, "held", self.checked)


def judge(
    transactions: Callable[[], Iterable[Transaction]],
    operations: Sequence[Operation] | None,
    evidence: Evidence,
    summary: LedgerSummary,
    subject: Subject,
    is_over: Callable[[], bool] = lambda: False,
) -> Report:
    """Judge a run of a foreign system. `transactions` is called once."""
    story = Story(operations or (), subject.claims)
    found = {name: Findings() for name in (*OUTSIDE, *ROWS)}
    for rule in (
        _lost, _unasked, _again, _overlaps, _keys, _workers, _claims, _order, _recovered, _done,
    ):  # fmt: skip
        rule(story, found, evidence)
    counted = [0, 0]
    _rows(story, found, evidence, summary, subject.rows, transactions, counted, is_over)
    judgements = tuple(found[name].judged(name) for name in found)
    return Report(judgements, counted[0], counted[1], len(story.operations), _exercised(story), (AREA,))


def _exercised(story: Story) -> dict[str, int]:
    runs = [run for runs in story.runs.values() for run in runs]
    return {
        "jobs acknowledged": sum(o.type == "ok" for o in story.enqueues.values()),
        "jobs of unknown outcome": sum(o.type == "info" for o in story.enqueues.values()),
        "runs": len(runs),
        "runs that failed": sum(run.end_ns is not None and not run.well for run in runs),
        "runs cut off": sum(run.end_ns is None for run in runs),
        "jobs run again": sum(len(runs) > 1 for runs in story.runs.values()),
        "jobs run well more than once": sum(
            sum(run.well for run in runs) > 1 for runs in story.runs.values()
        ),
        "workers that ended by themselves": len(story.exits),
    }


# ------------------------------------------------------------------------------------------------- from outside


def _lost(story: Story, found: Mapping[str, Findings], evidence: Evidence) -> None:
    rule = found["nothing-lost"]
    if not evidence.at_rest:
        rule.reason = "the run did not come to rest"
    if story.claims.delivery == "at-most-once" and story.faulty:
        rule.off = (
            "the system claims at most once, and something was disturbed: what was under way may be gone"
        )
        return
    for job, enqueue in story.enqueues.items():
        if enqueue.type != "ok":
            continue
        runs = story.runs.get(job, ())
        rule.checked += 1
        if evidence.at_rest and not any(run.well for run in runs):
            said = (
                "was never run" if not runs else f"has no run that ended well, and {len(runs)} that did not"
            )
            state = (
                "" if story.observed is None else f"; the system says {story.observed.get(job, 'nothing')}"
            )
            rule.add(f"{job} was acknowledged and {said}{state}", [enqueue, *(run.operation for run in runs)])


def _unasked(story: Story, found: Mapping[str, Findings], _: Evidence) -> None:
    rule = found["nothing-unasked"]
    for job, runs in story.runs.items():
        rule.checked += 1
        enqueue = story.enqueues.get(job)
        if enqueue is None:
            rule.add(f"{job} was run, and nobody had sent it", [runs[0].operation])
        elif runs[0].begin_ns < enqueue.start_ns:
            rule.add(f"{job} was run before it was sent", [enqueue, runs[0].operation])


def _again(story: Story, found: Mapping[str, Findings], _: Evidence) -> None:
    rule = found["run-again-for-cause"]
    for job, runs in story.runs.items():
        rule.checked += 1
        for before, after in pairwise(runs):
            if story.claims.delivery == "at-most-once":
                rule.add(
                    f"{job} was run twice, under a claim of at most once", [before.operation, after.operation]
                )
            elif story.cause_of(after) is None and all(
                story.cause(each, after.begin_ns) is None for each in runs if each.begin_ns < after.begin_ns
            ):
                ended = "had ended well" if before.well else "was under way"
                rule.add(
                    f"{job} was run again by {after.process} when its run in {before.process} {ended} and nothing had "
                    "disturbed it",
                    [before.operation, after.operation],
                )


def _overlaps(story: Story, found: Mapping[str, Findings], _: Evidence) -> None:
    rule = found["one-run-at-a-time"]
    for job, runs in story.runs.items():
        rule.checked += 1
        for before, after in pairwise(runs):
            over = story.lasts_surely(before)
            if after.begin_ns < over and after.begin_ns < story.lasts_surely(after):
                ms = (over - after.begin_ns) / 1e6
                rule.add(
                    f"{job} ran in {before.process} and in {after.process} at one time, for {ms:.1f} ms at least",
                    [before.operation, after.operation],
                )


def _most_at_once(story: Story, runs: Iterable[Run]) -> list[Run]:
    spans = sorted(
        ((run.begin_ns, until, run) for run in runs if (until := story.lasts_surely(run)) > run.begin_ns),
        key=lambda span: span[:2],
    )
    most: list[Run] = []
    live: list[tuple[int, Run]] = []
    for begin, until, run in spans:
        live = [(over, other) for over, other in live if over > begin]
        live.append((until, run))
        if len(live) > len(most):
            most = [other for _, other in live]
    return most


def _keys(story: Story, found: Mapping[str, Findings], _: Evidence) -> None:
    rule, limit = found["key-limit"], story.claims.per_key
    if limit is None:
        rule.off = "the system claims no limit of a key"
        return
    by_key: dict[str, list[Run]] = {}
    for runs in story.runs.values():
        for run in runs:
            if run.key is not None:
                by_key.setdefault(run.key, []).append(run)
    for key, runs in by_key.items():
        rule.checked += len(runs)
        most = _most_at_once(story, runs)
        if len(most) > limit:
            rule.add(
                f"{len(most)} jobs of {key} ran at one time; the limit is {limit}",
                [r.operation for r in most],
            )


def _workers(story: Story, found: Mapping[str, Findings], _: Evidence) -> None:
    rule, limit = found["worker-limit"], story.claims.side_by_side
    if limit is None:
        rule.off = "the system claims no limit of a worker"
        return
    for process, runs in story.by_process.items():
        rule.checked += len(runs)
        ordered = sorted(runs, key=lambda run: run.begin_ns)
        live: list[Run] = []
        most: list[Run] = []
        for run in ordered:
            live = [other for other in live if story.ended_at(other) > run.begin_ns]
            live.append(run)
            if len(live) > len(most):
                most = list(live)
        if len(most) > limit:
            rule.add(
                f"{process} ran {len(most)} jobs at one time; the limit is {limit}",
                [r.operation for r in most],
            )


def _claims(story: Story, found: Mapping[str, Findings], _: Evidence) -> None:
    rule = found["claim-within-limit"]
    for o in story.operations:
        if o.f != "took" or o.type == "info":
            continue
        rule.checked += 1
        jobs = o.value["jobs"]
        if len(jobs) > o.value["limit"]:
            rule.add(f"{o.process} asked for {o.value['limit']} and was given {len(jobs)} jobs", [o])
        elif len(set(jobs)) < len(jobs):
            rule.add(f"{o.process} was given a job twice by one claim", [o])
    if not rule.checked:
        rule.off = "no worker says what its claims brought"


def _order(story: Story, found: Mapping[str, Findings], _: Evidence) -> None:
    rule = found["begun-in-order"]
    if not story.claims.in_order:
        rule.off = "the system claims no order"
        return
    if len(story.by_process) > 1 or story.faulty:
        rule.off = (
            "several workers, or faults: when a job begins says nothing of when it was claimed; "
            "--nodes 1 --faults none decides it"
        )
        return
    begun = sorted((runs[0] for runs in story.runs.values()), key=lambda run: run.begin_ns)
    # Of all that began later, the one that was accepted first.
    first: tuple[int, Run] | None = None
    for run in reversed(begun):
        enqueue = story.enqueues.get(run.job)
        if enqueue is None or enqueue.type != "ok" or enqueue.end_ns is None:
            continue
        rule.checked += 1
        if first is not None and first[0] < enqueue.start_ns:
            other = first[1]
            rule.add(
                f"{run.job} began before {other.job}, which had been accepted before it was sent",
                [story.enqueues[other.job], enqueue, run.operation, other.operation],
            )
        if first is None or enqueue.end_ns < first[0]:
            first = (enqueue.end_ns, run)


def _recovered(story: Story, found: Mapping[str, Findings], _: Evidence) -> None:
    rule, bound = found["recovered-in-time"], story.claims.recovery_ms
    if bound is None:
        rule.off = "the system claims no time of recovery"
        return
    deaths = [o for o in story.operations if o.f == "fault" and o.value["fault"] == "kill"]
    waits = [
        (runs[0].begin_ns - (story.enqueues[job].end_ns or runs[0].begin_ns)) / 1e6
        for job, runs in story.runs.items()
        if job in story.enqueues
    ]
    # What any job waited at worst in this run: a queue's length, a server that was down, a pause.
    allowed = bound + NOISE_MS + max([0.0, *waits])
    for death in deaths:
        for run in story.by_process.get(death.value["target"], ()):
            if run.end_ns is not None:
                continue
            later = [other for other in story.runs[run.job] if other.begin_ns > death.start_ns]
            if not later:
                continue
            rule.checked += 1
            took = (later[0].begin_ns - death.start_ns) / 1e6
            if took > allowed:
                rule.add(
                    f"{run.job} was run again {took:,.0f} ms after its worker's death; {bound:,.0f} ms are claimed, "
                    f"and no job waited longer than {allowed - bound - NOISE_MS:,.0f} ms",
                    [run.operation, death, later[0].operation],
                )


def _done(story: Story, found: Mapping[str, Findings], _: Evidence) -> None:
    rule = found["done-was-run"]
    if story.observed is None:
        rule.off = "the system cannot be asked what became of a job"
        return
    for job, state in story.observed.items():
        if state != "done" or job not in story.enqueues:
            continue
        rule.checked += 1
        if not any(run.well for run in story.runs.get(job, ())):
            rule.add(
                f"the system says that {job} is done, and no run of it ended well",
                [story.enqueues[job], *(run.operation for run in story.runs.get(job, ()))],
            )


# ------------------------------------------------------------------------------------------------- from its rows


class _Job:
    """What the log has said of one row: its name, state, when it was claimed last, when it ended, and how it came."""

    __slots__ = ("claim", "claimed_us", "ended_us", "name", "state", "way")

    def __init__(self) -> None:
        self.name: str | None = None
        self.state: str | None = None
        self.claim: tuple[Any, ...] = ()
        self.claimed_us = 0
        self.ended_us = 0
        self.way: list[Witnessed] = []


def _rows(
    story: Story,
    found: Mapping[str, Findings],
    evidence: Evidence,
    summary: LedgerSummary,
    mapped: Rows | None,
    transactions: Callable[[], Iterable[Transaction]],
    counted: list[int],
    is_over: Callable[[], bool],
) -> None:
    rules = [found[name] for name in ROWS]
    if mapped is None:
        for rule in rules:
            rule.off = "the subject does not say where jobs are kept"
    if not story.claims.fenced:
        for name in ("ends-once", "ended-by-its-holder"):
            found[name].off = "the system does not claim that ends are fenced"
    if evidence.no_ledger is not None:
        for rule in rules:
            rule.reason = evidence.no_ledger
        return
    watch = None if mapped is None else _Watch(story, found, evidence, mapped)
    for number, transaction in enumerate(transactions(), start=1):
        counted[0] += 1
        counted[1] += len(transaction.changes)
        if number % 256 == 0 and is_over():
            for rule in rules:
                rule.reason = f"the checker ran out of time at transaction {number:,} of the ledger"
            return
        if watch is not None:
            watch.transaction(number, transaction)
    if watch is None:
        return
    if not summary.complete:
        for rule in rules:
            rule.reason = f"the ledger ends before the run does: {summary.reason or 'it was cut off'}"
    watch.conclude()


class _Watch:
    """The rules about one table, fed with the log."""

    def __init__(self, story: Story, found: Mapping[str, Findings], evidence: Evidence, mapped: Rows) -> None:
        self._story, self._found, self._mapped = story, found, mapped
        self._at_rest, self._clock = evidence.at_rest, evidence.shares_clock
        self._jobs: dict[Any, _Job] = {}
        self._state = State()
        self._strange: Counter[str] = Counter()
        self._missing: str | None = None

    def transaction(self, number: int, transaction: Transaction) -> None:
        """One commit."""
        for change in transaction.changes:
            if change.relation.name != self._mapped.table:
                continue
            if change.kind == "truncate":
                self._jobs.clear()
                self._state.apply(change)
                continue
            columns = change.relation.columns
            missing = {self._mapped.status, *self._mapped.claim} - set(columns)
            if missing:
                self._missing = f"{self._mapped.table} has no column {', '.join(sorted(missing))}"
                continue
            old, new = self._state.replay(change)
            shown = new if new is not None else old
            assert shown is not None
            key = tuple(shown[place] for place in change.relation.key)
            job = self._jobs.setdefault(key, _Job())
            self._change(job, columns, old, new, number, transaction)
            if new is None:
                self._jobs.pop(key)

    def _change(
        self, job: _Job, columns: tuple[str, ...], old: Row | None, new: Row | None,
        number: int, transaction: Transaction,
    ) -> None:  # fmt: skip
        if job.name is None and new is not None:
            job.name = next((name for value in new if (name := job_in(value)) is not None), None)
        named = {} if new is None else dict(zip(columns, new, strict=True))
        state = self._state_of(named)
        witnessed = Witnessed(
            number, transaction.xid, format_lsn(transaction.lsn), _moment(transaction), None,
            (EvidenceRow(job.name or "?", self._shown(columns, old), self._shown(columns, new), self._mapped.table),),
        )  # fmt: skip
        job.way.append(witnessed)
        del job.way[:-MAX_EVIDENCE]
        if job.name is None or state is None:
            return
        claim = tuple(named.get(column) for column in self._mapped.claim)
        before, at_us = job.state, transaction.committed_us
        if before == "ended" and state in ("waiting", "running"):
            self._found["ended-is-final"].checked += 1
            self._found["ended-is-final"].add(f"{job.name} had ended, and is {state} again", (), job.way)
        if state == "ended":
            self._end(job, before, at_us, gone=new is None, rewritten=self._is_rewritten(columns, old, new))
        elif state == "running" and (before != "running" or claim != job.claim):
            self._claim(job, before, at_us)
        if state != "ended":
            job.claim = claim
        job.state = state

    def _claim(self, job: _Job, before: str | None, at_us: int) -> None:
        rule = self._found["claimed-when-free"]
        rule.checked += 1
        if before == "running" and job.name is not None and self._clock:
            lease = self._story.claims.lease_ms
            lapsed = lease is not None and at_us - job.claimed_us >= lease * 1000 - SLACK_US
            runs = self._begun(job.name, at_us)
            last = runs[-1] if runs else None
            caused = last is None or self._story.cause(last, self._ns(last, at_us)) is not None
            if not lapsed and not caused:
                rule.add(f"{job.name} was claimed from a worker that still had it", (), job.way)
        job.claimed_us = at_us

    def _end(self, job: _Job, before: str | None, at_us: int, *, gone: bool, rewritten: bool) -> None:
        once = self._found["ends-once"]
        if before == "ended":
            # A row that has ended may be cleared away, or touched for a reason of the system's own, its worker's name
            # forgotten: what counts is that a run ended just before, and that more is written than the claim.
            if (
                not gone
                and rewritten
                and job.name is not None
                and self._ended_between(job.name, max(job.ended_us, at_us - JUST_BEFORE_US), at_us)
            ):
                once.add(f"{job.name} had ended, and its end was committed again", (), job.way)
            return
        job.ended_us = at_us
        once.checked += 1
        self._found["ended-is-final"].checked += 1
        if not self._clock or before != "running" or job.name is None:
            return
        rule = self._found["ended-by-its-holder"]
        rule.checked += 1
        runs = self._story.runs.get(job.name, ())
        held = [run for run in runs if self._us(run, run.begin_ns) >= job.claimed_us - SLACK_US]
        if any(run.end_ns is not None and self._us(run, run.end_ns) <= at_us + SLACK_US for run in held):
            return
        former = [
            run
            for run in runs
            if run not in held
            and run.end_ns is not None
            and job.claimed_us < self._us(run, run.end_ns) <= at_us + SLACK_US
        ]
        if former:
            who = former[-1].process
            rule.add(
                f"{job.name} was ended when {who}, whose claim was gone, was done with it, and not its holder",
                [run.operation for run in (*former, *held)],
                job.way,
            )

    def _is_rewritten(self, columns: tuple[str, ...], old: Row | None, new: Row | None) -> bool:
        """Whether an update says more than that the claim is another, or says all of it again."""
        if old is None or new is None:
            return False
        changed = {name for name, was, now in zip(columns, old, new, strict=True) if was != now}
        return not changed or bool(changed - set(self._mapped.claim))

    def conclude(self) -> None:
        """The log has ended."""
        rule = self._found["nothing-left"]
        if not self._at_rest:
            rule.reason = "the run did not come to rest"
        for job in self._jobs.values():
            if job.name is None:
                continue
            rule.checked += 1
            if self._at_rest and job.state in ("waiting", "running"):
                rule.add(f"{job.name} is {job.state} when nothing is left to do", (), job.way)
        if self._mapped.deleted:
            rule.checked += self._found["ends-once"].checked
        why = self._missing
        if self._strange:
            why = (
                f"{self._mapped.table}.{self._mapped.status} has values that the subject does not name: "
                + ", ".join(sorted(self._strange))
            )
        if why is None and not self._found["claimed-when-free"].checked:
            why = f"the log says nothing of a job in {self._mapped.table}: is it the table, and has it a primary key?"
        if why is not None:
            for name in ROWS:
                self._found[name].reason = self._found[name].reason or why
        elif not self._clock:
            for name in ("claimed-when-free", "ended-by-its-holder"):
                self._found[name].reason = "the server's clock is not this machine's"

    def _state_of(self, row: Mapping[str, Any]) -> str | None:
        mapped = self._mapped
        if not row:
            return "ended" if mapped.deleted else None
        status = _text(row[mapped.status]) or ""
        for state, words in (
            ("waiting", mapped.waiting),
            ("running", mapped.running),
            ("ended", mapped.ended),
        ):
            if status in words:
                return state
        self._strange[status] += 1
        return None

    def _shown(self, columns: tuple[str, ...], row: Row | None) -> dict[str, str | None]:
        if row is None:
            return {}
        wanted = {self._mapped.status, *self._mapped.claim}
        return {name: _text(value) for name, value in zip(columns, row, strict=True) if name in wanted}

    def _begun(self, job: str, at_us: int) -> list[Run]:
        return [run for run in self._story.runs.get(job, ()) if self._us(run, run.begin_ns) <= at_us]

    def _ended_between(self, job: str, begin_us: int, end_us: int) -> bool:
        return any(
            run.end_ns is not None and begin_us < self._us(run, run.end_ns) <= end_us + SLACK_US
            for run in self._story.runs.get(job, ())
        )

    @staticmethod
    def _us(run: Run, at_ns: int) -> int:
        return (at_ns + run.operation.wall_offset_ns) // 1_000

    @staticmethod
    def _ns(run: Run, at_us: int) -> int:
        return at_us * 1_000 - run.operation.wall_offset_ns


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")


def _moment(transaction: Transaction) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=transaction.committed_us)).isoformat()
