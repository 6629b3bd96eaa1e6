"""The clients' view: rules that look at the history alone, so that a run without a ledger can be judged, and a second
opinion where there is one.

1. An operation took effect at one moment between its start and its end. One whose outcome is unknown did so at any time
   from its start on, or never (`invariants.witness.is_unknown`): nothing that was not answered is held against anybody.
2. Time is the monotonic clock of one machine, the harness's. Operations of other hosts are as wide as the error of
   their clocks (`invariants/history/clocks.py`): two that may have been in either order were under way at once.
   Histories without a common time line have no common order, and what rests on one is unknown for them.
3. What a failover may have lost is not judged: the history is cut where the first such failover began, and what was
   under way there has an unknown outcome (`invariants.witness.before_losses`).
4. Each rule is named after the invariant that it looks at from the other side: `seen-gate-cap` is `gate-cap` as it was
   seen. No run is asked to exercise one: where nothing was subject to it, it is `not_exercised`.
"""
