"""Experiments on real servers, scaled to the machine.

Owns the table of them. What an experiment needs is loaded when it runs.
"""

from __future__ import annotations

import importlib
from typing import Final

from shoal.experiments import Experiment, Options
from shoal.experiments.result import Result


def _experiment(module: str, function: str) -> Experiment:
    def run(options: Options) -> Result:
        found: Experiment = getattr(importlib.import_module(f"{__name__}.{module}"), function)
        return found(options)

    return run


EXPERIMENTS: Final[dict[str, Experiment]] = {
    "dynamoth-1a": _experiment("micro", "run_a"),
    "dynamoth-1b": _experiment("micro", "run_b"),
    "dynamoth-2": _experiment("scalability", "run"),
    "dynamoth-3": _experiment("elasticity", "run"),
    "flow-check": _experiment("check", "run"),
}
