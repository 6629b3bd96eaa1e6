"""Group commit: the outcomes of many steps become durable in one transaction (picker.md §4).

A worker submits its outcome and waits until it is settled. A flush starts when `max_batch` outcomes wait, or
`max_delay_ms` after the first; while one flush runs, the next batch grows. One bad outcome harms no other: a batch that
the server refuses, or that is too much to be sent, is halved until the culprit stands alone, and that one becomes a
failure of its own step. One that has to wait, because a child's identity stands in a stranger's open transaction, is
set aside and tried again by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import psycopg

from engine.limits import Limiter, Slot
from engine.observer import Observer
from engine.picker import Commit, Ended, Hold, Picker
from engine.sessions import OutcomeUnknown, Sessions, Unavailable
from engine.values import TooLarge

# `refused`: what committed is a failure, in the place of an outcome that the server would not take.
Settled = Literal["committed", "stale", "abandoned", "refused"]

RETRY_PAUSE_S = 0.1


class Settlement(Protocol):
    """Is told what became of an outcome, once; a future is one."""

    def done(self) -> bool:
        """Whether nobody waits to be told any more."""

    def set_result(self, settled: Settled, /) -> None:
        """It is settled."""

    def set_exception(self, error: BaseException, /) -> None:
        """The flusher failed."""


Entry = tuple[Commit, Settlement]


def is_about_the_value(error: psycopg.OperationalError) -> bool:
    """Whether the server refused what was sent: too deep or too large (class 54). A cancel, a lock time-out, a full
    disk or a deadlock are about the moment."""
    return (error.sqlstate or "").startswith("54")


class Flusher:
    """One serial line of flushes. `give_up_ms`: how long a batch is retried while no server can be reached.

    After a commit, once for the batch: freed gate slots are credited, `woken` is told each queue that has new work, and
    only then the workers go on. Who dies in between leaks a slot to the reconciler; none is given twice.
    """

    def __init__(
        self,
        sessions: Sessions,
        picker: Picker,
        observer: Observer,
        *,
        max_batch: int,
        max_delay_ms: float,
        give_up_ms: float,
        committed: Callable[[Commit], None],
        woken: Callable[[str], None] | None = None,
        limiter: Limiter | None = None,
    ) -> None:
        self._sessions = sessions
        self._picker = picker
        self._observer = observer
        self._max_batch = max_batch
        self._max_delay_s = max_delay_ms / 1000
        self._give_up_s = give_up_ms / 1000
        self._committed = committed
        self._woken = woken
        self._limiter = limiter
        self._waiting: list[Entry] = []
        self._arrived = asyncio.Event()
        self._full = asyncio.Event()
        self._aside: set[asyncio.Task[None]] = set()
        # One session at a time for all that are set aside: the pool is for those who go on.
        self._one_aside = asyncio.Semaphore(1)

    async def submit(self, commit: Commit) -> Settled:
        """Wait until the outcome is settled: committed, stale, or abandoned to the reaper."""
        settled: asyncio.Future[Settled] = asyncio.get_running_loop().create_future()
        self.hand_over(commit, settled)
        return await settled

    def hand_over(self, commit: Commit, settled: Settlement) -> None:
        """Queue the outcome, without waiting; `settled` is told."""
        self._waiting.append((commit, settled))
        self._arrived.set()
        if len(self._waiting) >= self._max_batch:
            self._full.set()

    async def run(self) -> None:
        """Flush until cancelled."""
        try:
            await self._run()
        finally:
            for task in self._aside:
                task.cancel()

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            if len(self._waiting) < self._max_batch and self._max_delay_s > 0:
                try:
                    await asyncio.wait_for(self._full.wait(), self._max_delay_s)
                except TimeoutError:
                    pass
            batch, self._waiting = self._waiting[: self._max_batch], self._waiting[self._max_batch :]
            if not self._waiting:
                self._arrived.clear()
            if len(self._waiting) < self._max_batch:
                self._full.clear()
            await self._settle(batch)

    async def _settle(self, batch: Sequence[Entry]) -> None:
        try:
            ended = await self._send([commit for commit, _ in batch])
        except psycopg.errors.LockNotAvailable:
            await self._set_aside(batch)
            return
        except (psycopg.Error, TooLarge) as error:
            await self._divide(batch, error)
            return
        except TimeoutError:
            self._finish(batch, "abandoned")
            return
        await self._conclude(batch, ended)

    async def _conclude(self, batch: Sequence[Entry], ended: Ended) -> None:
        committed = set(ended.holds)
        if ended.freed:
            assert ended.xid is not None
            await self.credit(ended.freed, ended.xid)
        if self._woken is not None:
            for queue in ended.woken:
                self._woken(queue)
        for commit, settled in batch:
            won = Hold(commit.id, commit.claim) in committed
            if won:
                self._committed(commit)
            else:
                self._observer.count("stale")
            if not settled.done():
                settled.set_result("committed" if won else "stale")

    async def _set_aside(self, batch: Sequence[Entry]) -> None:
        """Settle what does not spawn, and find out which of the rest have to wait."""
        spawning = [entry for entry in batch if entry[0].children]
        if len(spawning) < len(batch):
            await self._settle([entry for entry in batch if not entry[0].children])
        if len(spawning) > 1:
            middle = len(spawning) // 2
            await self._settle(spawning[:middle])
            await self._settle(spawning[middle:])
        else:
            self._observer.count("set_aside")
            [(_, settled)] = spawning

            def ended(task: asyncio.Task[None]) -> None:
                self._aside.discard(task)
                if not task.cancelled() and (error := task.exception()) and not settled.done():
                    settled.set_exception(error)

            task = asyncio.create_task(self._try_again(spawning))
            self._aside.add(task)
            task.add_done_callback(ended)

    async def _try_again(self, alone: Sequence[Entry]) -> None:
        try:
            async with asyncio.timeout(self._give_up_s):
                ended = await self._send_alone([commit for commit, _ in alone])
        except TimeoutError:
            self._finish(alone, "abandoned")
        except (psycopg.Error, TooLarge) as error:
            await self._divide(alone, error)
        else:
            await self._conclude(alone, ended)

    async def _send_alone(self, commits: list[Commit]) -> Ended:
        while True:
            async with self._one_aside:
                try:
                    return await self._send(commits)
                except psycopg.errors.LockNotAvailable:
                    self._observer.count("contended")
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _send(self, commits: list[Commit]) -> Ended:
        """Flush once, or again for as long as the connection or the moment is at fault, not the batch.

        Sending again after an unknown outcome is safe: what the first transaction committed no longer executes under
        its claim and turn, so the second finds it stale.
        """
        async with asyncio.timeout(self._give_up_s):
            while True:
                try:
                    return await self._sessions.run(
                        "flush",
                        {
                            "outcomes": [[c.id, c.claim, c.kind] for c in commits],
                            "turns": [c.turn for c in commits],
                        },
                        self._picker.flush(commits),
                        lambda ended: {
                            "xid": ended.xid,
                            "committed": [[hold.id, hold.claim] for hold in ended.holds],
                        },
                    )
                except (OutcomeUnknown, Unavailable, psycopg.errors.ReadOnlySqlTransaction):
                    # A standby that will be promoted, or is not the server any more, has nothing against the values.
                    self._observer.count("reconnect")
                except psycopg.OperationalError as error:
                    waited = isinstance(error, psycopg.errors.LockNotAvailable)
                    if is_about_the_value(error) or (waited and any(commit.children for commit in commits)):
                        raise
                    self._observer.count("contended")
                await asyncio.sleep(RETRY_PAUSE_S)

    async def _divide(self, batch: Sequence[Entry], error: Exception) -> None:
        if len(batch) > 1:
            middle = len(batch) // 2
            await self._settle(batch[:middle])
            await self._settle(batch[middle:])
            return
        [(commit, settled)] = batch
        self._observer.count("refused")
        if commit.kind == "stop":
            self._finish(batch, "abandoned")
            return
        refusal = f"the server refused the outcome: {type(error).__name__}"
        stop = Commit(id=commit.id, claim=commit.claim, turn=commit.turn, kind="stop", error=refusal)
        replaced: asyncio.Future[Settled] = asyncio.get_running_loop().create_future()
        await self._settle([(stop, replaced)])
        if not settled.done():
            settled.set_result("refused" if replaced.result() == "committed" else replaced.result())

    async def credit(self, slots: Sequence[Slot], freed_by: int) -> None:
        """Give gate slots back, after the commit that freed them."""
        if self._limiter is None or freed_by is None:
            return
        try:
            await self._sessions.run(
                "credit",
                {"slots": [[slot.key, slot.shard] for slot in slots], "freed_by": freed_by},
                self._limiter.credit(slots, freed_by),
                lambda _: {},
            )
        except (OutcomeUnknown, Unavailable, psycopg.Error):
            # Sent again it might be given twice; the reconciler counts what executes.
            self._observer.count("credit_failed", len(slots))

    def _finish(self, batch: Sequence[Entry], verdict: Settled) -> None:
        for _, settled in batch:
            self._observer.count(verdict)
            if not settled.done():
                settled.set_result(verdict)
