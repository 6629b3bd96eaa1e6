"""Canonical JSON: one text for all values that are equal as `jsonb` sees them."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import lru_cache


def canonical_json(value: object) -> str:
    """One text for all JSON values that are equal as JSON: keys sorted, numbers by value, true apart from 1.

    Takes what `json.loads` gives, with floats as float or Decimal. A float counts as the shortest decimal that names
    it, which is what is written into JSON: jsonb keeps decimals, and has no negative zero.
    """
    match value:
        case None | bool() | str():
            return repr(value)
        case int() | float() | Decimal():
            return _canonical_number(value)
        case dict():
            return "{" + ",".join(f"{key!r}:{canonical_json(value[key])}" for key in sorted(value)) + "}"
        case list() | tuple():
            return "[" + ",".join(map(canonical_json, value)) + "]"
        case _:
            raise TypeError(f"{type(value).__name__} is not a JSON value")


@lru_cache(maxsize=4096)
def canonical_text(text: str) -> str:
    """`canonical_json` of the value that a JSON text tells, numbers taken digit by digit."""
    return canonical_json(json.loads(text, parse_float=Decimal, parse_int=Decimal))


def _canonical_number(value: int | float | Decimal) -> str:
    sign, digits, exponent = (
        value
        if isinstance(value, Decimal)
        else Decimal(repr(float(value)) if isinstance(value, float) else value)
    ).as_tuple()
    assert isinstance(exponent, int), "JSON has no infinite numbers"
    mantissa = "".join(map(str, digits)).lstrip("0")
    stripped = mantissa.rstrip("0")
    exponent += len(mantissa) - len(stripped)
    return f"{'-' if sign else ''}{stripped}e{exponent}" if stripped else "0"
