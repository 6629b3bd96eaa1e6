"""The Locust master: `python -m stress.swarm.locust_master`, configured over standard input.

It starts the users when all workers are there, reports once a second on standard output, and stops the load when the
stop byte comes. Lines of JSON may come before that byte: the run as it is (`Live`), for the page.
"""

from __future__ import annotations

# Locust first: it patches the standard library for gevent, and what is imported before it would not be cooperative.
import locust  # isort: skip
import os
import sys

import gevent
import gevent.os
import msgspec
from locust.env import Environment
from locust.runners import MasterRunner

from stress.scenarios import SCENARIOS
from stress.swarm.child import STOP_BYTE, receive_config
from stress.swarm.clients import user_class
from stress.swarm.configs import Live, LoadReport, LocustMasterConfig
from stress.swarm.guard import guard_locust

REPORT_INTERVAL_S = 0.5
# A worker that cannot join by then will not.
JOIN_TIMEOUT_S = 100.0


def main() -> None:
    """Entry point."""
    config = receive_config(LocustMasterConfig)
    environment = Environment(
        user_classes=[user_class(SCENARIOS[config.scenario].subject)], events=locust.events
    )
    guard_locust(config.token, server=True)
    runner = environment.create_master_runner(config.bind, config.port)
    told = Told()
    if config.ui is not None:
        from stress.swarm.live import serve

        serve(environment, config.ui, lambda: told.latest)
    stop = gevent.spawn(told.follow)
    gevent.spawn(_report_forever, runner)
    with gevent.Timeout(JOIN_TIMEOUT_S, RuntimeError("the Locust workers did not join in time")):
        while len(runner.clients.ready) < config.workers:
            gevent.sleep(0.05)
    runner.start(config.users, spawn_rate=config.users)
    stop.join()
    runner.quit()
    _report(runner, "ended")
    sys.stdout.flush()


class Told:
    """What the runner says on standard input."""

    def __init__(self) -> None:
        self.latest = Live()

    def follow(self) -> None:
        """Until the stop byte comes; the process ends with its parent."""
        unread = b""
        while True:
            read = gevent.os.tp_read(sys.stdin.fileno(), 65_536)
            if not read:
                os._exit(3)
            *lines, unread = (unread + read).split(b"\n")
            if lines:
                self.latest = msgspec.json.decode(lines[-1], type=Live)
            if unread == STOP_BYTE:
                return


def _report_forever(runner: MasterRunner) -> None:
    while True:
        _report(runner, "running" if runner.user_count else "waiting")
        gevent.sleep(REPORT_INTERVAL_S)


def _report(runner: MasterRunner, phase: str) -> None:
    total = runner.stats.total
    report = LoadReport(
        phase=phase,
        workers=len(runner.clients),
        users=runner.user_count,
        requests=total.num_requests,
        failures=total.num_failures,
    )
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
