"""Drawings as SVG and PNG files.

Owns how they look. Needs matplotlib, which a plain installation does not have, and imports it only to draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from shoal.extras import needed
from shoal.lab.experiments.result import Drawing, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_INCHES: Final = 7.5
PANEL_INCHES: Final = 2.9
FORMATS: Final = ("svg", "png")
PNG_DPI: Final = 120
COLOURS: Final = ("#0b6e8f", "#d1495b", "#edae49", "#66a182", "#5d5179", "#8d99ae")
MARK_SYMBOLS: Final = ("D", "o", "s", "^", "v")
MARKED_POINTS_MAX: Final = 40
"""Curves with no more points than this show each point."""


def draw(drawings: list[Drawing], out: Path) -> list[Path]:
    """Writes each drawing in all formats; returns the files."""
    with needed("a figure"):
        import matplotlib
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "shoal", "font.size": 9, "axes.spines.top": False})
    out.mkdir(parents=True, exist_ok=True)
    return [path for drawing in drawings for path in _draw(drawing, out)]


def _draw(drawing: Drawing, out: Path) -> list[Path]:
    from matplotlib.figure import Figure

    count = len(drawing.panels)
    figure = Figure(figsize=(WIDTH_INCHES, PANEL_INCHES * count), layout="constrained")
    axes = figure.subplots(count, 1, squeeze=False)
    for axis, panel in zip(axes[:, 0], drawing.panels, strict=True):
        _panel(axis, panel)
    paths = [out / f"{drawing.name}.{format}" for format in FORMATS]
    for path in paths:
        figure.savefig(path, dpi=PNG_DPI, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths


def _are_whole(values: Sequence[float]) -> bool:
    return all(value == round(value) for value in values)


def _panel(axis: Axes, panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_title(panel.title, loc="left", fontsize=10)
    axis.set_xlabel(panel.x_label)
    axis.set_ylabel(panel.y_label)
    axis.grid(alpha=0.3)
    right = axis.twinx() if any(line.right for line in panel.lines) else None
    if right is not None:
        right.set_ylabel(panel.right_label)
    for index, line in enumerate(panel.lines):
        on = right if line.right and right is not None else axis
        values = np.where(np.isfinite(line.y), line.y, np.nan)
        on.plot(
            line.x,
            values,
            label=line.label,
            color=COLOURS[index % len(COLOURS)],
            linestyle="--" if line.dashed else "-",
            linewidth=1.4,
            drawstyle="steps-post" if line.steps else "default",
            marker="." if len(line.x) <= MARKED_POINTS_MAX else "",
        )
    if panel.level is not None:
        axis.axhline(panel.level, color="#888888", linewidth=0.8, linestyle=":")
    axis.set_xscale("log" if panel.log[0] else "linear")
    axis.set_yscale("log" if panel.log[1] else "linear")
    if not panel.log[0] and all(len(line.x) <= MARKED_POINTS_MAX and _are_whole(line.x) for line in panel.lines):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if not panel.log[1]:
        axis.set_ylim(min(0.0, axis.get_ylim()[0]) if panel.below_zero else 0, panel.y_max)
    if right is not None:
        right.set_ylim(0, None)
    height = axis.get_ylim()[1]
    for index, (label, moments) in enumerate(panel.marks):
        axis.plot(
            moments,
            [height * (0.03 + 0.05 * index)] * len(moments),
            linestyle="",
            marker=MARK_SYMBOLS[index % len(MARK_SYMBOLS)],
            markersize=3.5,
            color=COLOURS[index % len(COLOURS)],
            label=label,
        )
    handles, labels = axis.get_legend_handles_labels()
    if right is not None:
        more, more_labels = right.get_legend_handles_labels()
        handles, labels = handles + more, labels + more_labels
    axis.legend(handles, labels, fontsize=7, loc="best", framealpha=0.8)
