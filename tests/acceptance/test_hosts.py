"""One run on several hosts: network namespaces where they can be made, else several addresses of one machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from invariants.folder import read_history
from results.runs import Verdict, read_verdict
from stress.__main__ import stress
from stress.hosts.token import VARIABLE

TOKEN = "a token of these tests"
DEADLINE_S = 200.0
DAY_MS = 86_400_000.0


@dataclass
class Lan:
    """Where a master and two workers are. `prefixes`: what puts a command there; `later`: a clock that is a day ahead
    of the others is there."""

    address: str
    prefixes: tuple[Sequence[str], Sequence[str], Sequence[str]] = ((), (), ())
    later: bool = False
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, place: int, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*self.prefixes[place], sys.executable, "-m", "stress", "run", *arguments],
            env={**os.environ, VARIABLE: TOKEN, "COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        return process

    def start_all(self, port: int, out: Path, *arguments: str) -> tuple[subprocess.Popen[str], ...]:
        """The master and two workers, which wait for each other."""
        where = ("--port", str(port), "--join-seconds", "60")
        workers = [self.start(place, "--worker", self.address, *where) for place in (1, 2)]
        master = ("--master", "--bind", self.address, "--workers", "2", *where, "--out", str(out))
        return self.start(0, *master, "--no-report", *arguments), *workers


@contextlib.contextmanager
def namespaces() -> Iterator[Lan]:
    """Three of them, the master's with a bridge to the other two, one of those with a clock of its own."""
    names = [f"pgr-{os.getpid()}-{place}" for place in range(3)]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)

    with contextlib.ExitStack() as stack:
        for name in names:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
            ip("-n", name, "link", "set", "lo", "up")
        master = names[0]
        ip("-n", master, "link", "add", "lan", "type", "bridge")
        ip("-n", master, "addr", "add", "10.77.0.1/24", "dev", "lan")
        ip("-n", master, "link", "set", "lan", "up")
        for place, name in enumerate(names[1:], 1):
            port = f"port{place}"
            ip("-n", master, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", master, "link", "set", port, "master", "lan", "up")
            ip("-n", name, "addr", "add", f"10.77.0.{place + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
        first, second, third = (("ip", "netns", "exec", name) for name in names)
        later = ("unshare", "--time", "--monotonic", "86400", "--fork", "--kill-child")
        yield Lan("10.77.0.1", (first, second, (*third, *later)), later=True)


@pytest.fixture
def lan() -> Iterator[Lan]:
    with contextlib.ExitStack() as stack:
        made = Lan("127.0.0.2")
        if os.geteuid() == 0 and shutil.which("ip") and shutil.which("unshare"):
            with contextlib.suppress(subprocess.SubprocessError, OSError):
                made = stack.enter_context(namespaces())
        yield made
        for process in made.processes:
            process.kill()
            process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert "Traceback" not in output
    return process.returncode, output


def verdict_in(out: Path) -> tuple[Path, Verdict]:
    [folder] = out.iterdir()
    return folder, read_verdict(folder)


@pytest.mark.slow("15 s")
@pytest.mark.timeout(240)
def test_nodes_and_clients_of_two_hosts_race_and_their_histories_are_judged_as_one(
    lan: Lan, tmp_path: Path
) -> None:
    faults = ("--faults", "kill,pause,slow,skew")
    master, *workers = lan.start_all(5770, tmp_path, "--seconds", "5", "--nodes", "4", "--seed", "1", *faults)
    status, output = ended(master)
    assert status == 0, output
    for worker in workers:
        assert ended(worker)[0] == 0
    folder, verdict = verdict_in(tmp_path)
    assert [host["name"] for host in verdict.hosts] == ["host-1", "host-2"]
    assert {fault["fault"] for fault in verdict.faults} == {"kill", "pause", "slow", "skew"}
    assert {verdict.invariants[name]["verdict"] for name in ("single-owner", "seen-single-owner")} == {"held"}
    operations = read_history(folder)
    assert {o.process.partition(".")[0] for o in operations} == {
        *("harness", "client-0", "client-1"), *(f"node-{place}" for place in range(1, 5))
    }  # fmt: skip
    assert len({o.machine for o in operations}) == 1
    if lan.later:
        clocks = sorted((host["clock"]["offset_ms"], host["clock"]["error_ms"]) for host in verdict.hosts)
        assert clocks[0][0] == pytest.approx(-DAY_MS, abs=1_000)
        assert 0 < clocks[0][1] < 1_000
        assert clocks[1] == (0.0, 0.0)
        assert f"{clocks[0][1]:.3f} ms" in output
    written = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert not [data for data in written if TOKEN.encode() in data or b"postgresql://" in data]


@pytest.mark.slow("20 s")
@pytest.mark.timeout(240)
def test_a_run_that_loses_a_host_is_unknown_and_says_which(lan: Lan, tmp_path: Path) -> None:
    master, *workers = lan.start_all(5772, tmp_path, "--seconds", "600", "--nodes", "2", "--faults", "none")
    assert master.stdout is not None
    output = next(line for line in master.stdout if line.startswith("load"))
    # Its own processes go with it.
    family = _family(workers[0])
    assert any("stress.swarm.node_process" in process.cmdline() for process in family)
    began = time.monotonic()
    for process in [each for each in family if "--worker" in each.cmdline()]:
        process.kill()
    status, rest = ended(master)
    assert status == 4, output + rest
    assert time.monotonic() - began < 100
    _, verdict = verdict_in(tmp_path)
    assert verdict.verdict == "unknown"
    assert "is lost: its connection was closed, and nothing was heard of it for 5 s" in (verdict.reason or "")
    assert "held" not in {verdict.invariants[name]["verdict"] for name in ("single-owner", "told-is-done")}
    assert verdict.invariants["told-is-done"]["reason"].startswith("the histories are not whole: ")
    assert "the run is over: unknown" in ended(workers[1])[1]
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []


def _family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    parent = psutil.Process(process.pid)
    return [parent, *parent.children(recursive=True)]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--worker", "127.0.0.1", "--nodes", "3"], 2, "--nodes is the master's to say"),
        (["--worker", "127.0.0.1:x"], 2, "--worker takes HOST or HOST:PORT"),
        (["--worker", "127.0.0.1", "--master"], 2, "one is either a --master or a --worker"),
        (["--worker", "127.0.0.1"], 2, "a worker needs the token of its master: set PGREFEREE_TOKEN"),
        (["--worker", "127.0.0.1", "--token-file", "nowhere"], 2, "the token cannot be read from nowhere"),
        (["--bind", "127.0.0.1"], 2, "--bind goes with --master"),
        (["--master", "--workers", "5"], 2, "--workers must be 1 to 4"),
        (["--master", "--bind", "db.example"], 2, "--bind must be an IPv4 address of this machine"),
        (["--master", "--bind", "192.0.2.7"], 3, "the master cannot listen at 192.0.2.7:5670"),
        (["--master", "--quiet"], 2, "--quiet would hide the token that the workers need"),
        (["--master", "--profile", "soak"], 2, "run on one host: leave out --master"),
        (["--master", "--subject", "procrastinate"], 2, "only the reference engine runs on several hosts"),
        (["--master", "--pg", "container:17"], 2, "cannot be reached from others"),
        (["--master", "--port", "5774", "--join-seconds", "1"], 4, "0 of 1 workers came within 1 s"),
    ],
)
def test_what_hosts_cannot_do_is_said_in_one_sentence(
    arguments: list[str], status: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    out = () if "--worker" in arguments else ("--no-report", "--out", str(tmp_path))
    done = CliRunner().invoke(stress, ["run", *arguments, *out])
    assert done.exit_code == status, done.output
    assert words in done.output
    assert "Traceback" not in done.output
