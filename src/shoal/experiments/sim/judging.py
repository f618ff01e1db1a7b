"""Judging: from the seconds of a run to the number of clients that were supported.

Owns the rule: a policy supports n clients if, until n are there, the average response time of every second stays under
150 ms (an undelivered message counts as infinite) and no server passes a load ratio of 1.15. And the bound: with how
many clients the servers would be full if every channel could be divided among all of them evenly, at no cost.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.sim.flow import Second, Series, ServerModel, Workload

RESPONSE_LIMIT_MS: Final = 150.0


def is_too_much(second: Second, fail_ratio: float) -> bool:
    """Whether the rule is broken in this second."""
    return second.response_ms >= RESPONSE_LIMIT_MS or second.ratio_max > fail_ratio


def supported(series: Series, fail_ratio: float) -> int:
    """The most clients that were there before the rule was broken first; all, if it never was."""
    most = 0
    for second in series.seconds:
        if is_too_much(second, fail_ratio):
            break
        most = max(most, second.clients)
    return most


def bound(workload: Workload, server: ServerModel, servers: int) -> int:
    """The most clients that any placement on this many servers could carry, replicated in any way.

    All deliveries must be sent and all publications received once, whatever the placement: when that alone is more than
    all links or all cores together can do, no placement helps. Queues and moves are not counted, so nothing can reach
    it quite.
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
    """The middle one."""
    return float(np.median(values)) if values else float("nan")
