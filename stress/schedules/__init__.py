"""Controlled schedules: real sessions on a real Postgres, advanced one step at a time, judged by the invariants.

`race` says what races are, `races/` and `pairs` hold them; `search` decides which step comes next and knows no
database; `controller` takes the steps and knows who is blocked; `lab` is the database in which that happens, and the
judge of what was committed there; `shrink`, `story` and `export` make a failing schedule small, readable and portable;
`explore` is all of it behind a front door.
"""
