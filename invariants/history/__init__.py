"""The history: what every process saw, as operations that begin (`invoke`) and end (`ok`, `fail` or `info`).

`events` is the file each process appends to and its recorder, `operations` pairs and merges them, `export`
writes one columnar file, JSON for `elle-cli`, and figures.
"""

from invariants.history.events import Event, HistoryError, Recorder, read_events
from invariants.history.operations import Operation, merge, merge_folder

__all__ = ["Event", "HistoryError", "Operation", "Recorder", "merge", "merge_folder", "read_events"]
