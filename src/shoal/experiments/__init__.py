"""The papers' experiments: each gives a table, figures, JSON and a paragraph that compares with the paper.

Owns the table of modes and names. `sim` runs them in the flow simulator at the papers' scale, `real` with real servers,
scaled to the machine. A mode is a package of this one with a table `EXPERIMENTS`, from names to functions from options
to a result; a mode that is not there is not offered.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal.errors import ConfigError
from shoal.experiments.result import Result

MODES: Final = ("sim", "real")
SEEDS: Final = 20
"""How many seeds an experiment takes, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Options:
    """What can be chosen about an experiment. `note` takes words about the progress."""

    seeds: int = SEEDS
    latencies: Path | None = None
    note: Callable[[str], None] = lambda _: None


Experiment = Callable[[Options], Result]


def modes() -> tuple[str, ...]:
    """The modes that are there."""
    return tuple(mode for mode in MODES if importlib.util.find_spec(f"{__name__}.{mode}") is not None)


def experiments(mode: str) -> dict[str, Experiment]:
    """The experiments of a mode, by name."""
    if mode not in modes():
        raise ConfigError(f"there is no mode {mode!r}", do=f"name one of {', '.join(modes())}")
    table: dict[str, Experiment] = importlib.import_module(f"{__name__}.{mode}").EXPERIMENTS
    return table
