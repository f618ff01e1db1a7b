"""The options of the simulated network and its faults.

Owns: the names, units and ranges of the options, and how a seed draws them. Never touches: the network
(`shoal.lab.sim.world.network`) and the schedule of faults (`shoal.lab.sim.world.faults`).
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Final, Self

Range = tuple[float, float]
"""Smallest and largest value; draws are uniform between them."""

RATES: Final = ("resets_per_s", "stalls_per_s", "partitions_per_s", "pauses_per_s", "crashes_per_s")
"""The rates of faults: without them a network is peaceful."""


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """Delays and limits of the network, clock drift, and fault rates. The defaults are a network without faults.

    Rates are expected faults per second of virtual time over the whole world, not per link.
    """

    delay_s: Range = (0.000_2, 0.002)
    """One-way delay of each batch. Batches of one direction stay in order, whatever is drawn."""
    delay_local_s: Range = (0.000_02, 0.000_1)
    """The same between nodes on one host."""
    spike_probability: float = 0.0
    """How often a batch takes `spike_s` longer."""
    spike_s: Range = (0.05, 0.5)
    split_probability: float = 0.0
    """How often a batch arrives in two pieces."""
    window_bytes: int = 65_536
    """Capacity of the kernels' buffers and the wire in one direction. Further bytes wait in the sender
    (`LinkEnd.unsent_bytes`)."""
    connect_timeout_s: float = 5.0
    connect_retry_s: float = 1.0
    """Time between two SYNs of an unanswered connection attempt, up to `connect_timeout_s`."""
    tcp_timeout_s: float = 15.0
    """An end gives up when its data has been unacknowledged for this long."""

    clock_drift_max: float = 0.0
    """A node's clock runs at a rate of 1 plus or minus at most this."""
    clock_offset_s: Range = (0.0, 0.0)
    """Reading of a node's clock at the start."""

    resets_per_s: float = 0.0
    late_probability: float = 0.0
    """How often the bytes in flight on a connection that is reset arrive `late_s` later: the kernel repeats packets of
    a connection that its process has given up."""
    late_s: Range = (0.2, 3.0)
    stalls_per_s: float = 0.0
    stall_s: Range = (0.05, 3.0)
    partitions_per_s: float = 0.0
    partition_s: Range = (0.1, 8.0)
    one_way_probability: float = 0.3
    """How often a stall or partition affects only one direction."""
    pauses_per_s: float = 0.0
    pause_s: Range = (0.05, 4.0)
    crashes_per_s: float = 0.0
    down_s: Range = (0.05, 5.0)
    power_probability: float = 0.3
    """How often a crash takes down the whole machine (peers learn nothing) instead of only the process (its kernel
    resets the connections)."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            ends = value if isinstance(value, tuple) else (0.0, value)
            if not 0.0 <= ends[0] <= ends[1]:
                raise ValueError(f"{name} must be a range from at least 0 upwards, not {value!r}")
            if name.endswith("_probability") and value > 1.0:
                raise ValueError(f"{name} must be at most 1, not {value!r}")
        if self.window_bytes < 1:
            raise ValueError("window_bytes must be at least 1")
        if self.clock_drift_max >= 1.0:
            raise ValueError("clock_drift_max must be below 1: clocks do not stand still")

    @property
    def peaceful(self) -> bool:
        """Whether no faults occur."""
        return not any(getattr(self, rate) for rate in RATES)

    @classmethod
    def draw(cls, rng: Random, pace: float = 1.0) -> Self:
        """Draws options. A quarter of the seeds has no faults; in the others each kind of fault is on or off
        independently. Faults occur `pace` times as often.

        Leaving out kinds at random reaches more corner cases than mixing a little of every kind.
        """
        calm = cls(
            delay_s=(0.000_1, rng.choice((0.001, 0.005, 0.05))),
            split_probability=rng.choice((0.0, 0.3)),
            window_bytes=rng.choice((2_048, 16_384, 65_536)),
            clock_drift_max=rng.choice((0.0, 0.001, 0.02)),
            clock_offset_s=(0.0, 1_000.0),
            tcp_timeout_s=rng.choice((3.0, 15.0)),
        )
        if rng.random() < 0.25:
            return calm
        return replace(
            calm,
            spike_probability=rng.choice((0.0, 0.01, 0.05)),
            resets_per_s=rng.choice((0.0, 0.1, 1.0)) * pace,
            stalls_per_s=rng.choice((0.0, 0.2, 1.0)) * pace,
            partitions_per_s=rng.choice((0.0, 0.1, 0.3)) * pace,
            pauses_per_s=rng.choice((0.0, 0.1, 0.3)) * pace,
            crashes_per_s=rng.choice((0.0, 0.05, 0.3)) * pace,
        )
