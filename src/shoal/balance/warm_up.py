"""Warm-up: runs policies once in advance, because import and compilation take seconds.

Owns a small situation with an overloaded server.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from shoal.balance.columns import NEVER, Channels, Hosts, Placements
from shoal.balance.policies import POLICIES, policy
from shoal.balance.settings import DEFAULT_SETTINGS, BalanceSettings
from shoal.balance.situation import Pool, Situation


def warm_up(*names: str, settings: BalanceSettings = DEFAULT_SETTINGS) -> None:
    """Runs some policies once, or all of them, and discards the decisions."""
    for name in names or POLICIES:
        policy(name)(overloaded(), settings)


def overloaded() -> Situation:
    """Two servers: one is overloaded with four channels, the other has room for two of them."""
    count = 4
    ones = np.ones(count)
    return Situation(
        at_s=10.0,
        channels=Channels(
            names=pa.array([b"channel.%d" % number for number in range(count)], pa.binary()),
            publications=10.0 * ones,
            publishers=ones.astype(np.int64),
            subscribers=10 * ones.astype(np.int64),
            messages_out=100.0 * ones,
            bytes_out=300.0 * ones,
            cpu_in=0.01 * ones,
            cpu_out=0.02 * ones,
        ),
        placements=Placements.single(np.zeros(count, np.int32)),
        hosts=Hosts(
            ids=("s1", "s2"),
            capacity=np.array([1000.0, 1000.0]),
            cpu_capacity=np.ones(2),
            bytes_out=np.array([1200.0, 0.0]),
            cpu=np.array([0.12, 0.0]),
            cost=np.ones(2),
            takes=np.ones(2, np.bool_),
            heard=np.ones(2, np.bool_),
            joined_at=np.full(2, NEVER),
        ),
        pool=Pool(servers_min=1, servers_max=4, adding=0, new_capacity=1000.0, new_cpu_capacity=1.0, new_cost=1.0),
        moved_at=np.full(count, NEVER),
        planned_at=NEVER,
        past_at=np.array([8.0, 10.0]),
        past_bytes_out=np.array([1200.0, 1200.0]),
    )
