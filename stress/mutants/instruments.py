"""The instruments, each asked about one mutant, or about the engine as it is (None), on a server of the asker's.

All are given a budget and say what they saw. What an instrument says of a mutant counts as a catch only where the same
instrument holds the sound engine under the same budget: the control row of the matrix.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import psycopg

from engine.picker import Picker
from engine.postgres import Server, conninfo, fresh_database
from engine.sessions import SETTINGS
from engine.statements import Catalogue
from invariants.mutants import FREE_PLANS, KEPT_PLANS, PLANS, REGISTRY, Mutant
from invariants.mutants.protocol import picker_of
from models.fuzz import Profile, fuzz
from results.plans import shapes
from results.plans.arguments import CASES, Case
from results.plans.capture import Session, capture_all, prepare
from results.plans.comparing import compare
from results.plans.folder import Capture
from results.plans.kept import kept_capture
from results.plans.profiles import PROFILES, grown
from results.plans.tree import walk
from results.plans.verdict import RULES
from stress.mutants.concerns import breaks_the_store, machines_of, statements_of
from stress.mutants.seen import Instrument, Seen, Sight, apart
from stress.schedules.coverage import CAUGHT_BY_RACE, NO_RACE
from stress.schedules.lab import Lab
from stress.schedules.search import Exhaustive
from stress.schedules.worker import Task, Worker
from stress.scripts import taking

FUZZ: Final = Profile(seconds=60, round_examples=50, example_steps=30)
FUZZ_ROUNDS: Final = 30
SHRINK_S: Final = 0.5
# Large enough for the bad forms of plans to show, small enough to be filled in a second or two. At this size a table
# may rightly be read whole that the shapes, made for larger ones, want read by an index: so a catch is what the sound
# statement does not do.
PLANS_PROFILE: Final = grown(30_000, like=PROFILES["medium"], batch=100)
SWARM_NODES: Final = 4
SWARM_TIMEOUT_S: Final = 600


@dataclass(frozen=True, slots=True)
class Budget:
    """What one instrument may spend on one mutant, at most: model and explore seconds, schedules of one race, and the
    seconds that a swarm's load lasts."""

    model_s: float = 20.0
    explore_s: float = 20.0
    schedules: int = 500
    swarm_s: float = 15.0


@dataclass(slots=True)
class Bench:
    """A server and what is kept on it from one mutant to the next."""

    server: Server
    stack: ExitStack
    budget: Budget = field(default_factory=Budget)
    _plans: tuple[str, Capture] | None = None
    _kept: dict[tuple[str, ...], set[tuple[str, str]]] = field(default_factory=dict)

    @contextmanager
    def database(self) -> Iterator[str]:
        """An empty one."""
        with fresh_database(self.server) as dsn:
            yield dsn

    def script(self, mutant: Mutant | None, name: str) -> taking.Taken:
        """Take one script."""
        with tempfile.TemporaryDirectory(prefix="pgreferee-script-") as folder, self.database() as dsn:
            return taking.take(name, mutant, dsn, Path(folder))

    def plans(self) -> tuple[str, Capture]:
        """A database that is filled for plans, and the capture of the sound statements."""
        if self._plans is None:
            dsn = self.stack.enter_context(fresh_database(self.server))
            prepare(dsn, PLANS_PROFILE)
            self._plans = dsn, captured(dsn, CASES, Catalogue.load())
        return self._plans

    def kept(self, mutant: Mutant) -> list[shapes.Violation]:
        """The shapes that the mutant's statements break, and the sound ones do not, under plans that a session has kept
        from when there was next to nothing (`results.plans.kept`)."""
        named = statements_of(mutant)
        # What changes the schema alone may show in any statement.
        cases = [case for case in CASES if case.statement in named] or CASES
        labels = tuple(case.label for case in cases)
        if labels not in self._kept:
            self._kept[labels] = {(one.label, one.rule) for one in self._kept_broken(cases, None)}
        return [
            one for one in self._kept_broken(cases, mutant) if (one.label, one.rule) not in self._kept[labels]
        ]

    def _kept_broken(self, cases: Sequence[Case], mutant: Mutant | None) -> list[shapes.Violation]:
        catalogue = Catalogue.load() if mutant is None else mutant.apply(Catalogue.load())
        alterations = () if mutant is None else mutant.alterations()
        [capture] = kept_capture(
            self.server, PLANS_PROFILE, {"": catalogue}, cases=cases, alterations=alterations
        ).values()
        return shapes.check(capture)


