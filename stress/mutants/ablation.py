"""Every way of taking one thing out of the SQL: mutation testing of the statements and of the schema. Pure.

Postgres's own scanner (pglast) says where a clause begins and ends, so that what is left stands as it was written. From
a text are removed, one at a time:

    conjunct    one conjunct of a WHERE, ON, HAVING or FILTER, at any depth of parentheses: true stands in its place
    lock        a FOR UPDATE, FOR SHARE and the like, with all that belongs to it
    skip        SKIP LOCKED: it waits instead
    order       an ORDER BY of a query (not of a window or an aggregate)
    conflict    an ON CONFLICT
    distinct    a DISTINCT or DISTINCT ON

A parameter that would be used no more is named in a condition that is always true: a statement must declare all of its
parameters. What takes a constraint or an index out of the schema is made from the database's own catalogue
(`constraints`), for there each has a name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from pglast.parser import scan

from engine.statements import Catalogue
from invariants.mutants import Mutant, Patch
from stress.mutants.concerns import functions_of_schema

Kind = Literal[
    "conjunct", "lock", "skip", "order", "conflict", "distinct", "constraint", "not-null", "index", "nothing"
]  # fmt: skip

_OPENING: Final = frozenset(("WHERE", "ON", "HAVING"))
# What ends a condition, in the same parentheses.
_ENDING: Final = frozenset(
    (
        "ORDER", "GROUP_P", "LIMIT", "FOR", "RETURNING", "WHERE", "ON", "HAVING", "INNER_P", "LEFT", "CROSS", "JOIN",
        "UNION", "WINDOW", "THEN", "ELSE", "END_P", "OFFSET", "LOOP", "DO", "ASCII_44", "ASCII_59", "RIGHT", "WHEN",
        "SET", "FULL",
    )
)  # fmt: skip
_BEHIND_ORDER: Final = ("LIMIT", "FOR", "OFFSET", "ON", "RETURNING", "UNION")
_OPEN: Final = "ASCII_40"
_CLOSE: Final = "ASCII_41"
_AND: Final = "AND"
_OR: Final = "OR"
_COMMENTS: Final = frozenset(("SQL_COMMENT", "C_COMMENT"))
_PARAMETER: Final = re.compile(r"\$\d+::[a-z_]+(?: precision)?(?:\[\])?")


@dataclass(frozen=True, slots=True)
class Variant:
    """One thing taken out. `where`: a statement, a function, or a table. `text`: what is gone, in one line; `nth`
    counts those of a place that read alike. `mutant` is how it enters a process."""

    where: str
    kind: Kind
    text: str
    nth: int
    mutant: Mutant

    @property
    def name(self) -> str:
        """By which it is listed."""
        return f"{self.where}: {self.kind}: {self.text}" + (f" ({self.nth})" if self.nth > 1 else "")

    @property
    def digest(self) -> str:
        """Of the text that it leaves, and of what it was."""
        return hashlib.sha256(repr(self.mutant).encode()).hexdigest()[:16]


class Token(NamedTuple):
    """One of the scanner's, comments left out. Places are characters."""

    name: str
    start: int
    end: int
    depth: int


class Cut(NamedTuple):
    """A piece to be replaced."""

    kind: Kind
    start: int
    end: int
    by: str


def tokens(text: str) -> list[Token]:
    """The text as Postgres reads it. `depth`: in how many parentheses a token is; they themselves are outside."""
    found, depth = [], 0
    for one in scan(text):
        if one.name in _COMMENTS:
            continue
        depth -= one.name == _CLOSE
        # PL/pgSQL's keyword, which SQL does not know.
        name = "LOOP" if text[one.start : one.end + 1] == "LOOP" else one.name
        found.append(Token(name, one.start, one.end + 1, depth))
        depth += one.name == _OPEN
    return found


def cuts(text: str) -> Iterator[Cut]:
    """All that may be taken out of one text."""
    read = tokens(text)
    for place, token in enumerate(read):
        following = read[place + 1].name if place + 1 < len(read) else ""
        if token.name == "FOR" and following in ("UPDATE", "NO", "SHARE", "KEY"):
            yield from _lock(read, place)
        elif token.name == "ORDER" and _is_of_a_query(read, place):
            yield Cut("order", token.start, _clause_end(read, place, _BEHIND_ORDER), "")
        elif token.name == "ON" and following == "CONFLICT":
            yield Cut("conflict", token.start, _clause_end(read, place, ("RETURNING",)), "")
        elif token.name == "DISTINCT" and read[place - 1].name == "SELECT":
            yield Cut("distinct", token.start, _distinct_end(read, place), "")
        elif token.name in _OPENING and read[place - 1].name != "DISTINCT":
            yield from _conjuncts(read, place + 1, token.depth)


