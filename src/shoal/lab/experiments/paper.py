"""Shared parts of all experiments of the Dynamoth paper, simulated or on real servers.

Owns the paper's title, its limit for response times, the source of latencies, and the layout of figure 4.
"""

from __future__ import annotations

import math
from typing import Final

from shoal.flow import Latencies, distance_model, from_matrix
from shoal.lab.experiments import ExperimentOptions
from shoal.lab.experiments.result import Drawing, Line, Panel

PAPER: Final = "Dynamoth: A Scalable Pub/Sub Middleware for Latency-Constrained Applications in the Cloud (ICDCS 2015)"
RESPONSE_LIMIT_MS: Final = 150.0
"""Players are supported while the average response time is below this."""
FIGURE_4_MS_MAX: Final = 1000.0


def latencies_of(options: ExperimentOptions) -> Latencies:
    """Measured latencies if a file was named, else the distance model."""
    return distance_model() if options.latencies is None else from_matrix(options.latencies)


def response_text(response_ms: float) -> str:
    """A response time as text; it is infinite if messages were not delivered."""
    return f"{response_ms:,.0f} ms" if math.isfinite(response_ms) else "not delivered"


def figure_4(name: str, title: str, clients: str, lines: list[Line]) -> Drawing:
    """Response times by number of clients, with one server and with several."""
    panel = Panel(title, clients, "response time (ms)", lines, y_max=FIGURE_4_MS_MAX, level=RESPONSE_LIMIT_MS)
    return Drawing(name, [panel])
