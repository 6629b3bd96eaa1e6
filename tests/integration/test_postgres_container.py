"""A Postgres in a container, for real: skipped, with the reason, where there is no engine or no image."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import psycopg
import pytest

from engine.postgres import InfrastructureError, conninfo, containers, provision
from tests.integration.harness_process import harness

if TYPE_CHECKING:
    import docker

LOCAL = "pgreferee-postgres"
BUILD = Path(__file__).parent.parent / "fixtures" / "image" / "build"


@pytest.fixture(scope="module")
def engine_client() -> Iterator[docker.DockerClient]:
    problem = containers.why_unreachable()
    if problem is not None:
        pytest.skip(problem)
    client = containers._client()
    yield client
    client.close()


@pytest.fixture(scope="module")
def image(engine_client: docker.DockerClient) -> str:
    """`$PGREFEREE_TEST_IMAGE`, or any image of Postgres that is here, or one made of the system's
    Postgres."""
    stated = os.environ.get("PGREFEREE_TEST_IMAGE")
    if stated:
        return stated
    images = containers.local_images(engine_client)
    for name in images:
        if name.startswith(("postgres:", f"{LOCAL}:")):
            return name
    majors = [
        major for major in range(18, 12, -1) if Path(f"/usr/lib/postgresql/{major}/bin/initdb").exists()
    ]
    if not majors or shutil.which("docker") is None:
        pytest.skip("no image of Postgres here, and no system installation to make one of")
    result = subprocess.run([BUILD, str(majors[0])], capture_output=True, text=True, timeout=110)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def ours(client: docker.DockerClient) -> list[str]:
    return [
        str(each.name) for each in client.containers.list(all=True, filters={"label": containers.OWNER_LABEL})
    ]


def volumes(client: docker.DockerClient) -> set[str]:
    return {each.name for each in client.volumes.list()}


def test_a_container_serves_and_is_gone_afterwards(engine_client: docker.DockerClient, image: str) -> None:
    """About 6 s."""
    before, before_volumes = ours(engine_client), volumes(engine_client)
    with provision(f"container:{image}", "fast", {"work_mem": "7MB"}) as server:
        assert server.source == "container"
        assert server.why_no_ledger is None
        assert (server.settings["work_mem"], server.settings["fsync"]) == ("7MB", "off")
        (name,) = set(ours(engine_client)) - set(before)
        bindings = engine_client.containers.get(name).attrs["HostConfig"]["PortBindings"]
        assert [each["HostIp"] for each in bindings["5432/tcp"]] == ["127.0.0.1"]
        with pytest.raises(InfrastructureError, match="password authentication failed"):
            conninfo.connect({**conninfo.parse(server.dsn), "password": "wrong"})
        password = conninfo.parse(server.dsn)["password"]
        assert password not in server.log_text()
        assert not any(password in " ".join(_command(process)) for process in psutil.process_iter())

        with psycopg.connect(server.dsn) as conn:
            conn.execute("CREATE TABLE kept AS SELECT 1 AS a")
        offset = server.log_size()
        server.stop("immediate")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.dsn)
        server.start()
        with psycopg.connect(server.dsn) as conn:
            assert conn.execute("SELECT a FROM kept").fetchone() == (1,)
        assert any("was not properly shut down" in line for line in server.log_lines(offset))
    assert ours(engine_client) == before
    assert volumes(engine_client) == before_volumes


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_the_next_start_removes_a_killed_harnesss_container_only(
    engine_client: docker.DockerClient, image: str
) -> None:
    """About 6 s."""
    with harness(f"container:{image}") as killed, harness(f"container:{image}") as other:
        killed.end(signal.SIGKILL)
        assert len(ours(engine_client)) == 2
        assert len(containers.reap()) == 1
        with psycopg.connect(other.server["dsn"]) as conn:
            assert conn.execute("SELECT 1").fetchone() == (1,)
        other.end(signal.SIGINT)
    assert ours(engine_client) == []


def test_a_container_that_ends_by_itself_is_one_sentence(
    engine_client: docker.DockerClient, image: str
) -> None:
    with (
        pytest.raises(InfrastructureError, match=r"stopped by itself: .*invalid value"),
        provision(f"container:{image}", "fast", {"shared_buffers": "plenty"}),
    ):
        pass
    assert ours(engine_client) == []


def test_no_engine_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("unix:///no/such/socket", "tcp://127.0.0.1:1", "nonsense"):
        monkeypatch.setenv("DOCKER_HOST", host)
        with (
            pytest.raises(InfrastructureError, match="no container engine can be reached"),
            provision("container:17"),
        ):
            pass


def test_an_image_that_cannot_be_had_is_one_sentence(engine_client: docker.DockerClient) -> None:
    with pytest.raises(InfrastructureError) as caught, provision("container:pgreferee-no-such-image:1"):
        pass
    assert "pgreferee-no-such-image:1" in str(caught.value)
    assert "\n" not in str(caught.value)
