"""The load of the scenario `balancer`: how fast applications publish on each channel, and how it changes.

Owns rates and sizes, and the applications that keep to them. In the end the load is steady: nobody comes or goes, and
every channel has its rate.
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
"""Publications a second of a channel."""
SIZES: Final = (200, 1000, 3000)
HOT: Final = (6.0, 4000)
"""Rate and size of a channel that is hot."""
STEADY_COUNTS: Final = (4, 6)
"""Messages on a channel in a window of steady load, few or many: less would not look steady, more cost too much."""
STEADY_FROM_S: Final = 0.15
"""When the first message of a second is published then: not where one second, by any clock, ends and another begins."""
SILENT_S: Final = 1.0
"""How often a publisher looks whether a silent channel is to be used again."""
SHIFT_S: Final = (4.0, 10.0)
"""How long a load lasts before it changes."""
FACTORS: Final = (0.0, 0.3, 1.0, 1.0, 1.5)
"""What all rates are multiplied with: nearly nobody, few, many, a crowd."""


class Load:
    """What is published on each channel now."""

    def __init__(self, rng: Random, channels: list[str], apps: list[str]) -> None:
        self.random = rng
        self.channels = channels
        self.publishers = {channel: rng.sample(apps, rng.randint(1, min(3, len(apps)))) for channel in channels}
        self._of: dict[str, tuple[float, int]] = {}
        self.is_steady = False
        """Whether every publisher keeps to its times exactly."""
        self.shift()

    def shift(self) -> None:
        """From now on it is another one."""
        random = self.random
        factor = random.choice(FACTORS)
        self._of = {channel: (factor * random.choice(RATES), random.choice(SIZES)) for channel in self.channels}
        if random.random() < 0.4:
            self._of[random.choice(self.channels)] = HOT

    def settle(self, window_s: int, receivers: dict[str, int], channel_max: float, total_max: float) -> None:
        """From now on every publisher publishes equally often in each window, and what is sent (bytes a second) for
        one channel and for all stays below a bound."""
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
        """Publications a second of each publisher, and the size of a message."""
        rate, size = self._of[channel]
        return rate / len(self.publishers[channel]), size


class LoadedApp(App):
    """An application that publishes at the rates of the load, and comes and goes while the load is not steady."""

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
        """Keeps to the true time, whatever its own clock says."""
        if self.node.incarnation == incarnation:
            self.node.call(self.process.loop.run, self._speak, channel)

    def _wander(self) -> None:
        """Subscriptions come and go."""
        run, random = self.run, self.random
        if not run.shifting:
            return
        if random.random() < 0.6:
            self._subscribe()
            run.exercised["late joiner"] += 1
        elif self.subs:
            self._unsubscribe(random.choice(self.subs))
        self.after(random.expovariate(1 / run.temper.wander_s), self._wander)

    def ring_changed(self) -> None:
        """Nobody does anything about it once the load is steady."""
        if self.run.shifting:
            super().ring_changed()
