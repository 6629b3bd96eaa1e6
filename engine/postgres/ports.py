"""TCP ports on the loopback interface for started servers."""

from __future__ import annotations

import random
import socket
from typing import Final

from engine.errors import InfrastructureError

PORT_TRIES: Final = 20
# Below the range that the kernel takes local ports from, so that no outgoing connection sits on the port of a
# server that is stopped for a moment.
_PORTS: Final = range(20_000, 32_000)


def free_port() -> int:
    """A port that was free a moment ago. Somebody may be faster: the caller tries `PORT_TRIES` times."""
    for _ in range(PORT_TRIES):
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Postgres: TIME_WAIT is free
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise InfrastructureError("no free TCP port on the loopback interface")
