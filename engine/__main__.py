"""`python -m engine`: the command line of what runs. Each command lives beside what it is about."""

from __future__ import annotations

import click

from engine.front_door import FrontDoor
from engine.node_command import node_command
from engine.postgres.command import postgres


@click.group(cls=FrontDoor)
def engine() -> None:
    """What runs: a Postgres, the reference engine on it."""


engine.add_command(postgres)
engine.add_command(node_command)

if __name__ == "__main__":
    engine(prog_name="python -m engine")
