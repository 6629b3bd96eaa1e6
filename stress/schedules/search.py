"""Which session moves next: searches over the tree of schedules. Pure: no database, no clock, seeded randomness.

Theory of operation:

1. A schedule is a sequence of choices. At each point the controller says which choices are open, a search takes one,
   and is told what the step touched (its `Effect`). A blocked session is no choice.
2. Two steps of different sessions are independent where neither can see, block or wake the other, and where the ledger
   cannot tell their order. Schedules that differ only in the order of independent neighbours are one schedule.
3. `Exhaustive` walks the tree depth first and leaves out, by sleep sets, what would be such a repetition. What it does
   not run is told by `pruned`. With a bound on preemptions it walks the part of the tree that has no more of them, and
   uses no sleep sets, for those are only right where the whole tree is walked.
4. `Pct` is for trees that are too large: each run draws priorities for the sessions and a few moments at which the
   most urgent becomes the least (probabilistic concurrency testing). A bug that needs d such moments among n sessions
   and k steps is found by one run with a probability of at least 1/(n·k^(d-1)).
5. `Fixed` replays: it takes given choices while they are open, and then goes on with the first session that is.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


class Choice(NamedTuple):
    """Advance a session by one step, or, with `dies`, end it where it stands."""

    session: str
    dies: bool = False


_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Effect:
    """What a step touched, by table: `saw` committed state in a new snapshot, `used` rows by locking or changing them,
    `ended` a transaction that had used them, by commit or not."""

    saw: frozenset[str] = _NOTHING
    used: frozenset[str] = _NOTHING
    ended: frozenset[str] = _NOTHING

    def __or__(self, other: Effect) -> Effect:
        return Effect(self.saw | other.saw, self.used | other.used, self.ended | other.ended)


def dependent(one: Effect, other: Effect) -> bool:
    """Whether the order of two steps may matter.

    Two ends always do, whatever they touched: invariants look at every committed state, and span tables.
    """
    return bool(
        (one.ended and other.ended)
        or one.used & other.used
        or one.ended & (other.saw | other.used)
        or other.ended & (one.saw | one.used)
    )


class Diverged(Exception):
    """A schedule was repeated and other choices were open than before: something is not under control."""


class Search(Protocol):
    """What decides. `begin`, then `choose` and `took` in turn, then `end`; until `exhausted`."""

    exhausted: bool

    def begin(self) -> None:
        """A new run starts."""

    def choose(self, open_choices: Sequence[Choice]) -> Choice | None:
        """One of the open choices, of which there is at least one; None ends the run as a repetition."""

    def took(self, effect: Effect) -> None:
        """The chosen step was taken and touched that."""

    def end(self) -> None:
        """The run is over."""


@dataclass(slots=True)
class _Node:
    open: tuple[Choice, ...]
    asleep: dict[Choice, Effect]
    chosen: Choice
    preemptions: int
    effect: Effect = field(default_factory=Effect)
    done: dict[Choice, Effect] = field(default_factory=dict)


class Exhaustive:
    """Depth first over all schedules; `preemptions` bounds how often a session is left that could have gone on.

    `runs` counts complete schedules, `pruned` those that were ended as repetitions, `skipped` the branches that were
    given up because they could not be repeated. Raises Diverged from `choose`.
    """

    def __init__(self, preemptions: int | None = None, *, reduce: bool = True) -> None:
        self.exhausted = False
        self.runs = 0
        self.pruned = 0
        self.skipped = 0
        self.bound = preemptions
        self._reduce = reduce and preemptions is None
        self._path: list[_Node] = []
        self._depth = 0
        self._cut = False
        self._asleep: dict[Choice, Effect] = {}

    @property
    def whole(self) -> bool:
        """Whether there is no schedule that it has not run, but for repetitions."""
        return self.exhausted and not self.skipped and self.bound is None

    def begin(self) -> None:
        """Start at the root."""
        self._depth, self._cut, self._asleep = 0, False, {}

    def choose(self, open_choices: Sequence[Choice]) -> Choice | None:
        """Repeat the path of the last run up to its turning point, then take what comes first."""
        if self._depth < len(self._path):
            node = self._path[self._depth]
            if node.open != tuple(open_choices):
                raise Diverged(
                    f"at step {self._depth + 1} {_named(node.open)} were open, now {_named(open_choices)}"
                )
        else:
            candidates = [choice for choice in open_choices if choice not in self._asleep]
            before = self._path[-1] if self._path else None
            candidates = [c for c in candidates if self._within_bound(before, open_choices, c)]
            if not candidates:
                self._cut = True
                return None
            spent = _preemptions(before, open_choices, candidates[0])
            node = _Node(tuple(open_choices), self._asleep, candidates[0], spent)
            self._path.append(node)
        self._depth += 1
        return node.chosen

    def took(self, effect: Effect) -> None:
        """Put to sleep, below here, what was tried before and is independent of this step."""
        node = self._path[self._depth - 1]
        node.effect = effect
        self._asleep = {}
        if self._reduce:
            tried: Mapping[Choice, Effect] = {**node.asleep, **node.done}
            self._asleep = {
                choice: touched
                for choice, touched in tried.items()
                if choice.session != node.chosen.session and not dependent(touched, effect)
            }

    def end(self) -> None:
        """Turn at the deepest node that has something left."""
        if self._cut:
            self.pruned += 1
        else:
            self.runs += 1
        self._turn()

    def _turn(self) -> None:
        while self._path:
            node = self._path[-1]
            node.done[node.chosen] = node.effect
            before = self._path[-2] if len(self._path) > 1 else None
            for choice in node.open:
                if (
                    choice not in node.done
                    and choice not in node.asleep
                    and self._within_bound(before, node.open, choice)
                ):
                    node.chosen = choice
                    node.preemptions = _preemptions(before, node.open, choice)
                    return
            self._path.pop()
        self.exhausted = True

    def skip(self) -> None:
        """Give up the branch on which the last run diverged: two sessions that one commit has set going at once run in
        an order of their own, and below such a step a path cannot always be repeated."""
        self.skipped += 1
        del self._path[max(1, self._depth) :]
        self._turn()

    def _within_bound(self, before: _Node | None, open_choices: Sequence[Choice], choice: Choice) -> bool:
        return self.bound is None or _preemptions(before, open_choices, choice) <= self.bound


def _preemptions(before: _Node | None, open_choices: Sequence[Choice], choice: Choice) -> int:
    if before is None:
        return 0
    left = choice.session != before.chosen.session and Choice(before.chosen.session) in open_choices
    return before.preemptions + left


class Pct:
    """`runs` random runs with `depth` moments of change each, in schedules of about `steps` steps.

    `deaths`: in every other run one session dies at a random step.
    """

    def __init__(self, seed: str, runs: int, depth: int, steps: int, *, deaths: bool = False) -> None:
        self.exhausted = runs <= 0
        self.runs = 0
        self._seed, self._left, self._depth, self._steps, self._deaths = (
            seed,
            runs,
            depth,
            max(1, steps),
            deaths,
        )
        self._random = random.Random(seed)
        self._priorities: dict[str, float] = {}
        self._changes: set[int] = set()
        self._death = -1
        self._at = 0

    def begin(self) -> None:
        """Draw the run's priorities and moments."""
        self._random = random.Random(f"{self._seed}/{self.runs}")
        self._priorities = {}
        self._changes = {self._random.randrange(self._steps) for _ in range(self._depth)}
        self._death = self._random.randrange(self._steps) if self._deaths and self.runs % 2 else -1
        self._at = 0

    def choose(self, open_choices: Sequence[Choice]) -> Choice | None:
        """The session of the highest priority."""
        for choice in sorted(open_choices):
            if choice.session not in self._priorities:
                self._priorities[choice.session] = 1.0 + self._random.random()
        living = [choice for choice in open_choices if not choice.dies]
        dying = [choice for choice in open_choices if choice.dies]
        best = max(living, key=lambda choice: self._priorities[choice.session])
        if self._at in self._changes:
            # Below all others, and below those that went there before.
            self._priorities[best.session] = -float(self._at)
            best = max(living, key=lambda choice: self._priorities[choice.session])
        if dying and self._death >= 0 and self._at >= self._death:
            self._death = -1
            best = self._random.choice(sorted(dying))
        self._at += 1
        return best

    def took(self, effect: Effect) -> None:
        """Nothing is learnt from it."""

    def end(self) -> None:
        """Count."""
        self.runs += 1
        self._left -= 1
        self.exhausted = self._left <= 0


