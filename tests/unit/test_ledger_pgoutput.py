from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from invariants.ledger.pgoutput import (
    UNCHANGED,
    Change,
    DecodeError,
    Decoder,
    Kind,
    Relation,
    Row,
    Transaction,
    format_lsn,
    parse_lsn,
)
from tests.fixtures.pgoutput_writer import relation, write

# # What a Postgres 15.18 sent for: insert into t (id bigint primary key, body text) values (8, 'é'), as
# transaction 757.
CAPTURED = [
    "420000000001b068d8000304838e6c8498000002f5",
    "520000405d7075626c69630074006400020169640000000014ffffffff00626f64790000000019ffffffff",
    "490000405d4e00027400000001387400000002c3a9",
    "43000000000001b068d80000000001b06908000304838e6c8498",
]

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
values = st.none() | st.binary(max_size=40) | st.just(b"x" * 70_000)


@st.composite
def relations(draw: st.DrawFn, number: int) -> Relation:
    columns = draw(st.lists(names, min_size=1, max_size=6))
    key = draw(st.sets(st.integers(0, len(columns) - 1), min_size=1))
    return Relation(number, draw(names), draw(names), tuple(columns), tuple(sorted(key)), draw(st.booleans()))


@st.composite
def changes(draw: st.DrawFn, among: Sequence[Relation]) -> Change:
    r = draw(st.sampled_from(among))
    width = len(r.columns)
    rows = st.tuples(*[values] * width)
    kind: Kind = draw(st.sampled_from(("insert", "update", "delete", "truncate")))
    old: Row | None = None
    new: Row | None = None
    if kind == "delete" or (kind == "update" and draw(st.booleans())):
        old = draw(rows)
    partial = kind == "update" and draw(st.booleans())
    if kind in ("insert", "update"):
        new = draw(rows)
        if partial:
            place = draw(st.integers(0, width - 1))
            new = (*new[:place], UNCHANGED, *new[place + 1 :])
    return Change(r, kind, old, new, partial)


@st.composite
def ledgers(draw: st.DrawFn) -> list[Transaction]:
    among = [draw(relations(number)) for number in (1, 2)]
    return [
        Transaction(
            number,
            draw(st.integers(0, 2**32 - 1)),
            draw(st.integers(1, 2**62)),
            draw(st.integers(0, 2**50)),
            tuple(draw(st.lists(changes(among), min_size=1, max_size=4))),
        )
        for number in range(1, draw(st.integers(0, 4)) + 1)
    ]


def decode(messages: Sequence[bytes]) -> list[Transaction]:
    decoder = Decoder()
    return [t for message in messages if (t := decoder.feed(message)) is not None]


@given(ledgers())
def test_decoding_is_the_inverse_of_encoding(ledger: list[Transaction]) -> None:
    assert decode(write(ledger)) == ledger


def test_bytes_of_a_real_server_are_decoded() -> None:
    [transaction] = decode([bytes.fromhex(message) for message in CAPTURED])
    assert (transaction.xid, format_lsn(transaction.lsn)) == (757, "0/1B06908")
    [change] = transaction.changes
    assert (change.relation.schema, change.relation.name) == ("public", "t")
    assert (change.relation.columns, change.relation.key) == (("id", "body"), (0,))
    assert (change.kind, change.old, change.new) == ("insert", None, (b"8", "é".encode()))


def test_a_transaction_without_changes_has_no_number() -> None:
    begin, described, inserted, committed = (bytes.fromhex(message) for message in CAPTURED)
    transactions = decode([begin, committed, begin, described, inserted, committed])
    assert [t.number for t in transactions] == [1]


def test_messages_of_no_interest_are_passed_over() -> None:
    begin, described, inserted, committed = (bytes.fromhex(message) for message in CAPTURED)
    noise = [
        b"Y\0\0\x40\x5dpublic\0mood\0",
        b"O" + bytes(8) + b"origin\0",
        b"M\1" + bytes(8) + b"p\0\0\0\0\0",
    ]
    assert len(decode([begin, *noise, described, inserted, committed])) == 1


def test_after_a_broken_connection_an_open_transaction_is_forgotten() -> None:
    begin, described, inserted, committed = (bytes.fromhex(message) for message in CAPTURED)
    decoder = Decoder()
    for message in (begin, described, inserted):
        decoder.feed(message)
    assert decoder.open
    decoder.reset()
    assert not decoder.open
    decoder.feed(begin)
    decoder.feed(inserted)
    transaction = decoder.feed(committed)
    assert transaction is not None
    assert len(transaction.changes) == 1


@pytest.mark.parametrize("cut", range(1, 19))
def test_a_message_that_ends_early_is_an_error_of_the_decoder(cut: int) -> None:
    _, described, inserted, _ = (bytes.fromhex(message) for message in CAPTURED)
    decoder = Decoder()
    decoder.feed(described)
    with pytest.raises(DecodeError):
        decoder.feed(inserted[:-cut])


def test_an_unknown_message_is_an_error_of_the_decoder() -> None:
    with pytest.raises(DecodeError, match="no message"):
        Decoder().feed(b"S\0\0\0\1")


def test_a_change_of_an_undescribed_relation_is_an_error_of_the_decoder() -> None:
    with pytest.raises(DecodeError, match="never described"):
        Decoder().feed(bytes.fromhex(CAPTURED[2]))


def test_a_relation_described_anew_replaces_the_old_description() -> None:
    begin, described, inserted, committed = (bytes.fromhex(message) for message in CAPTURED)
    other = relation(Relation(0x405D, "public", "t", ("id", "text"), (0,)))
    [_, second] = decode([begin, described, inserted, committed, begin, other, inserted, committed])
    assert second.changes[0].relation.columns == ("id", "text")


@given(st.integers(0, 2**64 - 1))
def test_positions_are_read_as_they_are_written(lsn: int) -> None:
    assert parse_lsn(format_lsn(lsn)) == lsn


def test_a_position_without_a_slash_is_refused() -> None:
    with pytest.raises(ValueError, match="16/B374D848"):
        parse_lsn("12345")