def see(instrument: Instrument, bench: Bench, mutant: Mutant, seed: int) -> Seen:
    """Ask one instrument about one mutant."""
    if instrument == "plans":
        bench.plans()  # for all mutants together: no part of what one takes
    return _timed(lambda: ASKED[instrument](bench, mutant, seed))


def control(instrument: Instrument, bench: Bench, item: str, seed: int) -> Seen:
    """Ask one instrument about the sound engine, under one of `control_items`."""
    return _timed(lambda: CONTROLS[instrument](bench, item, seed))


def control_items(mutants: Sequence[Mutant]) -> Iterator[tuple[Instrument, str]]:
    """All that the sound engine must survive, each once: every script, machine, race and load that one of these may
    meet."""
    for mutant in mutants:
        if taking.has_script(mutant.name):
            yield "script", mutant.name
    shown = [mutant for mutant in mutants if mutant.name in REGISTRY]
    for machine in dict.fromkeys(machine for mutant in shown for machine in machines_of(mutant)):
        yield "model", machine
    for race in dict.fromkeys(CAUGHT_BY_RACE[m.name] for m in mutants if m.name in CAUGHT_BY_RACE):
        yield "explore", race
    for scenario in dict.fromkeys(map(scenario_of, shown)):
        yield "swarm", scenario
    yield "plans", "every statement"


def _timed(ask: Callable[[], Seen]) -> Seen:
    began = time.monotonic()
    seen = ask()
    if seen.sight == "apart" or seen.seconds:
        return seen
    return msgspec.structs.replace(seen, seconds=time.monotonic() - began)


# ---------------------------------------------------------------------------------------------------- script


def by_script(bench: Bench, mutant: Mutant, _seed: int) -> Seen:
    """The mutant's own script."""
    if not taking.has_script(mutant.name):
        return apart("script", "there is no script of its name")
    return _scripted(bench, mutant, mutant.name)


def _scripted(bench: Bench, mutant: Mutant | None, name: str) -> Seen:
    taken = bench.script(mutant, name)
    sight: Sight = "held" if taken.verdict == "held" else "unknown"
    if taken.verdict == "violated" and (mutant is None or _is_known(mutant, taken.violated)):
        sight = "caught"
    return Seen(
        instrument="script", sight=sight, steps=1, by=taken.violated or (name,) * (sight == "caught"),
        detail=name, evidence=taken.evidence,
    )  # fmt: skip


def _is_known(mutant: Mutant, violated: Sequence[str]) -> bool:
    """Whether it was caught by what it names; a wrong answer to a question has no name."""
    return not violated or bool(set(violated) & set(mutant.caught_by))


# ----------------------------------------------------------------------------------------------------- model


def by_model(bench: Bench, mutant: Mutant, seed: int) -> Seen:
    """The machines that the mutant concerns, in turn."""
    if mutant.name in PLANS:
        return apart("model", "it breaks a plan, and answers the same")
    machines = machines_of(mutant)
    if not machines:
        return apart("model", "no machine takes the step that is broken")
    return fuzzed(bench, mutant, machines, seed)


def fuzzed(bench: Bench, mutant: Mutant | None, machines: Sequence[str], seed: int) -> Seen:
    """These machines, until one finds something."""
    steps = 0
    began = time.monotonic()
    for machine in machines:
        with bench.database() as dsn:
            before = time.monotonic()
            finding = fuzz(
                machine,
                dsn,
                seconds=bench.budget.model_s,
                seed=seed,
                profile=FUZZ,
                catalogue=None if mutant is None else mutant.apply(Catalogue.load()),
                schema=() if mutant is None else mutant.alterations(),
                shrink_seconds=SHRINK_S,
                rounds=FUZZ_ROUNDS,
                pickers=Picker if mutant is None else lambda _: picker_of(mutant),
            )
        steps += finding.steps
        if finding.verdict == "violated":
            # Until the first failing example: what follows is shrinking.
            after = finding.seconds if finding.found_after_s is None else finding.found_after_s
            return Seen(
                instrument="model", sight="caught", seconds=before - began + after, steps=steps, seed=seed,
                by=(machine,), detail=f"machine {machine}", evidence=(finding.reason, finding.evidence),
            )  # fmt: skip
        if finding.verdict == "unknown":
            return Seen(
                instrument="model",
                sight="unknown",
                steps=steps,
                seed=seed,
                detail=f"{machine}: {finding.reason}",
            )
    return Seen(instrument="model", sight="held", steps=steps, seed=seed)


