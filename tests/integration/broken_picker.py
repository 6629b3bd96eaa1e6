"""Broken forms of the picker's statements, each one small edit away from the sound text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.statements import Catalogue


@dataclass(frozen=True, slots=True)
class Edit:
    """Put `after` in the place of `before`, which must be there exactly `times` times."""

    statement: str
    before: str
    after: str
    times: int = 1

    def applied(self, text: str) -> str:
        found = text.count(self.before)
        if found != self.times:
            raise ValueError(f"{self.statement} holds {self.before!r} {found} times, not {self.times}")
        return text.replace(self.before, self.after)


BROKEN: Mapping[str, tuple[Edit, ...]] = {
    "flush-unguarded": (
        Edit(
            "picker/flush",
            "ON g.id = o.id AND g.locked_by = o.claim\n    WHERE g.status = 'executing'",
            "ON g.id = o.id",
        ),
        Edit("picker/flush", "    WHERE g.status = 'executing' AND g.locked_by = o.claim\n", ""),
        Edit(
            "picker/flush",
            "WHERE g.id = o.id AND g.locked_by = o.claim AND g.status = 'executing'",
            "WHERE g.id = o.id",
        ),
    ),
    "claim-without-priority": (
        Edit("picker/claim", "ORDER BY g.priority, g.eligible_at\n", "ORDER BY g.eligible_at\n"),
    ),
    "key-collides-with-id": (
        Edit(
            "picker/claim",
            "PARTITION BY c.concurrency_key",
            "PARTITION BY coalesce(c.concurrency_key, c.id::text)",
        ),
        Edit(
            "picker/claim",
            "r.concurrency_key IS NULL\n",
            "(r.concurrency_key IS NULL AND r.place_in_key = 1)\n",
        ),
    ),
    "reap-without-attempt": (
        Edit("picker/reap", "attempt = least(g.attempt, 2147483646) + 1", "attempt = g.attempt"),
    ),
    "release-resets-eligible-at": (
        Edit("picker/release", "status = 'runnable'", "status = 'runnable', eligible_at = now()"),
    ),
    "json-double-encoded": (
        Edit("picker/flush", "coalesce(o.result::jsonb, g.result)", "coalesce(to_jsonb(o.result), g.result)"),
    ),
    "json-double-encoded-state": (
        Edit("picker/insert", "$4::text::jsonb", "jsonb_build_object('state', to_jsonb($4::text))"),
    ),
    "heartbeat-unguarded": (
        Edit("picker/heartbeat", "ON g.id = c.id AND g.locked_by = c.claim", "ON g.id = c.id"),
    ),
    "claim-ignores-eligible-at": (Edit("picker/claim", "AND g.eligible_at <= now()", ""),),
    "claim-excludes-the-instant": (Edit("picker/claim", "g.eligible_at <= now()", "g.eligible_at < now()"),),
    "claim-keeps-the-scope": (Edit("picker/claim", "ELSE '{}'\n", "ELSE g.correlation_scope\n"),),
    "claim-limits-after-the-keys": (
        Edit("picker/claim", "    LIMIT $2::bigint\n", ""),
        Edit("picker/claim", "& 4095))\n", "& 4095))\n    ORDER BY r.place\n    LIMIT $2::bigint\n"),
    ),
    "claim-without-guard-or-arbiter": (Edit("picker/claim", "sibling.executing IS NULL", "true"),),
    "release-unguarded": (
        Edit("picker/release", "ON g.id = c.id AND g.locked_by = c.claim", "ON g.id = c.id"),
    ),
    "reap-includes-the-instant": (
        Edit("picker/reap", "lease_expires_at < now()", "lease_expires_at <= now()"),
    ),
    "reap-unordered": (Edit("picker/reap", "ORDER BY g.lease_expires_at, g.id", "ORDER BY g.id"),),
    "retry-resets-attempt": (
        Edit("picker/flush", "WHEN 'retry' THEN least(g.attempt, 2147483646) + 1", "WHEN 'retry' THEN 1"),
    ),
    "next-keeps-attempt": (Edit("picker/flush", "WHEN 'next' THEN 0 WHEN 'retry'", "WHEN 'retry'"),),
    "insert-many-in-key-order-only": (
        Edit(
            "picker/insert_many",
            "ORDER BY i.correlation_key, i.ordinal",
            "ORDER BY i.correlation_key, i.ordinal DESC",
        ),
    ),
    "flush-clears-error": (Edit("picker/flush", "coalesce(o.error, g.last_error)", "o.error"),),
    "clock-runs": (Edit("picker/claim", "lease_expires_at = now()", "lease_expires_at = clock_timestamp()"),),
}


def broken(edits: Sequence[Edit]) -> Catalogue:
    """The engine's catalogue with one broken form."""
    catalogue = Catalogue.load()
    texts: dict[str, str] = {}
    for edit in edits:
        texts[edit.statement] = edit.applied(texts.get(edit.statement, catalogue[edit.statement].text))
    return catalogue.patched(texts)
