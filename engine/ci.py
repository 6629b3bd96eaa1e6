"""A verdict in the forms that CI reads: JUnit XML for its test report, Markdown for a pull request.

`--junit FILE` and `--summary FILE` of every command that judges. An invariant, a race, a mutant or a machine is a test
case: held is passed, violated is a failure with the evidence, unknown is an error with the reason, not exercised is
skipped. The summary is appended, which is what `$GITHUB_STEP_SUMMARY` asks for: several steps write one page.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import click

from engine.errors import UsageError
from engine.front_door import NEW_FILE

Finding = Literal["held", "violated", "unknown", "not_exercised"]

# GitHub takes a megabyte of summary a step, and readers far less.
MOST_SHOWN: Final = 10
MOST_BYTES: Final = 20_000
# What XML 1.0 has no way to write. Jobs may hold any text.
_ILLEGAL: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing that was judged. `told`: the evidence where it is violated, the reason where it is unknown."""

    name: str
    verdict: Finding
    told: str = ""
    checked: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command came to. `title`: what was done, as in "stress mixed"; `word`: its verdict in its own words;
    `facts`: what else a reader wants to know, such as the server and the seed; `reproduce`: a command line."""

    title: str
    word: str
    cases: Sequence[Case]
    reason: str | None = None
    facts: Mapping[str, str]
    reproduce: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Files:
    """What `--junit` and `--summary` ask for."""

    junit: Path | None
    summary: Path | None

    def write(self, *outcomes: Outcome) -> None:
        """Write what is asked for; of several outcomes each is a suite. Raises UsageError where a file cannot be."""
        try:
            if self.junit is not None:
                self.junit.write_bytes(junit(outcomes))
            if self.summary is not None:
                with self.summary.open("a", encoding="utf-8") as file:
                    file.writelines(markdown(outcome) + "\n" for outcome in outcomes)
        except OSError as error:
            raise UsageError(f"{error.filename} cannot be written: {error.strerror}") from None


def ci_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of a command for CI. It gets `ci`, the `Files`; a folder that is not there is refused before it runs."""

    @click.option("--junit", type=NEW_FILE, default=None, help="Write a JUnit XML file for CI there.")
    @click.option(
        "--summary",
        type=NEW_FILE,
        default=None,
        help="Append a Markdown summary there, such as to $GITHUB_STEP_SUMMARY.",
    )
    @functools.wraps(command)
    def with_files(*args: Any, junit: Path | None, summary: Path | None, **kwargs: Any) -> Any:
        return command(*args, ci=Files(junit, summary), **kwargs)

    return with_files


def junit(outcomes: Sequence[Outcome]) -> bytes:
    """One suite for each outcome, one test case for whatever it judged. An outcome that judged nothing has one case of
    its own, so that it cannot pass for an empty success."""
    root = ElementTree.Element("testsuites", _counts(case for each in outcomes for case in _cases(each)))
    for outcome in outcomes:
        cases = _cases(outcome)
        about = {"name": _xml(outcome.title), "time": f"{outcome.seconds:.3f}", **_counts(cases)}
        suite = ElementTree.SubElement(root, "testsuite", about)
        properties = ElementTree.SubElement(suite, "properties")
        for name, value in {**outcome.facts, "verdict": outcome.word, "reproduce": outcome.reproduce}.items():
            ElementTree.SubElement(properties, "property", {"name": _xml(name), "value": _xml(value)})
        for case in cases:
            _add_case(suite, outcome, case)
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _cases(outcome: Outcome) -> Sequence[Case]:
    whole = Case(name="verdict", verdict="unknown", told=outcome.reason or "nothing was judged")
    return outcome.cases or (whole,)


def _counts(cases: Iterable[Case]) -> dict[str, str]:
    counts = Counter(case.verdict for case in cases)
    return {
        "tests": str(counts.total()),
        "failures": str(counts["violated"]),
        "errors": str(counts["unknown"]),
        "skipped": str(counts["not_exercised"]),
    }


def _add_case(suite: Element, outcome: Outcome, case: Case) -> None:
    about = {"classname": _xml(f"pgreferee.{outcome.title}".replace(" ", ".")), "name": _xml(case.name)}
    if case.seconds is not None:
        about["time"] = f"{case.seconds:.3f}"
    element = ElementTree.SubElement(suite, "testcase", about)
    if case.verdict == "not_exercised":
        ElementTree.SubElement(element, "skipped", {"message": "not exercised"})
    elif case.verdict != "held":
        told = _xml(case.told)
        kind = "failure" if case.verdict == "violated" else "error"
        message = {"type": case.verdict, "message": told.partition("\n")[0] or case.verdict}
        ElementTree.SubElement(element, kind, message).text = f"{told}\n\n{_xml(outcome.reproduce)}".strip()


def _xml(text: str) -> str:
    return _ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", text)


def markdown(outcome: Outcome) -> str:
    """The verdict first, then what makes it, then what was judged besides."""
    return "\n".join(_markdown(outcome)) + "\n"


def _markdown(outcome: Outcome) -> Iterator[str]:
    yield f"### pgreferee: {outcome.title}: **{outcome.word}**\n"
    if outcome.reason:
        yield f"{_cell(outcome.reason)}\n"
    if outcome.facts:
        yield " · ".join(f"{name} {_cell(value)}" for name, value in outcome.facts.items()) + "\n"
    bad = [case for case in outcome.cases if case.verdict in ("violated", "unknown")]
    counts = Counter(case.verdict.replace("_", " ") for case in outcome.cases)
    if counts:
        yield ", ".join(f"{count} {word}" for word, count in counts.items()) + "\n"
    if bad:
        yield "| what | verdict | why |"
        yield "|---|---|---|"
        for case in bad[:MOST_SHOWN]:
            yield f"| `{_cell(case.name)}` | {case.verdict} | {_cell(case.told.partition(chr(10))[0])} |"
        yield ""
        if len(bad) > MOST_SHOWN:
            yield f"and {len(bad) - MOST_SHOWN} more\n"
    for case in bad[:MOST_SHOWN]:
        if case.verdict == "violated" and "\n" in case.told:
            yield from _details(case.name, _cut(case.told, MOST_BYTES // len(bad[:MOST_SHOWN])))
    if held := [case for case in outcome.cases if case.verdict == "held"]:
        counted = ("" if case.checked is None else f" {case.checked:,}" for case in held)
        told = "\n".join(f"{case.name}{count}" for case, count in zip(held, counted, strict=True))
        yield from _details(f"{len(held)} held", told)
    if outcome.reproduce:
        yield f"Again: `{outcome.reproduce}`\n"


def _details(summary: str, text: str) -> Iterator[str]:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    yield f"<details><summary>{_cell(summary)}</summary>\n\n{fence}text\n{text}\n{fence}\n\n</details>\n"


def _cut(text: str, most: int) -> str:
    cut = text.encode()[:most].decode(errors="ignore")
    return cut if cut == text else f"{cut}\n… (the run's folder has the rest)"


def _cell(text: str) -> str:
    """Text that neither ends a cell nor is taken for a tag."""
    return text.replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")
