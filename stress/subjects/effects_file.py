"""What a worker in another language writes of its effects, made into a history.

`effects-<process>.jsonl`, one object a line: {"job": NAME, "event": "begin" | "end" | "fail", "ns": CLOCK_MONOTONIC}.
A line without its end is left for later; one that cannot be read spoils the file, and the run says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from invariants.history.events import Recorder, history_path


class Effect(msgspec.Struct, frozen=True):
    """One line."""

    job: str
    event: Literal["begin", "end", "fail"]
    ns: int
    key: str | None = None


def absorb(folder: Path) -> None:
    """Turn every file that has grown into a history, `history-<process>-effects.msgpack`. Raises ValueError for a line
    that cannot be read."""
    for path in sorted(folder.glob("effects-*.jsonl")):
        process = path.stem.removeprefix("effects-")
        history = history_path(folder, f"{process}-effects")
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        lines = whole.splitlines()
        if history.exists() and history.stat().st_mtime_ns >= path.stat().st_mtime_ns:
            continue
        partial = folder / "partial"
        partial.mkdir(exist_ok=True)
        (partial / history.name).unlink(missing_ok=True)
        _written(partial, process, lines)
        (partial / history.name).replace(history)


def _written(folder: Path, process: str, lines: list[bytes]) -> None:
    """The history as if the process had recorded it: under its own name, with its own times."""
    opened: dict[str, list[int]] = {}
    with Recorder(folder, f"{process}-effects", known_as=process) as recorder:
        for number, line in enumerate(lines, start=1):
            try:
                effect = msgspec.json.decode(line, type=Effect)
            except msgspec.DecodeError as error:
                raise ValueError(f"line {number} of effects-{process}.jsonl: {error}") from None
            if effect.event == "begin":
                token = recorder.invoke("run", {"job": effect.job, "key": effect.key}, at_ns=effect.ns)
                opened.setdefault(effect.job, []).append(token)
            elif opened.get(effect.job):
                kind: Literal["ok", "fail"] = "ok" if effect.event == "end" else "fail"
                recorder.complete(opened[effect.job].pop(0), kind, {}, at_ns=effect.ns)
