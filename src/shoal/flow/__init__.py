"""The flow simulator: rates instead of messages, columns instead of objects.

    channels = ZipfChannels(Zipf(10_000, publications_per_s=5e4), ramp(0.1, 1.0, 0.01), distance_model(), seed=17)
    series = FlowSimulator(channels, policy("shoal"), BalanceSettings(), Models(), seed=17).run()
    series.column("response_ms")

It runs the product's policies on models of servers, moves and the pool. It has no connections and no messages, and time
passes in whole seconds.

    simulator.py      the order of things in a second
    model.py          every assumption, with its unit and its source
    traffic.py        what all channels do in a second; workloads/ produces it
    spread.py         how the clients of a replicated channel divide among its servers
    server_queues.py  the queues of the servers
    migrations.py     channels on their way to other servers
    pool.py           servers that are added, drained and removed
    load_meter.py     the measured load, as policies get it
    latency.py        latency between clients and servers
    series.py         the result of a run

Owns only the list of names that an experiment needs.
"""

from shoal.flow.latency import Latencies, distance_model, from_matrix
from shoal.flow.model import MeasureModel, MoveModel, PoolModel, ServerModel
from shoal.flow.series import FlowSecond, Series
from shoal.flow.simulator import FlowSimulator, Models, at_homes
from shoal.flow.traffic import Traffic, Workload

__all__ = [
    "FlowSecond",
    "FlowSimulator",
    "Latencies",
    "MeasureModel",
    "Models",
    "MoveModel",
    "PoolModel",
    "Series",
    "ServerModel",
    "Traffic",
    "Workload",
    "at_homes",
    "distance_model",
    "from_matrix",
]
