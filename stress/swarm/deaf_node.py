"""A node to which no notification gets through."""

from __future__ import annotations

from typing_extensions import override

from engine.node import Node


class DeafNode(Node):
    """Listens as any node with pokes does, counts each notification as `poke_dropped`, and does nothing about it. What
    it does by itself (an outcome that left its row runnable, a row that it reaped) it still knows."""

    @override
    def _heard(self, queue: str | None) -> None:
        if queue is not None:
            self._observer.count("poke_dropped")
