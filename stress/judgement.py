"""From a recorded run to its verdict: the judge is asked, and the run's folder gets its last files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine.postgres import Server
from invariants.evidence import RUN_FILE, Evidence
from invariants.folder import judge_folder, ledger_folder
from invariants.history import merge_folder
from invariants.history.clocks import errors_ms, read_clocks
from invariants.history.export import latencies_ms, throughput, write_depths, write_parquet
from invariants.history.operations import Operation
from invariants.history.order import waits
from invariants.recovery import Bounds, recoveries
from invariants.verdict import EXIT_CODES, Report, exercises
from results.runs import Verdict, write_json
from stress.config import (
    LEASE_TTL_MS,
    MAX_POLL_INTERVAL_MS,
    REAP_INTERVAL_MS,
    RECONCILE_INTERVAL_MS,
    RunConfig,
)
from stress.effects import effects
from stress.scenarios import SCENARIOS, StoreScenario
from stress.waits import busiest_key, idle_cost, waits_ms

if TYPE_CHECKING:
    from stress.run import Run

# 20,000 in 20 s is what a run on two cores is expected to commit; below that rate the summary says what was reached.
EXPECTED_TRANSACTIONS_PER_S = 1_000

# A lease that was renewed just before has run out, the next sweep has found it; gates were counted and a poll came.
BOUNDS = Bounds(
    taken_back_ms=LEASE_TTL_MS + REAP_INTERVAL_MS,
    run_again_ms=LEASE_TTL_MS + REAP_INTERVAL_MS + RECONCILE_INTERVAL_MS + MAX_POLL_INTERVAL_MS,
)

# Why a run that a signal stopped is unknown.
INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Judged:
    """A run's end: the verdict as it is written, the report behind it, the folder."""

    verdict: Verdict
    report: Report
    folder: Path

    @property
    def exit_code(self) -> int:
        """0 held, 1 violated, 4 unknown."""
        return EXIT_CODES[self.verdict.verdict]


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's folder does not say and its verdict does.

    `stopped`: why the run ended early, None where it came to rest. `postgres`: as in the verdict; `load_seconds`: how
    long the load lasted; `judge_seconds`: how long judging may take; `faulty`: whether it had faults. `hosts`:
    those that nodes and clients ran on, as in the verdict, without what their clocks say."""

    seed: int
    scenario: str
    subject: str
    mutant: str | None
    nodes: int
    postgres: dict[str, Any]
    load_seconds: float
    judge_seconds: float
    faulty: bool
    reproduce: str
    stopped: str | None
    hosts: tuple[dict[str, Any], ...] = ()


# Comes to the verdict of a run that is recorded in a folder.
Judge = Callable[[Path, Told], Judged]


def told_by(run: Run, stopped: str | None = None, no_history: str | None = None) -> Told:
    """Of a run that came to rest. `no_history`: why its histories are not whole. Writes `run.json`."""
    scenario = SCENARIOS[run.config.scenario]
    evidences = [
        msgspec.structs.replace(
            server.evidence,
            exercises=scenario.exercises,
            areas=scenario.subject.areas,
            shares_clock=described.source != "dsn",
            trace_max=scenario.trace_max if isinstance(scenario, StoreScenario) else None,
            no_history=no_history,
        )
        for server, described in zip(run.recording.servers, run.servers, strict=True)
    ]
    _write_run(run, evidences)
    return Told(
        seed=run.config.seed,
        scenario=run.config.scenario,
        subject=run.config.subject,
        mutant=run.config.mutant,
        nodes=run.config.nodes,
        postgres=postgres_of(run.servers),
        load_seconds=run.load_seconds,
        judge_seconds=run.config.judge_seconds,
        faulty=bool(run.config.faults),
        reproduce=run.config.command(),
        stopped=stopped,
        hosts=() if run.master is None else run.master.described(),
    )


def told_when_stopped(run: Run, reason: str) -> Told:
    """Of a run that ended early: unknown, with what was recorded beside it."""
    run.swarm.destroy()
    no_history = None if run.master is None else run.master.collect(early=True)
    run.recording.abandon(f"the run was {reason}" if reason == INTERRUPTED else reason)
    return told_by(run, reason, no_history)


def never_began(config: RunConfig, folder: Path, reason: str) -> Judged:
    """A run that was stopped before its nodes were there: unknown, with nothing recorded."""
    verdict = Verdict(
        verdict="unknown",
        reason=reason,
        seed=config.seed,
        scenario=config.scenario,
        subject=config.subject,
        mutant=config.mutant,
        postgres={},
        nodes=config.nodes,
        seconds=0.0,
        faults=[],
        invariants={},
        throughput={},
        latency_ms={},
        ledger={"transactions": 0, "changes": 0},
        reproduce=config.command(),
    )
    write_json(folder / "verdict.json", verdict)
    return Judged(verdict, Report(()), folder)


def judge_told(folder: Path, told: Told) -> Judged:
    """Judge what was recorded, and write the folder's last files."""
    operations = merge_folder(folder)
    clocks = errors_ms(read_clocks(folder))
    report = judge_folder(folder, limit_s=told.judge_seconds)
    write_parquet(operations, folder / "history.parquet")
    write_depths(report.depths, operations, folder / "depths.parquet")
    # A violation that was recorded is one, also where the run could not be ended as it should; a person's Ctrl-C is
    # an order not to judge.
    stopped = told.stopped
    proven = stopped is None or (report.verdict == "violated" and stopped != INTERRUPTED)
    verdict = Verdict(
        verdict=report.verdict if proven else "unknown",
        reason=report.reason if proven else stopped,
        seed=told.seed,
        scenario=told.scenario,
        subject=told.subject,
        mutant=told.mutant,
        postgres=told.postgres,
        nodes=told.nodes,
        seconds=round(told.load_seconds, 3),
        faults=_faults(operations),
        recovery_bounds=msgspec.to_builtins(BOUNDS),
        effects=effects(operations) if told.faulty else {},
        losses=[msgspec.to_builtins(loss) for loss in report.losses],
        invariants=report.invariants(),
        exercised=exercises(report.exercised),
        throughput=_throughput(operations, report, told.load_seconds),
        latency_ms=latencies_ms(operations),
        waits_ms=waits_ms(operations),
        idle=idle_cost(operations),
        order=waits(operations),
        ledger={"transactions": report.transactions, "changes": report.changes},
        hosts=[{**host, "clock": clocks.get(host["name"])} for host in told.hosts],
        reproduce=told.reproduce,
    )
    write_json(folder / "verdict.json", verdict)
    return Judged(verdict, report, folder)


