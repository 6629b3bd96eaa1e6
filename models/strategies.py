"""Hypothesis strategies that reach the legal corners of what the engine stores, and the first step beyond them.

`texts`, `json_values`, `instants`, `jobs` span everything that is legal. `crowded_jobs` and its parts draw from a few
values each, so that jobs meet: the same keys, priorities that tie, instants to the microsecond around a given one.
`refused_jobs` builds arguments for `Job` with exactly one value that must be refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from itertools import combinations
from typing import Any

from hypothesis import strategies as st

from engine.picker import INTEGER, LIVE, SMALLINT, STATUSES, Job, Status
from engine.store.execution import STATUSES as EXECUTION_STATUSES
from engine.store.execution import Child, TimerOp
from engine.values import MAX_INDEXED_BYTES, MAX_JSON_DEPTH

# Where the machines' clocks start.
START = datetime(2026, 1, 1, tzinfo=UTC)

# What has a meaning of its own in SQL, array literals, COPY, JSON or LIKE, and what text handling tends to get wrong.
TEXT_CORNERS = (
    "", " ", "NULL", "null", "\\N", "\\", "\\\\", "'", "''", '"', '""', "{}", "{", "}", "{NULL}", ",", ";", "--", "/*",
    "a,b", '{"a","b"}', "$1", "%s", "%", "_", "\n", "\r\n", "\t", "\x01", "\x1f", "\x7f", "\x85", "\u2028", "\ufeff",
    "\\u0000", "\\x00", "\\000", "é", "e\u0301", "ß", "İ", "ﬀ", "\u200b", "\u202e", "\ufffd", "\uffff", "😀",
    "👩‍👩‍👧", "\U0010ffff", "true", "0", "42", "-1", "1e5", "infinity", "now", "x" * 70_000, '\\"' * 5_000,
)  # fmt: skip

# The concurrency name ends at the first colon; a key may look like the id of a row.
KEY_CORNERS = (
    ":",
    "::",
    "a",
    "a:",
    ":a",
    "a:b",
    "a:c",
    "a:b:c",
    "42",
    "1",
    "2",
    "-1",
    "",
    "NULL",
    "k" * MAX_INDEXED_BYTES,
)

_CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\x00")

# Any text that Postgres can hold: all of Unicode but NUL and halves of surrogate pairs.
texts = st.one_of(st.sampled_from(TEXT_CORNERS), st.text(_CHARACTERS, max_size=40))

# Any text that an index of the schema can hold.
keys = st.one_of(
    st.sampled_from(KEY_CORNERS),
    texts.filter(lambda text: len(text.encode()) <= MAX_INDEXED_BYTES),
)

_NUMBERS = st.one_of(
    st.integers(),
    st.integers(min_value=-(10**60), max_value=10**60),
    st.sampled_from(
        (2**31, 2**53, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**400, -(10**4299), 9 * 10**4299)
    ),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        (0.0, -0.0, 1e308, -1e308, 1.7976931348623157e308, 5e-324, 2.2250738585072014e-308, 0.1, 1e16, 1e23)
    ),
)


def _nested(depth: int) -> object:
    value: object = "bottom"
    for level in range(depth):
        value = [value] if level % 2 else {"": value}
    return value


_shallow_json: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), _NUMBERS, texts),
    lambda children: st.one_of(st.lists(children, max_size=4), st.dictionaries(texts, children, max_size=4)),
    max_leaves=12,
)

# Any JSON value that jsonb can hold. An object cannot hold one key twice, for it is a dict.
json_values = st.one_of(_shallow_json, st.integers(min_value=0, max_value=MAX_JSON_DEPTH).map(_nested))

json_objects: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.dictionaries(texts, _shallow_json, max_size=4),
    st.integers(min_value=0, max_value=MAX_JSON_DEPTH - 1).map(lambda depth: {"deep": _nested(depth)}),
)

_ZONES: st.SearchStrategy[tzinfo] = st.one_of(
    st.just(UTC),
    st.integers(min_value=-1439, max_value=1439).map(lambda minutes: timezone(timedelta(minutes=minutes))),
    # Offsets of seconds were common before 1900, and Python has them of microseconds.
    st.sampled_from(
        (timedelta(seconds=1172), timedelta(hours=-23, seconds=-59), timedelta(microseconds=1))
    ).map(timezone),
)


def _in_zone(instant: datetime, zone: tzinfo) -> datetime:
    try:
        return instant.astimezone(zone)
    except OverflowError:  # the year would be 0 or 10,000 over there
        return instant


# Any instant from year 1 to year 9999 of UTC, told in any zone.
instants = st.builds(
    _in_zone,
    st.one_of(
        st.datetimes(timezones=st.just(UTC)),
        st.sampled_from(
            (
                datetime.min.replace(tzinfo=UTC),
                datetime.max.replace(tzinfo=UTC),
                datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
                datetime(2000, 1, 1, tzinfo=UTC),
                datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC),
            )
        ),
    ),
    _ZONES,
)

_BUT_RUNNABLE: tuple[Status, ...] = STATUSES[1:]
SCOPES: tuple[tuple[Status, ...], ...] = (
    (),
    *(("runnable", *rest) for size in range(len(STATUSES)) for rest in combinations(_BUT_RUNNABLE, size)),
)

# Any legal set of statuses in which an identity stays occupied.
scopes = st.sampled_from(SCOPES)

priorities = st.one_of(
    st.integers(min_value=SMALLINT.start, max_value=SMALLINT.stop - 1),
    st.sampled_from((SMALLINT.start, -1, 0, 1, SMALLINT.stop - 1)),
)

weights = st.one_of(
    st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False),
    st.sampled_from((1.0, 0.1, 5e-324, 1.7976931348623157e308)),
    st.integers(min_value=1, max_value=10**300),
)

# Any job at all.
jobs: st.SearchStrategy[Job] = st.builds(
    Job,
    fsm=texts,
    step=texts,
    state=json_objects,
    fsm_version=st.one_of(st.integers(min_value=INTEGER.start, max_value=INTEGER.stop - 1)),
    queue=keys,
    priority=priorities,
    eligible_at=st.none() | instants,
    concurrency_key=st.none() | keys,
    correlation_key=st.none() | keys,
    correlation_scope=scopes,
    rate_limit=st.none() | texts,
    weight=weights,
)

_LONE_SURROGATES = st.characters(categories=["Cs"])
# Text that Postgres has no place for.
refused_texts = st.builds(
    lambda before, bad, after: before + bad + after,
    st.text(_CHARACTERS, max_size=5),
    st.one_of(st.just("\x00"), _LONE_SURROGATES),
    st.text(_CHARACTERS, max_size=5),
)

# Values with no JSON text, or one that jsonb has no place for, or one that would come back as another value.
refused_json: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        refused_texts,
        st.sampled_from((float("nan"), float("inf"), float("-inf"))),
        # Too long for repr(), so Hypothesis may not see them before they are drawn.
        st.sampled_from((4_300, 140_000)).map(lambda zeros: 10**zeros),
        st.builds(object),
        st.binary(),
        st.sets(st.integers(), max_size=1),
        st.datetimes(),
        st.complex_numbers(),
        st.dictionaries(
            st.one_of(st.integers(), st.floats(), st.booleans(), st.none()), st.none(), min_size=1, max_size=1
        ),
        st.integers(min_value=MAX_JSON_DEPTH + 1, max_value=MAX_JSON_DEPTH * 300).map(_nested),
    ),
    lambda children: st.one_of(
        st.tuples(_shallow_json, children).map(list),
        st.dictionaries(texts, children, min_size=1, max_size=1),
    ),
    max_leaves=2,
)

_NO_ZONE = st.datetimes()
_OUTSIDE_UTC = st.sampled_from(
    (
        datetime.min.replace(tzinfo=timezone(timedelta(microseconds=1))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
    )
)


class _NoOffset(tzinfo):
    """A zone that does not know its offset: such a datetime is naive, whatever its `tzinfo` says."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    def dst(self, _: datetime | None) -> None:
        return None

    def tzname(self, _: datetime | None) -> None:
        return None


