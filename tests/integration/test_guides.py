"""The guides to the engine as a library are programs that work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("name", "least"), [("client", 12), ("store", 8)])
def test_every_block_of_the_guide_runs_as_it_stands(
    name: str, least: int, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = DOCS / f"{name}.md"
    text = guide.read_text()
    monkeypatch.setenv("PGREFEREE_DSN", database)
    names: dict[str, Any] = {"__name__": "guide"}
    blocks = list(FENCE.finditer(text))
    assert len(blocks) * 2 == text.count("```")
    try:
        for block in blocks:
            language, code = block.groups()
            assert language == "python", f"nothing runs a block of {language or 'no language'}"
            # A traceback names the guide's own line.
            line = text[: block.start(2)].count("\n")
            exec(compile("\n" * line + code, str(guide), "exec"), names)
    finally:
        if (worker := names.get("worker")) is not None and worker.is_alive():
            names["loop"].call_soon_threadsafe(names["node"].stop)
            worker.join(20)
    assert len(blocks) >= least