def _write_run(run: Run, evidences: Sequence[Evidence]) -> None:
    """`run.json`: the request without secrets, and the evidence that a later `check` needs. Where there are several
    servers, the evidence of each stands beside its ledger."""
    told = described(run.config, run.servers)
    if len(evidences) == 1:
        told |= msgspec.to_builtins(evidences[0])
    else:
        for shard, evidence in enumerate(evidences):
            write_json(ledger_folder(run.folder, shard, len(evidences)) / RUN_FILE, evidence)
    write_json(run.folder / RUN_FILE, told)


def described(config: RunConfig, servers: Sequence[Server]) -> dict[str, Any]:
    """The request, without secrets."""
    return {
        "pg": _one_or_all([str(source) for source in config.sources]),
        "postgres": _one_or_all([server.version_text for server in servers]),
        "scenario": config.scenario,
        "subject": config.subject,
        "mutant": config.mutant,
        "nodes": config.nodes,
        "seconds": config.seconds,
        "seed": config.seed,
        "faults": list(config.faults),
    }


def _one_or_all(words: list[str]) -> str | list[str]:
    return words[0] if len(words) == 1 else words


def postgres_of(servers: Sequence[Server]) -> dict[str, Any]:
    """The first server, and the others in the order of their shards."""
    first, *others = [
        {"version": server.version_text, "source": server.source, "settings": dict(server.settings)}
        for server in servers
    ]
    return {**first, "others": others} if others else first


def _faults(operations: Sequence[Operation]) -> list[dict[str, Any]]:
    """Each fault as it happened; `lasted_ms` is None, and what it did unknown, for one that the run's end overtook."""
    faults = [operation for operation in operations if operation.f == "fault"]
    return [
        {
            **fault.value,
            "lasted_ms": None if fault.latency_ms is None else round(fault.latency_ms, 3),
            "did": {} if fault.result is None else fault.result["did"],
            "recovery": msgspec.to_builtins(recovery),
        }
        for fault, recovery in zip(faults, recoveries(operations, BOUNDS), strict=True)
    ]


def _throughput(operations: list[Operation], report: Report, load_seconds: float) -> dict[str, float]:
    rates = throughput(operations)
    if load_seconds > 0:
        rates["transactions"] = round(report.transactions / load_seconds, 3)
        if (busiest := busiest_key(operations, load_seconds)) is not None:
            rates["busiest_key"] = busiest
    return rates
