"""A recorder process as its parent sees it: start it, ask how it goes, stop it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec

from invariants.ledger.reader import LedgerUnavailable

READY_TIMEOUT_S: Final = 60.0


class RecorderError(Exception):
    """The recorder ended without a summary."""


class RecorderProcess:
    """Starts `python -m invariants record` and talks to it.

    `failover`: the slot is to outlive a failover to a standby. Returns from the constructor when slot and
    publication exist: only then may the load begin. Raises LedgerUnavailable with the reason where the server
    allows no ledger, RecorderError for anything else.
    Leaving the `with` block without `stop` closes the recorder's standard input, on which it writes what it
    has and drops its slot.
    """

    def __init__(
        self,
        dsn: str,
        folder: Path,
        name: str = "pgreferee_ledger",
        shard: int = 0,
        shards: int = 1,
        *,
        failover: bool = False,
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "invariants", "record"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C goes to the whole terminal group; the parent decides when the recorder stops.
            start_new_session=True,
        )
        self._changed = threading.Condition()
        self._ready = False
        self._ended: dict[str, Any] | None = None
        self._failures: deque[str] = deque(maxlen=5)
        self.progress: dict[str, Any] = {"transactions": 0, "changes": 0, "violations": 0, "lag_bytes": None}
        self._thread = threading.Thread(target=self._listen, name="recorder", daemon=True)
        self._thread.start()
        try:
            told = {"dsn": dsn, "folder": str(folder), "name": name, "shard": shard, "shards": shards}
            self._tell({**told, "failover": failover})
            self._wait(lambda: self._ready, READY_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def check_alive(self) -> None:
        """Raises RecorderError when it has ended by itself, also where it could say why there is no more to record."""
        if self._over or self._ended is not None:
            raise RecorderError(self._why())

    def stop(self, until: str | None = None, timeout_s: float = 150.0) -> dict[str, Any]:
        """Let it record up to a position (None: everything committed by now), compare, and end.

        Returns {"complete", "transactions", "changes", "differences", "reason"}. Raises RecorderError.
        """
        self._tell({"until": until})
        self._wait(lambda: self._ended is not None, timeout_s)
        self.close()
        assert self._ended is not None
        return self._ended

    def abandon(self, reason: str, timeout_s: float = 20.0) -> None:
        """The run ends early: have it write what it has, with the reason why there is no more."""
        with contextlib.suppress(RecorderError, ValueError):
            self._tell({"abandon": reason})
        self.close(timeout_s)

    def close(self, timeout_s: float = 20.0) -> None:
        """End it in good order if it still runs: its input is closed. One that does not end in time is
        killed."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join(timeout_s)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> RecorderProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def _tell(self, message: dict[str, object]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RecorderError(self._why()) from None

    def _wait(self, condition: Any, timeout_s: float) -> None:
        with self._changed:
            reached = self._changed.wait_for(lambda: condition() or self._over, timeout_s)
            if condition():
                return
        if self._failures and self._unavailable:
            raise LedgerUnavailable(self._failures[-1])
        raise RecorderError(
            self._why() if reached else f"the recorder did not answer within {timeout_s:.0f} s"
        )

    _over = False
    _unavailable = False

    def _why(self) -> str:
        if self._ended is not None and self._ended["reason"] is not None:
            return str(self._ended["reason"])
        return self._failures[-1] if self._failures else "the recorder ended without a word"

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = msgspec.json.decode(line)
            with self._changed:
                event = message.pop("event")
                if event == "ready":
                    self._ready = True
                elif event == "progress":
                    self.progress = message
                elif event == "done":
                    self._ended = message
                    self.progress |= {k: message[k] for k in ("transactions", "changes")}
                else:
                    self._failures.append(message["error"])
                    self._unavailable = message["usage"]
                self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()
