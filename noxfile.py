"""What people and CI start: `nox -s stress`, `nox -s tests`, ...

Arguments after `--` go to the module behind the session: `nox -s stress -- --seconds 20 --nodes 4`.
Its exit status is nox's: 0 held, 1 violated, 2 wrong usage, 3 infrastructure, 4 unknown.
"""

# How it works
#
# Environments. Sessions share three: `.nox/run` has what the front doors need, `.nox/dev` what tests and lint
# need on top, `.nox/mutate` what mutates Python. nox's own would be one per session, so every session says
# `venv_backend="none"` and asks `environment` instead. Each folder carries a stamp of all that went into it;
# while the stamp fits, nothing is installed. The project is installed editable: a changed source needs no new
# stamp.
#
# Exit status. nox turns every failure into 1. The statuses of failed sessions are kept, and the worst of
# them replaces nox's own when the process ends. 1 is the worst, then 2, 3, 4: a proven violation outweighs
# a run that did not get far enough to tell.
#
# Signals. nox kills an interrupted command after 0.3 s; a run needs longer to stop its servers and write
# its verdict. So commands run in a process group of their own, out of the terminal's reach, and each signal
# to nox is passed on once: the first as it came, a second as SIGTERM; a third, or 60 s, ends the group.
#
# Standard output belongs to the command: `--json` leaves nothing on it but the verdict.

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import nox
from packaging.specifiers import SpecifierSet

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["tests", "lint"]

ROOT = Path(__file__).resolve().parent
CONSTRAINTS = ROOT / "constraints.txt"
PYPROJECT_PATH = ROOT / "pyproject.toml"
PYPROJECT = nox.project.load_toml(PYPROJECT_PATH)
PYTHONS = PYPROJECT["project"]["requires-python"]

# session: (module and its arguments, what it does)
FRONT_DOORS = {
    "stress": ("stress run", "Race nodes under faults on a real Postgres, and judge."),
    "explore": ("stress explore", "Take races through their schedules, step by step, and judge every one."),
    "replay": ("stress replay", "Take a recorded schedule again."),
    "fuzz": ("stress fuzz", "Hold the engine against the models, and try schedules, until the time is up."),
    "mutants": ("stress mutants", "Show every mutant to the instruments, and the sound engine too."),
    "ablate": ("stress ablate", "Take one thing out of the SQL at a time, and see who notices."),
    "check": ("invariants check", "Judge a recorded run again."),
    "report": ("results report", "Make a page of a recorded run, or of all."),
    "plans": ("results plans capture", "Capture the plans of every statement, and check their shapes."),
    "compare": ("results plans compare", "Compare two captures of plans."),
    "bench": ("stress bench", "Measure floors, engine and peers by turns, on one server."),
    "figures": ("stress figures", "Measure what the known bad forms of statements cost."),
    "doctor": ("stress doctor", "Check this machine, and say what to do."),
    "postgres": ("engine postgres", "Start a throw-away server, or list the versions to be had here."),
}

ENVIRONMENTS: Mapping[str, Sequence[str]] = {
    "run": [],
    "dev": ["tests", "lint", "docs"],
    "mutate": ["tests", "mutation"],
}

STOP_WITHIN_S = 60
INFRASTRUCTURE = 3

if not SpecifierSet(PYTHONS).contains(platform.python_version(), prereleases=True):
    sys.stderr.write(
        f"pgreferee needs Python {PYTHONS}; this nox runs on {platform.python_version()} ({sys.executable}). "
        "Install nox with a Python in that range and start it from there: pythonX.Y -m nox ...\n"
    )
    raise SystemExit(2)


# ---------------------------------------------------------------------------------------------- exit status

_failures: list[int] = []


def _leave_with_the_worst() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(min(_failures))


def fail(session: nox.Session, status: int, reason: str) -> NoReturn:
    """Fail the session as nox does, and have the process end with `status`."""
    if not _failures:
        atexit.register(_leave_with_the_worst)
    _failures.append(status)
    session.error(reason)


# -------------------------------------------------------------------------------------------------- commands


