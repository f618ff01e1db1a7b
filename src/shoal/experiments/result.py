"""The result of an experiment: figures of speech are for the paragraph, everything else is data.

Owns the records that every experiment fills in, in any mode: what JSON shows, the table, the drawings and the paragraph
that compares with the paper. Nothing here draws or prints.
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
    """Drawn as steps: for counts."""
    right: bool = False
    """On the axis at the right."""
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes. `marks` are moments (label and x) that get a diamond each at the bottom."""

    title: str
    x_label: str
    y_label: str
    lines: list[Line]
    marks: list[tuple[str, list[float]]] = field(default_factory=list)
    right_label: str = ""
    y_max: float | None = None
    level: float | None = None
    """A horizontal line: a limit."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A file with panels below each other."""

    name: str
    panels: list[Panel]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows for people."""

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Result:
    """What came out. `claims` says of each thing that must hold whether it does."""

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
        """Whether everything that must hold does."""
        return all(self.claims.values())

    def facts(self) -> dict[str, Any]:
        """What `--json` prints; a number that is not finite is null there."""
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