# --------------------------------------------------------------------------------------------------- explore


def by_explore(bench: Bench, mutant: Mutant, _seed: int) -> Seen:
    """The mutant's race."""
    if mutant.name not in CAUGHT_BY_RACE:
        return apart("explore", NO_RACE.get(mutant.name, "no race is named for it"))
    return explored(bench, mutant, (CAUGHT_BY_RACE[mutant.name],))


def explored(
    bench: Bench,
    mutant: Mutant | None,
    names: Sequence[str],
) -> Seen:
    """These races, until one fails, each up to the budget. The search is exhaustive: nothing is drawn."""
    steps = 0
    began = time.monotonic()
    with bench.database() as dsn, ExitStack() as stack:
        worker = Worker(Lab(dsn, stack, mutant), mutant, "")
        for name in names:
            task = Task(name, "generic", 0, Exhaustive(), bench.budget.schedules)
            found = worker.turn(task, bench.budget.explore_s)
            steps += found.runs
            if found.unknown is not None:
                return Seen(
                    instrument="explore", sight="unknown", steps=steps, detail=f"{name}: {found.unknown}"
                )
            if found.schedule is not None:
                if not found.confirmed:
                    return Seen(
                        instrument="explore",
                        sight="unknown",
                        steps=steps,
                        detail=f"{name}: taken again it did not fail",
                    )
                table = tuple(" | ".join(cells) for cells in found.rows)
                return Seen(
                    instrument="explore", sight="caught", seconds=time.monotonic() - began, steps=steps,
                    by=tuple(found.schedule.violated), detail=f"race {name}",
                    evidence=(*found.schedule.summaries, " | ".join(found.sessions), *table, *found.reasons),
                )  # fmt: skip
    return Seen(instrument="explore", sight="held", steps=steps, seed=None)


# ----------------------------------------------------------------------------------------------------- swarm


def scenario_of(mutant: Mutant) -> str:
    """The load that meets what the mutant breaks."""
    return "statechart" if breaks_the_store(mutant) else "mixed"


def by_swarm(bench: Bench, mutant: Mutant, seed: int) -> Seen:
    """Nodes that race under every fault, on a server of their own."""
    if mutant.name not in REGISTRY:
        return apart("swarm", "it breaks a plan, and a run judges no plans")
    return _swarmed(bench, mutant, scenario_of(mutant), seed)


def _swarmed(bench: Bench, mutant: Mutant | None, scenario: str, seed: int) -> Seen:
    with tempfile.TemporaryDirectory(prefix="pgreferee-swarm-") as out:
        words = [
            "run", "--json", "--quiet", "--scenario", scenario, "--seconds", str(bench.budget.swarm_s),
            "--nodes", str(SWARM_NODES), "--seed", str(seed), "--out", out,
        ]  # fmt: skip
        words += [] if mutant is None else ["--mutant", mutant.name]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "stress", *words],
                capture_output=True,
                text=True,
                timeout=SWARM_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return Seen(instrument="swarm", sight="unknown", seed=seed, detail="the run did not end")
    try:
        verdict = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no verdict"])[-1]
        return Seen(instrument="swarm", sight="unknown", seed=seed, detail=last)
    violated = tuple(n for n, j in verdict["invariants"].items() if j["verdict"] == "violated")
    known = mutant is None or _is_known(mutant, violated)
    sight = {"violated": "caught" if known else "unknown", "held": "held"}.get(verdict["verdict"], "unknown")
    return Seen(
        instrument="swarm",
        sight=sight,  # type: ignore[arg-type]  # one of them
        steps=int(verdict["ledger"]["transactions"]),
        seed=seed,
        by=violated,
        detail=f"scenario {scenario}" + (f": {verdict['reason']}" if verdict["reason"] else ""),
        evidence=tuple(
            violation["summary"] for j in verdict["invariants"].values() for violation in j["violations"][:2]
        ),
    )


# ----------------------------------------------------------------------------------------------------- plans


def captured(dsn: str, cases: Sequence[Case], catalogue: Catalogue, settings: str = SETTINGS) -> Capture:
    """The plans of these cases in a session that begins with these settings."""
    session = Session(dsn, repetitions=1, settings=settings)
    try:
        statements = capture_all(session, catalogue, PLANS_PROFILE, cases=cases)
        environment = session.environment(source="mutants", profile=PLANS_PROFILE, labels=statements)
    finally:
        session.close()
    return Capture(environment=environment, statements=statements)


