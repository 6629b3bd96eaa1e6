"""The charts of the scenario `statechart`: parcels that wait, fork and join, and hubs that count them.

A parcel is packed (a timer that an event may outrun), sorted (a fork of two regions, one by a timer, one by an event to
itself), reported to its hub, and collected by an event or, at last, by a timer. A hub is told by all of its parcels and
ends with the last: it never ends where a report is lost, and ends too early where one counts twice.
"""

from __future__ import annotations

from engine.statechart import Chart, Go, Scope, State

PACKING_S, WEIGHING_S, WAITING_S = 0.15, 0.05, 0.3


def _count(name: str, scope: Scope) -> None:
    scope.context[name] = scope.context.get(name, 0) + 1


def _pack(scope: Scope) -> None:
    _count("packed", scope)


def _report(scope: Scope) -> None:
    # One that is lost after it has reported is not counted twice.
    if not scope.context.get("reported"):
        scope.context["reported"] = True
        scope.emit(scope.context["hub"], "arrived", {"parcel": scope.execution_id})


def _print(scope: Scope) -> None:
    scope.emit(scope.execution_id, "printed")


def _weigh(scope: Scope) -> None:
    scope.context["result"] = len(scope.context.get("label", "")) + 1


def _arrived(scope: Scope) -> None:
    _count("arrivals", scope)
    scope.context.setdefault("parcels", []).append(scope.event.payload["parcel"])


def _is_last(scope: Scope) -> bool:
    return bool(scope.context.get("arrivals", 0) + 1 == scope.context["expected"])


PARCEL = Chart(
    "parcel",
    State(
        "parcel",
        initial="packing",
        on={"lose": Go("lost")},
        states=(
            State(
                "packing",
                entry=_pack,
                after=Go("../sorting", delay_s=PACKING_S),
                on={"rush": Go("../sorting"), "repack": Go("../packing")},
            ),
            State(
                "sorting",
                regions=(
                    State(
                        "weigh",
                        initial="on-scale",
                        states=(
                            State("on-scale", after=Go("../weighed", do=_weigh, delay_s=WEIGHING_S)),
                            State("weighed", final=True),
                        ),
                    ),
                    State(
                        "label",
                        initial="printing",
                        states=(
                            State("printing", entry=_print, on={"printed": Go("../labelled")}),
                            State("labelled", final=True),
                        ),
                    ),
                ),
                joined=Go("../waiting"),
            ),
            State(
                "waiting",
                entry=_report,
                after=Go("../returned", delay_s=WAITING_S),
                on={"collect": Go("../collected")},
            ),
            State("lost", entry=_report, final=True, outcome="lost"),
            State("collected", final=True),
            State("returned", final=True),
        ),
    ),
)

HUB = Chart(
    "hub",
    State(
        "hub",
        initial="open",
        states=(
            State(
                "open", on={"arrived": Go("../counting", do=_arrived, when=lambda scope: not _is_last(scope))}
            ),
            State("counting", on={"arrived": Go(None, do=_arrived, when=lambda scope: not _is_last(scope))}),
            State("full", final=True),
        ),
        on={"arrived": Go("full", do=_arrived)},
    ),
)

CHARTS = (PARCEL, HUB)
