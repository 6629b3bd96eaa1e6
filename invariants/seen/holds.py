"""Holds: when a job was surely held under a claim, and surely admitted to a gate, by what nodes were told.

1. A hold began before the answer to its claim came. It lasted at least until something was sent that was told to have
   found it: a heartbeat, an outcome, a release, a reap. In between the row was held, whatever else happened.
2. A claim that goes on in line may change its key; each of its turns is a hold of its own. A `continue` of unknown
   outcome is the last that is known of its claim.
3. The slot of a gate is held from the answer of the admission that drew it, for as long as the claim keeps its key.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from invariants.history.operations import Operation
from invariants.witness import Witness, committed, is_unknown

Pair = tuple[int, str]


class Span(msgspec.Struct, frozen=True, gc=False):
    """A time in which something surely was so, and the operations that say from when and until when."""

    begin_ns: int
    end_ns: int
    name: str
    first: Operation
    last: Operation


class Holds:
    """Everything that is known of every claim of every row."""

    def __init__(self, witness: Witness) -> None:
        # By row and claim: the claim that took it, what found it held, the continuations, the admissions with a slot,
        # and the key of each turn as its step was told.
        self.taken: dict[Pair, Operation] = {}
        self._found: dict[Pair, list[Operation]] = {}
        self._continued: dict[Pair, list[Operation]] = {}
        self._admitted: dict[Pair, list[Operation]] = {}
        self._keys: dict[tuple[int, str, int], str | None] = {}
        for o in witness.operations:
            self._index(o)

    def _index(self, o: Operation) -> None:
        if o.f == "step":
            turn = o.value.get("turn")
            if turn is not None:
                # Of the first turn the claim's own answer says it.
                self._keys.setdefault((o.value["id"], o.value["claim"], turn), o.value["key"])
        elif o.f == "flush":
            self._index_flush(o)
        elif o.type != "ok" or o.end_ns is None:
            return
        elif o.f == "claim":
            name = o.value["claim"]
            keys = dict(o.result.get("keys", ()))
            for row in o.result["ids"]:
                self.taken[row, name] = o
                if "keys" in o.result:
                    self._keys[row, name, 0] = keys.get(row)
        elif o.f in ("release", "reap", "reclaim"):
            for pair in committed(o):
                self._found.setdefault(pair, []).append(o)
        elif o.f == "heartbeat":
            for pair in _extended(o):
                self._found.setdefault(pair, []).append(o)
        elif o.f == "admit":
            for row, shard in o.result["admitted"]:
                if shard is not None and shard >= 0:
                    self._admitted.setdefault((row, o.value["claim"]), []).append(o)

    def _index_flush(self, o: Operation) -> None:
        told = set(committed(o)) if o.type == "ok" else set()
        for pair in told:
            self._found.setdefault(pair, []).append(o)
        for row, claim, kind in o.value["outcomes"]:
            if kind == "continue" and ((row, claim) in told or is_unknown(o)):
                self._continued.setdefault((row, claim), []).append(o)

    def of_rows(self) -> Iterator[tuple[int, Span]]:
        """Each row, and when it was held under one claim."""
        for (row, claim), taken in self.taken.items():
            last = self._last(row, claim)
            if last is not None and taken.end_ns is not None and taken.end_ns < last.start_ns:
                yield row, Span(taken.end_ns, last.start_ns, claim, taken, last)

    def of_keys(self) -> Iterator[tuple[str, Span]]:
        """Each concurrency key, and when a claim of it was held. Spans are named by row and claim."""
        for pair in self.taken:
            yield from self._turns(pair)

    def of_slots(self) -> Iterator[tuple[str, Span]]:
        """Each concurrency key, and when a slot of it was held."""
        for pair, admissions in self._admitted.items():
            if pair not in self.taken:
                continue
            for key, span in self._turns(pair):
                drawn = [o for o in admissions if o.end_ns is not None and o.end_ns < span.end_ns]
                # The first that came in this turn or an earlier one of the same key.
                since = self._since(pair, key, span)
                first = next((o for o in drawn if o.start_ns >= since), None)
                if first is not None and first.end_ns is not None:
                    begin = max(span.begin_ns, first.end_ns)
                    yield key, Span(begin, span.end_ns, span.name, first, span.last)

    def _since(self, pair: Pair, key: str, span: Span) -> int:
        """When the claim surely had not drawn a slot of the key yet: it came to the key after that."""
        since = 0
        for earlier, other in self._all_turns(pair):
            if other.begin_ns >= span.begin_ns:
                break
            if earlier != key:
                since = other.end_ns
        return since

    def _turns(self, pair: Pair) -> Iterator[tuple[str, Span]]:
        for key, span in self._all_turns(pair):
            if key is not None and span.begin_ns < span.end_ns:
                yield key, span

    def _all_turns(self, pair: Pair) -> Iterator[tuple[str | None, Span]]:
        """The turns of a claim in order; a span that ends before it begins is a turn of which nothing is sure."""
        row, claim = pair
        taken, last = self.taken[pair], self._last(row, claim)
        if last is None:
            return
        begun = taken
        for turn, following in enumerate([*self._continued.get(pair, ()), None]):
            if (row, claim, turn) not in self._keys or begun.end_ns is None or is_unknown(begun):
                return
            until = last if following is None or last.start_ns < following.start_ns else following
            name = f"row {row} under claim {claim}"
            yield (
                self._keys[row, claim, turn],
                Span(begun.end_ns, until.start_ns, name, begun, until),
            )
            if following is None:
                return
            begun = following

    def _last(self, row: int, claim: str) -> Operation | None:
        return max(self._found.get((row, claim), ()), key=lambda o: o.start_ns, default=None)


def _extended(heartbeat: Operation) -> Iterator[Pair]:
    """The claims that a heartbeat was told to hold. A row that was named under two claims says nothing."""
    named: dict[int, str | None] = {}
    for row, claim in heartbeat.value["holds"]:
        named[row] = None if row in named else claim
    for row in heartbeat.result["ids"]:
        claim = named.get(row)
        if claim is not None:
            yield row, claim


def most_at_once(spans: Iterable[Span]) -> list[Span]:
    """Those of one moment at which most of them were so at once; touching is not overlapping."""
    ordered = sorted(spans, key=lambda span: span.begin_ns)
    ends = sorted(span.end_ns for span in ordered)
    most, at = 0, 0
    for begun, span in enumerate(ordered, start=1):
        at_once = begun - bisect_right(ends, span.begin_ns)
        if at_once > most:
            most, at = at_once, span.begin_ns
    return [span for span in ordered if span.begin_ns <= at < span.end_ns]


def by_name(spans: Iterable[tuple[str, Span]]) -> dict[str, list[Span]]:
    """Spans by what they are of."""
    found: dict[str, list[Span]] = {}
    for name, span in spans:
        found.setdefault(name, []).append(span)
    return found


def operations_of(spans: Sequence[Span]) -> list[Operation]:
    """What says of each span that it began and lasted, each operation once."""
    return list({id(o): o for span in spans for o in (span.first, span.last)}.values())
