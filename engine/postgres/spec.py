"""What `--pg SPEC` means: which of the five sources a Postgres is wanted from. Pure; nothing is looked up
here."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from typing_extensions import override

from engine.errors import UsageError
from engine.postgres import conninfo

OLDEST_MAJOR = 13
NEWEST_MAJOR = 18
MAJORS = tuple(range(OLDEST_MAJOR, NEWEST_MAJOR + 1))

FORMS = f"embedded, {OLDEST_MAJOR} to {NEWEST_MAJOR}, system:N, container:N, container:IMAGE or dsn:postgresql://..."

Kind = Literal["embedded", "major", "system", "container", "dsn"]

# What may be repeated in an error: nothing that could be part of a mistyped DSN.
_HARMLESS = re.compile(r"[A-Za-z0-9_.:-]{1,40}")
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._/:@-]{0,254}")


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed `--pg`. `str()` gives it back in a form that may be shown and recorded: without a password.

    `major` is set for `major`, `system` and `container:N`; `image` for `container`; `dsn` (a conninfo string
    or a URI, with its secrets) for `dsn` only.
    """

    kind: Kind
    major: int | None = None
    image: str | None = None
    dsn: str | None = field(default=None, repr=False)

    @override
    def __str__(self) -> str:
        if self.dsn is not None:
            return f"dsn:{conninfo.describe(conninfo.parse(self.dsn))}"
        if self.kind == "major":
            return str(self.major)
        if self.kind == "container":
            return f"container:{self.image if self.major is None else self.major}"
        return self.kind if self.major is None else f"{self.kind}:{self.major}"


def parse_pg(spec: str) -> Source:
    """The source that `spec` names.

    Raises `UsageError`, in one sentence without any part of a DSN, when it names none.
    """
    text = spec.strip()
    kind, colon, rest = text.partition(":")
    if text in ("", "embedded"):
        return Source("embedded")
    if text.isascii() and text.isdigit():
        return Source("major", major=_major(text, text))
    if kind == "system" and colon:
        return Source("system", major=_major(rest, text))
    if kind == "container" and colon:
        return _container(rest, text)
    if kind == "dsn" and colon:
        return _dsn(rest)
    if kind in ("postgresql", "postgres") and rest.startswith("//"):
        return _dsn(text)
    raise UsageError(f"{_quoted(text)} names no Postgres: use {FORMS}")


def _major(digits: str, spec: str) -> int:
    if digits.isascii() and digits.isdigit() and len(digits) < 4 and int(digits) in MAJORS:
        return int(digits)
    raise UsageError(
        f"{_quoted(spec)} names no supported Postgres: "
        f"use a major version from {OLDEST_MAJOR} to {NEWEST_MAJOR}"
    )


def _container(rest: str, spec: str) -> Source:
    if rest.isascii() and rest.isdigit():
        major = _major(rest, spec)
        return Source("container", major=major, image=f"postgres:{major}")
    if not _IMAGE.fullmatch(rest):
        raise UsageError(
            f"{_quoted(spec)} names no image: use container:{NEWEST_MAJOR} for the official image of a major "
            "version, or container:NAME:TAG"
        )
    return Source("container", image=rest)


def _dsn(text: str) -> Source:
    conninfo.parse(text)
    return Source("dsn", dsn=text.strip())


def _quoted(text: str) -> str:
    return f'"{text}"' if _HARMLESS.fullmatch(text) else "the given --pg"
