"""Curves as SVG that follows the page: its colours are the page's variables, its letters the page's.

matplotlib draws with stand-in colours, which are then replaced. Each chart is drawn twice, wide and narrow; the page
shows the one that fits.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from results.report.series import Band, Curve

# Stand-ins, each replaced by the variable of that name.
INK, FAINT, BAND = "#010101", "#020202", "#030303"
LINES: Final = ("#0a0a01", "#0a0a02", "#0a0a03", "#0a0a04", "#0a0a05")
_VARIABLES: Final = {
    INK: "ink", FAINT: "faint", BAND: "band",
    **{colour: f"line{number + 1}" for number, colour in enumerate(LINES)},
}  # fmt: skip
# Inches at 72 to the inch.
WIDE, NARROW = (11.0, 2.7), (4.6, 2.9)
# Beside colour, so that curves can be told apart without it.
DASHES: Final = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "pgreferee",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": FAINT,
    "grid.linewidth": 0.4,
    "legend.frameon": False,
}


def chart(
    title: str,
    unit: str,
    curves: Sequence[Curve],
    bands: Sequence[Band],
    *,
    end_s: float,
    logarithmic: bool = False,
    across: str = "seconds since the load began",
) -> str:
    """Both drawings, each in a `div` of class `wide` or `narrow`."""
    return "".join(
        f'<div class="{name}">{_draw(f"{title} ({name})", unit, curves, bands, size, end_s, logarithmic, across)}</div>'
        for name, size in (("wide", WIDE), ("narrow", NARROW))
    )


def strips(title: str, bands: Sequence[Band], *, end_s: float) -> str:
    """When each kind of fault was in force: a strip for each, both drawings."""
    return "".join(
        f'<div class="{name}">{_draw_strips(f"{title} ({name})", bands, width, end_s)}</div>'
        for name, (width, _) in (("wide", WIDE), ("narrow", NARROW))
    )


def _draw_strips(title: str, bands: Sequence[Band], width: float, end_s: float) -> str:
    names = sorted({band.name for band in bands}, reverse=True)
    with mpl.rc_context(_STYLE):
        figure, axes = _framed((width, 0.6 + 0.2 * len(names)), left=0.85, above=0.05)
        for place, name in enumerate(names):
            spans = [
                (band.from_s, max(band.to_s - band.from_s, end_s / 300))
                for band in bands
                if band.name == name
            ]
            axes.broken_barh(spans, (place - 0.35, 0.7), color=LINES[1], alpha=0.7, linewidth=0)
        axes.set_yticks(range(len(names)), names)
        axes.set_xlim(0, max(end_s, 1e-3))
        axes.set_xlabel("seconds since the load began")
        return _themed(_written(figure), title)


def _framed(size: tuple[float, float], *, left: float, above: float) -> tuple[Figure, Axes]:
    """Axes with room for their labels, in inches: matplotlib's own layout would cost more than the drawing."""
    width, height = size
    figure = Figure(figsize=size)
    FigureCanvasSVG(figure)
    below = 0.45
    axes = figure.add_axes(
        (left / width, below / height, 1 - (left + 0.1) / width, 1 - (below + above) / height)
    )
    return figure, axes


def _written(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _draw(
    title: str,
    unit: str,
    curves: Sequence[Curve],
    bands: Sequence[Band],
    size: tuple[float, float],
    end_s: float,
    logarithmic: bool,
    across: str,
) -> str:
    with mpl.rc_context(_STYLE):
        legend_rows = 1 if size is WIDE else -(-len(curves) // 2)
        figure, axes = _framed(size, left=0.6, above=0.1 + 0.2 * legend_rows)
        for band in bands:
            axes.axvspan(max(0.0, band.from_s), band.to_s, color=BAND, alpha=0.5, linewidth=0)
        for curve, colour, dashes in zip(curves, LINES, DASHES, strict=False):
            ys = [float("nan") if y is None else y for y in curve.ys]
            axes.plot(curve.xs, ys, color=colour, linestyle=dashes, linewidth=1.4, label=curve.name)
        axes.set_xlim(0, max(end_s, 1e-3))
        if logarithmic and any(y for curve in curves for y in curve.ys):
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(across)
        axes.set_ylabel(unit)
        axes.grid(visible=True, axis="y")
        if curves:
            figure.legend(loc="upper left", borderaxespad=0, ncols=min(len(curves), 5 if size is WIDE else 2))
        return _themed(_written(figure), title)


def _themed(svg: str, title: str) -> str:
    """Without what only a file of its own needs, and with the page's colours."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r' (width|height)="[^"]*pt"', "", body, count=2)
    # Names within a drawing are unique within it only.
    prefix = re.sub(r"\W+", "-", title.lower())
    body = re.sub(r'id="', f'id="{prefix}-', body)
    body = re.sub(r"url\(#", f"url(#{prefix}-", body)
    body = re.sub(r'href="#', f'href="#{prefix}-', body)
    for stand_in, variable in _VARIABLES.items():
        body = body.replace(stand_in, f"var(--{variable})")
    body = re.sub(r"font: [^;\"]*?(\d+(?:\.\d+)?)px[^;\"]*", r"font-size: \1px", body)
    return body.replace("<svg", f'<svg role="img" aria-label="{title.rpartition(" (")[0] or title}"', 1)
