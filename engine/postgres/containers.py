"""Postgres from a container image, through `testcontainers`.

What differs from `testcontainers`' own start: the port is published on the loopback interface only and chosen
here, so that it stays the same over a restart; readiness is asked for from outside (the library's own check
puts the password on a command line inside of the container, which everybody on the host can list); and
instead of Ryuk, a second container from a registry, the label `pgreferee.owner` says who owns a container:
whoever starts next removes a dead owner's.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from engine.errors import InfrastructureError
from engine.postgres import conninfo
from engine.postgres.cleanup import removed_at_exit, uninterrupted
from engine.postgres.deadline import until
from engine.postgres.owners import Owner, current_owner, is_dead
from engine.postgres.ports import PORT_TRIES, free_port
from engine.postgres.server import StopMode

if TYPE_CHECKING:
    import docker

OWNER_LABEL: Final = "pgreferee.owner"
SUPERUSER: Final = "postgres"
READY_TIMEOUT_S: Final = 120
STOP_TIMEOUT_S: Final = 30
_PORT: Final = "5432"
_INITDB_ARGUMENTS: Final = "--encoding=UTF8 --locale=C --no-sync --auth-host=scram-sha-256"


def why_unreachable() -> str | None:
    """None when a container engine answers, else one sentence."""
    try:
        _client().close()
    except InfrastructureError as error:
        return str(error)
    return None


def _client() -> docker.DockerClient:
    import docker

    failure = ""
    try:
        client = docker.from_env(timeout=30)
        client.ping()
        return client
    except (docker.errors.DockerException, OSError, ValueError) as error:
        failure = type(error).__name__
    raise InfrastructureError(
        f"no container engine can be reached ({failure}): start one, or set DOCKER_HOST, or use another --pg"
    )


def local_images(client: docker.DockerClient | None = None) -> list[str]:
    """The names of the images that the engine has already. Raises `InfrastructureError` when there is no
    engine."""
    client = client or _client()
    return sorted(tag for image in client.images.list() for tag in image.tags)


class PostgresInContainer:
    """The control of one container: `stop` and `start` act on the server in it, which is its first
    process."""

    def __init__(self, container: Any, params: Mapping[str, str]) -> None:
        self._container = container
        self.params = dict(params)

    def stop(self, mode: StopMode) -> None:
        """Signal the postmaster and wait until the container has stopped."""
        self._container.reload()
        if self._container.status != "running":
            return
        with _engine_errors("stop the container"):
            self._container.kill(signal="SIGQUIT" if mode == "immediate" else "SIGINT")
            self._container.wait(timeout=STOP_TIMEOUT_S)

    def start(self) -> None:
        """Start the stopped container again, at the same port, and wait until the server answers."""
        with _engine_errors("start the container"):
            self._container.start()
        self.wait_until_ready()

    def log_bytes(self, since: int) -> bytes:
        """What the container has written to its standard output and error, from byte `since` on."""
        with _engine_errors("read the container's log"):
            text: bytes = self._container.logs()
        return text[since:]

    def wait_until_ready(self) -> None:
        """Wait until the server accepts the superuser. The image starts and stops one on the way, not on
        TCP."""
        failure = ""
        for _ in until(READY_TIMEOUT_S):
            for params in self._candidates():
                try:
                    conninfo.connect(params, timeout_s=2).close()
                except InfrastructureError as error:
                    failure = str(error)
                else:
                    self.params = params
                    return
            self._container.reload()
            if self._container.status in ("exited", "dead"):
                lines = self.log_bytes(0).decode(errors="replace").strip().splitlines() or [
                    "it wrote nothing"
                ]
                raise InfrastructureError(
                    f"the container has stopped by itself: {conninfo.redact(lines[-1], self.params)}"
                )
        raise InfrastructureError(
            f"the server in the container was not ready in {READY_TIMEOUT_S} s: {failure}"
        )

    def _candidates(self) -> Iterator[dict[str, str]]:
        yield self.params
        # When the harness itself runs in a container beside this one, the published port is on another
        # loopback interface, and the container's own address is the way.
        networks = self._container.attrs.get("NetworkSettings", {}).get("Networks", {})
        for network in networks.values():
            if network.get("IPAddress"):
                yield {**self.params, "host": network["IPAddress"], "port": _PORT}


@contextmanager
def started(image: str, settings: Mapping[str, str]) -> Iterator[PostgresInContainer]:
    """A server from `image` (which must behave like the official one), with `settings` given as arguments.

    Raises `InfrastructureError` when there is no engine, no image, or no server in it.
    """
    _client().close()  # before the import: it takes half a second, and its own message is a traceback
    reap()
    _fetch(image)
    with ExitStack() as stack:
        with uninterrupted():
            container, params = _create(image, settings)
            stack.enter_context(removed_at_exit(lambda: _remove(container)))
        control = PostgresInContainer(container.get_wrapped_container(), params)
        control.wait_until_ready()
        yield control


def _fetch(image: str) -> None:
    """Have the image here before anything is started: this may take minutes, and must be interruptible."""
    import docker
    from testcontainers.core.config import testcontainers_config

    name = testcontainers_config.hub_image_name_prefix + image
    client = _client()
    with _engine_errors(f"fetch the image {image}"):
        try:
            client.images.get(name)
        except docker.errors.ImageNotFound:
            client.images.pull(name)
    client.close()


def _remove(container: Any) -> None:
    import docker

    with _engine_errors("remove the container"):
        try:
            container.stop()  # removes it, with its volume
        except docker.errors.NotFound:
            pass


def _create(image: str, settings: Mapping[str, str]) -> tuple[Any, dict[str, str]]:
    from testcontainers.core.config import testcontainers_config

    postgres_container = _container_class()
    password = secrets.token_urlsafe(24)
    arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    ryuk_disabled = testcontainers_config.ryuk_disabled
    for attempt in range(PORT_TRIES):
        port = free_port()
        container = postgres_container(
            image, username=SUPERUSER, password=password, dbname="postgres", driver=None
        )
        container.with_env("POSTGRES_INITDB_ARGS", _INITDB_ARGUMENTS)
        container.with_env("POSTGRES_HOST_AUTH_METHOD", "scram-sha-256")
        container.with_command(["postgres", *arguments])
        container.with_kwargs(shm_size="256m", labels={OWNER_LABEL: current_owner().to_json()})
        container.ports = {_PORT: ("127.0.0.1", port)}
        testcontainers_config.ryuk_disabled = True
        try:
            with _engine_errors(f"start the image {image}"):
                container.start()
        except InfrastructureError as error:
            container.stop()
            if "port is already allocated" not in str(error) or attempt == PORT_TRIES - 1:
                raise
        except BaseException:
            container.stop()
            raise
        else:
            params = {"user": SUPERUSER, "password": password, "host": "127.0.0.1", "port": str(port)}
            return container, {**params, "dbname": "postgres"}
        finally:
            testcontainers_config.ryuk_disabled = ryuk_disabled
    raise AssertionError("the last attempt returns or raises")


def _container_class() -> type[Any]:
    try:
        from testcontainers.community.postgres import PostgresContainer
    except ImportError:  # before 4.14
        from testcontainers.postgres import PostgresContainer

    class Quiet(PostgresContainer):  # type: ignore[misc,unused-ignore]
        """Leaves waiting to us; see the module's docstring."""

        @override
        def _connect(self) -> None:
            pass

    return Quiet


@contextmanager
def _engine_errors(what: str) -> Iterator[None]:
    import docker
    import requests

    failure = ""
    try:
        yield
    except docker.errors.ImageNotFound:
        failure = "there is no such image here, and it could not be fetched"
    except docker.errors.APIError as error:
        failure = str(error.explanation or error).strip().splitlines()[0]
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        failure = type(error).__name__
    if failure:
        raise InfrastructureError(f"cannot {what}: {failure}")


def reap() -> list[str]:
    """Remove the containers of dead owners of this host; returns their names."""
    import docker

    client = _client()
    removed = []
    with _engine_errors("list containers"):
        for container in client.containers.list(
            all=True, filters={"label": OWNER_LABEL}, ignore_removed=True
        ):
            try:
                owner = Owner.from_object(json.loads(container.labels[OWNER_LABEL]))
            except ValueError:
                continue
            # A container does not run on after a reboot unless somebody starts it.
            if is_dead(owner, record_is_local=container.status in ("created", "exited", "dead")):
                try:
                    container.remove(force=True, v=True)
                    removed.append(str(container.name))
                except (docker.errors.NotFound, docker.errors.APIError):
                    continue  # another harness was faster
    client.close()
    return removed
