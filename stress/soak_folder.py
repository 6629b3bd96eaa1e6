"""A soak on disk: what was asked for, what has come of each round, and samples of tables and memory.

    soak.json       the request, without secrets (`Request`)
    rounds.jsonl    one line for each round that has its verdict (`Finished`); a round without a line did not end
    samples.jsonl   one line a minute and one after each round (`Sample`)
    rounds/NNNN/    the folder of a round, as of any run; of one that held only run.json and verdict.json stay
    verdict.json    the soak's own (`SoakVerdict`), written whenever it ends or is interrupted

Lines are appended and flushed one by one, so what is there survives whatever ends the harness; a line that was cut off
is left out by whoever reads them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from engine.errors import UsageError
from invariants.verdict import Finding
from results.runs import VerdictWord, write_json
from stress.growth import TableSize
from stress.rounds import Round

REQUEST, ROUNDS, SAMPLES, FOLDERS = "soak.json", "rounds.jsonl", "samples.jsonl", "rounds"
# What stays of a round that held.
KEPT = ("run.json", "verdict.json")

T = TypeVar("T")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for. `pg`: as given, but `dsn` for a server of the user's; `scenarios`: those to draw from;
    `faults`: the words of the request; `seconds`: the load of each round."""

    schema: int = 1
    seed: int
    minutes: float
    seconds: float
    nodes: int
    pg: str
    scenarios: tuple[str, ...]
    faults: str
    subject: str
    mutant: str | None


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """A round that has its verdict. `server`: how many servers the soak had before its own; `took_s`: from begin to
    end; `rested`: whether it came to rest; `kept`: rows that had ended and that nobody had collected then."""

    round: Round
    verdict: VerdictWord
    reason: str | None
    server: int
    took_s: float
    rested: bool
    kept: int
    transactions: int
    invariants: Mapping[str, Finding]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """At a time of the soak: `memory` in bytes by role, `tables` by name. `between`: taken when a round had ended and
    its tables had been emptied; such a one stands before the first round on each server, too."""

    at_s: float
    server: int
    round: int
    between: bool
    memory: Mapping[str, int]
    tables: Mapping[str, TableSize]


class SoakVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """`verdict.json` of a soak. `rounds`: how many by verdict; `invariants`: the worst of each; `findings`: what was
    found beside the rounds' own, in sentences; `memory_mb`: by role the first, the last and the greatest sample;
    `tables_mb`: of all tables and indexes, likewise; `dead_rows`: likewise; `complete`: whether all minutes were."""

    schema: int = 1
    profile: str = "soak"
    verdict: VerdictWord
    reason: str | None
    complete: bool
    seed: int
    minutes: float
    took_minutes: float
    rounds: Mapping[str, int]
    transactions: int
    invariants: Mapping[str, Finding]
    findings: tuple[str, ...]
    memory_mb: Mapping[str, Mapping[str, float]]
    tables_mb: Mapping[str, float]
    dead_rows: Mapping[str, int]
    reproduce: str


class SoakFolder:
    """Reads and writes them. Raises UsageError for a folder that holds no soak."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, request: Request) -> SoakFolder:
        """In a folder that is there and empty but for logs."""
        (path / FOLDERS).mkdir()
        write_json(path / REQUEST, request)
        return cls(path)

    def request(self) -> Request:
        """What was asked for."""
        try:
            return msgspec.json.decode((self.path / REQUEST).read_bytes(), type=Request)
        except (OSError, msgspec.DecodeError) as error:
            raise UsageError(
                f"{self.path} holds no soak that could go on: its {REQUEST} cannot be read ({type(error).__name__})"
            ) from None

    def finished(self) -> list[Finished]:
        """Rounds that have their verdict."""
        return self._lines(ROUNDS, Finished)

    def samples(self) -> list[Sample]:
        """All of them."""
        return self._lines(SAMPLES, Sample)

    def add(self, line: Finished | Sample) -> None:
        """It is on disk when this returns."""
        path = self.path / (ROUNDS if isinstance(line, Finished) else SAMPLES)
        with path.open("a+b") as file:
            # What was cut off before must not swallow this line.
            if file.tell() and not _ends_a_line(path):
                file.write(b"\n")
            file.write(msgspec.json.encode(line) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def new_round(self, number: int) -> Path:
        """A folder for that round; what an interrupted one of that number has left is removed."""
        folder = self.path / FOLDERS / f"{number:04d}"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "logs").mkdir(parents=True)
        return folder

    def thin(self, folder: Path) -> None:
        """Keep of a round only what says what it was and that it held."""
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name not in KEPT:
                path.unlink()

    def conclude(self, verdict: SoakVerdict) -> None:
        """Write the verdict."""
        write_json(self.path / "verdict.json", verdict)

    def _lines(self, name: str, shape: type[T]) -> list[T]:
        path = self.path / name
        if not path.exists():
            return []
        found: list[T] = []
        for line in path.read_bytes().splitlines():
            try:
                found.append(msgspec.json.decode(line, type=shape))
            except msgspec.DecodeError:
                continue
        return found


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def spread(figures: list[Any]) -> dict[str, Any]:
    """First, last and greatest; empty where there is none."""
    return {"first": figures[0], "last": figures[-1], "most": max(figures)} if figures else {}
