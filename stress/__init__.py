"""Trying to make it happen: swarms, faults, scenarios, and the subjects they are run against."""
