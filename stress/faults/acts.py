"""What each fault of the plan does."""

from __future__ import annotations

from stress.faults.backends import Cancel, Terminate
from stress.faults.ground import Fault
from stress.faults.network import Partition, Slow
from stress.faults.poison import Poison
from stress.faults.processes import Kill, Pause, Pool, Skew
from stress.faults.server import Crash, Failover, FailoverAsync
from stress.faults.tables import Plan, Stats, Vacuum, Xmin

ACTS: dict[str, type[Fault]] = {
    "kill": Kill,
    "pause": Pause,
    "terminate": Terminate,
    "cancel": Cancel,
    "partition": Partition,
    "slow": Slow,
    "crash": Crash,
    "failover": Failover,
    "failover-async": FailoverAsync,
    "skew": Skew,
    "pool": Pool,
    "vacuum": Vacuum,
    "xmin": Xmin,
    "plan": Plan,
    "stats": Stats,
    "poison": Poison,
}
