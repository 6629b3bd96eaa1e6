"""Public queues as subjects, each in an environment of its own: `nox -s stress -- --subject pgqueuer`.

None of them is a dependency of the harness. `docs/peers.md` says with which settings each runs, why those are fair, and
what was seen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
# By name: the class, in the file of that name.
PEERS: Final = {
    "pgqueuer": "PgQueuerPeer",
    "procrastinate": "ProcrastinatePeer",
    "chancy": "ChancyPeer",
    "dbos": "DbosPeer",
    "absurd": "AbsurdPeer",
    "pgmq": "PgmqPeer",
}


def words_of(name: str) -> str:
    """For the name of a peer, its file and class; anything else names them itself."""
    if name not in PEERS:
        return name
    return f"{HERE / f'{name}_peer.py'}:{PEERS[name]}"


def pins_of(name: str) -> Path:
    """The exact versions of its environment."""
    return HERE / "pins" / f"{name}.txt"
