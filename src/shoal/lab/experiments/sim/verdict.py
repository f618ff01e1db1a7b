"""The verdict on a simulated run: how many clients it supported.

Owns the rule: a policy supports n clients if, until n clients are there, the average response time of every second
stays under 150 ms (an undelivered message counts as infinite) and no server exceeds a load ratio of 1.15. Also owns the
bound: the number of clients at which all servers are full even if every channel is divided evenly, at no cost.
"""

from __future__ import annotations

import numpy as np

from shoal.flow import FlowSecond, Series, ServerModel, Workload
from shoal.lab.experiments.paper import RESPONSE_LIMIT_MS


def is_too_much(second: FlowSecond, fail_ratio: float) -> bool:
    """Whether this second breaks the rule."""
    return second.response_ms >= RESPONSE_LIMIT_MS or second.ratio_max > fail_ratio


def supported(series: Series, fail_ratio: float) -> int:
    """The most clients before the rule was first broken; all clients, if it never was."""
    most = 0
    for second in series.seconds:
        if is_too_much(second, fail_ratio):
            break
        most = max(most, second.clients)
    return most


def bound(workload: Workload, server: ServerModel, servers: int) -> int:
    """The most clients that any placement on this number of servers could carry, replicated in any way.

    Every placement must send all deliveries and receive each publication at least once. When that alone exceeds all
    links or all cores together, no placement helps. Queues and moves are not counted, so no policy quite reaches the
    bound.
    """
    most = 0
    for now_s in range(workload.seconds):
        traffic = workload.at(now_s)
        messages = float(traffic.messages_out.sum())
        links = float((traffic.messages_out * traffic.message_bytes).sum()) / (servers * server.limit_bytes_per_s)
        cores = messages * server.delivery_cpu_s + float(traffic.publications.sum()) * server.publication_cpu_s
        if max(links, cores / (servers * server.cpu_capacity)) > 1 or traffic.latency_ms >= RESPONSE_LIMIT_MS:
            break
        most = max(most, traffic.clients)
    return most


def median(values: list[float] | list[int]) -> float:
    """The median; not a number for an empty list."""
    return float(np.median(values)) if values else float("nan")
