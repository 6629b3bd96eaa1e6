"""The races, one small file each: `ALL` holds them by name, found by looking into this folder."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from stress.schedules.race import Race


def _found() -> dict[str, Race]:
    races: dict[str, Race] = {}
    for module in sorted(iter_modules(__path__), key=lambda one: one.name):
        for race in import_module(f"{__name__}.{module.name}").RACES:
            assert race.name not in races, f"two races are called {race.name}"
            races[race.name] = race
    return races


ALL: Final[dict[str, Race]] = _found()
