"""The relay of one database among several: what is in its outbox goes to whichever database the target lives in.

Rules:

1. A database's outbox and spawns have one relay at a time: who has its turn (`relay/turn`). Two would deliver each row
   twice; with turns a row is delivered again only where its relay was lost between delivery and acknowledgement.
2. A turn is a transaction that holds an advisory lock, and nothing else: no row, no snapshot. It ends with the batch,
   with the process, or with the server's patience, so who dies or is frozen keeps it from nobody.
3. Who has lost a turn does not know and goes on. Delivery stays at least once and in order all the same, by the rules
   of `engine.relay.store_relay`: the turn spares work, and nothing relies on it.
4. Any execution may emit to a child that another has forked, so whether a target is still to be made is asked of all
   databases: while one is away, what has a target waits.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.observer import Observer
from engine.relay.handover import Handover
from engine.relay.polling import Polling
from engine.relay.relay import Service
from engine.relay.store_relay import AsyncStoreRelay, Transport
from engine.store.sharded import AsyncShardedStore


class AsyncRelayAcross(Service):
    """Makes the children and delivers the events of the database at `place` of a store's. Use it with `async with`.

    `dsn` is that database's. `across`: what relays in a turn, for tests that break it. Counted: `turn_lost` where the
    server has ended a turn that its holder was still at.
    """

    def __init__(
        self,
        dsn: str,
        place: int,
        store: AsyncShardedStore,
        transport: Transport,
        *,
        polling: Polling | None = None,
        observer: Observer | None = None,
        handover: Handover | None = None,
        across: Callable[..., AsyncStoreRelay] = AsyncStoreRelay,
    ) -> None:
        super().__init__(dsn, name="pgreferee relay", observer=observer, handover=handover, polling=polling)
        self._relay = across(store, transport, source=store.shards[place], observer=self._observer)

    async def tick(self) -> int:
        """One batch of children and one of events, where the turn can be had. Returns how much was done."""
        async with self._sessions.within("relay.turn", self._handover.turn(), "turn_lost") as mine:
            if not mine:
                return 0
            return await self._relay.spawn() + await self._relay.deliver()
