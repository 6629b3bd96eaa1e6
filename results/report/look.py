"""What all pages have in common: the templates, one stylesheet, and how a page comes to where it belongs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

# Of the page in the folder of what it is about.
NAME: Final = "report.html"


@cache
def environment() -> Environment:
    """The templates; what is put into them is escaped."""
    return Environment(
        loader=PackageLoader("results.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def rendered(template: str, **values: Any) -> str:
    """A whole page."""
    return environment().get_template(f"{template}.html.j2").render(**values)


def put(page: Path, html: str) -> Path:
    """Write a page whole or not at all; where it is."""
    partial = page.with_suffix(".partial")
    partial.write_text(html, encoding="utf-8")
    partial.replace(page)
    return page
