"""The look of the notebooks' charts: one style for all, and marks for what happened.

Rule for editors: colors mean the same in each chart, and in the pictures of the docs. Orange is
Spark, blue is the publisher, green is a table, and red is what went wrong. Needs matplotlib.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SPARK, PUBLISHER, TABLE, BAD = "#bc4c00", "#0969da", "#1a7f37", "#cf222e"
INK, QUIET, LINE = "#1f2328", "#57606a", "#d8dee4"

STYLE: Any = {
    "figure.figsize": (8, 3.2),
    "figure.dpi": 100,
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "savefig.dpi": 200,
    "font.family": "DejaVu Sans",  # matplotlib brings it, so a chart is the same on each machine
    "font.size": 10,
    "text.color": INK,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 14,
    "axes.labelcolor": QUIET,
    "axes.edgecolor": QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": LINE,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "lines.linewidth": 2,
    "legend.facecolor": "white",
    "legend.edgecolor": "none",
}
"""matplotlib's settings. Its colors are in `COLORS`."""

COLORS = (PUBLISHER, SPARK, TABLE, "#8250df", "#9a6700", QUIET)


def use_style() -> None:
    """Draw all charts of this process in this style, and in a notebook with twice the pixels."""
    import matplotlib
    from cycler import cycler

    matplotlib.rcParams.update(STYLE)
    matplotlib.rcParams["axes.prop_cycle"] = cycler(color=COLORS)
    if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("retina")  # type: ignore[no-untyped-call]  # it has no types


def mark(axes: Axes, at: float, text: str, *, color: str = BAD, row: int = 0) -> None:
    """Mark a time, or another value of the x axis, by a dashed line with a text.

    The text is on the right of the line, or on the left if it would not fit. So call this after the
    data are drawn.

    Args:
        axes: the chart.
        at: the value of the x axis.
        text: what is there, in a few words.
        color: the line's and the text's color; red, which is a crash, by default.
        row: how many lines of text lower the text stands, so that two do not overlap.
    """
    axes.axvline(at, color=color, linestyle="--", linewidth=1.2, zorder=1)
    note = axes.annotate(
        text,
        (at, 1),
        xycoords=("data", "axes fraction"),
        xytext=(4, -2 - 13 * row),
        textcoords="offset points",
        color=color,
        fontsize=9,
        verticalalignment="top",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.85},
    )
    if note.get_window_extent().x1 > axes.get_window_extent().x1:
        note.set_horizontalalignment("right")
        note.xyann = (-4, -2 - 13 * row)


def name_lines(axes: Axes) -> None:
    """Write the name of each line at its right end, in its color, in place of a legend."""
    for line in axes.get_lines():
        name = str(line.get_label())
        if not name.startswith("_"):
            points = np.asarray(line.get_xydata())
            x, y = points[np.isfinite(points).all(axis=1)][-1]
            axes.annotate(
                name,
                (x, y),
                xytext=(6, 0),
                textcoords="offset points",
                color=line.get_color(),
                verticalalignment="center",
                annotation_clip=False,
            )
