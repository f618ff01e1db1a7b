"""Workloads of the flow simulator: traffic over time, from a seed.

    recorded_load.py  the load of past load windows
    zipf.py           many channels with Zipf loads
    curves.py         how the number of clients changes over time

The workloads of the papers' experiments are in `shoal.lab.experiments.sim`. Owns only the list of names.
"""

from shoal.flow.workloads.curves import Curve, ramp
from shoal.flow.workloads.recorded_load import Recorded, traffic_of
from shoal.flow.workloads.zipf import Zipf, ZipfChannels

__all__ = ["Curve", "Recorded", "Zipf", "ZipfChannels", "ramp", "traffic_of"]
