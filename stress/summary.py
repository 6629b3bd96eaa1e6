"""The last thing a run prints: invariants with their verdicts, throughput, latency, and how to see it again."""

from __future__ import annotations

from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from invariants.render import print_exercises, print_report, print_verdict
from results.runs import Verdict, host_said
from stress.effects import Back, by_fault, recovered, told_orphans
from stress.judgement import EXPECTED_TRANSACTIONS_PER_S, Judged
from stress.scenarios import SCENARIOS, Scenario

RATES = {
    "jobs_inserted": "jobs inserted",
    "jobs_ended": "jobs ended",
    "claim": "claims",
    "flush": "flushes",
    "commits": "commits",
    "messages": "messages",
    "events_delivered": "events delivered",
    "transactions": "transactions",
    "busiest_key": "jobs of the busiest key",
}
# What each of these rules has looked at, one by one, when nothing was under way any more.
BROUGHT_TO_REST = {
    "execution-ends": "executions came to their end",
    "outbox-no-loss": "emits were delivered",
    "spawn-once": "children were made once",
    "effect-once": "events took effect once",
}
LATENCIES = (
    "insert", "insert_many", "claim", "step", "flush", "heartbeat", "reap",
    "store.load", "store.commit", "store.list", "relay.spawn", "relay.deliver", "relay.timers",
    "transport.publish", "transport.claim", "transport.ack",
)  # fmt: skip


def print_summary(judged: Judged) -> None:
    """Print it on standard output."""
    console = Console(highlight=False)
    verdict = judged.verdict
    console.print(_latency_table(judged))
    rates = [
        f"{verdict.throughput[key]:,.0f} {word}/s" for key, word in RATES.items() if key in verdict.throughput
    ]
    console.print(", ".join(rates), soft_wrap=True)
    if len(kinds := _kinds(judged)) > 0:
        console.print(_waits_table(judged, kinds))
    if idle := verdict.idle:
        console.print(
            f"a node that has nothing to do: {idle['statements_per_node']:,.1f} statements/s and "
            f"{idle['transactions_per_node']:,.1f} transactions/s, over {idle['seconds']:.0f} s",
            soft_wrap=True,
        )
    if 0 < (reached := verdict.ledger["transactions"]) < EXPECTED_TRANSACTIONS_PER_S * verdict.seconds:
        console.print(f"This machine allowed {reached:,} transactions in {verdict.seconds:.0f} s.")
    if verdict.faults:
        console.print(faults_table(verdict))
        said = ", ".join(f"{count:,} {name}" for name, count in verdict.effects.items())
        console.print(f"under faults: {said or 'nothing to see'}", soft_wrap=True)
        if not any(back.times_ms for back in recovered(verdict.faults).values()):
            console.print(
                "throughput back: not seen for any fault, each had another, or the end, in its way; a longer load has "
                "time for faults by themselves",
                soft_wrap=True,
            )
        if (orphans := told_orphans(verdict.faults, verdict.recovery_bounds)) is not None:
            console.print(orphans, soft_wrap=True)
    if verdict.hosts:
        console.print(f"hosts: {'; '.join(map(host_said, verdict.hosts))}", soft_wrap=True)
    print_exercises(console, judged.report.exercised)
    if at_rest := _at_rest(judged):
        console.print(f"at rest: {', '.join(at_rest)}", soft_wrap=True)
    print_report(console, judged.report)
    print_verdict(console, verdict.verdict, verdict.reason)
    console.print(f"recorded in {judged.folder}", soft_wrap=True)
    console.print(f"again: {verdict.reproduce}", soft_wrap=True)


def _at_rest(judged: Judged) -> list[str]:
    return [
        f"{max(0, each.checked - each.violated):,} of {each.checked:,} {BROUGHT_TO_REST[each.invariant]}"
        for each in judged.report.judgements
        if each.invariant in BROUGHT_TO_REST and each.checked and each.verdict in ("held", "violated")
    ]


def faults_table(verdict: Verdict) -> Table:
    """What each kind of fault did."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("fault")
    table.add_column("fired", justify="right")
    times = recovered(verdict.faults)
    if any_seen := any(back.times_ms for back in times.values()):
        table.add_column("throughput back", justify="right")
        table.add_column("implied", justify="right")
    table.add_column("what it did")
    for name, (fired, did) in sorted(by_fault(verdict.faults).items()):
        table.add_row(
            name,
            f"{fired:,}",
            *(_back(times[name]) if any_seen else ()),
            ", ".join(f"{count:,} {what}" for what, count in sorted(did.items())),
        )
    return table


def _kinds(judged: Judged) -> list[str]:
    """Those of the scenario's own, where it tells kinds apart that are no queues."""
    scenario = SCENARIOS[judged.verdict.scenario]
    queues = {queue.name for queue in scenario.queues} if isinstance(scenario, Scenario) else set()
    kinds = judged.verdict.waits_ms
    return list(kinds) if set(kinds) - queues else []


def _waits_table(judged: Judged, kinds: list[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("from insert, ms", "to", "count", "p50", "p90", "p99", "max"):
        table.add_column(heading, justify="left" if heading in ("from insert, ms", "to") else "right")
    for kind in kinds:
        for what, word in (("started", "start"), ("ended", "end")):
            if (figures := judged.verdict.waits_ms[kind].get(what)) is not None:
                quantiles = (f"{figures[key]:,.0f}" for key in ("p50", "p90", "p99", "max"))
                table.add_row(kind, word, f"{figures['count']:,.0f}", *quantiles)
    return table


def _back(back: Back) -> tuple[str, str]:
    """The median and how many it is the median of, and what lease and sweeps imply for these."""
    if not back.times_ms:
        return "not seen", ""
    seen = len(back.times_ms)
    of = f" ({seen} of {seen + back.unseen})" if back.unseen else ""
    implied = f"{median(back.bounds_ms) / 1000:.1f} s" if back.bounds_ms else ""
    return f"{median(back.times_ms) / 1000:.1f} s{of}", implied


def _latency_table(judged: Judged) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("latency, ms", "count", "p50", "p90", "p99", "max"):
        table.add_column(heading, justify="left" if heading.startswith("latency") else "right")
    for name in LATENCIES:
        if (figures := judged.verdict.latency_ms.get(name)) is not None:
            quantiles = (f"{figures[key]:.2f}" for key in ("p50", "p90", "p99", "max"))
            table.add_row(name, f"{figures['count']:,.0f}", *quantiles)
    return table
