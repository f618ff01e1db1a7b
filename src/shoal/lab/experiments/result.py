"""The result of an experiment: JSON, tables, drawings, and the paragraph that compares it with the paper.

Owns the records that every experiment fills in, in any mode. Draws and prints nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """One curve of a drawing."""

    label: str
    x: list[float]
    y: list[float]
    steps: bool = False
    """Drawn as steps; for counts."""
    right: bool = False
    """On the right axis."""
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes. `marks` are labels with moments, each drawn as a symbol at the bottom."""

    title: str
    x_label: str
    y_label: str
    lines: list[Line]
    marks: list[tuple[str, list[float]]] = field(default_factory=list)
    right_label: str = ""
    y_max: float | None = None
    level: float | None = None
    """Where to draw a horizontal line: a limit."""
    log: tuple[bool, bool] = (False, False)
    """Whether the axes are logarithmic: x, y."""
    below_zero: bool = False
    """Whether values below zero are shown."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """One file, with its panels from top to bottom."""

    name: str
    panels: list[Panel]


@dataclass(frozen=True, slots=True)
class Table:
    """A table for the terminal."""

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """The result. `claims` are the statements that must hold, and whether each does."""

    name: str
    paper: str
    parameters: dict[str, Any]
    series: dict[str, Any]
    headline: dict[str, Any]
    tables: list[Table]
    drawings: list[Drawing]
    paragraph: str
    claims: dict[str, bool]

    @property
    def holds(self) -> bool:
        """Whether all claims hold."""
        return all(self.claims.values())

    def facts(self) -> dict[str, Any]:
        """What `--json` prints. Numbers that are not finite become null."""
        facts = {
            "name": self.name,
            "paper": self.paper,
            "parameters": self.parameters,
            "series": self.series,
            "headline": {**self.headline, "holds": self.claims},
        }
        finite: dict[str, Any] = _finite(facts)
        return finite


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if hasattr(value, "tolist"):
        return _finite(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
