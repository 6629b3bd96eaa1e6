"""TCP ports for started servers, on the loopback interface unless others are to reach them."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from typing import Final

from engine.errors import InfrastructureError

PORT_TRIES: Final = 20
# Below the range that the kernel takes local ports from, so that no outgoing connection sits on the port of a
# server that is stopped for a moment.
_PORTS: Final = range(20_000, 32_000)


LOOPBACK: Final = "127.0.0.1"


def free_port(addresses: Sequence[str] = (LOOPBACK,)) -> int:
    """A port that was free at all these addresses of this machine a moment ago. Somebody may be faster: the caller
    tries `PORT_TRIES` times. Raises InfrastructureError where there is none, or no such address."""
    for _ in range(PORT_TRIES):
        port = random.SystemRandom().choice(_PORTS)
        if all(_is_free(address, port) for address in addresses):
            return port
    raise InfrastructureError(f"there is no free TCP port at {' and '.join(addresses)}")


def _is_free(address: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Postgres: TIME_WAIT is free
        try:
            candidate.bind((address, port))
        except OSError:
            return False
        return True
