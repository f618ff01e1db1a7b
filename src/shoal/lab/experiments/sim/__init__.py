"""Experiments in the flow simulator, at the papers' scale.

    dynamoth_1.py         experiments 1a and 1b: one channel on one server, and on three
    dynamoth_2.py         experiment 2: how many players each policy supports; dynamoth_2_report.py presents it
    dynamoth_3.py         experiment 3: servers follow the number of players
    rgame_load.py         the game of experiments 2 and 3 as a workload
    one_channel.py        the workload of experiments 1a and 1b
    game_settings.py      the games, their servers, and the settings of the policies
    verdict.py            the rule for supported players
    seeds.py              many seeds on all cores

Owns the table of experiments.
"""

from __future__ import annotations

from typing import Final

from shoal.lab.experiments import Experiment
from shoal.lab.experiments.sim import dynamoth_1, dynamoth_2, dynamoth_3

EXPERIMENTS: Final[dict[str, Experiment]] = {
    "dynamoth-1a": dynamoth_1.run_a,
    "dynamoth-1b": dynamoth_1.run_b,
    "dynamoth-2": dynamoth_2.run,
    "dynamoth-3": dynamoth_3.run,
}
