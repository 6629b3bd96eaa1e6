"""The repository keeps its own rules."""

from __future__ import annotations

import itertools
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = PYPROJECT["project"]

# The groups keep this file from breaking its own rule.
PACKAGE_HOSTS = re.compile(
    r"py(pi)\.org|python(hosted)\.|npm(js)\.|deb(ian)\.org|proxy\.(golang)\.", re.IGNORECASE
)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def repository_files() -> Iterator[Path]:
    """What git tracks or would add; outside a git checkout the rules on files cannot be asked."""
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", *"ls-files -z --cached --others --exclude-standard".split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip(f"not a git checkout: {listed.stderr.strip()}")
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            yield ROOT / name


def pins() -> dict[str, str]:
    lines = (line for line in read("constraints.txt").splitlines() if line and not line.startswith("#"))
    requirements = [Requirement(line) for line in lines]
    for requirement in requirements:
        assert re.fullmatch(r"==[^*,]+", str(requirement.specifier)), f"{requirement} is not one version"
    return {canonicalize_name(pin.name): str(pin.specifier)[2:] for pin in requirements}


def test_every_statement_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "engine" / "sql").rglob("*.sql"))
        if not re.match(r"--\s*\w", path.read_text(encoding="utf-8"))
    ]
    assert silent == []


def test_no_file_names_a_host_that_serves_packages() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in repository_files()
        if (match := PACKAGE_HOSTS.search(path.read_bytes().decode("utf-8", errors="replace")))
    ]
    assert found == []


def test_the_pins_hold_versions_only() -> None:
    assert not re.search(r"://|--hash|^-|\s@\s", read("constraints.txt"), re.MULTILINE)


def test_every_requirement_is_pinned_within_its_range() -> None:
    pinned = pins()
    groups = itertools.chain(*PYPROJECT["dependency-groups"].values())
    extras = itertools.chain(*PROJECT["optional-dependencies"].values())
    wanted = [*PROJECT["dependencies"], *PYPROJECT["build-system"]["requires"], *groups, *extras]
    for requirement in map(Requirement, wanted):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not in constraints.txt: nox -s pin"
        assert requirement.specifier.contains(version), f"{requirement} but constraints.txt has {version}"
    assert pinned["psycopg-binary"] == pinned["psycopg"]


def test_the_licence_is_here() -> None:
    assert PROJECT["license"] == "MIT"
    assert read("LICENSE").startswith("MIT License")


def test_ci_runs_the_command_that_the_readme_gives_for_the_tests() -> None:
    readme = read("README.md")
    commands = re.findall(r"^python3 -m pip install nox && python3 -m nox -s \w+$", readme, re.MULTILINE)
    assert [command.rsplit(" ", 1)[1] for command in commands] == ["stress", "tests"]
    assert commands[1] in [line.strip() for line in read(".ci/run").splitlines()]


def test_one_range_of_pythons_is_promised_and_tested() -> None:
    promised = SpecifierSet(PROJECT["requires-python"])
    versions = [f"3.{minor}" for minor in range(40) if promised.contains(f"3.{minor}")]
    prefix = "Programming Language :: Python :: "
    classified = [c.removeprefix(prefix) for c in PROJECT["classifiers"] if c.startswith(prefix)]
    assert classified == versions

    workflow = read(".github/workflows/ci.yml")
    matrix = re.search(r"^ +python: \[(.+)\]$", workflow, re.MULTILINE)
    assert matrix is not None
    assert re.findall(r'"([^"]+)"', matrix.group(1)) == versions

    target = versions[0].replace(".", "")
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py{target}"
    assert PYPROJECT["tool"]["mypy"]["python_version"] == versions[0]


def test_ci_tests_every_postgres_that_is_supported() -> None:
    matrix = re.search(r"^ +postgres: \[(.+)\]$", read(".github/workflows/ci.yml"), re.MULTILINE)
    assert matrix is not None
    assert matrix.group(1).replace('"', "").split(", ") == [str(major) for major in range(13, 19)]
