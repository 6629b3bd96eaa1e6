"""Pages for people: a run, an exploration, and all results; each one self-contained HTML file.

    recorded    what a run's folder holds, read
    series      the history as curves: pure
    charts      curves as SVG
    lanes       a schedule as a drawing: a lane for each session, arrows for who waits for whom: pure
    page        the page of a run
    explored    the page of an exploration
    collection  all that lies in a folder of results, read
    overview    the page of all of it
    kinds       what a folder is
    look        templates and the stylesheet, which all pages share; those of plans too (results/plans/render.py)
    making      from a folder to its page
    command     `python -m results report`

Nothing in a page is fetched: style and drawings stand in it, and it has no script.
"""
