"""A Locust worker: `python -m stress.swarm.locust_worker`, configured over standard input."""

from __future__ import annotations

# Locust first: it patches the standard library for gevent, and what is imported before it would not be cooperative.
import locust  # isort: skip
import os
import sys
from pathlib import Path

import gevent
import gevent.os
import locust.runners
from locust.env import Environment

from invariants.history import Recorder
from stress.scenarios import SCENARIOS
from stress.swarm.child import receive_config
from stress.swarm.clients import Clients, user_class
from stress.swarm.configs import ClientsConfig
from stress.swarm.guard import guard_locust

# Workers tell the master once a second, so that the display moves.
REPORT_INTERVAL_S = 1
# A user that is told to stop ends its call first.
STOP_TIMEOUT_S = 5.0


def main() -> None:
    """Entry point."""
    config = receive_config(ClientsConfig)
    gevent.spawn(_lifeline)
    locust.runners.WORKER_REPORT_INTERVAL = REPORT_INTERVAL_S
    with Recorder(Path(config.history), f"client-{config.number}") as recorder:
        scenario = SCENARIOS[config.scenario]
        user = user_class(scenario.subject)
        user.shared = Clients(config, scenario, recorder)
        environment = Environment(user_classes=[user], events=locust.events, stop_timeout=STOP_TIMEOUT_S)
        guard_locust(config.token, server=False)
        runner = environment.create_worker_runner(config.master_host, config.master_port)
        runner.greenlet.join()


def _lifeline() -> None:
    while gevent.os.tp_read(sys.stdin.fileno(), 1):
        pass
    os._exit(3)


if __name__ == "__main__":
    main()
