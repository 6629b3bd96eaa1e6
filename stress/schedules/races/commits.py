"""Versions, first saves, traces, markers and listings of the store (docs/findings.md, "The store")."""

from stress.schedules.executions import (
    append_trace,
    ask_processed,
    commit,
    list_executions,
    load,
    load_for_event,
)
from stress.schedules.race import Race

RACES = (
    Race(
        name="two-writers",
        summary="two writers and a batch commit what they loaded at one version",
        setup=(commit("e"),),
        sessions={
            "state": (commit("e"),),
            "effects": (commit("e", emits=("g",), trace=True), load("e")),
            "batch": (commit("e", "f"),),
        },
        stops=("state", "effects"),
        invariants=("cas-chain", "conflict-typed", "commit-atomic"),
        covers=(
            ("commit state", "commit complex"),
            ("commit state", "commit many"),
            ("commit complex", "commit many"),
        ),
    ),
    Race(
        name="first-save-twice",
        summary="an execution that is not there is saved by two, with effects and without",
        sessions={"effects": (commit("e", emits=("g",), trace=True),), "state": (commit("e"),)},
        invariants=("cas-chain", "conflict-typed"),
        covers=(("first save", "first save"),),
    ),
    Race(
        name="batches-save-in-opposite-orders",
        summary="two batches save the same new executions, and commit one that is there, in opposite orders",
        setup=(commit("b"),),
        sessions={"forth": (commit("a", "b", "c"),), "back": (commit("c", "b", "a"),)},
        invariants=("no-deadlock", "cas-chain", "conflict-typed"),
        covers=(("commit many", "commit many"),),
    ),
    Race(
        name="appenders-before-the-first-save",
        summary="two steps and the first save, with its own, meet before there is a row to lock",
        sessions={
            "one": (append_trace("e"),),
            "two": (append_trace("e"),),
            "saver": (commit("e", trace=True),),
        },
        stops=("one", "saver"),
        invariants=("trace-ring", "commit-atomic"),
        covers=(("append trace", "append trace"), ("append trace", "commit complex")),
    ),
    Race(
        name="steps-meet",
        summary="a commit's step and one outside of a commit meet at a trace's last index, the ring full",
        setup=(commit("e", trace=True), append_trace("e")),
        sessions={"commits": (commit("e", trace=True),), "appends": (append_trace("e"), append_trace("e"))},
        invariants=("trace-ring", "commit-atomic"),
        covers=(("append trace", "commit complex"), ("append trace", "append trace")),
    ),
    Race(
        name="event-redelivered",
        summary="an event is processed by two, of whom one asked before it loaded",
        setup=(commit("e"),),
        sessions={
            "asks": (ask_processed("e", "x"), load("e"), commit("e", event="x")),
            "loads": (load_for_event("e", "x"), commit("e", event="x", emits=("g",))),
        },
        invariants=("effect-once", "conflict-typed"),
        covers=(("commit state", "load for event"), ("commit state", "commit complex")),
    ),
    Race(
        name="listed-while-saved",
        summary="executions are saved before and behind the page that a listing has come to",
        setup=(commit("b"), commit("c")),
        sessions={"lists": (list_executions(),), "saves": (commit("a"), commit("d"))},
        stops=("lists",),
        invariants=("listing-complete",),
        covers=(("first save", "list page"),),
    ),
)
