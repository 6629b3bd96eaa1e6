"""Two captures, node by node.

Trees are aligned by what their nodes are (`Node.label`: the alias, the CTE), not by their numbers. A difference has a
severity, and the ladder is in the order in which somebody should care:

    equal < tie < better < estimate < shape < work < hazard < error

    tie       another plan, which one of the two captures has already seen after a second ANALYZE
    better    B touches fewer buffers, or writes less
    estimate  the planner expects `ESTIMATE` times as many rows, or as few; the plan and its work are the same
    shape     node types, indexes, join order or conditions are others
    work      more rows handled, buffers or WAL than `WORK` times as much, beyond what is too little to tell
    hazard    B has a hazard that A has not
    error     a statement on one side only, or refused by the server on one side

What differs and is not explained is a regression, unless it is a tie, better, or an estimate. An explanation is an
entry of `explanations.toml` beside the baselines:

    [[accepted]]
    statement = "picker/claim"       # or "*", or a prefix such as "store/*"
    severity = "shape"               # shape, work or hazard
    majors = [13, 18]                # optional: accepted where one side is of one of these
    match = "Memoize"                # optional: a text that the difference must hold
    reason = "Memoize came with 14"

Settings of the planner that somebody made differ explain shapes and work of their own; a default that another version
has does not. Settings that differ are said first. Costs and times are in no capture.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec

from engine.errors import UsageError
from results.plans.folder import Capture, Captured, Explained
from results.plans.hazards import hazards_of
from results.plans.tree import Node, canonical, shape, walk

Severity = Literal["equal", "tie", "better", "estimate", "shape", "work", "hazard", "error"]
LADDER: Final[tuple[Severity, ...]] = get_args(Severity)
Word = Literal["same", "changed-explained", "regressed"]

# By how much a figure may grow, and from which difference on it is told at all. Buffers of one statement vary by a few
# pages with where a rolled-back run has left free space.
WORK: Final = 1.5
LEAST_BUFFERS: Final = 200
LEAST_ROWS: Final = 60
LEAST_WAL: Final = 16_384
ESTIMATE: Final = 100.0
# The version of Postgres that shows fractions of rows.
FRACTIONS_SINCE: Final = 18
# Settings that say where a server is, not how it plans.
HARMLESS: Final = frozenset(("shared_buffers", "effective_io_concurrency", "maintenance_io_concurrency"))
# Settings whose defaults are a version's: name, and the defaults that there have been.
DEFAULTS: Final[Mapping[str, frozenset[str]]] = {"hash_mem_multiplier": frozenset(("1", "2"))}


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference: of which statement and mode, how severe, where in the tree, what."""

    label: str
    mode: str
    severity: Severity
    path: str
    message: str
    reason: str = ""

    @property
    def counts(self) -> bool:
        """Whether it makes a regression."""
        return not self.reason and LADDER.index(self.severity) >= LADDER.index("shape")

    def __str__(self) -> str:
        why = f" (accepted: {self.reason})" if self.reason else ""
        return (
            f"{self.label} ({self.mode}): {self.severity}: {self.message}"
            + (f" [{self.path}]" if self.path else "")
            + why
        )


