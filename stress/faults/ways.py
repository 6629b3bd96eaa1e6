"""By which way each node and each process of clients reaches each server: straight, or through a proxy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.postgres import Server, conninfo
from stress.config import RunConfig
from stress.faults.proxy import LOOPBACK, Proxies
from stress.swarm.swarm import client_name


def client_names(config: RunConfig) -> tuple[str, ...]:
    """Of the processes of clients."""
    return tuple(client_name(number) for number in range(config.client_processes))


def needs_proxies(config: RunConfig) -> bool:
    """Whether a fault of the run does."""
    return not {"partition", "slow"}.isdisjoint(config.faults)


def proxies_for(config: RunConfig, servers: Sequence[Server]) -> Iterator[Proxies]:
    """For each server one in front of each place and process of clients, where a fault of the run needs them."""
    for server in servers if needs_proxies(config) else ():
        assert server.tcp_dsn is not None
        params = conninfo.parse(server.tcp_dsn)
        yield Proxies((params["host"], int(params["port"])), range(config.nodes), client_names(config))


def ways(
    config: RunConfig, servers: Sequence[Server], proxies: Sequence[Proxies]
) -> dict[int | str, tuple[str, ...]]:
    """The DSNs of each place and process of clients through its proxies, if there are any."""
    if not proxies:
        return {}
    return {
        place: tuple(
            through(server.tcp_dsn or "", each.port(place))
            for server, each in zip(servers, proxies, strict=True)
        )
        for place in (*range(config.nodes), *client_names(config))
    }


def through(dsn: str, port: int) -> str:
    """Over TCP, through the proxy at that port; in plain text, for it can see no COMMIT in what is encrypted."""
    plain = {"sslmode": "disable", "gssencmode": "disable", "host": LOOPBACK, "port": str(port)}
    return conninfo.to_uri({**conninfo.parse(dsn), **plain})
