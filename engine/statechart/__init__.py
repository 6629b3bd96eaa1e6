"""Statecharts on the store: charts as data, a pure step, and the worker that runs them."""

from engine.statechart.chart import Chart, Go, InvalidChart, Scope, State
from engine.statechart.step import Effects, began, start_event, step

__all__ = ["Chart", "Effects", "Go", "InvalidChart", "Scope", "State", "began", "start_event", "step"]
