"""Broken forms of the picker that its model is to find, each one small edit away from the sound text.

Those that an invariant catches on a recorded run are mutants of `invariants/mutants`; these show in what an operation
answers or leaves behind, where the model says what it should have been.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.statements import Catalogue
from invariants.mutants import REGISTRY, Patch

# Mutants that the model finds too.
MUTANTS = ("outcome-unguarded", "key-collides-with-id")

# By name and statement.
FORMS: Mapping[str, Mapping[str, tuple[Patch, ...]]] = {
    "claim-without-priority": {
        "picker/claim": (Patch("ORDER BY g.priority, g.eligible_at\n", "ORDER BY g.eligible_at\n"),),
    },
    "reap-without-attempt": {
        "picker/reap": (Patch("attempt = least(g.attempt, 2147483646) + 1", "attempt = g.attempt"),),
    },
    "release-resets-eligible-at": {
        "picker/release": (Patch("status = 'runnable'", "status = 'runnable', eligible_at = now()"),),
    },
    "result-double-encoded": {
        "picker/flush": (
            Patch("coalesce(o.result::jsonb, g.result)", "coalesce(to_jsonb(o.result), g.result)"),
        ),
    },
    "state-double-encoded": {
        "picker/insert": (Patch("$4::text::jsonb", "jsonb_build_object('state', to_jsonb($4::text))"),),
    },
    "heartbeat-unguarded": {
        "picker/heartbeat": (Patch("g.id = c.id AND g.locked_by = c.claim", "g.id = c.id"),),
    },
    "claim-ignores-eligible-at": {
        "picker/claim": (Patch("AND g.eligible_at <= now()", ""),),
    },
    "claim-excludes-the-instant": {
        "picker/claim": (Patch("g.eligible_at <= now()", "g.eligible_at < now()"),),
    },
    "claim-keeps-the-scope": {
        "picker/claim": (Patch("ELSE '{}'\n", "ELSE g.correlation_scope\n"),),
    },
    "claim-limits-after-the-keys": {
        "picker/claim": (
            Patch("    LIMIT $2::bigint\n", ""),
            Patch("& 4095))\n", "& 4095))\n    ORDER BY r.place\n    LIMIT $2::bigint\n"),
        ),
    },
    "claim-without-guard-or-arbiter": {
        "picker/claim": (Patch("NOT coalesce(sibling.executing, false)", "true"),),
    },
    "release-unguarded": {
        "picker/release": (Patch("g.id = c.id AND g.locked_by = c.claim", "g.id = c.id"),),
    },
    "reap-includes-the-instant": {
        "picker/reap": (Patch("lease_expires_at < (SELECT", "lease_expires_at <= (SELECT"),),
    },
    "reap-unordered": {
        "picker/reap": (Patch("ORDER BY g.lease_expires_at", "ORDER BY g.id"),),
    },
    "retry-resets-attempt": {
        "picker/flush": (Patch("WHEN 'retry' THEN least(g.attempt, 2147483646) + 1", "WHEN 'retry' THEN 1"),),
    },
    "next-keeps-attempt": {
        "picker/flush": (Patch("WHEN 'next' THEN 0 WHEN 'retry'", "WHEN 'retry'"),),
    },
    "insert-many-in-key-order-only": {
        "picker/insert_many": (
            Patch("ORDER BY i.correlation_key, i.ordinal", "ORDER BY i.correlation_key, i.ordinal DESC"),
        ),
    },
    "flush-clears-error": {
        "picker/flush": (Patch("coalesce(o.error, g.last_error)", "o.error"),),
    },
    "clock-runs": {
        "picker/claim": (Patch("lease_expires_at = now()", "lease_expires_at = clock_timestamp()"),),
    },
}
NAMES = (*MUTANTS, *FORMS)


def broken(name: str) -> Catalogue:
    """The engine's catalogue with one broken form. Raises DriftedPatchError where a text has drifted."""
    if name in MUTANTS:
        return REGISTRY[name].apply(Catalogue.load())
    return patched(FORMS[name])


def patched(form: Mapping[str, tuple[Patch, ...]]) -> Catalogue:
    """The engine's catalogue with these patches, by statement. Raises DriftedPatchError where a text has drifted."""
    catalogue = Catalogue.load()
    texts: dict[str, str] = {}
    for statement, patches in form.items():
        texts[statement] = catalogue[statement].text
        for patch in patches:
            texts[statement] = patch.apply(statement, texts[statement])
    return catalogue.patched(texts)
