"""A recorded run as one self-contained HTML page, for people.

    recorded    what a run's folder holds, read
    series      the history as curves: pure
    charts      curves as SVG
    lanes       a violation as a drawn schedule: one lane a session, in commit order
    page        the page
    command     `python -m results report`

Nothing in a page is fetched: style and drawings stand in it, and it has no script.
"""
