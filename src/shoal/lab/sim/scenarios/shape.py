"""The size of a simulated run, and the behaviour of its applications.

Owns what a seed draws in addition to the faults. Never touches the run itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

import msgspec

from shoal.lab.sim.models.redis_base import BufferLimit
from shoal.lab.sim.world.fault_options import FaultOptions
from shoal.limits import DEFAULT_LIMITS, Limits

NARROW_BYTES_PER_S: Final = 500_000
TURN_S: Final = 0.004
"""On slower links applications send less: the scenarios do not test congestion. A window takes the delay of the link,
and about this long until the receiver reads it."""

WIDE_BURST: Final = 56
TIGHT_BURST: Final = 34
"""The largest bursts, and those where servers keep little output for a slow client. With more, the agents themselves
would be disconnected again and again."""

HEAL_S: Final = 12.0
HEALED_S_MAX: Final = 30.0
"""Where holes have time to heal they become gaps after the faults and this much longer, in which a publisher is asked
twice at the longest interval; and after `HEALED_S_MAX` at the latest."""

DRAIN_TIMEOUT_S: Final = 5.0
"""Some faults last longer than this, so some applications close their bus before all messages are confirmed."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a run and the behaviour of its applications, drawn by seed."""

    servers: int
    clients: int
    channels: int
    safety_s: float
    burst_max: int
    payload_bytes: int
    burst_pause_s: float
    limits: Limits
    pubsub_limit: BufferLimit
    slow_readers: bool
    healable: bool
    lapses: bool
    full: bool = False
    """Whether the tables of agents are too small for the run."""
    greedy: bool = False
    """Whether a client asks more of agents than it may."""
    idle: bool = False
    """Whether publishers are silent for so long that their streams end, and agents forget them."""

    @classmethod
    def draw(cls, rng: Random, faults: FaultOptions, pace: float) -> Shape:
        """Draws a shape. In half of the runs holes have enough time to heal; in the others gaps are reported early.
        Applications do the same in a time that is shorter by `pace`."""
        healable = rng.random() < 0.5
        small_window = not healable and rng.random() < 0.5
        slow_readers = rng.random() < 0.3
        limits = msgspec.structs.replace(
            DEFAULT_LIMITS,
            clock_drift_max=0.05,
            beacon_delay_s=0.3,
            gap_timeout_s=9.0,
            resend_messages_max=8 if small_window else 4096,
            inbox_messages_max=16 if slow_readers else 4096,
            held_messages_max=rng.choice((8, 256)),
            heal_page_messages=rng.choice((4, 8 if small_window else 64)),
            linger_s=rng.choice((0.5, 5.0)),
            drain_timeout_s=DRAIN_TIMEOUT_S,
        )
        tight = rng.random() < 0.3
        narrow = faults.window_bytes / (max(faults.delay_s) + TURN_S) < NARROW_BYTES_PER_S
        shape = cls(
            servers=rng.randint(2, 4),
            clients=rng.randint(4, 8),
            channels=rng.randint(2, 5),
            safety_s=rng.uniform(12.0, 25.0) / pace,
            burst_max=rng.choice((3, 26, TIGHT_BURST if tight else WIDE_BURST)) if not narrow else 3,
            payload_bytes=rng.choice((10, 400)) if not narrow else 10,
            burst_pause_s=(rng.choice((0.3, 1.5, 4.0)) if not narrow else 4.0) / pace,
            limits=limits,
            pubsub_limit=BufferLimit(150_000, 75_000, 2.0) if tight else BufferLimit(),
            slow_readers=slow_readers,
            healable=healable,
            lapses=faults.clock_drift_max < 0.02 and rng.random() < 0.7,
        )
        if not healable:
            return shape
        timeout_s = min(HEALED_S_MAX, shape.safety_s + HEAL_S)
        return replace(shape, limits=msgspec.structs.replace(limits, gap_timeout_s=timeout_s))
