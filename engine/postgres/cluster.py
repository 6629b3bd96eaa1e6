"""One started server: a data directory, a postmaster, its log; from an installation on this machine.

The postmaster is a child of the harness in a session of its own, so that a Ctrl-C at the terminal reaches the
harness only, which then stops it in order. The password never is an argument or an environment variable:
`initdb` reads it from a 0600 file that is removed at once.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from engine.errors import InfrastructureError
from engine.postgres import profiles, records
from engine.postgres.accounts import Account
from engine.postgres.binaries import Installation
from engine.postgres.deadline import until
from engine.postgres.ports import LOOPBACK, PORT_TRIES, free_port
from engine.postgres.records import Lodging
from engine.postgres.server import StopMode

SUPERUSER = "postgres"
ANYWHERE = "0.0.0.0"
INITDB_TIMEOUT_S = 120
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30


_SEVERITY = re.compile(r"\b(?:LOG|FATAL|PANIC):  ")


class Cluster:
    """A server of ours, from `initialise` to `Lodging.remove`. `start` and `stop` may alternate."""

    def __init__(
        self,
        installation: Installation,
        lodging: Lodging,
        account: Account,
        settings: Mapping[str, str],
        *,
        tcp: bool,
        listen: str | None = None,
    ) -> None:
        self.installation = installation
        self.lodging = lodging
        self.account = account
        self.tcp = tcp
        # Where it listens besides a unix socket.
        self._addresses = tuple(
            dict.fromkeys((*((LOOPBACK,) if tcp else ()), *((listen,) if listen else ())))
        )
        self.password = secrets.token_urlsafe(24)
        self.port = 0
        self.log_path = lodging.folder / "server.log"
        self._settings = dict(settings)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def params(self) -> dict[str, str]:
        """The superuser's connection through the unix socket, to the database `postgres`."""
        return {
            "user": SUPERUSER,
            "password": self.password,
            "host": str(self.lodging.folder),
            "port": str(self.port),
            "dbname": "postgres",
        }

    @property
    def tcp_params(self) -> dict[str, str] | None:
        """The same over TCP on the loopback interface; None when not asked for."""
        return {**self.params, "host": LOOPBACK} if self.tcp else None

    def initialise(self) -> None:
        """Run `initdb` and write the configuration. Raises `InfrastructureError` with initdb's own reason."""
        password_file = self.lodging.folder / "password"
        self.write_private(password_file, self.password + "\n")
        command: list[str | Path] = [
            *(self.installation.program("initdb"), "--pgdata", self.lodging.data_dir),
            *("--username", SUPERUSER, "--pwfile", password_file, "--auth", "scram-sha-256"),
            *("--encoding", "UTF8", "--locale", "C", "--no-sync"),
        ]
        try:
            result = subprocess.run(
                command,
                cwd=self.lodging.folder,
                env=dict(self.account.environment(self.lodging.folder)),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=INITDB_TIMEOUT_S,
                **self.account.popen_arguments(),
            )
        except subprocess.TimeoutExpired:
            raise InfrastructureError(f"initdb did not finish within {INITDB_TIMEOUT_S} s") from None
        except OSError as error:
            raise InfrastructureError(f"{command[0]} cannot be run: {error.strerror}") from None
        finally:
            password_file.unlink(missing_ok=True)
        if result.returncode != 0:
            lines = [line for line in result.stderr.splitlines() if line.strip()] or ["no reason given"]
            raise InfrastructureError(
                f"initdb of Postgres {self.installation.version} failed as {self.account.name}: "
                f"{lines[0].strip()}"
            )
        own = {
            "listen_addresses": ANYWHERE if ANYWHERE in self._addresses else ",".join(self._addresses),
            "unix_socket_directories": str(self.lodging.folder),
            "unix_socket_permissions": "0700",
            "logging_collector": "off",
            "log_destination": "stderr",
        }
        with (self.lodging.data_dir / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write(profiles.as_configuration({**self._settings, **own}))
        if set(self._addresses) - {LOOPBACK}:
            with (self.lodging.data_dir / "pg_hba.conf").open("a", encoding="utf-8") as file:
                file.write("host all all all scram-sha-256\n")

    def start(self) -> None:
        """Start the postmaster and wait until it accepts connections.

        The first start picks the port and tries another one if somebody else was faster; later starts keep
        it.
        """
        if self._process is not None and self._process.poll() is None:
            return
        said = ""
        tries = 1 if self.port else PORT_TRIES
        for attempt in range(tries):
            port = self.port or free_port(self._addresses or (LOOPBACK,))
            log_offset = self.log_path.stat().st_size if self.log_path.exists() else 0
            if self._ready(port):
                self.port = port
                return
            said = self.log_bytes(log_offset).decode(errors="replace")
            if "could not create any TCP/IP sockets" not in said or attempt == tries - 1:
                break
        reason = _reason(said) or f"it was not ready within {START_TIMEOUT_S} s"
        raise InfrastructureError(f"Postgres {self.installation.version} did not start: {reason}")

    def _ready(self, port: int) -> bool:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        log = os.open(self.log_path, flags, 0o600)
        try:
            self._process = subprocess.Popen(
                [self.installation.program("postgres"), "-D", self.lodging.data_dir, "-p", str(port)],
                cwd=self.lodging.folder,
                env=dict(self.account.environment(self.lodging.folder)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self.account.popen_arguments(),
            )
        finally:
            os.close(log)
        for _ in until(START_TIMEOUT_S):
            if self._process.poll() is not None:
                return False
            # A standby is ready for what it is there for.
            if _status(self.lodging.data_dir) in (
                (self._process.pid, "ready"),
                (self._process.pid, "standby"),
            ):
                return True
        self.stop("immediate")
        return False

    def stop(self, mode: StopMode) -> None:
        """Stop the postmaster with everything it started, and wait until it is gone; nothing to do when it
        is."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGQUIT if mode == "immediate" else signal.SIGINT)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            records.end_processes(self.lodging.data_dir)
            process.wait(STOP_TIMEOUT_S)
        self._process = None

    @property
    def data_dir(self) -> Path:
        """Where its data lie."""
        return self.lodging.data_dir

    def adopt(self, data_dir: Path) -> None:
        """Of a stopped server: from now on its data is what lies there, and the old, where it still is there, is
        gone."""
        if self.data_dir.exists():
            shutil.rmtree(self.data_dir)
        data_dir.rename(self.data_dir)

    def remove(self) -> None:
        """Stop the server and remove all that is left of it. May be repeated, also after an interruption."""
        self.stop("immediate")  # the data is thrown away: no shutdown checkpoint
        self.lodging.remove()

    def log_bytes(self, since: int) -> bytes:
        """The log from byte `since` on."""
        try:
            with self.log_path.open("rb") as file:
                file.seek(since)
                return file.read()
        except FileNotFoundError:
            return b""

    def write_private(self, path: Path, text: str) -> None:
        """A new file that only the server's account can read."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if self.account.switch:
                os.fchown(descriptor, self.account.uid, self.account.gid)
            file.write(text)


def _status(data_dir: Path) -> tuple[int, str] | None:
    """PID and state (`starting`, `ready`, `stopping`) that the postmaster wrote into its PID file."""
    try:
        lines = (data_dir / "postmaster.pid").read_text().splitlines()
        return int(lines[0]), lines[7].strip()
    except (OSError, ValueError, IndexError):
        return None


def _reason(log: str) -> str | None:
    """Why a postmaster gave up, from what it logged: its last word, or the word before if that says
    nothing."""
    said = [line[found.end() :] for line in log.splitlines() if (found := _SEVERITY.search(line))]
    telling = [text for text in said if not text.endswith(("contains errors", "is shut down"))]
    return telling[-1] if telling else None