_OUTSIDE_SMALLINT = st.one_of(st.integers(max_value=SMALLINT.start - 1), st.integers(min_value=SMALLINT.stop))
_OUTSIDE_INTEGER = st.one_of(st.integers(max_value=INTEGER.start - 1), st.integers(min_value=INTEGER.stop))
_NOT_INTEGERS = st.sampled_from((True, False, 1.0, 0.5, "1", None, b"1"))
_OVERSIZED = st.sampled_from(("k" * (MAX_INDEXED_BYTES + 1), "é" * (MAX_INDEXED_BYTES // 2 + 1)))

_REFUSED: Mapping[str, st.SearchStrategy[Any]] = {
    "fsm": st.one_of(refused_texts, st.sampled_from((None, 1, b"x"))),
    "step": st.one_of(refused_texts, st.sampled_from((None, 1, b"x"))),
    "state": st.one_of(
        st.dictionaries(texts, refused_json, min_size=1, max_size=2),
        st.dictionaries(refused_texts, st.none(), min_size=1, max_size=2),
        st.sampled_from((None, 1, "x", [], [("a", 1)], {1: 2}, {None: 1})),
    ),
    "fsm_version": st.one_of(_OUTSIDE_INTEGER, _NOT_INTEGERS),
    "queue": st.one_of(refused_texts, _OVERSIZED, st.sampled_from((None, 1, b"x"))),
    "priority": st.one_of(_OUTSIDE_SMALLINT, _NOT_INTEGERS),
    "eligible_at": st.one_of(
        _NO_ZONE, _OUTSIDE_UTC, st.just(datetime(2026, 1, 1, tzinfo=_NoOffset())), st.sampled_from(("now", 0))
    ),
    "concurrency_key": st.one_of(refused_texts, _OVERSIZED, st.just(1)),
    "correlation_key": st.one_of(refused_texts, _OVERSIZED, st.just(1)),
    "correlation_scope": st.one_of(
        st.sampled_from(
            (("executing",), ("done", "failed"), ("runnable", "gone"), ("RUNNABLE",), (None,), ("",))
        ),
        st.text(max_size=8)
        .filter(lambda text: text not in STATUSES and text)
        .map(lambda text: ("runnable", text)),
    ),
    "rate_limit": st.one_of(refused_texts, st.just(1)),
    "weight": st.one_of(
        st.floats(max_value=0), st.sampled_from((float("nan"), float("inf"), 0, -1, 10**309, "1", None, 1j))
    ),
}


@st.composite
def refused_jobs(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments for `Job`, all legal but one."""
    arguments: dict[str, Any] = {"fsm": "m", "step": "s", "correlation_key": "identity"}
    name = draw(st.sampled_from(sorted(_REFUSED)))
    return {**arguments, name: draw(_REFUSED[name])}


# ---- values that meet -------------------------------------------------------------------------------------------

CROWDED_QUEUES = ("default", "")
CROWDED_KEYS = ("a", "a:1", "", "1", "2", "3", "4")
CROWDED_IDENTITIES = ("x", "y", "")
# Keys of one gate, where it is configured.
GATED_KEYS = ("g:1", "g")
CROWDED_STATES: tuple[dict[str, Any], ...] = (
    {},
    {"n": 1},
    {"n": 1e23, "t": "\\u0000"},
    {"a": [-0.0, None, {"": True}]},
)

crowded_queues = st.sampled_from(CROWDED_QUEUES)


def crowded_jobs(now: datetime) -> st.SearchStrategy[Job]:
    """Jobs that compete: eligible around `now` to the microsecond, few keys, priorities that tie."""
    eligible = (
        *[None] * 5,
        now,
        now + timedelta(microseconds=1),
        now - timedelta(microseconds=1),
        now - timedelta(hours=1),
        now + timedelta(seconds=30),
        now + timedelta(days=1),
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
    )
    return st.builds(
        Job,
        fsm=st.just("m"),
        step=st.just("s"),
        state=st.sampled_from(CROWDED_STATES),
        queue=st.sampled_from((*CROWDED_QUEUES[:1] * 4, *CROWDED_QUEUES[1:])),
        priority=st.sampled_from((0, 0, 1, SMALLINT.start, SMALLINT.stop - 1)),
        eligible_at=st.sampled_from(eligible),
        concurrency_key=st.none() | st.sampled_from(CROWDED_KEYS),
        correlation_key=st.none() | st.sampled_from(CROWDED_IDENTITIES),
        correlation_scope=st.sampled_from(
            (LIVE, ("runnable",), (), STATUSES, ("runnable", "executing", "done"))
        ),
    )


def coordinated_jobs(now: datetime) -> st.SearchStrategy[Job]:
    """Jobs that get to run, and so to wait, to fan out and to end: mostly eligible, some with a key or an identity."""
    return st.builds(
        Job,
        fsm=st.just("m"),
        step=st.just("s"),
        state=st.sampled_from(CROWDED_STATES),
        queue=st.sampled_from((*CROWDED_QUEUES[:1] * 6, *CROWDED_QUEUES[1:])),
        priority=st.sampled_from((0, 0, 1)),
        eligible_at=st.sampled_from((*[None] * 9, now + timedelta(seconds=30))),
        concurrency_key=st.sampled_from((*[None] * 4, *GATED_KEYS, *GATED_KEYS, "a")),
        correlation_key=st.none() | st.sampled_from(CROWDED_IDENTITIES),
        correlation_scope=st.sampled_from((LIVE, LIVE, ("runnable", "executing"), ("runnable",), STATUSES)),
        rate_limit=st.sampled_from((None, None, "r:1")),
    )


# ---- what a store holds ---------------------------------------------------------------------------------------------

# Text of a JSON document may hold NUL characters: it is a column of text, and JSON escapes them.
_JSON_CORNERS = (*TEXT_CORNERS, "\x00", "a\x00b", "\\x00\x00")


def _one_of_values(values: Sequence[Any]) -> st.SearchStrategy[Any]:
    """Drawn by place: Hypothesis writes out what `sampled_from` is given, and some of these are long."""
    return st.integers(min_value=0, max_value=len(values) - 1).map(values.__getitem__)


_json_texts = st.one_of(
    _one_of_values(_JSON_CORNERS), st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
)
_stored_texts = st.one_of(_one_of_values(TEXT_CORNERS), st.text(_CHARACTERS, max_size=8))
_documents: st.SearchStrategy[Any] = st.one_of(
    _json_texts,
    st.integers(min_value=-(10**60), max_value=10**60),
    st.floats(allow_nan=False, allow_infinity=False),
    _one_of_values(
        (
            None, True, False, 0, 0.0, -0.0, 1, 1.0, 1e16, 1e23, 1e308, 5e-324, 2**53 + 1, 2**64, 10**4000, [], {},
            [[], {"": None}], {"a": {"b": [1, 1.0, True, "1"]}}, _nested(MAX_JSON_DEPTH - 4),
        )
    ),
)  # fmt: skip
# Any JSON object that a context, a payload or a step of a trace may be. "index" is what a trace adds.
json_documents: st.SearchStrategy[dict[str, Any]] = st.one_of(
    _one_of_values(({}, {"n": 1}, {"n": 1.0}, {"n": True}, {"index": "mine"}, {"": {"\x00": "\x00"}})),
    st.dictionaries(_json_texts, _documents, max_size=2),
)

# Ids that meet, and that sort otherwise in most languages than by their code points.
CROWDED_IDS = ("a", "b", "B", "é", "z", "a b", "_", "\U0001f600", "k" * 1_000)
crowded_ids = st.one_of(_one_of_values(CROWDED_IDS[:3]), _one_of_values(CROWDED_IDS))

# Ids of events, of which the empty one is no other than the rest.
crowded_events = st.one_of(_one_of_values(CROWDED_IDS[:3]), _one_of_values(("", *CROWDED_IDS)))

# What an execution may be, beside its id and version.
drafts: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"definition_id": st.sampled_from(("order", "b", "")), "context": json_documents},
    optional={
        "definition_fqn": st.none() | _stored_texts,
        "root_path": _stored_texts,
        "status": st.sampled_from(EXECUTION_STATUSES),
        "outcome": st.none() | _stored_texts,
        "error": st.none() | _json_texts,
        "active_path": st.none() | _stored_texts,
        "history": st.dictionaries(_json_texts, _json_texts, max_size=2),
        "priority": st.integers(min_value=0, max_value=4),
        "parent_id": st.none() | crowded_ids,
        "child_id": st.none() | _json_texts,
        "children": st.dictionaries(
            _json_texts,
            st.builds(
                Child,
                root_path=_json_texts,
                finished=st.booleans(),
                outcome=st.none() | _json_texts,
                result=_documents,
            ),
            max_size=2,
        ),
        "invoke_seq": st.integers(min_value=0, max_value=2**40),
    },
)

# Target, kind and payload of an event; its id is the caller's to give.
emits = st.tuples(st.none() | crowded_ids, _stored_texts, json_documents)

CROWDED_PATHS = ("wait", "", "wait/é")
# To the smallest difference that a float has, before the epoch, and as far away as floats go.
CROWDED_INSTANTS = (0.0, 1.5, 1_800_000_000.0, 1_800_000_000.0000002, -1.0, 1.7976931348623157e308, 5e-324)
crowded_timers = st.one_of(
    st.builds(
        TimerOp, st.just("schedule"), st.sampled_from(CROWDED_PATHS), st.sampled_from(CROWDED_INSTANTS)
    ),
    st.builds(TimerOp, st.just("cancel"), st.sampled_from(CROWDED_PATHS)),
)

spawns = st.tuples(crowded_ids, _stored_texts, json_documents)

# Values with no JSON text, or one that would come back as another value.
REFUSED_DOCUMENTS: Sequence[Any] = (
    "\ud800", ["\udfff"], {"\ud800": 1}, float("nan"), [float("inf")], {"a": float("-inf")}, 10**5000, object(), b"x",
    {1}, datetime(2026, 1, 1, tzinfo=UTC), 1j, {1: 2}, [{None: 1}], {True: 1, "true": 2}, {1.5: 0},
    _nested(MAX_JSON_DEPTH + 1),
)  # fmt: skip
refused_documents: st.SearchStrategy[Any] = st.one_of(
    _one_of_values(REFUSED_DOCUMENTS),
    st.builds(lambda before, after: before + "\udc80" + after, _json_texts, _json_texts),
)

# Groups that meet, and what their messages say: an event's JSON or any other text.
CROWDED_GROUPS = ("a", "b", "B", "", "é", "k" * MAX_INDEXED_BYTES)
crowded_groups = st.one_of(_one_of_values(CROWDED_GROUPS[:3]), _one_of_values(CROWDED_GROUPS))
message_texts = st.one_of(_one_of_values(('{"id":"e","kind":"k"}', "", "\\x00")), _stored_texts)