@dataclass(frozen=True, slots=True)
class Row:
    """Two trees line by line: a node of A, of B, or both. `changed` where they are not the same."""

    depth: int
    left: Node | None
    right: Node | None
    changed: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of it. `settings`: name, A's and B's value. `rows`: by (label, mode), only of what differs in shape."""

    a: str
    b: str
    verdict: Word
    settings: tuple[tuple[str, str, str], ...]
    differences: tuple[Difference, ...]
    rows: Mapping[tuple[str, str], tuple[Row, ...]] = field(default_factory=dict)
    statements: int = 0

    @property
    def exit_code(self) -> int:
        """0 same or explained, 1 regressed."""
        return 1 if self.verdict == "regressed" else 0


@dataclass(frozen=True, slots=True)
class Explanation:
    """An accepted difference, as `explanations.toml` has it."""

    statement: str
    severity: str
    reason: str
    match: str = ""
    majors: tuple[int, ...] = ()

    def covers(self, difference: Difference, majors: Sequence[int]) -> bool:
        """Whether it is this one."""
        named = self.statement.removesuffix("*")
        label = difference.label
        fits = (
            label.startswith(named)
            if self.statement.endswith("*")
            else label.partition("@")[0] == named or label == named
        )
        return (
            fits
            and difference.severity == self.severity
            and self.match in difference.message + difference.path
            and (not self.majors or any(major in self.majors for major in majors))
        )


def read_explanations(path: Path) -> tuple[Explanation, ...]:
    """The accepted differences; none where there is no such file. Raises UsageError."""
    if not path.is_file():
        return ()
    try:
        entries = tomllib.loads(path.read_text("utf-8")).get("accepted", [])
        return tuple(Explanation(**{**entry, "majors": tuple(entry.get("majors", ()))}) for entry in entries)
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def compare(a: Capture, b: Capture, explanations: Sequence[Explanation] = ()) -> Comparison:
    """Hold B against A. Raises UsageError where the two were made on other data."""
    one, two = a.environment, b.environment
    if one.profile != two.profile:
        raise UsageError(
            f"the captures are of other data: {one.profile.name} with batches of {one.profile.batch}, and"
            f" {two.profile.name} with batches of {two.profile.batch}"
        )
    names = sorted(one.settings.keys() & two.settings.keys() - HARMLESS)
    settings = tuple(
        (name, one.settings[name], two.settings[name])
        for name in names
        if one.settings[name] != two.settings[name]
    )
    majors = (one.major, two.major)
    made = [f"{name} {was} → {now}" for name, was, now in settings if not _default(name, was, now, majors)]
    forced = f"other settings: {', '.join(made)}" if made else ""
    differences = []
    rows: dict[tuple[str, str], tuple[Row, ...]] = {}
    for label in list(a.statements) + [label for label in b.statements if label not in a.statements]:
        left, right = a.statements.get(label), b.statements.get(label)
        for difference in _statement(label, left, right, a, b):
            reasons = (
                [each.reason for each in explanations if each.covers(difference, majors)]
                if difference.counts
                else []
            )
            if difference.counts and forced and difference.severity in ("shape", "work"):
                reasons.append(forced)
            differences.append(
                Difference(
                    difference.label, difference.mode, difference.severity, difference.path, difference.message,
                    reasons[0] if reasons else "",
                )
            )  # fmt: skip
            mode = difference.mode
            if left and right and mode in left.plans and mode in right.plans and (label, mode) not in rows:
                rows[label, mode] = tuple(aligned(left.plans[mode].plan, right.plans[mode].plan))
    differences.sort(key=lambda each: -LADDER.index(each.severity))
    explained = any(LADDER.index(each.severity) >= LADDER.index("shape") for each in differences)
    regressed = any(each.counts for each in differences)
    return Comparison(
        a=f"Postgres {one.version}, {one.profile.name}",
        b=f"Postgres {two.version}, {two.profile.name}",
        verdict="regressed" if regressed else "changed-explained" if explained else "same",
        settings=settings,
        differences=tuple(differences),
        rows=rows,
        statements=len(a.statements.keys() | b.statements.keys()),
    )


def _default(name: str, was: str, now: str, majors: tuple[int, int]) -> bool:
    return majors[0] != majors[1] and {was, now} <= DEFAULTS.get(name, frozenset())


def _statement(
    label: str, left: Captured | None, right: Captured | None, a: Capture, b: Capture
) -> Iterator[Difference]:
    if left is None or right is None:
        yield Difference(label, "both", "error", "", f"only in {'A' if right is None else 'B'}")
        return
    if left.error or right.error:
        if left.error != right.error:
            told = "; ".join(f"{side}: {each.error or 'fine'}" for side, each in (("A", left), ("B", right)))
            yield Difference(label, "both", "error", "", told)
        return
    # Before 18 the rows of a loop are whole: a probe that finds one row in three found none.
    whole = min(a.environment.major, b.environment.major) < FRACTIONS_SINCE
    for mode in (mode for mode in left.plans if mode in right.plans):
        # Of empty tables every version has its own idea; what a kept plan may do is for its shape to say.
        if mode == "kept" and a.environment.major != b.environment.major:
            continue
        yield from _plans(label, mode, left.plans[mode], right.plans[mode], whole=whole)
    had = {(hazard.kind, hazard.node) for hazard in hazards_of(left, a.environment.indexes)}
    # An estimate or a tie is told as such; the hazards are what may go wrong.
    for hazard in hazards_of(right, b.environment.indexes):
        if (hazard.kind, hazard.node) not in had and hazard.kind not in ("estimate", "tie"):
            yield Difference(label, "both", "hazard", hazard.node, f"{hazard.kind}: {hazard.message}")


def _plans(label: str, mode: str, left: Explained, right: Explained, *, whole: bool) -> Iterator[Difference]:
    a, b = left.plan, right.plan
    if shape(a) != shape(b):
        seen = {shape(each) for each in (left.alternate, right.alternate) if each is not None}
        if shape(a) in seen or shape(b) in seen:
            yield Difference(
                label, mode, "tie", "", "another plan of the same cost, seen after a second ANALYZE"
            )
        else:
            for path, message in _changes(a, b, a.label):
                yield Difference(label, mode, "shape", path, message)
    else:
        yield from _estimates(label, mode, a, b, a.label)
    yield from _work(label, mode, "", a, b, whole=whole)
    ours = {inner.text: inner.plan for inner in left.inner}
    theirs = {inner.text: inner.plan for inner in right.inner}
    # Where one side could not look inside, there is nothing to hold the other against.
    for text in [*ours, *(text for text in theirs if text not in ours)] if ours and theirs else ():
        where = f"inside: {text[:60]}"
        if text not in ours or text not in theirs:
            yield Difference(label, mode, "shape", where, f"run only in {'A' if text in ours else 'B'}")
            continue
        if shape(ours[text]) != shape(theirs[text]):
            for path, message in _changes(ours[text], theirs[text], ours[text].label):
                yield Difference(label, mode, "shape", f"{where}: {path}", message)
        yield from _work(label, mode, where, ours[text], theirs[text], whole=whole)


def _work(label: str, mode: str, where: str, a: Node, b: Node, *, whole: bool) -> Iterator[Difference]:
    figures = (
        ("buffers", a.buffers, b.buffers, LEAST_BUFFERS),
        ("WAL bytes", a.wal_bytes, b.wal_bytes, LEAST_WAL),
        ("rows handled", _handled(a, whole=whole), _handled(b, whole=whole), LEAST_ROWS),
    )
    for what, was, now, least in figures:
        ratio = f"{was:,.0f} → {now:,.0f} {what}"
        if now > was * WORK and now - was > least:
            yield Difference(label, mode, "work", where, ratio)
        elif was > now * WORK and was - now > least:
            yield Difference(label, mode, "better", where, ratio)


def _handled(root: Node, *, whole: bool) -> float:
    # What gathers rows of its parts has looked at none: before 14, a change of a partitioned table has it not.
    return max(
        (
            (round(node.rows) if whole else node.rows) * node.loops + node.removed
            for node in walk(root)
            if node.kind not in ("Append", "Merge Append")
        ),
        default=0.0,
    )


def _estimates(label: str, mode: str, a: Node, b: Node, path: str) -> Iterator[Difference]:
    big, small = max(a.estimate, b.estimate), max(1.0, min(a.estimate, b.estimate))
    if big / small > ESTIMATE:
        yield Difference(
            label, mode, "estimate", path, f"{a.estimate:,.0f} → {b.estimate:,.0f} rows expected"
        )
    for left, right in zip(a.children, b.children, strict=True):
        yield from _estimates(label, mode, left, right, f"{path} / {left.label}")


def _changes(a: Node, b: Node, path: str) -> Iterator[tuple[str, str]]:
    """What differs between two trees, from the top: at most one sentence a node."""
    if shape(a) == shape(b):
        return
    if _wraps(b, a):
        yield path, f"new: {b.title()}"
        yield from _changes(a, b.children[0], f"{path} / {b.children[0].label}")
        return
    if _wraps(a, b):
        yield path, f"gone: {a.title()}"
        yield from _changes(a.children[0], b, f"{path} / {a.children[0].label}")
        return
    if (
        a.kind != b.kind
        or a.index != b.index
        or a.backward != b.backward
        or a.strategy != b.strategy
        or a.join != b.join
    ):
        yield path, f"{a.title()} → {b.title()}"
    elif _own(a) != _own(b) and a.conditions != b.conditions:
        for name in sorted(a.conditions.keys() | b.conditions.keys()):
            was, now = a.conditions.get(name, "none"), b.conditions.get(name, "none")
            if canonical(was) != canonical(now):
                yield path, f"{name} of {a.title()}: {was} → {now}"
    elif a.hashed != b.hashed:
        yield path, f"{a.title()}: a SubPlan is {'no longer ' if a.hashed else ''}hashed"
    for left, right in _pairs(a, b):
        if left is not None and right is not None:
            yield from _changes(left, right, f"{path} / {left.label}")
        elif left is not None:
            yield path, f"gone: {left.title()}"
        elif right is not None:
            yield path, f"new: {right.title()}"


def aligned(a: Node, b: Node, depth: int = 0) -> Iterator[Row]:
    """Two trees as lines, what belongs together side by side."""
    if _wraps(b, a):
        yield Row(depth, None, b, changed=True)
        yield from aligned(a, b.children[0], depth + 1)
        return
    if _wraps(a, b):
        yield Row(depth, a, None, changed=True)
        yield from aligned(a.children[0], b, depth + 1)
        return
    yield Row(depth, a, b, changed=_own(a) != _own(b))
    for left, right in _pairs(a, b):
        if left is not None and right is not None:
            yield from aligned(left, right, depth + 1)
        else:
            yield from _alone(left, right, depth + 1)


def _wraps(outer: Node, inner: Node) -> bool:
    """Whether one is the other with one node around it: a Memoize, a Materialize, a Sort."""
    return (
        outer.kind != inner.kind and len(outer.children) == 1 and outer.children[0].label == inner.label
        and outer.children[0].kind == inner.kind
    )  # fmt: skip


def _alone(left: Node | None, right: Node | None, depth: int) -> Iterator[Row]:
    yield Row(depth, left, right, changed=True)
    for child in (left or right or Node(kind="")).children:
        yield from _alone(child if left else None, child if right else None, depth + 1)


def _own(node: Node) -> object:
    return shape(msgspec.structs.replace(node, role="", children=()))


def _pairs(a: Node, b: Node) -> Iterator[tuple[Node | None, Node | None]]:
    """Children that belong together: by label, then by the same role among what is left; else alone."""
    mine, theirs = list(a.children), list(b.children)
    match = SequenceMatcher(
        None, [_key(child) for child in mine], [_key(child) for child in theirs], autojunk=False
    )
    for what, a1, a2, b1, b2 in match.get_opcodes():
        if what == "equal":
            yield from zip(mine[a1:a2], theirs[b1:b2], strict=True)
            continue
        left, right = mine[a1:a2], theirs[b1:b2]
        for child in left:
            other = next(
                (each for each in right if each.role == child.role and each.name == child.name), None
            )
            if other is not None:
                right.remove(other)
            yield child, other
        for child in right:
            yield None, child


def _key(node: Node) -> str:
    return f"{node.role} {node.name} {node.label}"
