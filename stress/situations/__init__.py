"""Situations: what each statement must answer, leave, wait for and hold, in rows that tell its conditions apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from stress.situations import client, limiter, maintenance, picker, relay, store, transport
from stress.situations.situation import Situation

ALL: Final[Sequence[Situation]] = (
    *picker.SITUATIONS,
    *limiter.SITUATIONS,
    *maintenance.SITUATIONS,
    *store.SITUATIONS,
    *relay.SITUATIONS,
    *transport.SITUATIONS,
    *client.SITUATIONS,
)


def by_statement() -> Mapping[str, Sequence[Situation]]:
    """All, by the statement that they ask."""
    found: dict[str, list[Situation]] = {}
    for situation in ALL:
        found.setdefault(situation.statement, []).append(situation)
    return found
