"""The situation for all policies in `shoal bench plan`: zipf channels placed by hash on servers of two sizes.

Owns the load, made from a seed, in columns. Measures nothing.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from shoal.balance.columns import NEVER, Bools, Channels, Floats, Hosts, Placements, host_loads
from shoal.balance.policies.name_hashes import ring_hashes
from shoal.balance.policies.ring_homes import ring_of
from shoal.balance.situation import Pool, Situation

EXPONENT: Final = 1.0
"""The channel of rank `r` has `r ** -EXPONENT` of the load of the first."""
BOUND: Final = 0.6
"""The load ratio of all servers if everything were divided perfectly."""
CPU_BOUND: Final = 0.4
"""The same for CPU. Servers of both sizes have one core, so large servers have relatively little CPU."""
CAPACITY: Final = 125e6
"""Bytes a second of a small server. A large one has twice the capacity and costs twice as much."""
MESSAGE_BYTES: Final = 200.0
PUBLICATIONS_EACH_PER_S: Final = 3.0
"""Of one publisher; the number of publishers follows from it."""
PUBLICATION_OF_DELIVERY: Final = 0.75
"""Cost of receiving a publication, in deliveries."""
AT_S: Final = 1000.0


def situation(channels: int, servers: int, seed: int) -> Situation:
    """Channels with zipf loads, each on its home in the ring, where every other server is large."""
    large = np.arange(servers) % 2 == 1
    hosts = _hosts(large)
    table = _channels(channels, hosts, np.random.default_rng([seed, channels, servers]))
    ring = ring_of(hosts, np.ones(servers, np.bool_))
    placements = Placements.single(ring.homes(ring_hashes(table.names)))
    bytes_out, cpu = host_loads(table, placements, servers)
    hosts.bytes_out[:], hosts.cpu[:] = bytes_out, cpu
    return Situation(
        at_s=AT_S,
        channels=table,
        placements=placements,
        hosts=hosts,
        pool=Pool(servers, servers, 0, CAPACITY, 1.0, 1.0),
        moved_at=np.full(channels, NEVER),
        planned_at=NEVER,
        past_at=np.array([AT_S]),
        past_bytes_out=np.array([bytes_out.sum()]),
    )


def ratios(of: Situation, placements: Placements) -> Floats:
    """The load ratio of each server with these placements."""
    bytes_out, cpu = host_loads(of.channels, placements, len(of.hosts))
    return np.maximum(bytes_out / of.hosts.capacity, cpu / of.hosts.cpu_capacity)


def bound(of: Situation) -> float:
    """The lowest possible maximum of the load ratios: all load divided by all capacity."""
    bytes_out, cpu = of.hosts.bytes_out.sum(), of.hosts.cpu.sum()
    return float(max(bytes_out / of.hosts.capacity.sum(), cpu / of.hosts.cpu_capacity.sum()))


def _hosts(large: Bools) -> Hosts:
    count = len(large)
    size = np.where(large, 2.0, 1.0)
    return Hosts(
        ids=tuple(f"server-{number}" for number in range(count)),
        capacity=CAPACITY * size,
        cpu_capacity=np.ones(count),
        bytes_out=np.zeros(count),
        cpu=np.zeros(count),
        cost=size,
        takes=np.ones(count, np.bool_),
        heard=np.ones(count, np.bool_),
        joined_at=np.full(count, NEVER),
    )


def _channels(count: int, hosts: Hosts, rng: np.random.Generator) -> Channels:
    """Loads by rank, in random order. Of two channels with the same number of deliveries, one may have few subscribers
    and many publications, the other the opposite."""
    weight = rng.permutation(np.arange(1.0, count + 1.0) ** -EXPONENT)
    bytes_out = weight / weight.sum() * BOUND * hosts.capacity.sum()
    deliveries = bytes_out / MESSAGE_BYTES
    subscribers = np.ceil(deliveries ** rng.uniform(0.3, 0.7, count)).astype(np.int64)
    publications = deliveries / subscribers
    work = deliveries.sum() + PUBLICATION_OF_DELIVERY * publications.sum()
    second = CPU_BOUND * hosts.cpu_capacity.sum() / work
    return Channels(
        names=pa.array([b"channel-%d" % number for number in range(count)], pa.binary()),
        publications=publications,
        publishers=np.ceil(publications / PUBLICATIONS_EACH_PER_S).astype(np.int64),
        subscribers=subscribers,
        messages_out=deliveries,
        bytes_out=bytes_out,
        cpu_in=publications * PUBLICATION_OF_DELIVERY * second,
        cpu_out=deliveries * second,
    )