class Fixed:
    """Replays given choices. `followed` is False where one of them was not open."""

    def __init__(self, choices: Iterable[Choice]) -> None:
        self.exhausted = False
        self.followed = True
        self._choices = list(choices)
        self._at = 0
        self._last: str | None = None

    def begin(self) -> None:
        """Start over."""
        self._at, self._last, self.followed = 0, None, True

    def choose(self, open_choices: Sequence[Choice]) -> Choice | None:
        """The next given choice that is open; behind the last one the same session goes on, or the first that can."""
        while self._at < len(self._choices):
            choice = self._choices[self._at]
            self._at += 1
            if choice in open_choices:
                self._last = choice.session
                return choice
            self.followed = False
        living = [choice for choice in open_choices if not choice.dies]
        same = [choice for choice in living if choice.session == self._last]
        choice = (same or living)[0]
        self._last = choice.session
        return choice

    def took(self, effect: Effect) -> None:
        """Nothing is learnt from it."""

    def end(self) -> None:
        """One run is all."""
        self.exhausted = True


def interleavings(steps: Iterable[int]) -> int:
    """How many orders there are of sessions of so many steps each, were none ever blocked."""
    counts = list(steps)
    total = math.factorial(sum(counts))
    for count in counts:
        total //= math.factorial(count)
    return total


def _named(choices: Iterable[Choice]) -> str:
    return ", ".join(f"{choice.session}{' dies' if choice.dies else ''}" for choice in choices) or "nobody"