def _lock(read: list[Token], place: int) -> Iterator[Cut]:
    end = place + 1
    words = {"UPDATE", "NO", "SHARE", "KEY", "OF", "IDENT", "SKIP", "LOCKED", "NOWAIT"}
    while end < len(read) and read[end].name in words:
        if read[end].name == "SKIP":
            yield Cut("skip", read[end].start, read[end + 1].end, "")
        end += 1
    yield Cut("lock", read[place].start, read[end - 1].end, "")


def _is_of_a_query(read: list[Token], place: int) -> bool:
    """Whether this ORDER BY is in parentheses that begin with a query, or in none; not an aggregate's or a window's."""
    depth = read[place].depth
    for before in reversed(range(place)):
        if read[before].depth < depth or (read[before].name == _OPEN and read[before].depth == depth - 1):
            return read[before + 1].name in ("SELECT", "WITH", "INSERT")
    return True


def _clause_end(read: list[Token], place: int, ending: tuple[str, ...]) -> int:
    depth, last = read[place].depth, read[place]
    for token in read[place + 1 :]:
        if token.depth < depth or (token.depth == depth and token.name in (*ending, "ASCII_59", "LOOP")):
            break
        last = token
    return last.end


def _distinct_end(read: list[Token], place: int) -> int:
    if read[place + 1].name != "ON":
        return read[place].end
    return next(t.end for t in read[place + 2 :] if t.name == _CLOSE and t.depth == read[place].depth)


def _conjuncts(read: list[Token], begin: int, depth: int) -> Iterator[Cut]:
    """The conjuncts of a condition that begins there, and those in its parentheses."""
    part, parts, both = begin, list[tuple[int, int]](), False
    place = begin
    while place < len(read) and read[place].depth >= depth:
        token = read[place]
        if token.depth == depth:
            if token.name in _ENDING and not _inside_case(read, begin, place):
                break
            if token.name == _AND and not _inside_case(read, begin, place):
                parts.append((part, place))
                part = place + 1
            elif token.name == _OR:
                both = True
        place += 1
    parts.append((part, place))
    # With an OR beside it an AND binds to its neighbours alone; the texts put parentheses there.
    if both and len(parts) > 1:
        parts = [(begin, place)]
    for first, end in parts:
        if first >= end or read[first].name == "CONFLICT":
            continue
        if (end - first, read[first].name) != (1, "TRUE_P"):
            yield Cut("conjunct", read[first].start, read[end - 1].end, "true")
        yield from _nested(read, first, end)


def _inside_case(read: list[Token], begin: int, place: int) -> bool:
    depth = read[place].depth
    inner = [token.name for token in read[begin:place] if token.depth == depth]
    return inner.count("CASE") > inner.count("END_P")


def _nested(read: list[Token], first: int, end: int) -> Iterator[Cut]:
    """Groups `(a AND b)` below a conjunct; queries in it have conditions of their own, which are found as such."""
    for place in range(first, end):
        token = read[place]
        if token.name != _OPEN or read[place + 1].name in ("SELECT", "WITH"):
            continue
        if place > first and read[place - 1].name in ("IDENT", "COALESCE", "ANY", "EXISTS", "IN_P", "ALL"):
            continue
        level = token.depth + 1
        close = next(
            p for p in range(place + 1, len(read)) if read[p].name == _CLOSE and read[p].depth == token.depth
        )
        if any(read[p].depth == level and read[p].name == _AND for p in range(place + 1, close)):
            yield from _conjuncts(read, place + 1, level)


def cut_out(text: str, cut: Cut, *, parameters: bool) -> str:
    """The text without it. `parameters`: it is a statement, and must go on naming all of its parameters."""
    piece = text[cut.start : cut.end]
    left = text[: cut.start] + "\0" + text[cut.end :]
    lost = (
        [named for named in dict.fromkeys(_PARAMETER.findall(piece)) if named not in left]
        if parameters
        else []
    )
    by = cut.by
    if lost and cut.kind == "order":
        by = "ORDER BY " + ", ".join(f"{named} IS NULL" for named in lost)
    elif lost and by:
        by = "(" + " AND ".join(f"({named} IS NULL OR true)" for named in lost) + ")"
    return left.replace("\0", by)


