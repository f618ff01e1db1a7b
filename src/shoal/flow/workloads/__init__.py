"""Workloads of the flow simulator: traffic over time, from a seed.

    rgame.py          the game of the Dynamoth paper, with or without towns
    micro.py          its two micro-benchmarks
    zipf.py           many channels with zipf loads
    recorded_load.py  the load of past load windows
    curves.py         how the number of clients changes over time

Owns only the list of names.
"""

from shoal.flow.workloads.curves import Curve, day, ramp, ups_and_downs
from shoal.flow.workloads.micro import OneChannel, many_publishers, many_subscribers
from shoal.flow.workloads.recorded_load import Recorded, traffic_of
from shoal.flow.workloads.rgame import RGame, RGameMap
from shoal.flow.workloads.zipf import Hot, Zipf, ZipfChannels

__all__ = [
    "Curve",
    "Hot",
    "OneChannel",
    "RGame",
    "RGameMap",
    "Recorded",
    "Zipf",
    "ZipfChannels",
    "day",
    "many_publishers",
    "many_subscribers",
    "ramp",
    "traffic_of",
    "ups_and_downs",
]
