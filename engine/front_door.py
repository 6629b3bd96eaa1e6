"""What every command line of pgreferee has in common: one sentence and the right exit status, never a traceback.

Exit status: architecture.md, "Front doors". 0 held, 1 violated, 2 wrong usage, 3 no Postgres or another infrastructure
failure, 4 unknown, which a crash of the command itself counts as. A Ctrl-C that a command does not handle itself ends
with 130, as a shell expects.
"""

from __future__ import annotations

import traceback
from typing import Any

import click
from typing_extensions import override

from engine.errors import HarnessError

INTERRUPTED = 130
UNKNOWN = 4


class Door(click.Command):
    """A command that may raise `HarnessError`: printed as `error: <sentence>`, exit status as it says."""

    @override
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HarnessError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception:
            # A bug of ours. Python's own status would be 1, which says that an invariant was violated.
            traceback.print_exc()
            ctx.exit(UNKNOWN)


class FrontDoor(Door, click.Group):
    """A group of such commands."""
