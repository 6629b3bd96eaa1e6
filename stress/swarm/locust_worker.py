"""A Locust worker: `python -m stress.swarm.locust_worker`, configured over standard input."""

from __future__ import annotations

# Locust first: it patches the standard library for gevent, and what is imported before it would not be cooperative.
import locust  # isort: skip
import os
import sys
from pathlib import Path

import gevent
import gevent.os
from invariants.history import Recorder
from locust.env import Environment

from stress.scenarios import SCENARIOS
from stress.swarm.child import receive_config
from stress.swarm.clients import Clients, ClientUser
from stress.swarm.configs import ClientsConfig
from stress.swarm.locust_master import LOOPBACK
from stress.swarm.mutation import picker_for


def main() -> None:
    """Entry point."""
    config = receive_config(ClientsConfig)
    gevent.spawn(_lifeline)
    with Recorder(Path(config.history), f"client-{config.number}") as recorder:
        ClientUser.shared = Clients(config, SCENARIOS[config.scenario], picker_for(config.mutant), recorder)
        environment = Environment(user_classes=[ClientUser], events=locust.events)
        runner = environment.create_worker_runner(LOOPBACK, config.master_port)
        runner.greenlet.join()


def _lifeline() -> None:
    while gevent.os.tp_read(sys.stdin.fileno(), 1):
        pass
    os._exit(3)


if __name__ == "__main__":
    main()
