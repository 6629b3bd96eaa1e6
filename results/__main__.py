"""`python -m results`: the command line of what did happen."""

from __future__ import annotations

import click

from engine.front_door import FrontDoor
from results.plans.command import plans


@click.group(cls=FrontDoor)
def results() -> None:
    """What did happen: plans captured and compared."""


results.add_command(plans)

if __name__ == "__main__":
    results(prog_name="python -m results")
