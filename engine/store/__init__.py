"""The store: versioned executions with compare-and-set, outbox, dedupe, timers, spawns and trace (store.md)."""