def by_plans(bench: Bench, mutant: Mutant, _seed: int) -> Seen:
    """The plans of what the mutant changes: their shapes, and for an index that is missing, what they were before."""
    if mutant.name in KEPT_PLANS:
        return _told(concerning(mutant, bench.kept(mutant)), len(CASES))
    dsn, sound = bench.plans()
    alterations = mutant.alterations()
    lost = {
        text.removeprefix("DROP INDEX ").strip() for text in alterations if text.startswith("DROP INDEX ")
    }
    named = statements_of(mutant)
    cases = [case for case in CASES if case.statement in named or lost & _ridden(sound, case.label)]
    if not cases:
        return apart("plans", "it changes no statement")
    if not alterations:
        settings = "" if mutant.name in FREE_PLANS else SETTINGS
        if mutant.name in FREE_PLANS:
            sound = captured(dsn, cases, Catalogue.load(), settings)
        broken = captured(dsn, cases, mutant.apply(Catalogue.load()), settings)
        refused = [each for each in broken.statements.values() if each.error]
        if refused and mutant.name in PLANS:
            return Seen(instrument="plans", sight="unknown", detail=f"{refused[0].label}: {refused[0].error}")
        return _told(concerning(mutant, departures(broken, sound)), len(cases))
    template = str(conninfo.parse(dsn)["dbname"])
    with fresh_database(bench.server, template=template) as copy:
        with psycopg.connect(copy, autocommit=True) as connection:
            for text in alterations:
                connection.execute(text.encode())
        # One by one: without its index a statement may take long, and the first that shows it is enough.
        for steps, case in enumerate(cases, 1):
            broken = captured(copy, [case], mutant.apply(Catalogue.load()))
            before = Capture(
                environment=sound.environment, statements={case.label: sound.statements[case.label]}
            )
            comparison = compare(before, broken)
            if comparison.verdict == "regressed":
                told = tuple(str(each) for each in comparison.differences if each.counts)
                return Seen(
                    instrument="plans", sight="caught", steps=steps, by=("regressed",), evidence=told[:4],
                    detail=case.statement,
                )  # fmt: skip
    return Seen(instrument="plans", sight="held", steps=len(cases))


def _ridden(sound: Capture, label: str) -> set[str]:
    """The indexes that a statement's plans ride."""
    plans = sound.statements[label].plans.values()
    trees = [
        tree for explained in plans for tree in (explained.plan, *(inner.plan for inner in explained.inner))
    ]
    return {node.index for tree in trees for node in walk(tree) if node.index}


def departures(capture: Capture, sound: Capture) -> list[shapes.Violation]:
    """The shapes that a capture breaks and the sound statements, on the same data, do not."""
    known = {(violation.label, violation.rule) for violation in shapes.check(sound)}
    return [one for one in shapes.check(capture) if (one.label, one.rule) not in known]


def concerning(mutant: Mutant, found: Sequence[shapes.Violation]) -> list[shapes.Violation]:
    """Of these, what a plan mutant names: it names invariants, each of which stands for several rules. Any, for a
    mutant that is about something else."""
    if mutant.name not in PLANS:
        return list(found)
    return [one for one in found if RULES[one.rule] in mutant.caught_by]


def _told(found: Sequence[shapes.Violation], steps: int) -> Seen:
    return Seen(
        instrument="plans",
        sight="caught" if found else "held",
        steps=steps,
        by=tuple(sorted({violation.rule for violation in found})),
        evidence=tuple(str(violation) for violation in found[:4]),
        detail=", ".join(sorted({violation.label.partition("@")[0] for violation in found})),
    )


def _planned_again(bench: Bench) -> Seen:
    """The sound statements once more: nothing may be new."""
    dsn, sound = bench.plans()
    return _told(departures(captured(dsn, CASES, Catalogue.load()), sound), len(CASES))


ASKED: Final[dict[Instrument, Callable[[Bench, Mutant, int], Seen]]] = {
    "script": by_script,
    "model": by_model,
    "explore": by_explore,
    "swarm": by_swarm,
    "plans": by_plans,
}
CONTROLS: Final[dict[Instrument, Callable[[Bench, str, int], Seen]]] = {
    "script": lambda bench, item, _: _scripted(bench, None, item),
    "model": lambda bench, item, seed: fuzzed(bench, None, (item,), seed),
    "explore": lambda bench, item, _: explored(bench, None, (item,)),
    "swarm": lambda bench, item, seed: _swarmed(bench, None, item, seed),
    "plans": lambda bench, _, __: _planned_again(bench),
}
