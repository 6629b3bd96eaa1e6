"""Limits as nodes saw them: how many held a key at once, and what was granted in any window.

1. Limits are those that any node said it would write down, and of several for one name the widest counts: which one was
   in force when, only the database knows. Nodes that say nothing of limits may have some: their keys are not judged.
2. What is counted was surely so at one moment, so a limit that was exceeded in between may be missed, and one that was
   kept is never called exceeded.
"""

from __future__ import annotations

from typing import Final

from invariants.changes import config_name
from invariants.rates import Grant, worst_window
from invariants.seen.holds import Holds, Span, by_name, most_at_once, operations_of
from invariants.seen.seer import Seer
from invariants.witness import Witness

# How many of the operations that contradict a limit one violation names.
SHOWN: Final = 12


class Configured:
    """The gates and rate limits of a run, by name, each as wide as it ever was. `told`: whether every node says."""

    def __init__(self, witness: Witness) -> None:
        self.told = True
        self.gates: dict[str, float] = {}
        self.rates: dict[str, tuple[float, float]] = {}
        for o in witness.named.get("sync_config", ()):
            if "limits" not in o.value:
                self.told = False
                continue
            for kind, name, rate, capacity, _shards in o.value["limits"]:
                if kind == "conc":
                    self.gates[name] = max(capacity, self.gates.get(name, 0.0))
                else:
                    known = self.rates.get(name, (0.0, 0.0))
                    self.rates[name] = (max(rate, known[0]), max(capacity, known[1]))


class SeenExclusion(Seer):
    """Sweeps over the surely held times of each key of no gate."""

    name = "seen-k1-exclusion"
    statement = (
        "by what nodes were told: at most one row executes per concurrency key that is not a configured gate"
    )

    def judge(self, witness: Witness, *, at_rest: bool) -> str | None:  # noqa: ARG002
        configured = witness.derived(Configured)
        if not configured.told:
            return None
        for key, spans in by_name(witness.derived(Holds).of_keys()).items():
            if config_name(key) in configured.gates:
                continue
            self.checked += len(spans)
            at_once = most_at_once(spans)
            if len(at_once) > 1:
                self._add(key, at_once)
        return None

    def _add(self, key: str, at_once: list[Span]) -> None:
        self.add(
            f"key {key} is of no gate and was held {len(at_once)} times at once: {_names(at_once)}",
            *operations_of(at_once)[:SHOWN],
        )


class SeenGateCap(Seer):
    """Sweeps over the times for which slots were surely held."""

    name = "seen-gate-cap"
    statement = "by what nodes were told: at most K admitted rows execute at once per configured gate key"

    def judge(self, witness: Witness, *, at_rest: bool) -> str | None:  # noqa: ARG002
        gates = witness.derived(Configured).gates
        for key, spans in by_name(witness.derived(Holds).of_slots()).items():
            limit = gates.get(config_name(key))
            if limit is None:
                continue
            self.checked += len(spans)
            at_once = most_at_once(spans)
            if len(at_once) > limit:
                self.add(
                    f"gate {key} lets {limit:g} rows in, and {len(at_once)} held a slot at once: {_names(at_once)}",
                    *operations_of(at_once)[:SHOWN],
                )
        return None


class SeenRateBudget(Seer):
    """Every window over what admissions granted, as they were asked."""

    name = "seen-rate-budget"
    statement = (
        "by what nodes were told: per rate key, the weight granted in any window of w seconds is at most "
        "burst + rate * w"
    )

    def judge(self, witness: Witness, *, at_rest: bool) -> str | None:  # noqa: ARG002
        rates = witness.derived(Configured).rates
        granted: dict[str, list[Grant]] = {}
        for o in witness.named.get("admit", ()):
            if o.type != "ok" or o.end_ns is None or not o.value.get("rates"):
                continue
            asked = {row: (key, weight) for row, key, weight in o.value["rates"]}
            for row, _shard in o.result["admitted"]:
                if row in asked:
                    key, weight = asked[row]
                    granted.setdefault(key, []).append(Grant(weight, o.start_ns, o.end_ns, row, o))
        for key, grants in granted.items():
            limit = rates.get(config_name(key))
            if limit is None:
                continue
            self.checked += len(grants)
            window = worst_window(grants, *limit)
            if window is not None:
                self.add(window.describe(key, *limit), *window.operations[-SHOWN:])
        return None


def _names(spans: list[Span]) -> str:
    return ", ".join(span.name for span in spans)
