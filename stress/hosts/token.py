"""The token that the master and the workers of a run share, and the key that follows from it.

1. The master tells workers how to log in to its database. So it speaks only over CurveZMQ, which encrypts and
   authenticates: its long-term key is derived from the token, and nobody completes a handshake, nor reads a byte, who
   does not have that key. It never goes over the wire.
2. Whoever has the token can be a worker, and a master: it lets in to the throw-away database, and has the project's own
   processes started. It is worth as much as that.
3. A token is given by a variable of the environment or by a file, never as an argument, which others can see.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import zmq
from zmq.utils import z85

from engine.errors import UsageError

VARIABLE: Final = "PGREFEREE_TOKEN"
# What cannot be guessed, and what is no file taken by mistake.
SHORTEST, LONGEST = 16, 4_096


def new_token() -> str:
    """192 random bits in 32 characters."""
    return secrets.token_urlsafe(24)


def given_token(file: Path | None) -> str | None:
    """The token in that file, else in the variable; None where neither is given. Raises UsageError."""
    if file is None:
        text, where = os.environ.get(VARIABLE), VARIABLE
    else:
        where = str(file)
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the token cannot be read from {file}: {type(error).__name__}") from None
    if text is None:
        return None
    token = text.strip()
    if not SHORTEST <= len(token) <= LONGEST:
        raise UsageError(f"the token in {where} must have {SHORTEST} to {LONGEST:,} characters")
    return token


@dataclass(frozen=True, slots=True)
class Key:
    """A master's pair of keys, as Z85 text."""

    public: bytes = field(repr=False)
    secret: bytes = field(repr=False)

    @classmethod
    def of(cls, token: str) -> Key:
        """Takes a twentieth of a second, which makes guessing tokens dear."""
        raw = hashlib.scrypt(token.encode(), salt=b"pgreferee master", n=2**14, r=8, p=1, dklen=32)
        secret = z85.encode(raw)
        return cls(zmq.curve_public(secret), secret)

    def guard_server(self, socket: zmq.Socket[Any]) -> None:
        """Let none in who has not the token. Before it is bound."""
        socket.curve_server = True
        socket.curve_secretkey = self.secret
        socket.curve_publickey = self.public

    def guard_client(self, socket: zmq.Socket[Any]) -> None:
        """Speak to none who has not the token. Before it is connected."""
        socket.curve_serverkey = self.public
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
