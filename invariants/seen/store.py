"""The store as its callers saw it: one order of versions that explains every answer, each event's effect once, and each
emit handed to a consumer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from invariants.commits import COMMIT
from invariants.history.operations import Operation
from invariants.seen.holds import Span, by_name, most_at_once, operations_of
from invariants.seen.registers import Act, contradiction
from invariants.seen.seer import Seer
from invariants.transport import Ack, acks_of, handed_of
from invariants.witness import Witness, error_of, is_undecided

LOAD: Final = "store.load"


class SeenCasChain(Seer):
    """Each execution is a compare-and-set register (`invariants/seen/registers.py`)."""

    name = "seen-cas-chain"
    statement = (
        "by what their callers were told: loads and commits of an execution are linearizable, as those of a register "
        "that is compared and set"
    )

    def judge(self, witness: Witness, *, at_rest: bool) -> str | None:  # noqa: ARG002
        registers: dict[str, list[Act]] = {}
        for execution, act in acts_of(witness):
            registers.setdefault(execution, []).append(act)
        # A relay makes a child's first version, and says which rows it took on, not which children they were.
        unseen = (1,) if any(o.type != "fail" for o in witness.named.get("relay.spawn", ())) else ()
        for execution, acts in registers.items():
            self.checked += len(acts)
            found = contradiction(acts, written_unseen=unseen)
            if found is not None:
                told = [act.told for act in found.acts if isinstance(act.told, Operation)]
                self.add(f"execution {execution}: {found.summary}", *told)
        return None


def acts_of(witness: Witness) -> Iterator[tuple[str, Act]]:
    """What was done to which execution: loads and commits, and refusals that tell the version found."""
    for o in witness.named.get(LOAD, ()):
        if o.type == "ok":
            yield o.value["execution"], Act("read", o.result["version"] or 0, o.start_ns, o.end_ns, o)
    for o in witness.named.get(COMMIT, ()):
        execution, version = o.value["execution"], o.value["expected"] + 1
        if o.type == "ok":
            yield execution, Act("write", version, o.start_ns, o.end_ns, o)
        elif is_undecided(o):
            yield execution, Act("write", version, o.start_ns, None, o)
        elif error_of(o).get("error") == "StoreConflict" and error_of(o).get("found") is not None:
            yield execution, Act("read", error_of(o)["found"], o.start_ns, o.end_ns, o)


class SeenEffectOnce(Seer):
    """Commits that carry an event, against the others that carry it."""

    name = "seen-effect-once"
    statement = (
        "by what their callers were told: one commit of an execution carries an event, and one that was refused "
        "because the event had been processed came after one that may have processed it"
    )

    def judge(self, witness: Witness, *, at_rest: bool) -> str | None:  # noqa: ARG002
        done: dict[tuple[str, str], Operation] = {}
        began: dict[tuple[str, str], int] = {}
        commits = [o for o in witness.named.get(COMMIT, ()) if o.value["event"] is not None]
        for o in commits:
            pair = (o.value["execution"], o.value["event"])
            if o.type != "ok" and not is_undecided(o):
                continue
            began.setdefault(pair, o.start_ns)
            if o.type == "ok":
                self.checked += 1
                first = done.setdefault(pair, o)
                if first is not o:
                    self.add(f"event {pair[1]} took effect on execution {pair[0]} twice", first, o)
        for o in commits:
            if error_of(o).get("error") != "EventAlreadyProcessed":
                continue
            self.checked += 1
            pair = (o.value["execution"], o.value["event"])
            if o.end_ns is not None and began.get(pair, o.end_ns) >= o.end_ns:
                self.add(
                    f"event {pair[1]} was called processed for execution {pair[0]}, and nobody had processed it",
                    o,
                )
        return None


class SeenOutbox(Seer):
    """Follows each emit from the commit that was told to have happened to the consumer that was handed it.

    A message goes by an acknowledgement only, and that takes the answer to a claim. So what was delivered at all was
    handed to somebody who was told.
    """

    name = "seen-outbox"
    statement = (
        "by what callers and consumers were told: an emit of a commit that happened is handed to a consumer of its "
        "target, the emits of one execution to one target in their order"
    )

    def judge(self, witness: Witness, *, at_rest: bool) -> str | None:
        handed: dict[tuple[str, str], Operation] = {}
        for o in witness.named.get("transport.claim", ()):
            for group, event in _messages(o):
                first = handed.get((group, event))
                if first is None or (o.end_ns or 0) < (first.end_ns or 0):
                    handed[group, event] = o
        if not handed:
            return None
        lanes: dict[tuple[str, str], list[tuple[int, str, Operation]]] = {}
        self._sources = _sources(witness)
        for o in witness.named.get(COMMIT, ()):
            if o.type == "ok":
                for target, event in o.value.get("to", ()):
                    lane = (o.value["execution"], target)
                    lanes.setdefault(lane, []).append((o.value["expected"] + 1, event, o))
        for (emitter, target), emits in lanes.items():
            self.checked += len(emits)
            emits.sort(key=lambda emit: emit[0])
            if at_rest:
                for version, event, commit in emits:
                    if (target, event) not in handed:
                        self.add(
                            f"version {version} of execution {emitter} emitted {event} to {target}, and no consumer "
                            "was handed it",
                            commit,
                        )
            self._order(emitter, target, emits, handed)
        return None

    def _order(
        self,
        emitter: str,
        target: str,
        emits: Sequence[tuple[int, str, Operation]],
        handed: dict[tuple[str, str], Operation],
    ) -> None:
        """No later emit surely reached its consumer before an earlier one was asked for."""
        earliest: tuple[str, Operation, Operation] | None = None
        for _, event, commit in reversed(emits):
            mine = handed.get((target, event))
            if mine is None or self._sources[target, event] > 1:
                continue
            if earliest is not None and (earliest[2].end_ns or 0) < mine.start_ns:
                self.add(
                    f"execution {emitter} emitted {event} to {target} before {earliest[0]}, and it was handed to a "
                    "consumer after that",
                    commit, earliest[1], earliest[2], mine,
                )  # fmt: skip
            if earliest is None or (mine.end_ns or 0) < (earliest[2].end_ns or 0):
                earliest = (event, commit, mine)


class SeenGroupExclusive(Seer):
    """When a consumer surely held a group: from the answer to its claim until he sent what was told to have found him
    its holder."""

    name = "seen-group-exclusive"
    statement = (
        "by what consumers were told: a group has one consumer at a time, and a message is acknowledged once"
    )

    def judge(self, witness: Witness, *, at_rest: bool) -> str | None:  # noqa: ARG002
        acks = acks_of([*witness.named.get("transport.ack", ())])
        self._once(acks)
        found = {(ack.group, ack.token): ack.operation for ack in acks if ack.done}
        for name in ("transport.nack", "transport.extend"):
            for o in witness.named.get(name, ()):
                if o.type == "ok" and o.result:
                    pair = (o.value["group"], o.value["token"])
                    found[pair] = max(found.get(pair, o), o, key=lambda each: each.start_ns)
        spans = []
        for (group, token), (_, claim) in handed_of(witness.named.get("transport.claim", ())).items():
            last = found.get((group, token))
            if last is not None and claim.end_ns is not None and claim.end_ns < last.start_ns:
                spans.append((group, Span(claim.end_ns, last.start_ns, token, claim, last)))
        for group, held in by_name(spans).items():
            self.checked += len(held)
            at_once = most_at_once(held)
            if len(at_once) > 1:
                tokens = " and ".join(span.name for span in at_once)
                self.add(f"group {group} was held under {tokens} at one time", *operations_of(at_once))
        return None

    def _once(self, acks: Sequence[Ack]) -> None:
        first: dict[tuple[str, int], Operation] = {}
        for ack in acks:
            if ack.done:
                self.checked += 1
                other = first.setdefault((ack.group, ack.seq), ack.operation)
                if other is not ack.operation:
                    self.add(
                        f"message {ack.seq} of group {ack.group} was acknowledged twice", other, ack.operation
                    )


def _sources(witness: Witness) -> Counter[tuple[str, str]]:
    """How often each event may have been sent to each target: what was sent twice has no one place in an order."""
    sources: Counter[tuple[str, str]] = Counter()
    for o in witness.named.get(COMMIT, ()):
        if o.type == "ok" or is_undecided(o):
            sources.update((target, event) for target, event in o.value.get("to", ()))
    for o in witness.named.get("transport.publish", ()):
        several = o.value.get("messages") or [(o.value.get("group"), o.value.get("event"))]
        sources.update((group, event) for group, event in several)
    return sources


def _messages(claim: Operation) -> Iterator[tuple[str, str]]:
    """Groups and event ids of what a claim was handed."""
    if claim.type != "ok" or not claim.result:
        return
    for message in claim.result if isinstance(claim.result, list) else [claim.result]:
        yield message["group"], message["event"]
