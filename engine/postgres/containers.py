from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from engine.errors import InfrastructureError


@contextmanager
def started(image: str, settings: Mapping[str, str]) -> Iterator[Any]:
    raise InfrastructureError("containers: not yet")
    yield
