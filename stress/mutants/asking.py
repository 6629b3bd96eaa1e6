"""Asks the instruments about every mutant, and about the sound engine, in several processes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from engine.postgres import Server, Stopped
from invariants.mutants import PLANS, REGISTRY, Mutant
from stress.mutants.instruments import Bench, Budget, control, control_items, see
from stress.mutants.matrix import Matrix, Row, instruments_for
from stress.mutants.pool import Lost, Pool
from stress.mutants.progress import Bar
from stress.mutants.seen import FULL_SEEDS, INSTRUMENTS, Instrument, Seen


@dataclass(frozen=True, slots=True)
class Ask:
    """What a worker is to find out: of a mutant by these instruments, the first catch ending it unless `all_`; or, with
    `item`, of the sound engine."""

    mutant: str | None
    instruments: tuple[Instrument, ...]
    seeds: tuple[int, ...]
    item: str = ""
    all_: bool = False


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
    of that, mutants that were caught and items that the sound engine held are not asked again, but for `anew`."""

    names: Sequence[str]
    full: bool
    control: bool
    instruments: tuple[Instrument, ...]
    seed: int
    workers: int
    pg: str
    known: Matrix | None = None
    anew: frozenset[str] = frozenset()


def ask_all(request: Request, quiet: bool) -> Matrix:
    """Ask. Where it is interrupted, what was found until then stands. Raises InfrastructureError."""
    asks = [
        *_asks(request.names, request.seed, request.full, request.instruments),
        *(_controls(request.seed, request.instruments) if request.control else ()),
    ]
    matrix = Matrix({name: Row(name, mutant_of(name).summary) for name in request.names})
    if request.known is not None:
        asks = [ask for ask in asks if not take_over(matrix, request.known, ask, request.anew)]
    began = time.monotonic()
    try:
        with (
            Pool(min(request.workers, max(1, len(asks))), request.pg, open_bench, work) as pool,
            Bar(len(asks), quiet) as bar,
        ):
            for ask, answer in pool.answers(asks):
                _take_in(matrix, ask, answer)
                bar.step(ask.mutant or f"the sound engine: {ask.instruments[0]} {ask.item}")
    except (Stopped, KeyboardInterrupt):
        matrix.interrupted = True
    matrix.seconds = time.monotonic() - began + (0.0 if request.known is None else request.known.seconds)
    return matrix


def _asks(names: Sequence[str], seed: int, full: bool, asked: tuple[Instrument, ...]) -> Iterator[Ask]:
    seeds = tuple(range(seed, seed + FULL_SEEDS)) if full else (seed,)
    for name in names:
        instruments = tuple(asked or instruments_for(name in REGISTRY, full=full))
        if full:
            # One at a time, so that no task takes long.
            yield from (Ask(name, (instrument,), seeds, all_=True) for instrument in instruments)
        else:
            yield Ask(name, instruments, seeds)


def _controls(seed: int, asked: tuple[Instrument, ...]) -> Iterator[Ask]:
    # The longest first: they would be the last to end.
    for instrument, item in sorted(control_items(), key=lambda one: INSTRUMENTS.index(one[0]), reverse=True):
        if not asked or instrument in asked:
            yield Ask(None, (instrument,), (seed,), item)


def take_over(matrix: Matrix, known: Matrix, ask: Ask, anew: frozenset[str]) -> bool:
    """Take an earlier run's answer to that question, where there is one that settles it."""
    if ask.mutant is None:
        key = (ask.instruments[0], ask.item)
        earlier = known.control.get(key)
        settled = earlier is not None and earlier.sight == "held" and ask.item not in anew
        if settled and earlier is not None:
            matrix.control[key] = earlier
        return settled
    row = known.rows.get(ask.mutant)
    if row is None or row.catch is None or ask.mutant in anew:
        return False
    matrix.rows[ask.mutant] = row
    return True


def _take_in(matrix: Matrix, ask: Ask, answer: Any) -> None:
    if isinstance(answer, Lost | Exception):
        detail = answer.why if isinstance(answer, Lost) else f"{type(answer).__name__}: {answer}"
        answer = [Seen(instrument=ask.instruments[0], sight="unknown", detail=detail)]
    if ask.mutant is None:
        matrix.control[ask.instruments[0], ask.item] = answer[0]
    else:
        row = matrix.rows[ask.mutant]
        row.seen = sorted([*row.seen, *answer], key=lambda seen: INSTRUMENTS.index(seen.instrument))
