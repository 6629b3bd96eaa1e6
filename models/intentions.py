"""Intentions: outcomes before it is known whose they are, and the strategies that draw them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hypothesis import strategies as st

from engine.picker import Job, OutcomeKind
from models.strategies import GATED_KEYS, START, coordinated_jobs

# What a step presents or consumes: what it was handed, as the scheduler has it; less, as if a signal had come later
# than one with a greater id; so much less of what its inbox holds by now; everything that lies in any inbox.
Reads = Literal["handed", "less", "later", "everything"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Intention:
    """An outcome before it is known whose: `fields` are those of the commit, `names` point into the example's names."""

    kind: OutcomeKind
    fields: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[int, ...] = ()
    reads: Reads = "handed"
    children: tuple[Job, ...] = ()


Fields = st.SearchStrategy[Mapping[str, Any]]
_READS: st.SearchStrategy[Reads] = st.sampled_from(("handed", "handed", "handed", "less", "everything"))
_STEPS: Fields = st.sampled_from(({}, {"step": "other"}, {"step": "", "state": '{"n": 1e3}'}))
_RATES: Fields = st.sampled_from(
    ({}, {}, {"sets_rate": True}, {"sets_rate": True, "rate_limit": "r:2", "weight": 0.1})
)
_KEYS: Fields = st.sampled_from(
    ({}, {}, {"sets_key": True}, *({"sets_key": True, "concurrency_key": key} for key in (*GATED_KEYS, "a")))
)
_TIMEOUTS: Fields = st.sampled_from(({}, {"timeout_ms": 30_000.0}, {"timeout_ms": 0.0}, {"timeout_ms": 1e-3}))
# Mostly such as outlast a few steps.
leases_ms = st.sampled_from((30_000.0, 30_000.0, 30_000.0, 1_000.0, 0.0, -1.0))


def _fields(*parts: Fields) -> Fields:
    return st.tuples(*parts).map(
        lambda drawn: {name: value for part in drawn for name, value in part.items()}
    )


def _continued(lease_ms: float, key: Mapping[str, Any]) -> Mapping[str, Any]:
    # To a gate's key, or to none: a commit refuses any other.
    gated = key.get("concurrency_key") in GATED_KEYS
    kept = key if gated or key.get("concurrency_key") is None else {}
    return {"lease_ms": lease_ms, **kept, "gated": gated}


_PROGRESS = _fields(_STEPS, _RATES, _KEYS)
parks = st.builds(
    Intention,
    kind=st.just("await"),
    fields=_fields(_STEPS, _TIMEOUTS),
    names=st.sampled_from(((0,), (0,), (1,), (0, 1), (1, 2), ())),
    reads=st.sampled_from(("handed", "handed", "less", "later")),
)
spawns = st.builds(
    Intention,
    kind=st.just("childs"),
    fields=_fields(_STEPS, _RATES),
    reads=_READS,
    children=st.one_of(
        *[st.lists(coordinated_jobs(START), min_size=1, max_size=3).map(tuple)] * 4, st.just(())
    ),
)
continuations = st.builds(
    Intention,
    kind=st.just("continue"),
    fields=_fields(_STEPS, _RATES, st.builds(_continued, leases_ms, _KEYS)),
    reads=_READS,
)
ends: st.SearchStrategy[Intention] = st.sampled_from(
    (
        Intention(kind="done"),
        Intention(kind="done", fields={"result": '["\\\\u0000", 1e3]', "state": "{}"}),
        Intention(kind="stop", fields={"error": "it failed: '{}' \\N"}),
        Intention(kind="stop", fields={"error": ""}),
    )
)
_AGAIN = st.sampled_from(
    (
        Intention(kind="retry", fields={"error": "once more"}),
        Intention(kind="retry", fields={"delay_ms": 30_000.0}),
    )
)
_STEPPING_ON = st.builds(Intention, kind=st.just("next"), fields=_PROGRESS, reads=_READS)

intentions: st.SearchStrategy[Intention] = st.one_of(
    parks, parks, spawns, continuations, ends, ends, _AGAIN | _STEPPING_ON
)
