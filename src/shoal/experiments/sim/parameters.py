"""What the simulated experiments of the Dynamoth paper share: its name, and where latencies come from.

Owns nothing else.
"""

from __future__ import annotations

from typing import Final

from shoal.experiments import Options
from shoal.sim.flow import Latencies, distance_model, from_matrix

PAPER: Final = "Dynamoth: A Scalable Pub/Sub Middleware for Latency-Constrained Applications in the Cloud (ICDCS 2015)"


def latencies_of(options: Options) -> Latencies:
    """Measured ones if a file was named, else the distance model."""
    return distance_model() if options.latencies is None else from_matrix(options.latencies)
