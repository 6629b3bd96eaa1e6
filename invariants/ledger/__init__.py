"""The ledger: every row change of every transaction, in commit order, as the write-ahead log tells it.

`pgoutput` decodes the wire form, `state` replays it into tables, `frames` is the file in a run's folder,
`reader` is the streaming connection, `recorder` the process that owns one.
"""
