"""The relay: what a store's commits have left to be done: deliver events, make children, fire timers (store.md)."""

from engine.relay.across import AsyncRelayAcross
from engine.relay.polling import Polling
from engine.relay.relay import AsyncRelay, AsyncTimerSweeper, Relay, TimerSweeper
from engine.relay.store_relay import AsyncStoreRelay, StoreRelay

__all__ = [
    "AsyncRelay",
    "AsyncRelayAcross",
    "AsyncStoreRelay",
    "AsyncTimerSweeper",
    "Polling",
    "Relay",
    "StoreRelay",
    "TimerSweeper",
]
