"""What every command line of pgreferee has in common: one sentence and the right exit status, never a traceback.

Exit status: architecture.md, "Front doors". 0 held, 1 violated, 2 wrong usage, 3 no Postgres or another infrastructure
failure, 4 unknown, which a crash of the command itself counts as. A Ctrl-C that a command does not handle itself ends
with 130, as a shell expects, and one whose reader has gone (`... | head`) with 141.
"""

from __future__ import annotations

import io
import math
import os
import sys
import traceback
from pathlib import Path
from typing import Any, Final

import click
from typing_extensions import override

from engine.errors import HarnessError

INTERRUPTED = 130
UNKNOWN = 4
NO_READER = 141


class Door(click.Command):
    """A command that may raise `HarnessError`: printed as `error: <sentence>`, exit status as it says."""

    @override
    def invoke(self, ctx: click.Context) -> Any:
        _bear_any_text()
        try:
            return super().invoke(ctx)
        except HarnessError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            # Python would try to write the rest again when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(NO_READER)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception:
            # A bug of ours. Python's own status would be 1, which says that an invariant was violated.
            traceback.print_exc()
            ctx.exit(UNKNOWN)


def _bear_any_text() -> None:
    """Where standard output or error cannot hold a character it is told by its number: tables have arrows, jobs any
    text."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


class Amount(click.FloatRange):
    """A number within bounds, which `nan` would pass: it is neither below nor above them."""

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail("nan is no amount: give a number", param, ctx)
        return number


class NewFile(click.Path):
    """A file in a folder that is there and can be written to."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path: Any = super().convert(value, param, ctx)
        folder = Path(path).absolute().parent
        if not folder.is_dir():
            self.fail(f"there is no folder {str(folder)!r}: make it first", param, ctx)
        if not Path(path).exists() and not os.access(folder, os.W_OK | os.X_OK):
            self.fail(f"the folder {str(folder)!r} is not writable", param, ctx)
        return path


NEW_FILE: Final = NewFile(dir_okay=False, writable=True, path_type=Path)


class FrontDoor(Door, click.Group):
    """A group of such commands."""
