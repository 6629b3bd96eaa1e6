"""Mutants of the store: documented forms that the engine closed, and the mistakes that a store is made with
(docs/findings.md)."""

from __future__ import annotations

from typing import Final

from invariants.mutants.mutant import Mutant, Patch

# The document's dedupe is a discipline of its caller's: the marker is written where there is none, and asked nowhere.
_UNGUARDED_FUNCTION: Final = (
    Patch(
        "        WHERE NOT EXISTS (\n"
        "            SELECT FROM processed_events AS p WHERE p.execution_id = execution AND p.event_id = event\n"
        "        )\n        ON CONFLICT",
        "        ON CONFLICT",
    ),
    Patch(
        "\n            AND NOT EXISTS (\n"
        "                SELECT FROM processed_events AS p WHERE p.execution_id = execution AND p.event_id = event\n"
        "            );\n",
        ";\n",
    ),
    Patch("VALUES (execution, event);", "VALUES (execution, event) ON CONFLICT DO NOTHING;"),
)

STORE_MUTANTS: Final = (
    Mutant(
        name="cas-without-version",
        summary="a commit writes its version over whatever version is stored",
        caught_by=("cas-chain",),
        functions={"harel_commit_cas": (Patch("            AND e.version = old_version\n", ""),)},
        statements={"store/commit": (Patch(" AND e.version = i.expected", ""),)},
    ),
    Mutant(
        name="first-save-raises",
        summary="of two first saves one ends in the primary key's own error, as documented",
        caught_by=("conflict-typed",),
        functions={
            "harel_commit_cas": (Patch("        ON CONFLICT (id) DO NOTHING;\n", ";\n"),),
        },
    ),
    Mutant(
        name="conflict-without-found",
        summary="the fast path does not say which version it found, as documented",
        caught_by=("conflict-typed",),
        statements={
            "store/why": (
                Patch("SELECT e.version FROM executions AS e", "SELECT NULL::integer FROM executions AS e"),
            )
        },
    ),
    Mutant(
        name="conflict-keeps-transaction",
        summary="a commit that lost leaves its transaction open",
        caught_by=("conflict-typed",),
        protocol=frozenset(("forgets-rollback",)),
    ),
    Mutant(
        name="outbox-outside",
        summary="the outbox is written in a transaction of its own, after the state's",
        caught_by=("commit-atomic",),
        protocol=frozenset(("emits-apart",)),
    ),
    Mutant(
        name="dedupe-before-load",
        summary="whether an event was processed is asked before the execution is loaded, and nowhere else",
        caught_by=("effect-once",),
        functions={"harel_commit_cas": _UNGUARDED_FUNCTION},
    ),
    Mutant(
        name="ring-one-longer",
        summary="a trace keeps one step more than it should",
        caught_by=("trace-ring",),
        statements={
            "store/commit": (Patch("t.idx <= s.idx - $21::integer", "t.idx < s.idx - $21::integer"),),
            "store/append_trace": (Patch("t.idx <= s.idx - $3::integer", "t.idx < s.idx - $3::integer"),),
        },
    ),
    Mutant(
        name="ring-renumbered",
        summary="a trace's next index is the number of its steps, which stops growing when the ring is full",
        caught_by=("trace-ring",),
        statements={
            "store/commit": (
                Patch(
                    "coalesce((SELECT max(t.idx) FROM trace AS t WHERE t.execution_id = w.id), -1) + 1 AS idx",
                    "(SELECT 2 * count(*) FROM trace AS t WHERE t.execution_id = w.id)::integer AS idx",
                ),
            )
        },
    ),
    Mutant(
        name="read-keeps-snapshot",
        summary="a load leaves its transaction open, and its connection sees that moment for ever",
        caught_by=("read-fresh",),
        protocol=frozenset(("keeps-snapshot",)),
    ),
    Mutant(
        name="pages-by-offset",
        summary="a page begins behind a number of rows, as documented",
        caught_by=("listing-complete",),
        protocol=frozenset(("pages-by-offset",)),
    ),
    Mutant(
        name="lost-is-refused",
        summary="a commit whose answer was lost is done again by the store itself, and meets its own version",
        caught_by=("unknown-outcome",),
        protocol=frozenset(("commits-again",)),
    ),
)
