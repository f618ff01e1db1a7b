"""An operator who pins channels, where they are or with a move, and releases some of them.

Owns the pins of the scenario `balancer`, in the form in which `shoal plan pin`, `move` and `release` write them.
`balancer_watch` checks that the balancer leaves pinned channels alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.balance.balancer_keys import Pin, encode, pin_key
from shoal.balance.change import Place
from shoal.plan.keys import move_key
from shoal.plan.move_request import MoveRequest, encode_request
from shoal.plan.placement import Mode

if TYPE_CHECKING:
    from shoal.lab.sim.scenarios.balancer import BalancerRun

MOVED_SHARE: Final = 0.5
"""How often a channel is moved and pinned; otherwise it is pinned where it is."""
RELEASED_AFTER_S: Final = (4.0, 12.0)


class Pinner:
    """Pins channels as long as the load shifts. Those that are not released stay pinned under steady load."""

    def __init__(self, run: BalancerRun) -> None:
        self.run = run
        self.random = run.world.rng("pins")
        self._count = 0

    def start(self) -> None:
        """Starts to pin channels, in some runs."""
        if self.random.random() < self.run.pinning:
            self._later()

    def _later(self) -> None:
        self.run.world.after(self.random.expovariate(1 / self.run.pin_pause_s), self._pin)

    def _pin(self) -> None:
        run, random = self.run, self.random
        if not run.shifting:
            return
        name = random.choice(run.channels)
        channel = name.encode()
        mode: Mode = Mode.SINGLE
        servers: tuple[str, ...] = (random.choice(run.book_ids()),)
        if random.random() < MOVED_SHARE:
            run.balance.seen["channel moved and pinned"] += 1
        else:
            placement = run.book.placement(channel)
            mode, servers = placement.mode, placement.servers
            run.balance.seen["channel pinned at its home"] += run.book.entry(channel) is None
        self._count += 1
        store = run.coordinator.store
        run.world.note("pin", name, mode.value, servers)
        store.put(pin_key(channel), encode(Pin(Place(mode, servers), run.world.now)))
        request = MoveRequest(channel, servers, mode, True, f"pin{self._count}", lasting=True)
        store.put(move_key(channel), encode_request(request))
        if random.random() < self.run.pins_released:
            run.world.after(random.uniform(*RELEASED_AFTER_S), self._release, channel)
        self._later()

    def _release(self, channel: bytes) -> None:
        self.run.world.note("release", channel.decode())
        self.run.coordinator.store.delete(pin_key(channel))
