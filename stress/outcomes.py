"""What each command of this room came to, for CI (`engine/ci.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from engine.ci import Case, Finding, Outcome
from invariants.render import cases, plain
from stress.soak_folder import SoakVerdict

if TYPE_CHECKING:
    from stress.judgement import Judged
    from stress.mutants.matrix import Matrix, Row
    from stress.schedules.explore import Exploration, Tally


def of_run(judged: Judged) -> Outcome:
    """A run: a case for each invariant, with the transactions of its first violations."""
    verdict = judged.verdict
    return Outcome(
        title=" ".join(filter(None, ("stress", _what(verdict.scenario, verdict.subject), verdict.mutant))),
        word=verdict.verdict,
        reason=verdict.reason,
        cases=cases(judged.report),
        facts={
            **_server(verdict.postgres),
            "seed": str(verdict.seed),
            "nodes": str(verdict.nodes),
            "transactions": f"{verdict.ledger['transactions']:,}",
            "faults": f"{len(verdict.faults):,}",
        },
        reproduce=verdict.reproduce,
        seconds=verdict.seconds,
    )


def _what(scenario: str, subject: str) -> str:
    return scenario if subject == "reference" else subject


def of_soak(verdict: SoakVerdict) -> Outcome:
    """A soak: a case for each invariant, the worst of all rounds, and one for what was found between them."""
    worst = [
        Case(name=name, verdict=found, told="see the rounds' folders")
        for name, found in verdict.invariants.items()
    ]
    tables = Case(
        name="tables",
        verdict="violated" if verdict.findings else "held",
        told="\n".join(verdict.findings),
    )
    return Outcome(
        title="stress soak",
        word=verdict.verdict,
        reason=verdict.reason,
        cases=[*worst, tables] if worst else [],
        facts={
            "seed": str(verdict.seed),
            "minutes": f"{verdict.took_minutes:g}",
            "transactions": f"{verdict.transactions:,}",
        },
        reproduce=verdict.reproduce,
        seconds=verdict.took_minutes * 60,
    )


def of_exploration(exploration: Exploration, postgres: Mapping[str, Any], reproduce: str) -> Outcome:
    """An exploration: a case for each race, with the smallest failing schedule."""
    from stress.schedules.display import print_failure

    def told(tally: Tally) -> str:
        if tally.verdict == "violated":
            return plain(lambda console: print_failure(console, tally))
        return tally.reason or ""

    return Outcome(
        title=" ".join(filter(None, ("explore", exploration.request.subject, exploration.request.mutant))),
        word=exploration.verdict,
        reason="interrupted" if exploration.interrupted else None,
        cases=[
            Case(name=tally.name, verdict=tally.verdict, told=told(tally), checked=tally.runs)
            for tally in exploration.tallies.values()
        ],
        facts={
            **_server(postgres),
            "seed": str(exploration.request.seed),
            "schedules": f"{exploration.runs:,}",
            "a second": f"{exploration.rate:,.0f}",
        },
        reproduce=reproduce,
        seconds=exploration.seconds,
    )


def of_matrix(matrix: Matrix, facts: Mapping[str, str], reproduce: str) -> Outcome:
    """The kill matrix: a case for each mutant, held where it was caught, and one for the sound engine."""
    return Outcome(
        title="mutants",
        word=matrix.verdict,
        reason="interrupted" if matrix.interrupted else None,
        cases=[*_control(matrix), *(_mutant(row) for row in matrix.rows.values())],
        facts={**facts, "caught": f"{matrix.figures()['caught']} of {len(matrix.rows)}"},
        reproduce=reproduce,
        seconds=matrix.seconds,
    )


def _control(matrix: Matrix) -> Iterator[Case]:
    for (instrument, item), seen in matrix.control.items():
        verdict: Finding = (
            "violated" if seen.sight == "caught" else "held" if seen.sight == "held" else "unknown"
        )
        yield Case(
            name=f"the sound engine: {instrument}: {item}",
            verdict=verdict,
            told="\n".join((seen.detail, *seen.evidence)).strip(),
            seconds=seen.seconds,
        )


def _mutant(row: Row) -> Case:
    seconds = row.caught_after_s
    if seconds is not None:
        return Case(name=row.mutant, verdict="held", seconds=seconds)
    from stress.mutants.matrix import is_in_doubt

    said = [f"{seen.instrument}: {seen.sight} {seen.detail}".strip() for seen in row.seen]
    lines = (f"caught by nothing: {row.summary}", *said)
    return Case(name=row.mutant, verdict="unknown" if is_in_doubt(row) else "violated", told="\n".join(lines))


def _server(postgres: Mapping[str, Any]) -> dict[str, str]:
    if "version" not in postgres:
        return {}
    return {"PostgreSQL": f"{postgres['version']} ({postgres['source']})"}
