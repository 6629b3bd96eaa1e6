"""Master and workers find each other, let nobody else in, and know of each other when one is gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from engine.errors import InfrastructureError
from stress.hosts import master as master_module
from stress.hosts.master import FarHost, HostLost, Master, NotAllCame
from stress.hosts.messages import Data, Hello, OpenProxies, Pong, Reach, Start, code, encode
from stress.hosts.token import VARIABLE, Key
from stress.hosts.worker import PREFIX
from stress.swarm.configs import LocustMasterConfig

ADDRESS = "127.0.0.2"
TOKEN = "a token of these tests"
DEADLINE_S = 60.0
# A worker's own command line, with less patience.
WORKER = (
    "import sys; from stress.hosts import worker; worker.ALONE_S = 2.0\n"
    "from stress.__main__ import stress; stress(['run', *sys.argv[1:]])"
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        port: int = probe.getsockname()[1]
        return port


def until(found: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Party:
    """A master, and workers of other processes."""

    def __init__(self, folder: Path) -> None:
        self.port, self.folder = free_port(), folder
        self.said: list[str] = []
        self.workers: list[subprocess.Popen[str]] = []
        (folder / "logs").mkdir()

    def master(self, workers: int = 1) -> Master:
        return Master(ADDRESS, self.port, TOKEN, workers, self.folder, self.said.append)

    def join(self, *, token: str = TOKEN, wait_s: float = DEADLINE_S) -> subprocess.Popen[str]:
        where = ["--worker", f"{ADDRESS}:{self.port}", "--join-seconds", f"{wait_s:g}"]
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, *where],
            env={**os.environ, VARIABLE: token},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.workers.append(worker)
        return worker

    @contextmanager
    def stranger(self, token: str = TOKEN) -> Iterator[zmq.Socket[bytes]]:
        """Somebody who speaks the protocol, and minds no rules."""
        with zmq.Context() as context, context.socket(zmq.DEALER) as made:
            made.linger = 0
            Key.of(token).guard_client(made)
            made.connect(f"tcp://{ADDRESS}:{self.port}")
            yield made


@pytest.fixture
def party(tmp_path: Path) -> Iterator[Party]:
    made = Party(tmp_path)
    yield made
    for worker in made.workers:
        worker.kill()
        worker.communicate()


def hello(**other: str) -> bytes:
    told = {"code": code(), "hostname": "far", "via": ADDRESS, "machine": "far", **other}
    return encode(Hello(cores=1, **told))


def end_of(worker: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = worker.communicate(timeout=DEADLINE_S)
    assert "Traceback" not in said
    return worker.returncode, said


def test_a_worker_without_the_token_is_not_let_in_and_one_that_comes_too_late_is_told_so(
    party: Party,
) -> None:
    with party.master() as master:
        stranger = party.join(token="not that of the master")
        status, said = end_of(stranger)
        assert (status, master.hosts) == (3, [])
        assert "does not know this token: set PGREFEREE_TOKEN" in said
        first = party.join()
        [host] = master.gather(DEADLINE_S)
        status, said = end_of(party.join())
        assert status == 3
        assert "the run has its 1 workers: start the master with --workers 2" in said
        until(lambda: host.samples)
        assert all(sample.sent <= sample.there <= sample.received for sample in host.samples)
        master.release("held")
        status, said = end_of(first)
        assert status == 0
        assert "the run is over: held; started here: nothing" in said
    assert TOKEN not in "".join((*party.said, said))


def test_who_has_not_the_token_gets_no_answer_at_all(party: Party) -> None:
    with party.master(), party.stranger("not that of the master") as stranger:
        stranger.send(hello())
        assert stranger.poll(1_000) == 0
    with party.master() as master, party.stranger() as friend:
        friend.send(hello())
        assert friend.poll(int(DEADLINE_S) * 1_000) == zmq.POLLIN
        master.gather(DEADLINE_S)


def test_a_worker_that_runs_other_code_is_refused_and_the_master_says_whom_it_misses(party: Party) -> None:
    with party.master() as master, party.stranger() as other:
        other.send(hello(code="0"))
        with pytest.raises(
            NotAllCame, match="0 of 1 workers came within 1 s: far runs other code than the master"
        ):
            master.gather(1.0)


def test_a_master_that_nobody_answers_for_is_given_up(party: Party) -> None:
    status, said = end_of(party.join(wait_s=1.0))
    assert status == 3
    assert f"no master answered at {ADDRESS}:{party.port} within 1 s" in said


def test_a_port_that_is_taken_is_said_to_be(party: Party) -> None:
    with party.master(), pytest.raises(InfrastructureError, match="cannot listen at"), party.master():
        pass


def test_what_a_process_wrote_is_here_when_its_end_is_known_and_no_other_program_is_started(
    party: Party,
) -> None:
    with party.master() as master:
        party.join()
        [host] = master.gather(DEADLINE_S)
        nothing = LocustMasterConfig(bind="", port=1, token=None, workers=1, users=1, scenario="mixed")
        with pytest.raises(InfrastructureError, match="none of the swarm's processes"):
            host.start("x", "this", nothing)
        # It cannot read such a configuration, and says so in its log.
        process = host.start("client-0", "stress.swarm.locust_worker", nothing)
        assert process.wait(DEADLINE_S) == 1
        assert "ValidationError" in process.last_words()
        assert process.last_words() in (party.folder / "logs" / "client-0.log").read_text()
        with pytest.raises(InfrastructureError, match=r"127\.0\.0\.1:1/x"):
            host.do(Reach(dsns=("postgresql://u:s3cret@127.0.0.1:1/x",)))
        [ports] = host.do(OpenProxies(servers=((ADDRESS, 1),), places=(0,), clients=("client-0",)))
        assert {place for place, _ in ports} == {0, "client-0"}
        assert master.collect() is None
        master.release("held")
    assert "s3cret" not in "".join(path.read_text() for path in (party.folder / "logs").iterdir())


@pytest.mark.parametrize("name", ["../verdict.json", "history-harness.msgpack", "run.json"])
def test_a_worker_writes_no_file_but_its_own(name: str, party: Party) -> None:
    (party.folder / "history-harness.msgpack").write_bytes(b"ours")
    with party.master() as master, party.stranger() as bad:
        bad.send(hello())
        [host] = master.gather(DEADLINE_S)
        bad.send(encode(Data(name=name, offset=0, data=b"theirs")))
        until(lambda: host.lost)
        with pytest.raises(HostLost, match="is not its own"):
            host.check()
    assert (party.folder / "history-harness.msgpack").read_bytes() == b"ours"
    assert not (party.folder.parent / "verdict.json").exists()


def test_a_piece_of_a_history_that_is_missing_leaves_the_histories_not_whole(party: Party) -> None:
    with party.master() as master, party.stranger() as bad:
        bad.send(hello())
        master.gather(DEADLINE_S)
        bad.send(encode(Data(name="history-node-1.1.msgpack", offset=0, data=b"abc")))
        bad.send(encode(Data(name="history-node-1.1.msgpack", offset=4, data=b"e")))
        until(lambda: master.hosts[0].lost)
        gap = master.collect()
    assert gap == (
        "the histories are not whole: host-1 (far) is lost: a piece of history-node-1.1.msgpack is missing"
    )


def lost(host: FarHost) -> str:
    until(lambda: host.lost)
    return host.lost or ""


def test_a_host_that_is_silent_is_lost_and_nobody_waits_for_it(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_module, "LOST_S", 0.5)
    with party.master() as master, party.stranger() as silent:
        silent.send(hello())
        [host] = master.gather(DEADLINE_S)
        began = time.monotonic()
        with pytest.raises(HostLost, match=r"nothing was heard of it for"):
            host.do(Start(name="x", module="stress.swarm.locust_worker", config={}))
        assert time.monotonic() - began < 10
        silent.send(encode(Pong(sent=0, there=0)))
        assert host.lost


def test_a_host_that_was_killed_is_missed_sooner_than_a_silent_one_and_the_next_removes_what_it_left(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_module, "GONE_S", 0.5)
    with party.master(workers=2) as master:
        worker = party.join()
        until(lambda: master.hosts and master.hosts[0].samples)
        folders = Path(tempfile.gettempdir()).glob(f"{PREFIX}*")
        [left] = [folder for folder in folders if _is_of(folder, worker.pid)]
        worker.kill()
        assert "its connection was closed" in lost(master.hosts[0])
        assert left.exists()
        party.join()
        until(lambda: len(master.hosts) == 2)
        assert not left.exists()


def test_a_worker_that_is_stopped_says_so_and_its_run_is_lost(party: Party) -> None:
    with party.master() as master:
        worker = party.join()
        [host] = master.gather(DEADLINE_S)
        until(lambda: host.samples)
        worker.send_signal(signal.SIGTERM)
        assert "it was stopped" in lost(host)
        assert end_of(worker)[0] == 130


def test_a_worker_whose_master_is_gone_goes_too_and_leaves_no_folder(party: Party) -> None:
    before = set(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))
    script = (
        "import pathlib, sys; from stress.hosts.master import Master\n"
        f"with Master({ADDRESS!r}, {party.port}, {TOKEN!r}, 1, pathlib.Path(sys.argv[1]), print) as master:\n"
        "    master.gather(60.0); print('all', flush=True); sys.stdin.read()"
    )
    master = subprocess.Popen(
        [sys.executable, "-c", script, str(party.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        worker = party.join()
        assert master.stdout is not None
        assert "all\n" in iter(master.stdout.readline, "")
    finally:
        master.kill()
        master.communicate()
    status, said = end_of(worker)
    assert status == 3
    assert "has not been heard of for 2 s" in said
    assert set(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")) <= before


def _is_of(folder: Path, pid: int) -> bool:
    return any(opened.readlink() == folder for opened in Path(f"/proc/{pid}/fd").iterdir())
