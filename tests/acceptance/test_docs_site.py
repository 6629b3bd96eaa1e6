"""The documentation as a site: built without a warning, read without a network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

from typing_extensions import override

DOCS = Path(__file__).parents[2] / "docs"


def build(source: Path, site: Path, form: str = "html") -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        form,
        str(source),
        str(site),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=110)


class Fetched(HTMLParser):
    """What a browser would fetch of a page, and where its links lead."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := found.get(name))}
        address = found.get("src") or found.get("href")
        if address:
            (self.links if tag == "a" else self.parts).append(address)


def test_the_site_is_built_without_a_warning_and_nothing_of_it_is_elsewhere(tmp_path: Path) -> None:
    done = build(DOCS, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    pages = {page.name: Fetched() for page in tmp_path.glob("*.html")}
    for name, page in pages.items():
        page.feed((tmp_path / name).read_text(encoding="utf-8"))
    assert len(pages) > 15
    for name, page in pages.items():
        for part in page.parts:
            assert not re.match(r"(https?:)?//", part), f"{name} fetches {part}"
            assert part.startswith(("data:", "#")) or (tmp_path / part.partition("?")[0]).exists(), part
        for link in page.links:
            if link.startswith(("http:", "https:", "mailto:")):
                continue
            place, _, anchor = link.partition("#")
            assert (tmp_path / (place or name)).exists(), f"{name} leads to {link}"
            if anchor and (place or name) in pages and anchor != "":
                assert anchor in pages[place or name].anchors, f"{name} leads to {link}"
    for sheet in tmp_path.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", sheet.read_text(encoding="utf-8")), (
            sheet
        )


def test_links_that_lead_nowhere_fail_the_build_one_by_one(tmp_path: Path) -> None:
    source = tmp_path / "docs"
    source.mkdir()
    shutil.copy(DOCS / "conf.py", source)
    toctree = "```{toctree}\nother\n```\n"
    (source / "other.md").write_text("# Other\n\n## There\n", encoding="utf-8")
    index = source / "index.md"
    index.write_text(f"# Index\n\n[there](other.md#there)\n\n{toctree}", encoding="utf-8")
    assert build(source, tmp_path / "sound", "dummy").returncode == 0
    broken = ("nowhere.md", "other.md#nowhere", "#nowhere-here")
    links = "".join(f"- [{place}]({link})\n" for place, link in enumerate(broken))
    index.write_text(f"# Index\n\n{links}\n{toctree}", encoding="utf-8")
    done = build(source, tmp_path / "site", "dummy")
    assert done.returncode != 0
    assert done.stderr.count("WARNING") == len(broken)
