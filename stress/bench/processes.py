"""The processes of contenders: started with their configuration on standard input, ended with the measurement."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import InfrastructureError
from stress.swarm.child import ROOT, Child

END_S = 20.0


def python(module: str) -> tuple[str, ...]:
    """The command of a module of this environment."""
    return sys.executable, "-m", module


def start(name: str, command: Sequence[str], config: dict[str, Any], log: Path) -> Child:
    """Start one; its configuration is the first line that it reads, and standard input its lifeline."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    child = Child(name, process, log)
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(config) + b"\n")
    process.stdin.flush()
    return child


@contextmanager
def running(
    count: int, command: Sequence[str], config: Callable[[int], dict[str, Any]], logs: Path
) -> Iterator[list[Child]]:
    """So many of one kind, gone when the block is left. `config` of each by its place."""
    with ExitStack() as stack:
        children = []
        for place in range(count):
            name = f"bench-{place}"
            child = start(name, command, config(place), logs / f"{name}.log")
            stack.callback(child.destroy)
            children.append(child)
        yield children


def check(children: Sequence[Child]) -> None:
    """Raises InfrastructureError where one has ended with an error."""
    for child in children:
        if child.status not in (None, 0):
            raise InfrastructureError(f"a process of the bench failed: {child.last_words()}")


def end(children: Sequence[Child]) -> None:
    """Ask all to end, and wait. Raises InfrastructureError where one does not."""
    for child in children:
        child.ask_to_end()
    for child in children:
        if child.wait(END_S) != 0:
            raise InfrastructureError(f"a process of the bench did not end well: {child.last_words()}")
