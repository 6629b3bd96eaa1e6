"""What each mutant is put through, by its name: a short story in which the broken form shows and the sound one holds.

Scripts are deterministic: a gate holds a session inside a statement, and the next step is taken when the server says
that it waits. One module beside each of `invariants/mutants`.
"""

from stress.scripts import coordination, limiter, maintenance, node, picker

SCRIPTS = {**picker.SCRIPTS, **coordination.SCRIPTS, **limiter.SCRIPTS, **maintenance.SCRIPTS, **node.SCRIPTS}
# Scripts that end with nothing left to do, where that is what the invariant is about.
TO_REST = frozenset(
    (
        "too-many-parameters", "serialise-outside-guard", "min-demand-unclamped", "shards-grow-unhealed",
        "reclaim-uncounted", "no-check", "credit-after-count", "provisional-is-a-shard", "continue-credits-held-slot",
        "poked-only", "surplus-credited",
    )
)  # fmt: skip
