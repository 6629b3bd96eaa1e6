"""What the harness must know of a system in order to set it up, run it, and see when it is at rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import psycopg

from engine.operation import Operation
from engine.statements import Area

# Takes the scenario and the mutant's name; what is left to be done when the nodes have gone, each with its name in the
# history.
Settling = Callable[[Any, str | None], Sequence[tuple[str, Callable[[psycopg.Connection[Any]], object]]]]

# Takes a source of randomness and the scenario; rows that nobody can run, as the value of an `insert_many` in the
# history and the operation that inserts them, which answers with ids.
Poison = Callable[[Random, Any], tuple[dict[str, Any], Operation[list[int | None]]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One system.

    `areas`: the parts of the schema that it needs, whose rules judge it. `node`: the module of a node's process.
    `user`: the class of its clients, as module:Class. `unfinished` and `waiting` are queries that answer one row, how
    much there is and something that changes when any of it moves: of all that can still come to an end without a
    client, and, cheap enough to be asked during the load, of what a node could work on now. `ended`: the
    same of all that has ended and is to be collected by its nodes; None where nothing is. `shards`: whether it can be
    spread over several servers. `spared`: faults that cannot be done to it.
    """

    name: str
    areas: tuple[Area, ...]
    node: str
    user: str
    unfinished: str
    waiting: str
    ended: str | None = None
    shards: bool = False
    spared: tuple[str, ...] = ()
    settling: Settling = lambda _scenario, _mutant: ()
    poison: Poison | None = None
