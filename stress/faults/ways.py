"""By which way the node in each place reaches each server: straight, or through a proxy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.postgres import Server, conninfo
from stress.config import RunConfig
from stress.faults.proxy import LOOPBACK, Proxies


def proxies_for(config: RunConfig, servers: Sequence[Server]) -> Iterator[Proxies]:
    """For each server one in front of each place, where a fault of the run needs them."""
    for server in servers if {"partition", "slow"} & set(config.faults) else ():
        assert server.tcp_dsn is not None
        params = conninfo.parse(server.tcp_dsn)
        yield Proxies((params["host"], int(params["port"])), range(config.nodes))


def ways(
    config: RunConfig, servers: Sequence[Server], proxies: Sequence[Proxies]
) -> dict[int, tuple[str, ...]]:
    """The DSNs of each place through its proxies, if there are any."""
    if not proxies:
        return {}
    return {
        place: tuple(_way(server, each.port(place)) for server, each in zip(servers, proxies, strict=True))
        for place in range(config.nodes)
    }


def _way(server: Server, port: int) -> str:
    """In plain text, for a proxy can see no COMMIT in what is encrypted."""
    assert server.tcp_dsn is not None
    plain = {"sslmode": "disable", "gssencmode": "disable", "host": LOOPBACK, "port": str(port)}
    return conninfo.to_uri({**conninfo.parse(server.tcp_dsn), **plain})
