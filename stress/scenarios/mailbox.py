"""A machine that waits for signals in rounds, and the conversation that a client has with it.

The state is `{"rounds": [count, …], "sum": int, "waited": bool}`. In each round the machine waits until its inbox holds
as many signals of the round's name as the count says, folds what they carry into the sum, and goes on. The name of a
round is its place from the end, so a round is never mistaken for another.

1. The first wait of a round may run out of time; the machine then waits again, without a limit. So time-outs occur, and
   the end does not depend on them.
2. A round of several signals parks again beside signals that it has seen and not consumed.
3. A signal that arrives early waits in the inbox; noise, of names that nobody awaits, stays until the end.

The result is a function of what the client sent: a signal lost, or taken twice, changes it or keeps the machine parked.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from engine.machine import Await, Done, Machine, Next, Outcome, Step
from engine.picker import Job
from stress.scenarios.scenario import Converse, Planned, Send

MODULUS = 2**31 - 1
ROUNDS = (1, 3)
SIGNALS_PER_ROUND = (1, 1, 2, 3)
TIMEOUT_MS = 40.0
NOISE = "noise"
# Some clients let their machine wait past its time-out.
SHARE_OF_LATE, LATE_MS = 0.1, 4 * TIMEOUT_MS


def fold(total: int, values: int) -> int:
    """One round more."""
    return (total * 31 + values) % MODULUS


def name_of(rounds_left: int) -> str:
    """The name that a round awaits."""
    return f"round-{rounds_left}"


class Mailbox(Machine):
    """See the module."""

    name = "mailbox"

    async def ask(self, step: Step) -> Outcome:
        """Take the round's signals, or wait for more."""
        rounds: list[int] = step.state["rounds"]
        awaited = name_of(len(rounds))
        values = [signal.payload["n"] for signal in step.signals if signal.name == awaited]
        if len(values) < rounds[0]:
            first = not step.state["waited"]
            return Await(
                awaited,
                state={**step.state, "waited": True},
                timeout_ms=TIMEOUT_MS if first and rounds[0] % 2 else None,
            )
        total = fold(step.state["sum"], sum(values))
        if len(rounds) == 1:
            return Done({"sum": total})
        # Signals that came before this step awaited them are not consumed; no later round looks at them.
        return Next("ask", {"rounds": rounds[1:], "sum": total, "waited": False})


def conversation(random: Random, queue: str = "default") -> Converse:
    """A job, and all that is sent to it: every round's signals, some of them several times, and some noise."""
    identity = f"mail-{random.getrandbits(64):016x}"
    rounds = [random.choice(SIGNALS_PER_ROUND) for _ in range(random.randint(*ROUNDS))]
    sends: list[Send] = []
    total = 1
    for place, count in enumerate(rounds):
        values = [random.randrange(1000) for _ in range(count)]
        total = fold(total, sum(values))
        name = name_of(len(rounds) - place)
        sends += [
            Send(name, {"n": n}, f"{name}/{number}", random.random() < 0.5, random.choice((1, 1, 1, 2, 3)))
            for number, n in enumerate(values)
        ]
    if random.random() < 0.3:
        sends.append(Send(NOISE, {"n": 1}, None, False))
    if random.random() < 0.4:
        random.shuffle(sends)
    if random.random() < SHARE_OF_LATE:
        sends[0] = replace(sends[0], pause_ms=LATE_MS)
    state: dict[str, Any] = {"rounds": rounds, "sum": 1, "waited": False}
    job = Job(fsm=Mailbox.name, step="ask", state=state, queue=queue, correlation_key=identity)
    needs = tuple(send.dedup for send in sends if send.dedup is not None)
    return Converse(Planned(job, "done", {"sum": total}, needs), tuple(sends))