def _named(text: str) -> Iterator[tuple[Cut, str, int]]:
    seen: dict[tuple[str, str], int] = {}
    for cut in sorted(set(cuts(text)), key=lambda one: (one.start, -one.end, one.kind)):
        line = " ".join(text[cut.start : cut.end].split())
        seen[cut.kind, line] = seen.get((cut.kind, line), 0) + 1
        yield cut, line, seen[cut.kind, line]


def of_statements(catalogue: Catalogue, areas: Mapping[str, object]) -> Iterator[Variant]:
    """Of every statement of these areas."""
    for where, statement in catalogue.items():
        if where.partition("/")[0] not in areas:
            continue
        for cut, line, nth in _named(statement.text):
            text = cut_out(statement.text, cut, parameters=True)
            yield Variant(
                where, cut.kind, line, nth, _mutant(where, statements={where: (Patch(statement.text, text),)})
            )


def of_functions() -> Iterator[Variant]:
    """Of every function of the schema."""
    for where, whole in functions_of_schema():
        head, mark, body = whole.partition("$$\n")
        body, end = body[: body.rindex("$$;")], body[body.rindex("$$;") :]
        for cut, line, nth in _named(body):
            text = head + mark + cut_out(body, cut, parameters=False) + end
            old = whole.removesuffix(";\n") + ";\n"
            yield Variant(where, cut.kind, line, nth, _mutant(where, functions={where: (Patch(old, text),)}))


def untouched(catalogue: Catalogue, areas: Mapping[str, object]) -> Iterator[Variant]:
    """Every statement and function as it is: nothing may notice these."""
    for where, whole in functions_of_schema():
        old = whole.removesuffix(";\n") + ";\n"
        yield Variant(where, "nothing", "", 1, _mutant(where, functions={where: (Patch(old, old),)}))
    for where in catalogue:
        if where.partition("/")[0] in areas:
            patches = {where: (Patch(catalogue[where].text, catalogue[where].text),)}
            yield Variant(where, "nothing", "", 1, _mutant(where, statements=patches))


def _mutant(
    where: str,
    statements: Mapping[str, tuple[Patch, ...]] | None = None,
    functions: Mapping[str, tuple[Patch, ...]] | None = None,
    schema: tuple[str, ...] = (),
) -> Mutant:
    return Mutant(
        name=f"ablation of {where}", summary="one thing taken out", caught_by=(), statements=statements or {},
        functions=functions or {}, schema=schema,
    )  # fmt: skip


# What the catalogue of a migrated database says of its constraints: table, kind, what it is called, how it is dropped.
CONSTRAINTS: Final = r"""
SELECT c.conrelid::regclass::text, 'constraint', c.conname || ' ' || pg_get_constraintdef(c.oid),
    format('ALTER TABLE %s DROP CONSTRAINT %I CASCADE', c.conrelid::regclass, c.conname)
FROM pg_constraint AS c
WHERE c.connamespace = 'public'::regnamespace AND c.contype IN ('c', 'f', 'p', 'u')
    AND c.conrelid <> 'pgreferee_migrations'::regclass
UNION ALL
SELECT a.attrelid::regclass::text, 'not-null', a.attname || ' NOT NULL',
    format('ALTER TABLE %s ALTER COLUMN %I DROP NOT NULL', a.attrelid::regclass, a.attname)
FROM pg_attribute AS a INNER JOIN pg_class AS r ON r.oid = a.attrelid
WHERE r.relnamespace = 'public'::regnamespace AND r.relkind = 'r' AND a.attnum > 0 AND a.attnotnull
    AND a.attidentity = '' AND r.relname <> 'pgreferee_migrations'
    AND NOT EXISTS (
        SELECT FROM pg_index AS i
        WHERE i.indrelid = a.attrelid AND i.indisprimary AND a.attnum = ANY (i.indkey::smallint[])
    )
UNION ALL
SELECT i.indrelid::regclass::text, 'index', i.indexrelid::regclass::text,
    format('DROP INDEX %s', i.indexrelid::regclass)
FROM pg_index AS i INNER JOIN pg_class AS r ON r.oid = i.indrelid
WHERE r.relnamespace = 'public'::regnamespace AND r.relname <> 'pgreferee_migrations'
    AND NOT EXISTS (SELECT FROM pg_constraint AS c WHERE c.conindid = i.indexrelid)
ORDER BY 1, 2, 3
"""


def of_schema(rows: list[tuple[str, Kind, str, str]]) -> Iterator[Variant]:
    """Of every constraint and index, from what `CONSTRAINTS` answers."""
    for table, kind, text, drop in rows:
        yield Variant(table, kind, text, 1, _mutant(table, schema=(drop,)))
