"""Locust's own protocol, encrypted: its master would take orders from anybody who can reach its port."""

from __future__ import annotations

# Locust first: it patches the standard library for gevent, and what is imported before it would not be cooperative.
from typing import Any

import zmq.green
from locust.rpc import zmqrpc
from typing_extensions import override

from stress.hosts.token import Key


def guard_locust(token: str | None, *, server: bool) -> None:
    """From now on each socket that Locust makes in this process speaks to those only who have the token; to anybody
    without one."""
    if token is None:
        return
    key = Key.of(token)

    class Guarded(zmq.green.Context):  # type: ignore[type-arg]
        """Locust makes its sockets, and binds or connects them, in one go."""

        @override
        def socket(self, *arguments: Any, **named: Any) -> Any:
            made = super().socket(*arguments, **named)
            (key.guard_server if server else key.guard_client)(made)
            return made

    zmqrpc.zmq.Context = Guarded  # type: ignore[attr-defined]
