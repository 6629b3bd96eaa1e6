"""A COMMIT is seen wherever the chunks of a connection begin and end, and nothing else is taken for one."""

from __future__ import annotations

import itertools
import struct

from hypothesis import given
from hypothesis import strategies as st

from stress.faults.wire import READY, Messages, is_commit

STARTUP = struct.pack("!ii", 17, 196608) + b"user\0bob\0"
bodies = st.binary(max_size=200)
kinds = st.sampled_from(b"QPBDESCd")
sent = st.lists(st.tuples(kinds, bodies), max_size=8)


def message(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + struct.pack("!i", len(body) + 4) + body


def chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[begin:end] for begin, end in itertools.pairwise(ends)]


@given(sent, st.lists(st.integers(0, 5000), max_size=12), st.booleans())
def test_messages_are_found_wherever_the_chunks_are_cut(
    messages: list[tuple[int, bytes]], cuts: list[int], startup: bool
) -> None:
    data = (STARTUP if startup else b"") + b"".join(message(*each) for each in messages)
    reader = Messages(startup=startup)
    found = [each for chunk in chunks(data, cuts) for each in reader.feed(chunk)]
    head = [(0, STARTUP[4:])] if startup else []
    assert found == head + [(kind, body[:64]) for kind, body in messages]


def test_a_commit_is_one_whether_it_is_sent_simply_or_parsed() -> None:
    assert is_commit((ord("Q"), b"COMMIT\0"))
    assert is_commit((ord("P"), b"\0COMMIT\0\0\0"))
    for other in (b"COMMIT PREPARED 'x'\0", b"SELECT 'COMMIT'\0", b"ROLLBACK\0"):
        assert not is_commit((ord("Q"), other))
    assert not is_commit((ord("B"), b"COMMIT\0"))
    assert not is_commit((READY, b"COMMIT\0"))
