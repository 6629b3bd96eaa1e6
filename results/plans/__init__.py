"""Plans: what a server does with every statement of the engine, captured, held against rules, compared.

    profiles    how much data, and which
    arguments   what each statement is asked with
    capture     the thin edge: seeds a database, explains every statement, writes a folder
    tree        a plan as pure data, the same for every version of Postgres
    shapes      the shapes that must hold
    hazards     what may go wrong under another plan
    growth      how work grows with the table and with the batch
    kept        plans that a session keeps from when there was next to nothing
    load        sessions that claim, commit and insert meanwhile
    conditions  what that, stale statistics and another planner change
    verdict     the invariants of plans, by name
    campaign    all of one server's captures
    abreast     several databases at a time
    reference   what a person calls a capture: a folder, a major, a revision
    comparing   two captures, node by node
    render      the same as text, Markdown and HTML

A capture is one folder (`folder`). Costs and times are shown and never judged: shapes, rows times loops, buffers and
WAL are.
"""
