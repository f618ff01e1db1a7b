"""From the CPU of each operator to the throughput of configurations that a small machine cannot show.

Owns the arithmetic of figures 7 to 12 of the E-SilboPS paper. It is a projection, not a measurement: every operator has
a core of its own, nothing else limits the engine, and the busiest operator sets the pace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

MATCHERS: Final = (1, 2, 3, 4, 5, 6)
EXITS: Final = (1, 2)
Layers: TypeAlias = tuple[int, int]
"""Numbers of matchers and of exit points."""
PAPER: Final[tuple[Layers, ...]] = ((1, 1), *((matchers, exits) for matchers in MATCHERS[1:] for exits in EXITS))
"""The configurations of the paper."""


class CpuByOperator(NamedTuple):
    """CPU in us for an event, with one number of filters."""

    access_point: float
    matcher: Mapping[int, float]
    """One matcher, by their number."""
    exit_point: Mapping[Layers, float]
    """One exit point, by the numbers of matchers and exit points."""

    def busiest_us(self, layers: Layers) -> float:
        """The CPU of the operator that needs most."""
        return max(self.access_point, self.matcher[layers[0]], self.exit_point[layers])

    def bottleneck(self, layers: Layers) -> str:
        """The operator that needs most."""
        parts = {
            "access point": self.access_point,
            "matcher": self.matcher[layers[0]],
            "exit point": self.exit_point[layers],
        }
        return max(parts, key=lambda name: parts[name])


def text_of(layers: Layers) -> str:
    """A configuration as in the paper: `1-3-2`."""
    return f"1-{layers[0]}-{layers[1]}"


def throughput(cpu: CpuByOperator, layers: Layers) -> float:
    """Events a second."""
    return 1e6 / cpu.busiest_us(layers)


def speed_up(cpu: CpuByOperator, layers: Layers) -> float:
    """Throughput compared with 1-1-1."""
    return throughput(cpu, layers) / throughput(cpu, (1, 1))


def slices(layers: Layers) -> int:
    """The paper's number of slices (processors): 1 for 1-1-1, and one more for each matcher or exit point more."""
    return sum(layers) - 1


def efficiency(cpu: CpuByOperator, layers: Layers) -> float:
    """Speed-up for each slice."""
    return speed_up(cpu, layers) / slices(layers)


def karp_flatt(cpu: CpuByOperator, layers: Layers) -> float:
    """The serial part and the overhead, estimated from the speed-up: (1/s - 1/p) / (1 - 1/p)."""
    share = 1 / slices(layers)
    return (1 / speed_up(cpu, layers) - share) / (1 - share)


def with_transport(
    matcher: Mapping[int, float],
    exit_point: Mapping[Layers, float],
    processes: Mapping[str, float],
    measured: Layers,
) -> CpuByOperator:
    """Adds to the costs of the cores what channels cost. `processes` has the CPU of each operator in real processes
    in the configuration `measured`: there cores and channels together are what the processes used. Channels never
    cost less than nothing: without other work on the machine, cores are a part of the processes."""
    more_matcher = max(processes["matcher"] - matcher[measured[0]], 0.0)
    more_exit = max(processes["exit_point"] - exit_point[measured], 0.0)
    return CpuByOperator(
        processes["access_point"],
        {count: cost + more_matcher for count, cost in matcher.items()},
        {layers: cost + more_exit for layers, cost in exit_point.items()},
    )
