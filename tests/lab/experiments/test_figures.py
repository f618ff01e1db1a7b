"""Results as files and as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from shoal.errors import MissingExtraError
from shoal.lab.experiments.figures import draw
from shoal.lab.experiments.result import Drawing, ExperimentResult, Line, Panel

LINES = [
    Line("one", [0.0, 1.0, 2.0], [1.0, float("inf"), 3.0]),
    Line("two", [0.0, 1.0], [5.0, 6.0], steps=True, right=True, dashed=True),
]
PANEL = Panel("title", "x", "y", LINES, marks=[("moments", [1.0])], right_label="right", y_max=10.0, level=4.0)


def test_a_drawing_is_written_as_svg_and_png(tmp_path: Path) -> None:
    paths = draw([Drawing("figure", [PANEL, PANEL])], tmp_path / "deep" / "out")
    assert [path.name for path in paths] == ["figure.svg", "figure.png"]
    assert b"<svg" in paths[0].read_bytes()[:500]
    assert paths[1].read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"shoal\[plots\]"):
        draw([Drawing("figure", [PANEL])], tmp_path)


def test_numbers_that_are_not_finite_are_null_in_json() -> None:
    claims = {"the sky is blue": True, "pigs fly": False}
    result = ExperimentResult(
        "n", "p", {"a": (1, 2)}, {"s": [1.0, float("inf")]}, {"h": float("nan")}, [], [], "", claims
    )
    facts = json.loads(json.dumps(result.facts()))
    assert facts["series"] == {"s": [1.0, None]}
    assert facts["headline"] == {"h": None, "holds": claims}
    assert facts["parameters"] == {"a": [1, 2]}
    assert not result.holds
