"""The catalogue: every SQL statement the engine sends, one file each under `engine/sql/<area>/<name>.sql`.

The engine, the plan capture and the mutants load the same files. A file begins with a comment that says what the
statement is for, which index it rides and which race it may lose; then follows one statement with `$1::type`
parameters. The casts are the declaration of the parameter types: arguments travel as text with no type of their own,
so a statement has one prepared form per connection whatever Python objects it is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import repeat
from operator import is_
from typing import Literal

from engine.values import MAX_SENT_BYTES, TooLarge

_PARAMETER = re.compile(r"\$(\d+)::([a-z_]+(?: precision)?(?:\[\])?)")
_BARE_PARAMETER = re.compile(r"\$(\d+)")

Argument = object
Encoder = Callable[[Argument], str | None]


@dataclass(frozen=True, slots=True)
class Statement:
    """One named SQL text.

    `types[i]` is the SQL type of parameter `$i+1`, read from its cast; `query` is the text as it goes over the wire.
    """

    name: str
    text: str
    comment: str
    types: tuple[str, ...]
    query: bytes
    _encoders: tuple[Encoder, ...]

    @classmethod
    def parse(cls, name: str, source: str) -> Statement:
        """Split a file into its leading comment and its SQL. Raises ValueError when a parameter has no cast."""
        lines = source.strip().splitlines()
        body_start = next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))
        comment = "\n".join(line.removeprefix("--").strip() for line in lines[:body_start])
        text = "\n".join(lines[body_start:]).strip()
        types = _parameter_types(name, text)
        return cls(name, text, comment, types, text.encode(), tuple(_encoder(sql_type) for sql_type in types))

    def with_text(self, text: str) -> Statement:
        """The same statement with another SQL text; how a mutant is made."""
        return Statement.parse(self.name, text)

    def encode(self, arguments: tuple[Argument, ...]) -> list[str | None]:
        """Arguments as Postgres text input, in parameter order. Raises ValueError on a wrong number of them, TooLarge
        where they are too much to be sent at once."""
        if len(arguments) != len(self._encoders):
            raise ValueError(f"{self.name} takes {len(self._encoders)} arguments, not {len(arguments)}")
        texts = [encode(argument) for encode, argument in zip(self._encoders, arguments, strict=True)]
        # A character is four bytes at most: few statements have to be counted.
        if sum(len(text) for text in texts if text is not None) > MAX_SENT_BYTES // 4:
            size = sum(len(text.encode()) for text in texts if text is not None)
            if size > MAX_SENT_BYTES:
                raise TooLarge(
                    f"{self.name} is asked with {size} bytes at once; the limit is {MAX_SENT_BYTES}"
                )
        return texts


class Catalogue(Mapping[str, Statement]):
    """Statements by name, such as `picker/claim`. Immutable; `patched` makes a variant."""

    def __init__(self, statements: Mapping[str, Statement]) -> None:
        self._statements = dict(statements)

    @classmethod
    def load(cls) -> Catalogue:
        """Read every statement of the package."""
        return cls(
            {
                statement.name: statement
                for area in sorted(_root().iterdir(), key=lambda entry: entry.name)
                if area.is_dir() and area.name != "schema"
                for statement in _area(area)
            }
        )

    def patched(self, texts: Mapping[str, str]) -> Catalogue:
        """A catalogue in which the named statements have other texts. Raises KeyError for an unknown name."""
        return Catalogue(
            {**self._statements, **{name: self[name].with_text(text) for name, text in texts.items()}}
        )

    def __getitem__(self, name: str) -> Statement:
        return self._statements[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._statements)

    def __len__(self) -> int:
        return len(self._statements)


Area = Literal["picker", "store", "transport"]
AREAS: tuple[Area, ...] = ("picker", "store", "transport")


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step of an area's schema: `engine/sql/schema/<area>/<version>_<name>.sql`."""

    version: int
    name: str
    text: str


def load_migrations(area: Area) -> tuple[Migration, ...]:
    """An area's migrations in order. Raises ValueError where a number is missing or taken twice."""
    migrations = []
    for entry in sorted((_root() / "schema" / area).iterdir(), key=lambda entry: entry.name):
        number, _, rest = entry.name.removesuffix(".sql").partition("_")
        migrations.append(Migration(int(number), rest, entry.read_text("utf-8")))
    if [migration.version for migration in migrations] != list(range(1, len(migrations) + 1)):
        raise ValueError(f"migrations are not numbered 1, 2, 3 …: {[m.version for m in migrations]}")
    return tuple(migrations)


def load_text(path: str) -> str:
    """The text of one file below `engine/sql`, such as `schema/ensure.sql`."""
    return (_root() / path).read_text("utf-8")


def _root() -> Traversable:
    return files("engine") / "sql"


def _area(area: Traversable) -> Iterator[Statement]:
    for entry in sorted(area.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".sql"):
            yield Statement.parse(f"{area.name}/{entry.name.removesuffix('.sql')}", entry.read_text("utf-8"))


def _parameter_types(name: str, text: str) -> tuple[str, ...]:
    used = {int(number) for number in _BARE_PARAMETER.findall(text)}
    declared: dict[int, str] = {}
    for number, sql_type in _PARAMETER.findall(text):
        if declared.setdefault(int(number), sql_type) != sql_type:
            raise ValueError(f"{name}: parameter ${number} is cast to two types")
    if used != set(range(1, len(used) + 1)) or set(declared) != used:
        raise ValueError(f"{name}: every parameter $1 … ${len(used)} needs a cast such as $1::bigint")
    return tuple(declared[number] for number in sorted(declared))


def _encoder(sql_type: str) -> Encoder:
    if sql_type.endswith("[]"):
        return array_literal if sql_type == "text[]" else _plain_array
    return _scalar


def _scalar(value: Argument) -> str | None:
    if type(value) is int:
        return str(value)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ValueError(f"cannot send {value.isoformat()}, which has no time zone, to Postgres")
        # Postgres reads offsets below 16 hours and of whole seconds; Python has others.
        return value.astimezone(UTC).isoformat()
    if isinstance(value, int | float):
        return repr(value)
    raise TypeError(f"cannot send a {type(value).__name__} to Postgres")


def _plain_array(values: Argument) -> str:
    # Elements of these types (numbers, booleans, ISO timestamps) hold nothing that an array literal would quote.
    return _array(_items(values), _scalar)


def array_literal(values: Argument) -> str:
    """Texts as one array literal, for a statement that takes an array per row and casts it there."""
    return _array(_items(values), _quoted)


def _array(items: Sequence[object], encode: Encoder) -> str:
    # A batch's column is often one object over and over, such as the claim's name: it is written once.
    if len(items) > 1 and all(map(is_, items, repeat(items[0]))):
        encoded = encode(items[0])
        return "{" + ",".join(repeat("NULL" if encoded is None else encoded, len(items))) + "}"
    texts: list[str] = []
    last: object = items
    text = ""
    for item in items:
        if item is not last:
            encoded = encode(item)
            last, text = item, "NULL" if encoded is None else encoded
        texts.append(text)
    return "{" + ",".join(texts) + "}"


def _quoted(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"cannot send a {type(value).__name__} as text")
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _items(values: Argument) -> list[object] | tuple[object, ...]:
    if not isinstance(values, list | tuple):
        raise TypeError(f"cannot send a {type(values).__name__} as an array")
    return values
