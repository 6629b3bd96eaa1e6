"""Rules for a schedule of a queue's own statements: what its sessions were told, and what its rows went through. Pure.

Operations: `enqueue`; `claim` with its `limit`, answered with ids; `complete` of an id under a claim, answered with
whether it did it; `requeue`. Their order is the order of steps, on one clock.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from invariants.claims import Rows
from invariants.foreign import Findings
from invariants.history.operations import Operation
from invariants.ledger.pgoutput import Transaction
from invariants.ledger.state import State
from invariants.verdict import Judgement, Report

STATEMENTS: Final = {
    "claim-within-limit": "a claim brings no more jobs than were asked for",
    "claimed-once": "a job is handed out once, and again only when it was given back in between",
    "ends-once": "one claim is told that it completed a job",
    "ended-is-final": "a job that has ended neither waits nor runs again",
    "ended-by-its-holder": "a worker is told that it completed a job only while its claim is the job's last",
    "nothing-lost": "every job that was sent has ended when nothing is left to do",
    "deadlock-free": "no statement is ended by a deadlock",
}


class _Rows:
    """What the log says of each row: its states in order."""

    def __init__(self, transactions: Sequence[Transaction], mapped: Rows) -> None:
        self.ways: dict[str, list[str]] = {}
        state = State()
        for transaction in transactions:
            for change in transaction.changes:
                relation = change.relation
                if relation.name != mapped.table or change.kind == "truncate":
                    continue
                old, new = state.replay(change)
                row = new if new is not None else old
                assert row is not None
                key = ",".join((row[place] or b"").decode() for place in relation.key)
                status = "" if new is None else (new[relation.columns.index(mapped.status)] or b"").decode()
                self.ways.setdefault(key, []).append(_state(status, mapped, gone=new is None))

    def given_back(self, row: str) -> int:
        """How often it went from running to waiting."""
        way = self.ways.get(row, [])
        return sum(pair == ("running", "waiting") for pair in itertools.pairwise(way))


def _state(status: str, mapped: Rows, *, gone: bool) -> str:
    if gone:
        return "ended" if mapped.deleted else "gone"
    for state, words in (("waiting", mapped.waiting), ("running", mapped.running), ("ended", mapped.ended)):
        if status in words:
            return state
    return status


def judge_schedule(
    transactions: Sequence[Transaction],
    operations: Sequence[Operation],
    mapped: Rows,
    deadlocks: int,
    *,
    at_rest: bool,
) -> Report:
    """Judge one. `at_rest`: nothing is left to do, so that nothing may be missing."""
    found = {name: Findings() for name in STATEMENTS}
    rows = _Rows(transactions, mapped)
    claims = [o for o in operations if o.f == "claim" and o.type == "ok"]
    completes = [o for o in operations if o.f == "complete" and o.type == "ok"]
    rules: tuple[Callable[[], None], ...] = (
        lambda: _limits(claims, found["claim-within-limit"]),
        lambda: _once(claims, rows, found["claimed-once"]),
        lambda: _ends(completes, found["ends-once"]),
        lambda: _final(rows, found["ended-is-final"]),
        lambda: _holders(claims, completes, found["ended-by-its-holder"]),
    )
    for rule in rules:
        rule()
    found["deadlock-free"].checked = 1
    if deadlocks:
        found["deadlock-free"].add(f"{deadlocks} statements were ended by a deadlock")
    if at_rest:
        lost = found["nothing-lost"]
        sent = sum(o.f == "enqueue" and o.type == "ok" for o in operations)
        lost.checked = sent
        ended = sum(way[-1] == "ended" for way in rows.ways.values())
        if ended < sent:
            lost.add(f"{sent} jobs were sent, and {ended} have ended")
    judgements: list[Judgement] = [findings.judged(name) for name, findings in found.items()]
    return Report(tuple(judgements), len(transactions), 0, len(operations))


def _limits(claims: Sequence[Operation], rule: Findings) -> None:
    for claim in claims:
        rule.checked += 1
        if len(claim.result["ids"]) > claim.value["limit"]:
            rule.add(
                f"{claim.process} asked for {claim.value['limit']} and was given {len(claim.result['ids'])} jobs",
                [claim],
            )


def _once(claims: Sequence[Operation], rows: _Rows, rule: Findings) -> None:
    handed: Counter[str] = Counter(row for claim in claims for row in claim.result["ids"])
    for row, times in handed.items():
        rule.checked += 1
        if times > 1 + rows.given_back(row):
            those = [claim for claim in claims if row in claim.result["ids"]]
            rule.add(
                f"job {row} was handed out {times} times, and given back {rows.given_back(row)} times", those
            )


def _ends(completes: Sequence[Operation], rule: Findings) -> None:
    told: dict[str, list[Operation]] = {}
    for one in completes:
        rule.checked += 1
        if one.result["did"]:
            told.setdefault(one.value["id"], []).append(one)
    for row, those in told.items():
        if len(those) > 1:
            who = " and ".join(one.process for one in those)
            rule.add(f"job {row} was completed by {who}, and each was told that it did it", those)


def _final(rows: _Rows, rule: Findings) -> None:
    for row, way in rows.ways.items():
        rule.checked += 1
        for before, after in itertools.pairwise(way):
            if before == "ended" and after in ("waiting", "running"):
                rule.add(f"job {row} had ended, and was {after} again")


def _holders(claims: Sequence[Operation], completes: Sequence[Operation], rule: Findings) -> None:
    for one in completes:
        rule.checked += 1
        if not one.result["did"]:
            continue
        row = one.value["id"]
        own = next((c for c in claims if c.value["claim"] == one.value["claim"]), None)
        if own is None or own.end_ns is None:
            continue
        for claim in claims:
            later = claim is not own and row in claim.result["ids"] and claim.start_ns >= own.end_ns
            if not later or claim.end_ns is None or claim.end_ns > one.start_ns:
                continue
            done = any(
                other.value["claim"] == claim.value["claim"] and other.value["id"] == row and other.result["did"]
                and other.start_ns < one.start_ns
                for other in completes
            )  # fmt: skip
            if not done:
                rule.add(
                    f"{one.process} was told that it completed job {row}, which {claim.process} had claimed meanwhile",
                    [own, claim, one],
                )
