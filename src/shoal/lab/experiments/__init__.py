"""The papers' experiments. Each gives tables, figures, JSON and a paragraph that compares it with the paper.

    sim/        experiments in the flow simulator, at the papers' scale
    real/       experiments on real servers, scaled to the machine
    paper.py    shared by all experiments of the Dynamoth paper
    result.py   the result of an experiment
    figures.py  its figures as files

Owns the table of modes. A mode is a package here with a table `EXPERIMENTS`, from names to functions that take options
and return a result.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal.errors import ConfigError
from shoal.lab.experiments.result import ExperimentResult

MODES: Final = ("sim", "real")
SEEDS: Final = 20
"""Default number of seeds."""


@dataclass(frozen=True, slots=True)
class ExperimentOptions:
    """Options of an experiment. `note` takes progress texts."""

    seeds: int = SEEDS
    latencies: Path | None = None
    quick: bool = False
    """A smaller experiment, where there is one: it shows that everything runs, and makes no claim about goals."""
    note: Callable[[str], None] = lambda _: None
    filters: tuple[int, ...] = ()
    """Numbers of filters in ascending order, where an experiment has some; empty: those of the paper."""


Experiment = Callable[[ExperimentOptions], ExperimentResult]


def experiments(mode: str) -> dict[str, Experiment]:
    """The experiments of a mode, by name."""
    if mode not in MODES:
        raise ConfigError(f"unknown mode {mode!r}", do=f"choose one of {', '.join(MODES)}")
    table: dict[str, Experiment] = importlib.import_module(f"{__name__}.{mode}").EXPERIMENTS
    return table
