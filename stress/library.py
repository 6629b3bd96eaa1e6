"""The page `docs/api.md`: what of the engine is there to be imported, as the code itself tells it. Pure.

`python -m stress.library > docs/api.md` writes it; a test holds the file against it.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import types
from collections.abc import Iterator
from typing import Any, Final

HEAD: Final = """\
# The engine's names

Written by `python -m stress.library`. What is listed here is meant to be imported; [the queue](client.md) and
[the store](store.md) show it at work. Anything else may change without notice. The docstrings say more:
`python -m pydoc engine.client`.
"""
MODULES: Final = (
    "engine.client", "engine.machine", "engine.node", "engine.policy", "engine.picker", "engine.limiter",
    "engine.observer", "engine.metrics", "engine.schema", "engine.store", "engine.relay", "engine.transport",
    "engine.statechart", "engine.postgres", "engine.errors",
)  # fmt: skip


def api_page() -> str:
    """The whole page, as Markdown."""
    return "\n".join(_page())


def public(module: str) -> list[tuple[str, Any]]:
    """Its names: those of `__all__`, or what it defines itself, in alphabetical order."""
    found = importlib.import_module(module)
    aliases = re.findall(
        r"^(\w+)(?:: TypeAlias)? = (?=[\w.\[\], |]+$)", inspect.getsource(found), re.MULTILINE
    )
    names = getattr(found, "__all__", None) or [
        name
        for name, value in vars(found).items()
        if not name.startswith("_")
        and (
            (name in aliases and isinstance(value, types.UnionType))
            or ((inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == module)
        )
    ]
    return sorted((name, getattr(found, name)) for name in names)


def _page() -> Iterator[str]:
    yield HEAD
    for module in MODULES:
        yield f"## {module}\n"
        yield f"{_first(importlib.import_module(module))}\n"
        yield "| name | what it is |"
        yield "|---|---|"
        for name, value in public(module):
            yield f"| `{name}` | {_first(value).replace('|', chr(92) + '|')} |"
        yield ""


def _first(value: Any) -> str:
    """The first paragraph of its docstring; of a value its type."""
    documented = inspect.ismodule(value) or inspect.isclass(value) or inspect.isfunction(value)
    if isinstance(value, types.UnionType):
        return f"one of {', '.join(f'`{each.__name__}`' for each in value.__args__)}"
    told = (inspect.getdoc(value) or "") if documented else f"`{value!r}`"
    return " ".join(told.partition("\n\n")[0].split())


if __name__ == "__main__":
    sys.stdout.write(api_page())
