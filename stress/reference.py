"""The page `docs/commands.md`: every command with its options, as the command line itself tells them. Pure.

`python -m stress.reference > docs/commands.md` writes it; a test holds the file against it, and the table of sessions
against the noxfile.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Final

import click

HEAD: Final = """\
# Commands

Written by `python -m stress.reference`; every command says the same about itself with `--help`.

`nox -s SESSION -- ARGUMENTS` makes the environment that a command needs and passes arguments and exit status on. Behind
each session is a module, `python -m ROOM COMMAND ARGUMENTS`, for an environment of your own.

| exit status | meaning |
|---|---|
| 0 | held: no rule was broken |
| 1 | violated: a rule was broken, and the evidence was printed |
| 2 | wrong usage or configuration: one sentence says what to do |
| 3 | no Postgres, or another failure of the surroundings |
| 4 | unknown: the run could not tell, and says why |

Of several sessions in one call the worst counts, in the order 1, 2, 3, 4, 0. A Ctrl-C that came before there was
anything to judge is 130; a command whose reader has gone, as in `… | head`, ends with 141.
"""
# By the words of the module, the nox session that stands before it.
SESSIONS: Final[Mapping[str, str]] = {
    "stress run": "stress",
    "stress explore": "explore",
    "stress replay": "replay",
    "stress fuzz": "fuzz",
    "stress mutants": "mutants",
    "stress ablate": "ablate",
    "stress bench": "bench",
    "stress figures": "figures",
    "stress doctor": "doctor",
    "invariants check": "check",
    "results report": "report",
    "results plans capture": "plans",
    "results plans compare": "compare",
    "engine postgres": "postgres",
}
# How long a list of names may be; of mutants there are more than a hundred.
MOST: Final = 400


def leaves() -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by the words after `python -m`."""
    from engine.__main__ import engine
    from invariants.__main__ import main as invariants
    from models.commands import command as fuzz
    from results.__main__ import results
    from stress.__main__ import stress
    from stress.schedules.commands import FUZZ, fuzz_schedules

    yield "models", fuzz("python -m models", {})
    rooms = {"stress": stress, "invariants": invariants, "results": results, "engine": engine}
    for room, group in rooms.items():
        for words, found in _below(room, group):
            # Its own options are read late.
            yield words, fuzz(FUZZ, {"schedules": fuzz_schedules}) if words == "stress fuzz" else found


def _below(words: str, group: click.Group) -> Iterator[tuple[str, click.Command]]:
    for name, found in group.commands.items():
        if isinstance(found, click.Group):
            yield from _below(f"{words} {name}", found)
        else:
            yield f"{words} {name}", found


def commands_page() -> str:
    """The whole page, as Markdown."""
    return "\n".join(_page())


def _page() -> Iterator[str]:
    yield HEAD
    found = dict(leaves())
    for words in (*SESSIONS, *(words for words in found if words not in SESSIONS)):
        yield from _command(words, found[words])


def _command(words: str, command: click.Command) -> Iterator[str]:
    session = SESSIONS.get(words)
    yield f"## {session or f'python -m {words}'}\n"
    if session is not None:
        yield f"`nox -s {session}`, or `python -m {words}`\n"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b"):
            yield "```text"
            yield inspect.cleandoc(paragraph.removeprefix("\b"))
            yield "```\n"
        else:
            yield f"{' '.join(paragraph.split())}\n"
    shown = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    if shown:
        yield "| option | what it does | default |"
        yield "|---|---|---|"
        for option in shown:
            yield f"| {_names(option)} | {_cell(option.help or '')} | {_default(option)} |"
        yield ""


def _names(option: click.Option) -> str:
    value = "" if option.is_flag else f" {_value(option)}"
    names = "`, `".join(f"{name}{value}" for name in (*option.opts, *option.secondary_opts))
    return f"`{names}`" + (", repeatable" if option.multiple else "")


def _value(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return "\\|".join(map(str, option.type.choices))
    return option.metavar or option.type.name.upper()


def _default(option: click.Option) -> str:
    if isinstance(option.show_default, str):
        return option.show_default
    if option.is_flag or option.default is None or not isinstance(option.default, (str, int, float)):
        return ""
    return f"`{option.default}`" if option.show_default else ""


def _cell(text: str) -> str:
    told = " ".join(text.split()).replace("|", "\\|")
    return told if len(told) <= MOST else f"{told[:MOST].rpartition(',')[0]} …"


if __name__ == "__main__":
    sys.stdout.write(commands_page())
