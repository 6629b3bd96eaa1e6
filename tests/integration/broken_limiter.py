"""Variants of the limiter that break one rule each: documented forms that the engine closed, and known bugs."""

from __future__ import annotations

from engine.statements import Catalogue

_MERGE = (
    "    ON CONFLICT (kind, key, shard) DO UPDATE"
    " SET available = old.available - (excluded.capacity - excluded.available)\n),\n"
)
_IN_ORDER = (
    "ELSE least(s.level, greatest(0, paid.weight - (sum(s.level) OVER (PARTITION BY s.kind, s.key ORDER BY s.shard)"
    " - s.level)))"
)

# By name and statement: what is replaced, and by what.
BROKEN: dict[str, dict[str, tuple[tuple[str, str], ...]]] = {
    # Documented: "admit stamps by id without an ownership guard".
    "admit-stamps-unguarded": {
        "limiter/admit": (
            ("ON g.id = c.id AND g.locked_by = c.claim\n    WHERE g.status = 'executing'\n", "ON g.id = c.id\n"),
            ("CASE WHEN c.slot AND g.concurrency_shard IS NOT NULL THEN", "CASE WHEN c.slot THEN"),
        )
    },
    # Documented: the credit comes after the commit, whatever has counted the slot in between.
    "credit-after-count": {
        "limiter/credit": (
            ("NOT pg_visible_in_snapshot($3::text::xid8, b.counted)", "$3::text IS NOT NULL"),
        )
    },
    # Documented: racing mints meet at the primary key, and those of gates merge.
    "cold-keys-wait": {
        "limiter/admit": (
            ("pg_try_advisory_xact_lock(1735681637, hashtext(m.kind || ' ' || m.key) & 4095)", "true"),
            ("INSERT INTO gen_durable_buckets (", "INSERT INTO gen_durable_buckets AS old ("),
            ("    ORDER BY d.kind, d.key, d.shard\n),\n", "    ORDER BY d.kind, d.key, d.shard\n" + _MERGE),
        )
    },
    # Documented: the claim's provisional shard is shard 0.
    "provisional-is-a-shard": {
        "picker/claim": (("CASE WHEN c.gated THEN -1 END", "CASE WHEN c.gated THEN 0 END"),),
    },
    # Documented: a warm shard is refilled up to burst / shards, and its capacity stays what it was when it was made.
    "burst-raised-wedges": {
        "limiter/admit": (
            ("capacity = CASE WHEN d.kind = 'conc' THEN b.capacity ELSE d.share END,", "capacity = b.capacity,"),
        )
    },
    # Documented: elapsed x rate counts back where the clock was set back.
    "refill-counts-back": {
        "limiter/admit": (("g.last_refill > clock_timestamp()", "false"),),
    },
    # Known bug: both versions of a shard that another has just changed count.
    "admit-doubles-shard": {
        "limiter/admit": (
            ("    SELECT DISTINCT ON (g.kind, g.key, g.shard)\n", "    SELECT\n"),
            ("    FROM grabbed AS g\n", "    FROM grabbed AS g CROSS JOIN generate_series(1, 2)\n"),
        )
    },
    "credit-without-cap": {
        "limiter/credit": (("least(b.capacity, b.available + greatest(0, d.slots - b.debt))", "b.available + d.slots"),)
    },
    "lowered-capacity-forgotten": {
        "limiter/reconcile": (("least(b.used, greatest(0, b.uncovered - b.free_of_key)) AS debt", "0 AS debt"),)
    },
    "counts-back-in-races": {
        "limiter/admit": (("ELSE greatest(b.last_refill, now())", "ELSE now()"),),
    },
    "full-is-a-sum": {
        "limiter/admit": (("bool_and(s.level >= s.share)", "false"),),
    },
    "admit-unclamped": {
        "limiter/admit": (
            ("greatest(0, least(d.share, b.available + d.gain) - coalesce(d.amount, 0))",
             "least(d.share, b.available + d.gain) - coalesce(d.amount, 0)"),
            ("greatest(0, d.share - coalesce(d.amount, 0))", "d.share - coalesce(d.amount, 0)"),
        ),
    },
    "draws-in-order": {
        "limiter/admit": (("ELSE paid.weight * (s.level / nullif(t.level, 0))", _IN_ORDER),),
    },
}  # fmt: skip


def broken(name: str) -> Catalogue:
    """The catalogue with that variant's statements. Raises AssertionError where a text has drifted."""
    catalogue = Catalogue.load()
    texts = {}
    for statement, patches in BROKEN[name].items():
        texts[statement] = catalogue[statement].text
        for old, new in patches:
            assert texts[statement].count(old) == 1, (name, statement, old)
            texts[statement] = texts[statement].replace(old, new)
    return catalogue.patched(texts)
