"""`python -m results`: the command line of what did happen."""

from __future__ import annotations

import click

from engine.front_door import FrontDoor
from results.bench.command import bench_command
from results.plans.command import plans
from results.report.command import report


@click.group(cls=FrontDoor)
def results() -> None:
    """What did happen: plans captured and compared, runs and benches told."""


results.add_command(bench_command)
results.add_command(plans)
results.add_command(report)

if __name__ == "__main__":
    results(prog_name="python -m results")
