"""Where an execution lives when several databases share them, and how their answers become one. Pure.

Rules:

1. An execution lives in the shard that the BLAKE2 hash of its id names, modulo their number; its marker, timers, trace,
   and what it emits and spawns live there too, for they are one transaction with it. The number of shards and their
   order are for ever: to change them is to move the data.
2. A seq of the outbox or of the spawns is `MAX_SHARDS` times the shard's own, plus the shard's place: unambiguous
   whatever the number of shards, and in one shard in the same order as before.
3. A limit is shared out evenly: a shard with a backlog does not hide the others. Due timers are not: oldest first.
4. A page's cursor names an id, so one cursor is good for all shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from heapq import merge
from itertools import islice
from typing import Any, TypeVar

from engine.store.encoding import cursor_of, seq_of
from engine.store.execution import Page

MAX_SHARDS = 1024

T = TypeVar("T")
Row = TypeVar("Row", bound=tuple[Any, ...])


def check_count(count: int) -> None:
    """Raises ValueError for a number of shards that there cannot be."""
    if not 1 <= count <= MAX_SHARDS:
        raise ValueError(f"there are {count} shards; there must be from 1 to {MAX_SHARDS}")


def shard_of(execution_id: str, count: int) -> int:
    """The place of the shard that an execution lives in."""
    # An id that is no text lives nowhere; the store that is asked says so.
    data = str(execution_id).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8).digest()) % count


def grouped(shards: Sequence[int]) -> dict[int, list[int]]:
    """Places in a batch by shard, in their order."""
    places: dict[int, list[int]] = {}
    for place, shard in enumerate(shards):
        places.setdefault(shard, []).append(place)
    return places


def gathered(groups: Iterable[Sequence[int]], outcomes: Iterable[Sequence[T] | BaseException]) -> list[T]:
    """The answers of all shards, each at its place in the batch. Raises the first that is an exception."""
    answers: dict[int, T] = {}
    for places, outcome in zip(groups, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            raise outcome
        answers.update(zip(places, outcome, strict=True))
    return [answers[place] for place in sorted(answers)]


def ticket(shard: int, seq: int) -> int:
    """The seq that the caller sees."""
    return seq * MAX_SHARDS + shard


def addressed(seq: int, count: int) -> tuple[int, int]:
    """Shard and seq of a ticket. Raises ValueError for one of another set of shards."""
    own, shard = divmod(seq_of(seq), MAX_SHARDS)
    if shard >= count:
        raise ValueError(f"seq {seq} belongs to shard {shard}; there are {count}")
    return shard, own


def ticketed(shard: int, rows: Iterable[Row]) -> list[Any]:
    """Rows that begin with a shard's own seq, by ticket."""
    return [(ticket(shard, row[0]), *row[1:]) for row in rows]


def shared_out(answers: Sequence[Sequence[Row]], limit: int) -> list[Any]:
    """Rows that begin with a ticket, from every shard as evenly as the limit allows, in their order."""
    taken: list[Any] = []
    for rank in range(limit):
        round_ = [rows[rank] for rows in answers if rank < len(rows)]
        taken += round_
        if not round_ or len(taken) >= limit:
            break
    return sorted(taken[:limit], key=lambda row: row[0])


def oldest(answers: Sequence[Sequence[tuple[str, str, float]]], limit: int) -> list[tuple[str, str, float]]:
    """Due timers of all shards, oldest first."""
    return list(islice(merge(*answers, key=lambda timer: (timer[2], timer[0], timer[1])), limit))


def page_of(answers: Sequence[Page], limit: int) -> Page:
    """One page out of a page of each shard, all behind the same cursor."""
    # Code points in order are UTF-8 bytes in order, which is how a shard sorts.
    items = tuple(islice(merge(*(page.items for page in answers), key=lambda item: item.id), limit))
    more = sum(len(page.items) for page in answers) > limit or any(page.next_cursor for page in answers)
    return Page(items, cursor_of(items[-1].id) if more else None)
