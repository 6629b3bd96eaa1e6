"""What the pages say of commands, options, names, files and fields is what the code has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import pytest
import yaml

import noxfile
from engine.errors import InfrastructureError, UsageError
from engine.front_door import INTERRUPTED, NO_READER, UNKNOWN
from engine.schema import migrate
from invariants.document import invariants_page
from invariants.verdict import EXIT_CODES
from results.runs import Verdict
from stress import library, reference
from stress.ci_profile import CiVerdict, Part
from stress.library import api_page, public
from stress.reference import SESSIONS, commands_page, leaves
from stress.schedules.record import Schedule
from stress.soak_folder import SoakVerdict

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WORKFLOW = DOCS / "workflows" / "pgreferee.yml"
PAGES = (*sorted(DOCS.glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md")
# Sessions without a module behind them: their arguments are those of pytest, Sphinx and mutmut.
OWN_SESSIONS = {"tests", "lint", "docs", "pin", "mutate", "speed"}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "page"),
    [("invariants", invariants_page), ("commands", commands_page), ("api", api_page)],
)
def test_a_page_about_the_code_is_as_the_code_writes_it(name: str, page: object) -> None:
    assert callable(page)
    assert read(DOCS / f"{name}.md") == page()


def test_the_sessions_of_the_page_are_those_of_the_noxfile() -> None:
    assert {module: session for session, (module, _) in noxfile.FRONT_DOORS.items()} == SESSIONS
    sessions = set(SESSIONS.values()) | OWN_SESSIONS
    assert set(
        re.findall(r"^def (\w+)\(session: nox.Session\) -> None:", read(ROOT / "noxfile.py"), re.MULTILINE)
    ) == (OWN_SESSIONS)
    assert set(re.findall(r"nox -s (\w+)", "".join(map(read, PAGES)))) <= {*sessions, "SESSION"}


def lines_of_commands(text: str) -> Iterator[str]:
    """Whole command lines of a page: in blocks, and in the midst of prose."""
    for block in FENCE.finditer(text):
        yield from block[2].replace("\\\n", " ").splitlines()
    for quoted in re.findall(r"`([^`]+)`", FENCE.sub("", text)):
        yield " ".join(quoted.split())


CALL = re.compile(r"(?:python3? -m )?nox -s (?P<session>\w+)(?: -- (?P<rest>.*))?$")
MODULE = re.compile(r"(?:.*\s|^)python -m (?P<rest>(?:stress|invariants|results|engine|models)\b.*)$")


def asked(line: str) -> tuple[str, list[str]] | None:
    """The command that a line calls, by the words after `python -m`, and its arguments."""
    line = re.split(r"\s+#\s|\s[|&>]|\s{3,}", line.strip().removeprefix("$ "))[0].strip()
    if (call := CALL.match(line)) is not None:
        session = call["session"]
        if session in {*OWN_SESSIONS, "SESSION"}:
            return None
        return noxfile.FRONT_DOORS[session][0], shlex.split(call["rest"] or "")
    if (module := MODULE.match(line)) is not None:
        words = shlex.split(module["rest"])
        for size in (3, 2, 1):
            if " ".join(words[:size]) in COMMANDS:
                return " ".join(words[:size]), words[size:]
    return None


COMMANDS = dict(leaves())


def options(command: click.Command) -> set[str]:
    return {
        name
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help"}


@pytest.mark.parametrize("page", [*PAGES, WORKFLOW], ids=lambda page: page.name)
def test_every_command_and_option_that_a_page_names_is_there(page: Path) -> None:
    text = read(page)
    lines = (
        re.findall(r"(?:python3 -m )?nox -s [^&|\n]+", text) if page == WORKFLOW else lines_of_commands(text)
    )
    for line in lines:
        if (found := asked(" ".join(line.split()) if page == WORKFLOW else line)) is None:
            continue
        words, arguments = found
        given = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
        assert given <= options(COMMANDS[words]), line


def test_commands_of_pages_are_really_found() -> None:
    found = [asked(line) for page in PAGES for line in lines_of_commands(read(page))]
    calls = [each for each in found if each is not None]
    assert {words for words, _ in calls} >= set(SESSIONS)
    assert sum(bool(arguments) for _, arguments in calls) > 50


def test_every_option_that_prose_names_belongs_to_a_command() -> None:
    known = set().union(*(options(command) for command in COMMANDS.values()))
    # Of other people's programs, in examples.
    others = {
        "--pdb", "--data-root", "--pidfile", "--storage-driver", "--iptables", "--fix", "--version", "--health-cmd",
        "--all-extras", "--benchmark-enable",
    }  # fmt: skip
    for page in PAGES:
        named = {
            word
            for quoted in re.findall(r"`(--[a-z-]+)[^`]*`", FENCE.sub("", read(page)))
            for word in [quoted]
        }
        assert named <= known | others, page.name


def statuses(text: str) -> dict[int, str]:
    """The table of exit statuses of a page."""
    return {int(status): meaning.partition(":")[0].strip() for status, meaning in re.findall(
        r"^\| (\d) \| ([^|]+)", text, re.MULTILINE
    )}  # fmt: skip


def test_exit_statuses_are_told_alike_and_as_they_are() -> None:
    readme, page, ci = (
        statuses(read(path)) for path in (ROOT / "README.md", DOCS / "commands.md", DOCS / "ci.md")
    )
    assert readme == page
    assert set(readme) == set(ci) == {0, 1, 2, 3, 4}
    assert {word: readme[status] for word, status in EXIT_CODES.items()} == {
        word: word for word in EXIT_CODES
    }
    assert (UsageError.exit_code, InfrastructureError.exit_code) == (2, 3)
    assert (UNKNOWN, INTERRUPTED, NO_READER) == (4, 130, 141)
    assert re.search(r"is 130; .* 141\.", read(DOCS / "commands.md").replace("\n", " "))


def fields(text: str, after: str) -> list[str]:
    """The names in the first column of the first table after a line that begins so."""
    rest = text[text.index(f"\n{after}") + 1 :]
    table = re.search(r"^\| field \|.*?\n\|[-|]+\n((?:\|.*\n)+)", rest, re.MULTILINE)
    assert table is not None
    return [name for row in table[1].splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]


@pytest.mark.parametrize(
    ("after", "struct"),
    [
        ("Of `stress`:", Verdict),
        ("Of `stress --profile ci`", CiVerdict),
        ("Of `stress --profile soak`", SoakVerdict),
        ("What `explore` leaves", Schedule),
    ],
)
def test_a_file_has_the_fields_that_the_page_lists(after: str, struct: type[msgspec.Struct]) -> None:
    listed = fields(read(DOCS / "formats.md"), after)
    assert sorted(listed) == sorted(struct.__struct_fields__)


def test_a_part_of_the_ci_profile_has_the_fields_that_the_page_lists() -> None:
    [row] = re.findall(r"^\| `parts` \| by name: (.*) \|$", read(DOCS / "formats.md"), re.MULTILINE)
    assert re.findall(r"`(\w+)`", row) == list(Part.__struct_fields__)


def test_every_public_name_says_what_it_is() -> None:
    rows = re.findall(r"^\| `\w+` \| (.*) \|$", api_page(), re.MULTILINE)
    assert len(rows) == sum(len(public(module)) for module in library.MODULES) > 100
    assert [row for row in rows if not row] == []
    assert ("migrate", migrate) in public("engine.schema")


def test_what_the_guides_import_is_public() -> None:
    for name in ("client", "store", "postgres"):
        for module, names in re.findall(
            r"^from (engine[\w.]*) import (.+)$", read(DOCS / f"{name}.md"), re.MULTILINE
        ):
            assert module in (*library.MODULES, "engine.statechart.stack"), f"{name}.md imports from {module}"
            if module in library.MODULES:
                assert {each.strip() for each in names.split(",")} <= {each for each, _ in public(module)}, (
                    module
                )


def test_the_workflow_that_users_copy_races_on_every_source_of_a_postgres() -> None:
    jobs = yaml.safe_load(read(WORKFLOW))["jobs"]
    sources = {entry["pg"].partition(":")[0] for entry in jobs["races"]["strategy"]["matrix"]["include"]}
    assert sources == {"embedded", "15", "container"}
    assert "postgres" in jobs["service"]["services"]
    for job in jobs.values():
        [race] = [step for step in job["steps"] if step.get("name") == "Race"]
        assert "--junit races.xml" in race["run"]
        assert '--summary "$GITHUB_STEP_SUMMARY"' in race["run"]
        assert job["timeout-minutes"] <= 15
    own = yaml.safe_load(read(ROOT / ".github/workflows/ci.yml"))["jobs"]
    ours = {step["uses"] for job in own.values() for step in job["steps"] if "uses" in step}
    theirs = {step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step}
    assert theirs == ours


def test_every_page_is_in_the_navigation() -> None:
    trees = re.findall(r"```\{toctree\}\n(.*?)```", read(DOCS / "index.md"), re.DOTALL)
    listed = {line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")}
    assert listed == {page.stem for page in DOCS.glob("*.md")} - {"index"}


def test_the_pages_that_are_written_by_commands_say_by_which() -> None:
    assert "python -m stress.reference" in reference.HEAD
    assert "python -m stress.library" in library.HEAD
    assert "python -m invariants list --markdown" in read(DOCS / "invariants.md")
