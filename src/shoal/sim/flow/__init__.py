"""The flow-level simulator: rates instead of messages, columns instead of objects.

    latencies = distance_model()
    game = RGame(RGameMap(side=8), ramp(120, 1200, each_s=1.0), latencies, seed=17)
    series = FlowSimulator(game, policy("shoal"), BalanceSettings(), Models(), seed=17).run()
    series.column("response_ms")

Owns: nothing itself; this is the list of what an experiment needs. It runs the product's policies on models of servers,
moves and the pool (`model`), and knows nothing of connections, messages or time other than seconds.
"""

from shoal.sim.flow.latency import Latencies, distance_model, from_matrix
from shoal.sim.flow.model import MeasureModel, MoveModel, PoolModel, ServerModel
from shoal.sim.flow.series import Second, Series
from shoal.sim.flow.simulator import FlowSimulator, Models, at_homes
from shoal.sim.flow.traffic import Traffic, Workload

__all__ = [
    "FlowSimulator",
    "Latencies",
    "MeasureModel",
    "Models",
    "MoveModel",
    "PoolModel",
    "Second",
    "Series",
    "ServerModel",
    "Traffic",
    "Workload",
    "at_homes",
    "distance_model",
    "from_matrix",
]
