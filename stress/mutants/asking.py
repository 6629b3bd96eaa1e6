"""Asks the instruments about every mutant, and about the sound engine, in several processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from engine.postgres import Server, Stopped
from invariants.mutants import PLANS, REGISTRY, Mutant
from stress.mutants.instruments import Bench, Budget, control, control_items, see
from stress.mutants.matrix import Matrix, Row, instruments_for
from stress.mutants.pool import Lost, Pool
from stress.mutants.progress import Bar
from stress.mutants.seen import DRAWING, FULL_SEEDS, INSTRUMENTS, Instrument, Seen


@dataclass(frozen=True, slots=True)
class Ask:
    """What a worker is to find out: of a mutant by these instruments, the first catch ending it unless `all_`; or, with
    `item`, of the sound engine under the first of the seeds."""

    mutant: str | None
    instruments: tuple[Instrument, ...]
    seeds: tuple[int, ...]
    item: str = ""
    all_: bool = False

    @property
    def key(self) -> tuple[Instrument, str]:
        """Of the sound engine, by which the matrix has the answer. What draws nothing has one, and what draws has one a
        seed where several are asked."""
        drawn = self.all_ and self.instruments[0] in DRAWING
        return self.instruments[0], f"{self.item}, seed {self.seeds[0]}" if drawn else self.item


def mutant_of(name: str) -> Mutant:
    """By its name, of either kind."""
    return REGISTRY.get(name) or PLANS[name]


def open_bench(server: Server, stack: ExitStack) -> Bench:
    """What a worker has."""
    return Bench(server, stack, Budget())


def work(bench: Bench, ask: Ask) -> list[Seen]:
    """Runs in a worker."""
    if ask.mutant is None:
        return [control(ask.instruments[0], bench, ask.item, ask.seeds[0])]
    seen: list[Seen] = []
    for instrument in ask.instruments:
        for seed in ask.seeds:
            try:
                seen.append(see(instrument, bench, mutant_of(ask.mutant), seed))
            except Exception as error:  # noqa: BLE001  # a crash is `unknown`, never `held`
                detail = f"{type(error).__name__}: {error}"
                seen.append(Seen(instrument=instrument, sight="unknown", seed=seed, detail=detail))
            if seen[-1].sight == "apart" or seen[-1].seed is None:
                break
        if seen[-1].sight == "caught" and not ask.all_:
            break
    return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked for. `instruments`: only these; none: all that apply. `known`: what an earlier run has answered;
    of that, what is settled is not asked again, but for `anew`: mutants that were caught, or in a full run whatever an
    instrument has said for each seed; and items that the sound engine held."""

    names: Sequence[str]
    full: bool
    control: bool
    instruments: tuple[Instrument, ...]
    seed: int
    workers: int
    pg: str
    known: Matrix | None = None
    anew: frozenset[str] = frozenset()


def ask_all(request: Request, quiet: bool, keep: Callable[[Matrix], object] = lambda _: None) -> Matrix:
    """Ask. Where it is interrupted, what was found until then stands; `keep` gets that after each answer. Raises
    InfrastructureError."""
    asks, controls = [*_asks(request)], [*(_controls(request) if request.control else ())]
    # A full run may be interrupted: there the first seed of all comes before the second of any, and the sound engine
    # before the mutants, for who accuses it is not believed.
    asks = sorted([*controls, *asks], key=lambda ask: ask.seeds[0]) if request.full else [*asks, *controls]
    matrix = Matrix({name: Row(name, mutant_of(name).summary) for name in request.names}, interrupted=True)
    if request.known is not None:
        asks = [ask for ask in asks if not take_over(matrix, request.known, ask, request.anew)]
    began = time.monotonic()
    before = 0.0 if request.known is None else request.known.seconds
    try:
        with (
            Pool(min(request.workers, max(1, len(asks))), request.pg, open_bench, work) as pool,
            Bar(len(asks), quiet) as bar,
        ):
            for ask, answer in pool.answers(asks):
                take_in(matrix, ask, answer)
                matrix.seconds = before + time.monotonic() - began
                keep(matrix)
                bar.step(f"{ask.mutant or 'the sound engine'}: {ask.instruments[0]} {ask.item}".strip())
        matrix.interrupted = False
    except (Stopped, KeyboardInterrupt):
        pass
    matrix.seconds = before + time.monotonic() - began
    return matrix


def _seeds(request: Request) -> tuple[int, ...]:
    return tuple(range(request.seed, request.seed + (FULL_SEEDS if request.full else 1)))


def _asks(request: Request) -> Iterator[Ask]:
    seeds = _seeds(request)
    for name in request.names:
        instruments = tuple(request.instruments or instruments_for(name in REGISTRY, full=request.full))
        if request.full:
            # One at a time, so that no task takes long, and a run that was interrupted has lost little.
            for instrument in instruments:
                for seed in seeds if instrument in DRAWING else seeds[:1]:
                    yield Ask(name, (instrument,), (seed,), all_=True)
        else:
            yield Ask(name, instruments, seeds)


def _controls(request: Request) -> Iterator[Ask]:
    items = control_items([mutant_of(name) for name in request.names])
    # The longest first: they would be the last to end.
    for instrument, item in sorted(items, key=lambda one: INSTRUMENTS.index(one[0]), reverse=True):
        if request.instruments and instrument not in request.instruments:
            continue
        for seed in _seeds(request) if instrument in DRAWING else (request.seed,):
            yield Ask(None, (instrument,), (seed,), item, all_=request.full)


def take_over(matrix: Matrix, known: Matrix, ask: Ask, anew: frozenset[str]) -> bool:
    """Take an earlier run's answer to that question, where there is one that settles it."""
    if ask.mutant is None:
        earlier = known.control.get(ask.key)
        if earlier is None or earlier.sight != "held" or ask.item in anew:
            return False
        matrix.control[ask.key] = earlier
        return True
    row = known.rows.get(ask.mutant)
    if row is None or ask.mutant in anew:
        return False
    if not ask.all_:
        if row.catch is not None:
            matrix.rows[ask.mutant] = row
        return row.catch is not None
    seen = [one for one in row.of(ask.instruments[0]) if one.seed in (None, *ask.seeds)]
    if not _is_settled(seen, ask.seeds):
        return False
    matrix.rows[ask.mutant].add(seen)
    return True


def _is_settled(seen: Sequence[Seen], seeds: Sequence[int]) -> bool:
    """Whether an instrument has said all that it has to say of a mutant, and was not in doubt."""
    if not seen or any(one.sight == "unknown" for one in seen):
        return False
    return seen[0].seed is None or set(seeds) <= {one.seed for one in seen}


def take_in(matrix: Matrix, ask: Ask, answer: Any) -> None:
    """Put a worker's answer into the matrix; a worker that was lost, or an error, is in doubt."""
    if isinstance(answer, Lost | Exception):
        detail = answer.why if isinstance(answer, Lost) else f"{type(answer).__name__}: {answer}"
        instrument = ask.instruments[0]
        seed = ask.seeds[0] if instrument in DRAWING else None
        answer = [Seen(instrument=instrument, sight="unknown", seed=seed, detail=detail)]
    if ask.mutant is None:
        matrix.control[ask.key] = answer[0]
    else:
        matrix.rows[ask.mutant].add(answer)
