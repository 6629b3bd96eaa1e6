"""Locust's own web page beside a running swarm, with the state of the invariants in tabs of it: `--ui`.

It shows and changes nothing. It listens on loopback, answers what is addressed to loopback by a page of its own or by
none, and takes no order: a swarm that somebody stops from a browser would not be the run that was asked for. What it
knows of the run comes from the runner (`Live`), which sends no DSN.
"""

from __future__ import annotations

# Locust first: it patches the standard library for gevent, and what is imported before it would not be cooperative.
import locust  # noqa: F401  # isort: skip
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from flask import Response, abort, request
from locust.env import Environment

from stress.swarm.configs import Live

LOOPBACK: Final = "127.0.0.1"
OURS: Final = (LOOPBACK, "localhost")
# What the page asks for again and again.
POLLED: Final = "/stats/requests"
INVARIANTS, RUN = "invariants", "run"
_TABLES: Final = (
    {
        "key": INVARIANTS,
        "structure": [
            {"key": "invariant", "title": "Invariant"},
            {"key": "state", "title": "So far"},
            {"key": "checked", "title": "Checked"},
            {"key": "violated", "title": "Violations"},
        ],
    },
    {"key": RUN, "structure": [{"key": "what", "title": "Run"}, {"key": "now", "title": "Now"}]},
)


def serve(environment: Environment, port: int, latest: Callable[[], Live]) -> None:
    """Open the page, in a greenlet of its own; it lasts as long as the process."""
    # The routes and tabs come before the first request.
    web_ui = environment.create_web_ui(LOOPBACK, port, delayed_start=True)
    app = web_ui.app
    assert app is not None
    web_ui.template_args |= {
        "extended_tabs": [
            {"title": "Invariants", "key": INVARIANTS},
            {"title": "Run", "key": RUN},
        ],
        "extended_tables": list(_TABLES),
        "extended_csv_files": [],
    }

    @app.before_request
    def _only_look() -> None:
        origin = request.headers.get("Origin")
        hosts = [urlsplit(f"//{request.host}").hostname]
        hosts += [] if origin is None else [urlsplit(origin).hostname]
        if any(host not in OURS for host in hosts):
            abort(403, "this page is for this machine only")
        if request.method not in ("GET", "HEAD"):
            abort(403, "this page only shows; the run ends by itself, or by Ctrl-C where it was started")

    @app.after_request
    def _with_ours(response: Response) -> Response:
        response.headers["Cache-Control"] = "no-store"
        if request.path == POLLED and response.is_json:
            told = {**(response.json or {}), "extended_stats": tables(latest())}
            response.set_data(msgspec.json.encode(told))
        return response

    @app.route("/live")
    def _live() -> Response:
        return Response(msgspec.json.encode(latest()), mimetype="application/json")

    web_ui.start()  # type: ignore[no-untyped-call]


def tables(live: Live) -> list[dict[str, Any]]:
    """The rows of both tabs, the violated first. Pure."""
    rules = sorted(live.invariants.items(), key=lambda entry: (-entry[1][1], not entry[1][0], entry[0]))
    invariants = [
        {"invariant": name, "state": state(checked, violated), "checked": checked, "violated": violated}
        for name, (checked, violated) in rules
    ]
    run = {
        "phase": live.phase,
        "load": f"{live.seconds:.0f} of {live.of_seconds:.0f} s",
        "nodes": f"{live.nodes} of {live.of_nodes}",
        "faults in force": ", ".join(live.faults) or "none",
        "waiting in the queues": f"{live.waiting:,}",
        "transactions judged": f"{live.transactions:,}",
        "violations": f"{live.violations:,}",
    }
    return [
        {"key": INVARIANTS, "data": invariants},
        {"key": RUN, "data": [{"what": what, "now": now} for what, now in run.items()]},
    ]


def state(checked: int, violated: int) -> str:
    """Of one invariant while the run goes on: what rests on the histories is judged at the end."""
    return "violated" if violated else "held so far" if checked else "nothing yet, or judged at the end"
