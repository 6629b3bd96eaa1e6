"""What may be stored: text that Postgres can hold, and JSON that `jsonb` can hold, checked before it is sent.

A value that the server would refuse must fail where it was made, in the caller's stack, not inside a batch that
carries other people's work.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime

# A btree takes index rows of at most 2,704 bytes of a stock server's 8 kB page, other columns included. Text that
# an index holds ends below that: a longer concurrency key would be inserted well and then fail every claim of its
# queue, for it enters its index only there.
MAX_INDEXED_BYTES = 2_000
# The largest jsonb string and array are bounded by 28-bit lengths; a job's state has no business being near that.
MAX_JSON_BYTES = 64 * 1024 * 1024
# jsonb keeps numbers as numeric, which ends at 131,072 digits before the decimal point.
MAX_NUMBER_DIGITS = 131_072
# What one statement is asked with travels in one message of less than 1 GB, and so must be each array and row that the
# server makes of it. In bytes: as text, in UTF-8, the quotes in an array's elements escaped. Any value that may be
# stored fits alone, were it all quotes.
MAX_SENT_BYTES = 256 * 1024 * 1024
# json.loads and Postgres' stack (max_stack_depth) both recurse; Postgres stops near 6,000 on a stock server.
MAX_JSON_DEPTH = 500

# An odd number of backslashes before u0000 is the escape itself, not a text that shows one.
_NUL_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_LONG_NUMBER = re.compile(rf"\d{{{MAX_NUMBER_DIGITS + 1}}}")

# One encoder, for json.dumps makes one anew for each call with these options.
_encoded = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class UnstorableValue(ValueError):
    """A value that Postgres cannot hold; the message names the field and the reason."""


class TooLarge(UnstorableValue):
    """What would be sent together is too much for one message, whatever each value is."""


def bytes_sent(text: str) -> int:
    """How many bytes a text is as an element of an array that is sent."""
    return len(text.encode()) + text.count('"') + text.count("\\") + len('"",')


def check_text(field: str, value: object) -> str:
    """The same text. Raises UnstorableValue for what is not text, a NUL character or half a surrogate pair.

    A member of an enumeration that is text comes back as that text: drivers and `str` know others for it.
    """
    if not isinstance(value, str):
        raise UnstorableValue(f"{field} must be text, not {type(value).__name__}")
    if "\x00" in value:
        raise UnstorableValue(f"{field} holds a NUL character, which Postgres text cannot hold")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UnstorableValue(f"{field} holds half a surrogate pair, which is not text") from None
    return str.__str__(value)


def check_key(field: str, value: object) -> str:
    """The same text, which an index can hold. Raises UnstorableValue as `check_text`, and for a text too long."""
    text = check_text(field, value)
    if (size := len(text.encode())) > MAX_INDEXED_BYTES:
        raise UnstorableValue(
            f"{field} is {size} bytes long; an index of it holds at most {MAX_INDEXED_BYTES}"
        )
    return text


def check_instant(field: str, value: object) -> datetime:
    """The same instant in UTC. Raises UnstorableValue without a time zone or outside of the years 1 to 9999 there."""
    if not isinstance(value, datetime):
        raise UnstorableValue(f"{field} must be a datetime, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise UnstorableValue(f"{field} must carry a time zone")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise UnstorableValue(f"{field} is {value}, outside of the years 1 to 9999 of UTC") from None


def to_json(field: str, value: object) -> str:
    """JSON text of a value that `jsonb` holds and gives back equal. Raises UnstorableValue otherwise.

    Equal as JSON: a tuple comes back as a list, and a float of 1e16 or more as the integer that its shortest decimal
    names, for jsonb keeps decimals.
    """
    if value is None:
        return "null"
    text = to_json_text(field, value)
    if "\\u0000" in text and _NUL_ESCAPE.search(text):
        raise UnstorableValue(f"{field} holds a NUL character, which jsonb cannot hold")
    if len(text) > MAX_NUMBER_DIGITS and _LONG_NUMBER.search(text) and _has_long_number(value):
        raise UnstorableValue(f"{field} holds a number of more than {MAX_NUMBER_DIGITS} digits")
    return text


def to_json_text(field: str, value: object, levels: int = MAX_JSON_DEPTH) -> str:
    """JSON text of a value that a `text` column gives back equal, NUL characters and all.

    Raises UnstorableValue for what JSON cannot express, and what is too big or nests more than `levels` deep. A tuple
    comes back as a list.
    """
    try:
        text = _encoded(value)
        size = len(text.encode())
    except UnicodeEncodeError:
        raise UnstorableValue(f"{field} holds half a surrogate pair, which is not text") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise UnstorableValue(f"{field} cannot be written as JSON: {error}") from None
    if size > MAX_JSON_BYTES:
        raise UnstorableValue(f"{field} is {size} bytes of JSON; the limit is {MAX_JSON_BYTES}")
    if (key := _key_that_is_no_text(value)) is not None:
        raise UnstorableValue(f"{field} has the key {key[0]!r}, which is not text")
    if (text.count("[") + text.count("{")) > levels and _depth(value) > levels:
        raise UnstorableValue(f"{field} nests more than {levels} levels deep")
    return text


def to_json_object(field: str, value: object) -> str:
    """JSON text of a mapping with text keys. Raises UnstorableValue for anything else."""
    if not isinstance(value, Mapping):
        raise UnstorableValue(f"{field} must be a dict, not {type(value).__name__}")
    return to_json(field, value if isinstance(value, dict) else dict(value))


def _key_that_is_no_text(value: object) -> tuple[object] | None:
    # json.dumps writes 1, 1.0, True and None as text keys: they come back as others, or twice in one object.
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            for key, child in item.items():
                if not isinstance(key, str):
                    return (key,)
                if isinstance(child, dict | list | tuple):
                    pending.append(child)
        elif isinstance(item, list | tuple):
            pending.extend(child for child in item if isinstance(child, dict | list | tuple))
    return None


def _has_long_number(value: object) -> bool:
    return any(
        isinstance(leaf, int) and leaf.bit_length() > MAX_NUMBER_DIGITS * 3.3 for leaf in _leaves(value)
    )


def _leaves(value: object) -> list[object]:
    pending, leaves = [value], []
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list | tuple):
            pending.extend(item)
        else:
            leaves.append(item)
    return leaves


def _depth(value: object) -> int:
    deepest, pending = 0, [(value, 0)]
    while pending:
        item, depth = pending.pop()
        if isinstance(item, dict):
            pending.extend((child, depth + 1) for child in item.values())
        elif isinstance(item, list | tuple):
            pending.extend((child, depth + 1) for child in item)
        deepest = max(deepest, depth)
    return deepest
