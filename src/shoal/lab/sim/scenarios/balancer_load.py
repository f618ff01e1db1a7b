"""The load of the scenario `balancer`: how fast applications publish on each channel, and how that changes.

Owns rates and sizes, and the applications that follow them. At the end the load is steady: no client comes or goes, and
every channel keeps its rate.
"""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING, Final

from shoal.lab.sim.scenarios.app import App
from shoal.lab.sim.world.node import Node

if TYPE_CHECKING:
    from shoal.lab.sim.scenarios.balancer import BalancerRun

RATES: Final = (0.5, 2.0, 4.0)
"""Messages per second on a channel."""
SIZES: Final = (200, 1000, 3000)
HOT: Final = (6.0, 4000)
"""Rate and message size of a hot channel."""
STEADY_COUNTS: Final = (4, 6)
"""Messages on a channel in a window of steady load, few or many. Fewer would vary too much from window to window, more
would cost too much time."""
STEADY_FROM_S: Final = 0.15
"""Offset of the first message in a second of steady load, away from the start of a second on any clock."""
SILENT_S: Final = 1.0
"""How often a publisher checks whether a silent channel has a rate again."""
FACTORS: Final = (0.0, 0.3, 1.0, 1.0, 1.5)
"""Factors on all rates, from nearly no load to a crowd."""


class Load:
    """The current rate and message size of each channel."""

    def __init__(self, rng: Random, channels: list[str], apps: list[str]) -> None:
        self.random = rng
        self.channels = channels
        self.publishers = {channel: rng.sample(apps, rng.randint(1, min(3, len(apps)))) for channel in channels}
        self._of: dict[str, tuple[float, int]] = {}
        self.is_steady = False
        """Whether the load is steady: every publisher publishes at exact times."""
        self.shift()

    def shift(self) -> None:
        """Changes the load."""
        random = self.random
        factor = random.choice(FACTORS)
        self._of = {channel: (factor * random.choice(RATES), random.choice(SIZES)) for channel in self.channels}
        if random.random() < 0.4:
            self._of[random.choice(self.channels)] = HOT

    def settle(self, window_s: int, receivers: dict[str, int], channel_max: float, total_max: float) -> None:
        """Makes the load steady: every publisher publishes equally often in each window, and the traffic (bytes per
        second) stays below a bound for one channel and for all."""
        self.is_steady = True
        for channel, (rate, size) in self._of.items():
            publishers = len(self.publishers[channel])
            few, many = (max(1, round(count / publishers)) for count in STEADY_COUNTS)
            rate = (many if rate * window_s > STEADY_COUNTS[0] else few) * publishers / window_s
            self._of[channel] = rate, min(size, int(channel_max / max(1.0, rate * receivers[channel])))
        sent = sum(rate * size * receivers[channel] for channel, (rate, size) in self._of.items())
        part = min(1.0, total_max / max(sent, 1.0))
        self._of = {channel: (rate, int(part * size)) for channel, (rate, size) in self._of.items()}

    def of(self, channel: str) -> tuple[float, int]:
        """Messages per second of each publisher, and the message size."""
        rate, size = self._of[channel]
        return rate / len(self.publishers[channel]), size


class LoadedApp(App):
    """An application that publishes at the rates of the load. While the load shifts, it subscribes and unsubscribes."""

    run: BalancerRun

    def __init__(self, run: BalancerRun, node: Node) -> None:
        super().__init__(run, node)

    def _live(self) -> None:
        for channel, publishers in self.run.load.publishers.items():
            if self.node.name in publishers:
                self.after(self.random.uniform(0.0, 1.0), self._speak, channel)
        self._wander()

    def _speak(self, channel: str) -> None:
        if not self.run.active:
            return
        rate, size = self.run.load.of(channel)
        if rate:
            self._publish(channel, size)
        pause_s = 1 / rate if rate else SILENT_S
        if self.run.load.is_steady:
            turn = math.floor((self.run.world.now - STEADY_FROM_S) / pause_s + 0.01) + 1
            self.run.world.at(STEADY_FROM_S + turn * pause_s, self._speak_on, channel, self.node.incarnation)
        else:
            self.after(pause_s, self._speak, channel)

    def _speak_on(self, channel: str, incarnation: int) -> None:
        """Publishes by virtual time, not by the node's clock."""
        if self.node.incarnation == incarnation:
            self.node.call(self.process.loop.run, self._speak, channel)

    def _wander(self) -> None:
        """Subscribes and unsubscribes."""
        run, random = self.run, self.random
        if not run.shifting:
            return
        if random.random() < 0.6:
            self._subscribe()
            run.exercised["late joiner"] += 1
        elif self.subs:
            self._unsubscribe(random.choice(self.subs))
        self.after(random.expovariate(1 / run.mix.wander_s), self._wander)

    def ring_changed(self) -> None:
        """Reacts to a new ring only while the load shifts."""
        if self.run.shifting:
            super().ring_changed()
