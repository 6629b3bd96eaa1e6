"""More than one machine: a master that owns database, faults, records and verdict, and workers that run processes.

`master` is the one end and `worker` the other; `messages` is what they say to each other, `token` what keeps others
out. docs/hosts.md is for those who set it up.
"""
