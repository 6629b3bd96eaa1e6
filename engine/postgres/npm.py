from __future__ import annotations

from engine.errors import InfrastructureError
from engine.postgres.accounts import Account
from engine.postgres.binaries import Installation


def installation(major: int, account: Account) -> Installation:
    raise InfrastructureError("npm: not yet")
