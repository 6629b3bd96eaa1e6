"""From the words after `--subject` to a class. For every interpreter: nothing here needs more than Python."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

from stress.subjects.system import Claims, Rows, System


class NoSubject(Exception):
    """What was named is no subject; the message is one sentence that says what is wanted."""


def is_own(words: str) -> bool:
    """Whether the words name a class, and are no name of a subject that the harness brings."""
    return ":" in words or words.endswith(".py") or "/" in words


def load(words: str) -> System:
    """The subject of `path/to/file.py:Class` or `module:Class`. Raises NoSubject."""
    place, _, name = words.rpartition(":")
    if not place or not name:
        raise NoSubject(f"{words!r} names no class: write path/to/file.py:Class or module:Class")
    module = _from_file(Path(place)) if place.endswith(".py") or "/" in place else _module(place)
    kind = getattr(module, name, None)
    if kind is None:
        classes = [
            key
            for key, value in vars(module).items()
            if isinstance(value, type) and issubclass(value, System)
        ]
        there = ", ".join(key for key in classes if key != "System") or "none"
        raise NoSubject(f"there is no class {name!r} in {place}; subjects that are: {there}")
    if not isinstance(kind, type) or not issubclass(kind, System):
        raise NoSubject(f"{words} is no subject: derive the class from stress.subjects.system.System")
    try:
        system = kind()
    except Exception as error:  # somebody else's code
        raise NoSubject(f"{name}() raised {type(error).__name__}: {error}") from error
    _complete(name, system)
    return system


def _complete(name: str, system: System) -> None:
    kind = type(system)
    missing = [each for each in ("set_up", "enqueue") if getattr(kind, each) is getattr(System, each)]
    if kind.work is System.work and kind.command is System.command:
        missing.append("work")
    if missing:
        raise NoSubject(f"{name} lacks {' and '.join(missing)}: a subject needs set_up, enqueue and work")
    if not isinstance(system.claims, Claims):
        raise NoSubject(f"{name}.claims is a {type(system.claims).__name__}, not a Claims")
    if system.rows is not None and not isinstance(system.rows, Rows):
        raise NoSubject(f"{name}.rows is a {type(system.rows).__name__}, not a Rows")


def _from_file(path: Path) -> object:
    if not path.is_file():
        raise NoSubject(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"pgreferee_subject_{path.stem}", path.resolve())
    if spec is None or spec.loader is None:
        raise NoSubject(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # somebody else's code
        raise NoSubject(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _module(name: str) -> object:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except Exception as error:  # somebody else's code
        raise NoSubject(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
