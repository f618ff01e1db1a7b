"""Experiments on real servers, scaled to the machine.

    replication.py      experiments 1a and 1b: one channel on one server, and on three
    scalability.py      experiment 2: how many players each policy supports
    elasticity.py       experiment 3: servers follow the number of players
    flow_check.py       the flow simulator compared with a real server
    game.py             RGame on a real cluster, for experiments 2 and 3
    clients.py          processes of measuring clients, for the others; client_worker.py is one such process, and
                        client_orders.py has its orders and reports
    observation.py      one measurement with them
    network.py          servers behind links of limited bandwidth
    limited_cluster.py  a cluster on such a network

Owns the table of experiments. Their modules are imported when they run; that of esilbops-13 is a soak with figures, and
is with the soaks; those of esilbops-7 to 12 are a benchmark with figures, and are with the benchmarks.
"""

from __future__ import annotations

import importlib
from typing import Final

from shoal.lab.experiments import Experiment, ExperimentOptions
from shoal.lab.experiments.result import ExperimentResult


def _figure(number: int) -> Experiment:
    def run(options: ExperimentOptions) -> ExperimentResult:
        found: Experiment = importlib.import_module("shoal.lab.bench.engine_scale.figures").figure(number)
        return found(options)

    return run


def _experiment(module: str, function: str, package: str = __name__) -> Experiment:
    def run(options: ExperimentOptions) -> ExperimentResult:
        found: Experiment = getattr(importlib.import_module(f"{package}.{module}"), function)
        return found(options)

    return run


EXPERIMENTS: Final[dict[str, Experiment]] = {
    "dynamoth-1a": _experiment("replication", "run_a"),
    "dynamoth-1b": _experiment("replication", "run_b"),
    "dynamoth-2": _experiment("scalability", "run"),
    "dynamoth-3": _experiment("elasticity", "run"),
    **{f"esilbops-{number}": _figure(number) for number in range(7, 13)},
    "esilbops-13": _experiment("engine_scaling", "run", "shoal.lab.soak"),
    "flow-check": _experiment("flow_check", "run"),
}
