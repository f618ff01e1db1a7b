"""Experiments in the flow simulator, at the papers' scale.

Owns the table of them.
"""

from __future__ import annotations

from typing import Final

from shoal.experiments import Experiment
from shoal.experiments.sim import dynamoth_1, dynamoth_2, dynamoth_3

EXPERIMENTS: Final[dict[str, Experiment]] = {
    "dynamoth-1a": dynamoth_1.run_a,
    "dynamoth-1b": dynamoth_1.run_b,
    "dynamoth-2": dynamoth_2.run,
    "dynamoth-3": dynamoth_3.run,
}
