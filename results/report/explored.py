"""The page of an exploration: every race with what became of it, and each failing schedule drawn."""

from __future__ import annotations

from pathlib import Path

import msgspec

from engine.errors import UsageError
from results.report import lanes, look
from results.runs import VerdictWord


class Race(msgspec.Struct, frozen=True, kw_only=True):
    """One race as `verdict.json` has it (`stress/schedules/commands.py`). From `violated` on: of its failing schedule,
    where there is one. `table` is a row a step, with the step's number and a cell for each session."""

    verdict: VerdictWord
    schedules: int
    left_out: int
    orders: int
    whole: int
    sampled: int
    blocked: int
    reason: str | None = None
    violated: list[str] = []
    steps: int = 0
    table: list[list[str]] = []
    why: list[str] = []
    found: list[str] = []
    planner: str = ""
    drawn: lanes.Drawn | None = None
    schedule: str | None = None


class Explored(msgspec.Struct, frozen=True, kw_only=True):
    """`verdict.json` of an exploration."""

    verdict: VerdictWord
    seed: int | None
    mutant: str | None
    postgres: dict[str, str]
    schedules: int
    seconds: float
    schedules_per_second: float
    races: dict[str, Race]
    reproduce: str


def read(folder: Path) -> Explored:
    """Raises UsageError where the folder holds no exploration that can be read."""
    try:
        return msgspec.json.decode((folder / "verdict.json").read_bytes(), type=Explored)
    except (msgspec.DecodeError, OSError) as error:
        raise UsageError(f"{folder / 'verdict.json'} cannot be read: {error}") from None


def render(explored: Explored, folder: Path, *, beside: bool = True) -> str:
    """The whole page. `folder`: where the schedules lie; `beside`: the page is to lie there too."""
    severity = ("violated", "unknown", "held")
    return look.rendered(
        "explored",
        explored=explored,
        folder=folder,
        races=sorted(explored.races.items(), key=lambda entry: severity.index(entry[1].verdict)),
        failing=[(name, race) for name, race in explored.races.items() if race.schedule is not None],
        grid=lanes.grid,
        beside=lambda race: [
            (path.name, what) for path, what in _files(folder, race) if beside and path.is_file()
        ],
    )


def _files(folder: Path, race: Race) -> list[tuple[Path, str]]:
    """The forms of a failing schedule that lie beside the page."""
    assert race.schedule is not None
    stem = race.schedule.removesuffix(".json")
    return [
        (folder / f"test_{stem.replace('-', '_').replace('+', '_')}.py", "a pytest file"),
        (folder / f"{stem}.spec", "a spec of Postgres's own isolationtester"),
        (folder / race.schedule, "what replay takes"),
    ]
