"""A run is judged in a process of its own: `python -m stress.judge_process`, configured over standard input.

A history and the rules' state take memory as a run is long; it goes back to the system when the process ends, and
whoever asked for the verdict stays as small as it was. The verdict stands in the run's folder.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from stress.judgement import Told, judge_told
from stress.swarm.child import receive_config


class JudgeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be judged."""

    folder: str
    told: Told


def main() -> None:
    """Entry point."""
    config = receive_config(JudgeConfig)
    judge_told(Path(config.folder), config.told)


if __name__ == "__main__":
    main()
