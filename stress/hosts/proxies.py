"""The proxies of a run on several hosts: each beside the processes that go through it, on their host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from engine.postgres import Server, conninfo
from stress.config import RunConfig
from stress.faults.proxy import Place, Weather
from stress.faults.ways import client_names, needs_proxies, through
from stress.hosts.master import FarHost
from stress.hosts.messages import ChangeWeather, Cut, LoseAnswers, OpenProxies, Reach

Ways = dict[int | str, tuple[str, ...]]


class HostProxies:
    """In front of one server, `server` in their order; see `stress.faults.proxy.Proxies`."""

    def __init__(self, server: int, hosts: Mapping[Place, FarHost]) -> None:
        self._server, self._hosts = server, hosts

    def did(self, place: Place) -> Counter[str]:
        """As of a moment ago, but up to date after any of the other calls."""
        return Counter(self._hosts[place].did.get((self._server, place), Counter()))

    def set_weather(self, place: Place, weather: Weather) -> None:
        """See `Proxy`."""
        held = tuple(weather.held)
        self._do(
            place,
            ChangeWeather(
                server=self._server, place=place, held=held, delay_ms=weather.delay_ms, share=weather.share
            ),
        )

    def cut(self, place: Place) -> int:
        """See `Proxy`."""
        before = self.did(place)["connections cut"]
        return self._do(place, Cut(server=self._server, place=place))["connections cut"] - before

    def lose_commit_answers(self, place: Place, count: int) -> None:
        """See `Proxy`."""
        self._do(place, LoseAnswers(server=self._server, place=place, count=count))

    def _do(self, place: Place, action: ChangeWeather | Cut | LoseAnswers) -> Counter[str]:
        host = self._hosts[place]
        did = Counter[str](host.do(action))
        host.did[self._server, place] = did
        return did


def placed(config: RunConfig, hosts: Sequence[FarHost]) -> dict[Place, FarHost]:
    """Which host each place, and each process of clients, is on."""
    return {
        **{place: hosts[place % len(hosts)] for place in range(config.nodes)},
        **{name: hosts[number % len(hosts)] for number, name in enumerate(client_names(config))},
    }


def open_ways(
    config: RunConfig, servers: Sequence[Server], hosts: Sequence[FarHost]
) -> tuple[tuple[HostProxies, ...], Ways]:
    """The DSNs of each place and process of clients, through proxies where a fault of the run needs them. Raises
    InfrastructureError where a host does not reach a server, and HostLost."""
    on = placed(config, hosts)
    ways: Ways = {}
    for host in hosts:
        dsns = tuple(_seen_from(host, server) for server in servers)
        host.do(Reach(dsns=dsns))
        mine = [place for place, other in on.items() if other is host]
        ways |= dict.fromkeys(mine, dsns)
        if needs_proxies(config):
            addresses = [conninfo.parse(dsn) for dsn in dsns]
            opened = host.do(
                OpenProxies(
                    servers=tuple((each["host"], int(each["port"])) for each in addresses),
                    places=tuple(place for place in mine if isinstance(place, int)),
                    clients=tuple(place for place in mine if isinstance(place, str)),
                )
            )
            ports = [dict(each) for each in opened]
            ways |= {
                place: tuple(through(dsn, at[place]) for dsn, at in zip(dsns, ports, strict=True))
                for place in mine
            }
    proxies = tuple(HostProxies(number, on) for number in range(len(servers)))
    return (proxies if needs_proxies(config) else ()), ways


def _seen_from(host: FarHost, server: Server) -> str:
    """A server of the harness's listens where the master does; one of the user's is where its DSN says."""
    if server.source == "dsn":
        return server.dsn
    assert server.tcp_dsn is not None
    return conninfo.to_uri({**conninfo.parse(server.tcp_dsn), "host": host.hello.via})
