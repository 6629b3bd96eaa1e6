"""What the transport does: publish, claim, acknowledge, as operations for `engine.operation`'s drivers.

Rules (store.md, "PostgresTransport"; those of the tables are in `engine/sql/schema/transport/0001_transport.sql`):

1. A group has one consumer at a time: who claimed it last. The claim's token is its name, and unlike a worker's name
   it is used once, so that a claim of the same worker, taken over and claimed again, is another.
2. Acknowledging, giving back and renewing are fenced by the token. Where the fence fails, nothing changes and the
   answer is False: somebody else has the group, or nobody.
3. A lease that has run out is still its holder's until somebody takes the group over.
4. Only the server's clock decides. `now` is for tests, which then bring it to every call.
5. Each operation is one round trip, and one transaction unless the caller has one open. An open one keeps publishers of
   the same groups waiting: keep it short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

import msgspec

from engine.operation import Operation, call
from engine.statements import Catalogue
from engine.store.encoding import instant, seq_of
from engine.store.execution import PRIORITIES, Event
from engine.values import UnstorableValue, check_key, check_text, to_json_text

LEASE_S = 30.0
# Groups of one claim, and of one listing.
MAX_BATCH = 10_000
# Messages that `depth` counts.
COUNTED = 1_000_000
_INTEGERS = range(-(2**31), 2**31)
# A hundred years.
MAX_SECONDS = 100 * 365.25 * 86_400


@dataclass(frozen=True, slots=True)
class Message:
    """The head message of a group under a lease. `event` is the text that was published; `token` the fence."""

    group_id: str
    seq: int
    event: str
    token: str

    def decoded(self) -> Event:
        """The event, where one was published. Raises msgspec.DecodeError for other text."""
        return msgspec.json.decode(self.event, type=Event)


@dataclass(frozen=True, slots=True)
class Publication:
    """One message to be published. `priority`, 0 to 4, holds where it is the first of its group; None: 0."""

    group_id: str
    event: Event | str
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group that has messages. `lock_expiry`, in seconds since the epoch: until when it is leased or parked, or since
    when it waits. `messages`: how many, counted up to 1000."""

    group_id: str
    locked_by: str | None
    lock_expiry: float
    priority: int
    messages: int


class Queue:
    """The operations, over a catalogue of statements. Raises UnstorableValue before anything is sent."""

    def __init__(self, catalogue: Catalogue | None = None) -> None:
        self._sql = Catalogue.load() if catalogue is None else catalogue

    def publish(self, publications: Sequence[Publication], now: float | None = None) -> Operation[list[int]]:
        """Append messages. Returns their seqs in order; within a group these grow in commit order."""
        names = [check_key("group_id", publication.group_id) for publication in publications]
        events = [event_text(publication.event) for publication in publications]
        priorities = [_checked_priority(publication.priority) for publication in publications]
        return self._publish(names, events, priorities, _checked_now(now))

    def _publish(
        self, names: list[str], events: list[str], priorities: list[int | None], now: float | None
    ) -> Operation[list[int]]:
        if not names:
            return []
        rows = yield call(self._sql["transport/publish"], names, events, priorities, now)
        return [int(seq) for [seq] in rows]

    def claim(
        self,
        limit: int,
        *,
        token: str | None = None,
        lease: float = LEASE_S,
        min_priority: int = 0,
        now: float | None = None,
    ) -> Operation[list[Message]]:
        """Lease up to `limit` groups for `lease` seconds. Returns the head message of each, longest waiting first.

        `token` must be one that was never used before; None makes one.
        """
        _checked_whole("limit", limit, range(MAX_BATCH + 1))
        _checked_whole("min_priority", min_priority, _INTEGERS)
        name = uuid4().hex if token is None else check_text("token", token)
        return self._claim(limit, name, _checked_seconds("lease", lease), min_priority, _checked_now(now))

    def _claim(
        self, limit: int, token: str, lease: float, min_priority: int, now: float | None
    ) -> Operation[list[Message]]:
        rows = yield call(self._sql["transport/claim"], limit, token, lease, min_priority, now)
        return [Message(group_id, int(seq), event, token) for group_id, seq, event in rows]

    def ack(self, messages: Sequence[Message], now: float | None = None) -> Operation[list[bool]]:
        """Remove head messages that are held. Returns for each whether it was. Only a message's group_id, seq and
        token count."""
        _checked_now(now)
        if not messages:
            return []
        rows = yield call(
            self._sql["transport/ack"],
            [check_text("group_id", message.group_id) for message in messages],
            [seq_of(message.seq) for message in messages],
            [check_text("token", message.token) for message in messages],
            now,
        )
        return [bool(done) for [done] in rows]

    def nack(self, group_id: str, token: str, delay: float, now: float | None = None) -> Operation[bool]:
        """Give a group back; nobody can claim it for `delay` seconds."""
        delay = _checked_seconds("delay", delay)
        check_text("group_id", group_id)
        check_text("token", token)
        rows = yield call(self._sql["transport/nack"], group_id, token, delay, _checked_now(now))
        return bool(rows)

    def extend(self, group_id: str, token: str, lease: float, now: float | None = None) -> Operation[bool]:
        """Let a lease end `lease` seconds from now."""
        lease = _checked_seconds("lease", lease)
        check_text("group_id", group_id)
        check_text("token", token)
        rows = yield call(self._sql["transport/extend"], group_id, token, lease, _checked_now(now))
        return bool(rows)

    def set_priority(self, group_id: str, priority: int) -> Operation[bool]:
        """Change a group's priority. False where it has no messages."""
        check_text("group_id", group_id)
        rows = yield call(self._sql["transport/set_priority"], group_id, _checked_priority(priority))
        return bool(rows)

    def depth(self, group_id: str | None = None) -> Operation[int]:
        """How many messages there are, leased or not, of one group or of all; no more than `COUNTED`."""
        if group_id is not None:
            check_text("group_id", group_id)
        [[count]] = yield call(self._sql["transport/depth"], group_id, COUNTED)
        return int(count)

    def groups(self, limit: int, after: str | None) -> Operation[list[GroupState]]:
        """Up to `limit` groups in the order of their ids, behind `after`; no more than `MAX_BATCH`."""
        if after is not None:
            check_text("after", after)
        _checked_whole("limit", limit, range(2**63))
        rows = yield call(self._sql["transport/groups"], after, min(limit, MAX_BATCH))
        return [GroupState(*row) for row in rows]


def event_text(event: Event | str) -> str:
    """An event as it is stored. Raises UnstorableValue for what Postgres cannot hold."""
    if isinstance(event, str):
        return check_text("event", event)
    return to_json_text("event", msgspec.to_builtins(event))


def _checked_priority(priority: int | None) -> int | None:
    return None if priority is None else _checked_whole("priority", priority, PRIORITIES)


def _checked_whole(field: str, value: int, allowed: range) -> int:
    # True and 1.0 are in a range too, and are sent as something else.
    if type(value) is not int or value not in allowed:
        raise UnstorableValue(f"{field} must be {allowed[0]} to {allowed[-1]}, not {value!r:.40}")
    return value


def _checked_seconds(field: str, seconds: float) -> float:
    if not 0 <= instant(field, seconds) <= MAX_SECONDS:
        raise UnstorableValue(f"{field} must be 0 s to 100 years, not {seconds}")
    return float(seconds)


def _checked_now(now: float | None) -> float | None:
    return None if now is None else instant("now", now)
