"""Workloads of the flow simulator: who publishes what to whom over time, from a seed.

Owns: nothing itself. `rgame` is the Dynamoth paper's game (with towns, if asked for), `micro` its two micro-benchmarks,
`zipf` many channels of very different load, `recorded` what load windows of the past tell, `curves` how all of that
changes over time.
"""

from shoal.sim.flow.workloads.curves import Curve, day, ramp, ups_and_downs
from shoal.sim.flow.workloads.micro import OneChannel, many_publishers, many_subscribers
from shoal.sim.flow.workloads.recorded import Recorded, traffic_of
from shoal.sim.flow.workloads.rgame import RGame, RGameMap
from shoal.sim.flow.workloads.walkers import Walk
from shoal.sim.flow.workloads.zipf import Hot, Zipf, ZipfChannels

__all__ = [
    "Curve",
    "Hot",
    "OneChannel",
    "RGame",
    "RGameMap",
    "Recorded",
    "Walk",
    "Zipf",
    "ZipfChannels",
    "day",
    "many_publishers",
    "many_subscribers",
    "ramp",
    "traffic_of",
    "ups_and_downs",
]
