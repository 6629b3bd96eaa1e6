"""Where the messages of Postgres's protocol begin and end: enough to see a COMMIT go by, and its answer. Pure.

Both directions are sequences of messages, a type byte and a length that counts itself; the client's first message has
no type byte. An encrypted connection shows none of this: whoever wants to be seen connects with `sslmode=disable` and
`gssencmode=disable`.
"""

from __future__ import annotations

READY = ord("Z")
_QUERY, _PARSE, _EXECUTE = ord("Q"), ord("P"), ord("E")
# A message longer than that is no COMMIT, and is passed over unread.
_KEPT = 64


class Messages:
    """One direction of one connection. `startup`: the first message has no type byte."""

    def __init__(self, *, startup: bool) -> None:
        self._head = b""
        self._untyped = startup
        self._body = b""
        self._left = 0
        self._type = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The messages that end in `data`, as type and the beginning of the body; type 0 for the untyped."""
        found: list[tuple[int, bytes]] = []
        at = 0
        while at < len(data):
            if self._left == 0:
                size = 4 if self._untyped else 5
                taken = data[at : at + size - len(self._head)]
                self._head += taken
                at += len(taken)
                if len(self._head) < size:
                    break
                self._type = 0 if self._untyped else self._head[0]
                self._left = max(0, int.from_bytes(self._head[-4:], "big") - 4)
                self._head, self._untyped, self._body = b"", False, b""
            else:
                taken = data[at : at + self._left]
                if len(self._body) < _KEPT:
                    self._body += taken[: _KEPT - len(self._body)]
                at += len(taken)
                self._left -= len(taken)
            if self._left == 0:
                found.append((self._type, self._body))
        return found


def is_commit(message: tuple[int, bytes]) -> bool:
    """Whether a client's message is a COMMIT, simple or extended, prepared under no name."""
    kind, body = message
    text = body.removeprefix(b"\0") if kind == _PARSE else body
    return kind in (_QUERY, _PARSE) and text.upper().startswith(b"COMMIT\0")


def is_execute(message: tuple[int, bytes]) -> bool:
    """Whether a client's message has a statement with parameters done."""
    return message[0] == _EXECUTE


def is_idle(message: tuple[int, bytes]) -> bool:
    """Whether a server's message says that it is ready, and in no transaction."""
    return message == (READY, b"I")
