"""Histories in the form that checkers of other people read; `docs/histories.md` has the mapping and its limits.


    cas-register   per execution: reads, compare-and-sets, their outcomes (Knossos)
    rw-register    all executions: transactions of micro-operations (Elle)

1. There a process is an integer with one operation at a time, and one whose operation ended `info` never comes back. A
   process here may have many under way, so each is laid out over as many lanes as it needs.
2. Rows come in the order of their times. What began at the very moment at which another ended began before that: nobody
   can say that it came after.
3. An operation of unknown outcome is invoked and ends `info`, last of all: it may take effect to the end.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from invariants.commits import COMMIT
from invariants.history.operations import Operation
from invariants.witness import Witness, error_of, is_undecided

# A row as Jepsen has it. Strings that stand for keywords are those of `KEYWORDS`.
Line: TypeAlias = dict[str, Any]
KEYWORDS: Final = frozenset(("invoke", "ok", "fail", "info", "read", "write", "cas", "txn", "r", "w"))
_KEYWORD_FIELDS: Final = frozenset(("type", "f"))


class Step(msgspec.Struct, frozen=True):
    """One operation for a checker: what it asks and what it answered, as values of the target's own."""

    process: str
    f: str
    asked: Any
    answered: Any
    type: Literal["ok", "fail", "info"]
    start_ns: int
    end_ns: int | None


def cas_register(witness: Witness, execution: str) -> list[Line]:
    """One execution's history as that of a register which is 0 where there is no execution.

    The first two rows write that 0, for Knossos' register begins as nil, and a read of nil is of anything there.
    """
    steps = [step for name, step in _register_steps(witness) if name == execution]
    if _is_made_unseen(witness):
        steps.append(_unseen(steps, "cas", [0, 1]))
    return [
        {"index": 0, "type": "invoke", "value": 0, "time": 0, "f": "write", "process": 0},
        {"index": 1, "type": "ok", "value": 0, "time": 1, "f": "write", "process": 0},
        *_lines(steps, first_lane=1),
    ]


def executions(witness: Witness) -> list[str]:
    """Those that were read or written, busiest first."""
    counts: dict[str, int] = {}
    for name, _ in _register_steps(witness):
        counts[name] = counts.get(name, 0) + 1
    return sorted(counts, key=lambda name: (-counts[name], name))


def rw_register(witness: Witness) -> list[Line]:
    """Loads and commits of all executions as transactions over registers whose writes are unique; nil is none yet.

    A commit is two micro-operations: it reads the version that it expects and writes the next.
    """
    steps: list[Step] = []
    written: set[str] = set()
    read: set[str] = set()
    for o in witness.operations:
        if o.f == "store.load":
            name = o.value["execution"]
            read.add(name)
            answered = [["r", name, o.result["version"]]] if o.type == "ok" else None
            steps.append(
                _step(o, "txn", [["r", name, None]], answered, "info" if o.type == "info" else o.type)
            )
        elif o.f == COMMIT:
            name, expected = o.value["execution"], o.value["expected"]
            asked = [["r", name, None], ["w", name, expected + 1]]
            if expected == 0 and _outcome(o) != "fail":
                written.add(name)
            answered = [["r", name, expected or None], ["w", name, expected + 1]] if o.type == "ok" else None
            steps.append(_step(o, "txn", asked, answered, _outcome(o)))
    if _is_made_unseen(witness):
        steps += [_unseen(steps, "txn", [["w", name, 1]]) for name in sorted(read - written)]
    return _lines(steps)


def to_edn(lines: Iterable[Line]) -> str:
    """One map a line, as Jepsen writes a history."""
    return "".join(
        "{" + ", ".join(f":{name} {_edn(value, name)}" for name, value in line.items()) + "}\n"
        for line in lines
    )


def to_json(lines: Sequence[Line]) -> str:
    """An array of maps, one a line; keywords are strings, as `elle-cli` takes them."""
    return "[\n" + ",\n".join(json.dumps(line) for line in lines) + "\n]\n"


def _edn(value: Any, field: str | None = None) -> str:
    match value:
        case None:
            return "nil"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case list():
            # A micro-operation begins with its name.
            micro = bool(value) and value[0] in ("r", "w")
            return (
                "["
                + " ".join(_edn(each, "f" if micro and not at else None) for at, each in enumerate(value))
                + "]"
            )
        case str() if field in _KEYWORD_FIELDS and value in KEYWORDS:
            return f":{value}"
        case str():
            return json.dumps(value, ensure_ascii=False)
    raise TypeError(f"{type(value).__name__} has no place in a history")


def _register_steps(witness: Witness) -> Iterator[tuple[str, Step]]:
    for o in witness.operations:
        if o.f == "store.load":
            answered = (o.result["version"] or 0) if o.type == "ok" else None
            yield o.value["execution"], _step(o, "read", None, answered, o.type)
        elif o.f == COMMIT:
            name, expected = o.value["execution"], o.value["expected"]
            found = error_of(o).get("found")
            if _outcome(o) == "fail" and error_of(o).get("error") == "StoreConflict" and found is not None:
                # What it met is more than that it failed, and one operation cannot say both.
                yield name, _step(o, "read", None, found, "ok")
            else:
                pair = [expected, expected + 1]
                yield name, _step(o, "cas", pair, pair, _outcome(o))


def _outcome(o: Operation) -> Literal["ok", "fail", "info"]:
    return "info" if is_undecided(o) else o.type


def _step(o: Operation, f: str, asked: Any, answered: Any, kind: Literal["ok", "fail", "info"]) -> Step:
    return Step(o.process, f, asked, asked if answered is None else answered, kind, o.start_ns, o.end_ns)


def _is_made_unseen(witness: Witness) -> bool:
    """Whether relays make children, whose first version no operation of the history names."""
    return any(o.type != "fail" for o in witness.named.get("relay.spawn", ()))


def _unseen(steps: Sequence[Step], f: str, value: Any) -> Step:
    """Somebody who is not in the history, and who may have done that at any time."""
    begin = min((step.start_ns for step in steps), default=1) - 1
    return Step("unseen", f, value, value, "info", begin, None)


def _lines(steps: Iterable[Step], first_lane: int = 0) -> list[Line]:
    """Rows in order, with an index each."""
    lines: list[tuple[int, bool, Line]] = []
    unknown: list[Line] = []
    lanes: dict[str, list[tuple[int, int]]] = {}
    count = first_lane
    for step in sorted(steps, key=lambda step: step.start_ns):
        free = lanes.setdefault(step.process, [])
        if free and free[0][0] < step.start_ns:
            lane = heapq.heappop(free)[1]
        else:
            lane, count = count, count + 1
        shared: Mapping[str, Any] = {"f": step.f, "process": lane}
        lines.append(
            (step.start_ns, False, {"type": "invoke", "value": step.asked, "time": step.start_ns, **shared})
        )
        if step.type == "info" or step.end_ns is None:
            unknown.append({"type": "info", "value": step.asked, "time": step.start_ns, **shared})
            continue
        value = step.answered if step.type == "ok" else step.asked
        lines.append((step.end_ns, True, {"type": step.type, "value": value, "time": step.end_ns, **shared}))
        heapq.heappush(free, (step.end_ns, lane))
    lines.sort(key=lambda line: line[:2])
    last = lines[-1][0] if lines else 0
    rows = [line for _, _, line in lines] + [{**line, "time": last} for line in unknown]
    return [{"index": index, **row} for index, row in enumerate(rows, start=2 * (first_lane > 0))]