def call(command: Sequence[str], *, env: Mapping[str, str] | None = None, quiet: bool = False) -> int:
    """Run a command to its end and return its exit status: 128 + n if signal n ended it.

    `quiet` sends its standard output to standard error. When a signal to this process stopped the command,
    SystemExit carries the command's status, and no further session starts.
    """
    signals = 0
    child: subprocess.Popen[bytes] | None = None

    def signal_child(number: int, *, group: bool = False) -> None:
        with contextlib.suppress(ProcessLookupError):
            if child is not None and child.returncode is None:
                (os.killpg if group else os.kill)(child.pid, number)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            signal.alarm(STOP_WITHIN_S)
            signal_child(number)
        elif signals == 2:
            signal_child(signal.SIGTERM)
        else:
            signal_child(signal.SIGKILL, group=True)

    def give_up(_number: int, _frame: FrameType | None) -> None:
        signal_child(signal.SIGKILL, group=True)

    def pause(_number: int, _frame: FrameType | None) -> None:
        signal_child(signal.SIGSTOP, group=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        signal_child(signal.SIGCONT, group=True)

    handlers = {
        signal.SIGINT: pass_on,
        signal.SIGTERM: pass_on,
        signal.SIGHUP: pass_on,
        signal.SIGTSTP: pause,
        signal.SIGALRM: give_up,
    }
    before = {number: signal.getsignal(number) for number in handlers}
    try:
        for number, handler in handlers.items():
            if before[number] is not signal.SIG_IGN:  # nohup stays nohup
                signal.signal(number, handler)
        child = subprocess.Popen(
            command,
            env=env,
            # a group in the background would be stopped if it read from the terminal
            stdin=subprocess.DEVNULL if os.isatty(0) else None,
            stdout=sys.stderr if quiet else None,
            process_group=0,
        )
        if signals:
            signal_child(signal.SIGTERM)
        status = child.wait()
    finally:
        signal.alarm(0)
        for number, previous in before.items():
            signal.signal(number, previous)
    status = 128 - status if status < 0 else status
    if signals:
        raise SystemExit(status)
    return status


# ---------------------------------------------------------------------------------------------- environments


def find_uv() -> str | None:
    """Uv on the PATH, or beside the Python that runs nox."""
    return shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


def stamp(folder: Path, groups: Sequence[str]) -> str:
    """A hash of everything that decides what an environment contains."""
    parts = {
        "folder": str(folder),
        "python": [sys.version, sys.base_prefix],
        "groups": list(groups),
        "tables": [PYPROJECT["build-system"], PYPROJECT["project"], PYPROJECT["dependency-groups"]],
        "packages": PYPROJECT["tool"]["hatch"],
        "constraints": CONSTRAINTS.read_text(encoding="utf-8"),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def build(session: nox.Session, folder: Path, groups: Sequence[str]) -> None:
    """Make the environment anew, with uv if there is one, else with virtualenv (which nox brings) and pip."""
    uv = find_uv()
    python = str(folder / "bin" / "python")
    wanted = ["--constraint", str(CONSTRAINTS), "--editable", str(ROOT)]
    wanted += nox.project.dependency_groups(PYPROJECT, *groups)
    if uv:
        create = [uv, "venv", "--quiet", "--python", sys.executable, str(folder)]
        install = [uv, "pip", "install", "--quiet", "--python", python, *wanted]
    else:
        create = [sys.executable, "-m", "virtualenv", "--quiet", "--no-periodic-update", str(folder)]
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
    session.log(f"installing {folder.name} with {'uv' if uv else 'pip'}; this happens once")
    # The build backend is pinned like the rest. A bare name, since both split these values at blanks.
    env = os.environ | dict.fromkeys(("PIP_BUILD_CONSTRAINT", "UV_BUILD_CONSTRAINT"), CONSTRAINTS.name)
    shutil.rmtree(folder, ignore_errors=True)
    for command in (create, install):
        if status := call(command, env=env, quiet=True):
            fail(session, INFRASTRUCTURE, f"{shlex.join(command[:3])} ... failed with exit status {status}")


@contextlib.contextmanager
def environment(session: nox.Session, name: str) -> Iterator[dict[str, str]]:
    """The process environment in which `python` is that of `.nox/<name>`, made or made anew if need be.

    While it is in use it is locked: another nox waits before it replaces it.
    """
    groups = ENVIRONMENTS[name]
    try:
        folder = session.cache_dir.parent.resolve() / name
        lock = folder.with_suffix(".lock").open("a")
    except OSError as error:
        fail(session, INFRASTRUCTURE, f"no place for environments: {error}; --envdir names another")
    mark = folder / "pgreferee.stamp"
    current = stamp(folder, groups)

    def is_current() -> bool:
        return mark.exists() and mark.read_text(encoding="utf-8") == current

    with lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        if not is_current():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                session.log(f"waiting for another nox that uses {folder}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_current():
                build(session, folder, groups)
                mark.write_text(current, encoding="utf-8")
            fcntl.flock(lock, fcntl.LOCK_SH)
        env = os.environ | {
            "VIRTUAL_ENV": str(folder),
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        }
        env.pop("PYTHONHOME", None)
        yield env


# -------------------------------------------------------------------------------------------------- sessions


def run(session: nox.Session, env: Mapping[str, str], *command: str) -> int:
    """Log the command, then `call` it with the program looked up in the environment."""
    session.log(shlex.join(command))
    program = shutil.which(command[0], path=env["PATH"]) or command[0]
    return call([program, *command[1:]], env=env)


def front_door(name: str, module: str, does: str) -> None:
    """Make the nox session `name`: python -m <module>, arguments and exit status passed through."""

    def door(session: nox.Session) -> None:
        with environment(session, "run") as env:
            if status := run(session, env, "python", "-m", *module.split(), *session.posargs):
                fail(session, status, f"exit status {status}")

    door.__doc__ = does
    nox.session(name=name, venv_backend="none")(door)


for _name, (_module, _does) in FRONT_DOORS.items():
    front_door(_name, _module, _does)


# Each worker has a server of its own, and often waits for it: one more than there are cores. Benchmarks are told to run
# once, as tests; -n 0 --benchmark-enable measures.
PYTEST = ("-n", str(min(4, (os.cpu_count() or 1) + 1)), "--dist", "worksteal", "--benchmark-disable")

# Figures are a machine's: baselines are kept by kind of machine, and compared as ratios.
SPEED = (
    "tests/benchmark", "-n", "0", "--benchmark-enable", "--benchmark-storage=file://results/baselines/speed",
    "--benchmark-columns=median,iqr,rounds", "--benchmark-sort=name", "--benchmark-warmup=off",
)  # fmt: skip


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Test the harness itself; arguments go to pytest."""
    with environment(session, "dev") as env:
        if status := run(session, env, "python", "-m", "pytest", *PYTEST, *session.posargs):
            fail(session, 1, f"pytest ended with exit status {status}")


@nox.session(venv_backend="none")
def speed(session: nox.Session) -> None:
    """Measure hot statements and loops; `-- --benchmark-autosave` keeps them, `-- --benchmark-compare` compares."""
    with environment(session, "dev") as env:
        command = ("python", "-m", "pytest", *SPEED, *session.posargs)
        if status := run(session, env, *command):
            fail(session, 1, f"pytest ended with exit status {status}")


LINT = (
    "ruff check --quiet .",
    "ruff format --quiet --diff .",
    "lint-imports",
    "mypy",
    "sqlfluff lint --disable-progress-bar --processes 0 engine",
)


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Style, types, directions of imports, SQL. Every check runs, also after one has failed."""
    with environment(session, "dev") as env:
        failed = [line for line in LINT if run(session, env, *line.split())]
    if failed:
        fail(session, 1, f"failed: {', '.join(failed)}")


SITE = ROOT / "site"


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """Build the documentation in site/; a link or an anchor that leads nowhere fails it."""
    sphinx = ("-q", "-W", "--keep-going", "-b", "html", "-d", str(SITE / ".doctrees"), "docs", str(SITE))
    with environment(session, "dev") as env:
        if status := run(session, env, "python", "-m", "sphinx", *sphinx, *session.posargs):
            fail(session, 1, f"sphinx ended with exit status {status}")
    session.log(f"open {SITE / 'index.html'}")


MUTATED = (
    "engine",
    "models",
    "invariants",
    "stress",
    "results",
    "tests",
    "docs",
    "README.md",
    "CHANGELOG.md",
    "noxfile.py",
)

# What mutmut says of a change that it has tried. One that makes a test hang is noticed as well.
TOLD = ("killed", "timeout", "caught by type check", "survived", "no tests")


@nox.session(venv_backend="none")
def mutate(session: nox.Session) -> None:
    """Change one thing in the Python of the decisions at a time (mutmut), and list what no test noticed.

    `--all` adds what decides beside a server; a path such as `engine/policy.py` limits it to that. Exit status: 0 all
    was noticed or is explained in tests/mutation.toml, 1 something was not, 4 something was not tried to the end.
    """
    paths = [word for word in session.posargs if word != "--all"]
    with (ROOT / "tests" / "mutation.toml").open("rb") as file:
        groups = tomllib.load(file)
    among = [path for name in ("pure", "all") for path in groups[name]["only_mutate"]]
    if unknown := [path for path in paths if path not in among]:
        fail(session, 2, f"{unknown[0]} is not among what is mutated; tests/mutation.toml lists that")
    beside_a_server = "--all" in session.posargs or not set(paths) <= set(groups["pure"]["only_mutate"])
    chosen = ("pure", "all") if beside_a_server else ("pure",)
    settings = {
        "source_paths": ["engine"],
        "also_copy": [name for name in MUTATED if name not in ("engine", "tests")],
        "pytest_add_cli_args": ["-p", "no:cacheprovider"]
        + ([] if beside_a_server else ["-k", groups["pure"]["keyword"]]),
        "only_mutate": paths or [path for name in chosen for path in groups[name]["only_mutate"]],
        "do_not_mutate_patterns": groups["untouched"],
        "pytest_add_cli_args_test_selection": [path for name in chosen for path in groups[name]["tests"]],
    }
    # Mutmut writes beside what it mutates.
    with (
        environment(session, "mutate") as env,
        tempfile.TemporaryDirectory(prefix="pgreferee-mutate-") as scratch,
    ):
        for name in MUTATED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
            copy(ROOT / name, Path(scratch, name))
        lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        text = PYPROJECT_PATH.read_text(encoding="utf-8")
        Path(scratch, PYPROJECT_PATH.name).write_text(
            "\n".join((text, "[tool.mutmut]", *lines, "")), encoding="utf-8"
        )
        program = shutil.which("mutmut", path=env["PATH"]) or "mutmut"
        with session.chdir(scratch):
            if status := call([program, "run"], env=env, quiet=True):
                fail(session, INFRASTRUCTURE, f"mutmut ended with exit status {status}")
            told = subprocess.run(
                [program, "results", "--all", "true"], env=env, capture_output=True, text=True
            )
            found = {
                name.strip(): became.strip()
                for name, colon, became in (line.rpartition(":") for line in told.stdout.splitlines())
                if colon
            }
            if told.returncode or not found:
                fail(
                    session,
                    INFRASTRUCTURE,
                    f"mutmut told of no change (exit status {told.returncode}): nothing was tried",
                )
            survivors = {
                name: _changed(
                    subprocess.run([program, "show", name], env=env, capture_output=True, text=True).stdout
                )
                for name, became in found.items()
                if became in ("survived", "no tests")
            }
    explained = {(entry["was"], entry["is"]): entry["why"] for entry in groups.get("explained", [])}
    unexplained = 0
    for name, change in survivors.items():
        why = explained.get(change)
        unexplained += why is None
        print(f"{name}\n    - {change[0]}\n    + {change[1]}" + (f"\n    {why}" if why else ""))
    counts = ", ".join(f"{count} {became}" for became, count in Counter(found.values()).most_common())
    print(f"{len(found)} changes: {counts}; {len(survivors) - unexplained} of the survivors are explained")
    if unexplained:
        fail(session, 1, f"{unexplained} changes were noticed by no test and are not explained")
    if untold := [name for name, became in found.items() if became not in TOLD]:
        fail(session, 4, f"{len(untold)} changes were not tried to the end, {untold[0]} for one")


def _changed(diff: str) -> tuple[str, str]:
    """The lines that a mutant takes out and puts in, without their indentation."""
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++"))]
    out, put = ([line[1:].strip() for line in lines if line.startswith(sign)] for sign in "-+")
    return " ".join(out), " ".join(put)


PIN_HEADER = """\
# The exact version of everything that is installed: to run pgreferee, to test and lint it, and to build it.
# One list for every Python. `nox -s pin` writes it anew, with the newest that pyproject.toml allows.
"""


@nox.session(venv_backend="none")
def pin(session: nox.Session) -> None:
    """Write constraints.txt anew; needs uv."""
    uv = find_uv()
    if uv is None:
        fail(session, INFRASTRUCTURE, "pin needs uv: python3 -m pip install uv")
    with tempfile.TemporaryDirectory() as scratch:
        backend = Path(scratch, "build.in")
        backend.write_text("\n".join(PYPROJECT["build-system"]["requires"]), encoding="utf-8")
        pins = Path(scratch, "pins.txt")
        command = [uv, "pip", "compile", "--universal", "--upgrade", "--quiet", "--output-file", str(pins)]
        command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
        groups = sorted({group for groups in ENVIRONMENTS.values() for group in groups})
        command += [part for group in groups for part in ("--group", group)]
        if status := call([*command, "pyproject.toml", str(backend)]):
            fail(session, INFRASTRUCTURE, f"uv ended with exit status {status}")
        CONSTRAINTS.write_text(PIN_HEADER + pins.read_text(encoding="utf-8"), encoding="utf-8")
