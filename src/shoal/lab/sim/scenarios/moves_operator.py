"""The operator of the scenario `moves`: it requests moves, and causes faults in the middle of them.

Owns the requests (which channel moves where, and when), crashes shortly after an entry is written, and pauses of
clients. Never touches how a move is carried out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Final, Self

from shoal.lab.sim.scenarios.app import App
from shoal.lab.sim.scenarios.moves_corners import MORTALS
from shoal.lab.sim.scenarios.moves_watch import Kind
from shoal.lab.sim.world.node import Node
from shoal.plan.entry import Entry
from shoal.plan.keys import move_key
from shoal.plan.move_request import MoveRequest, encode_request
from shoal.plan.placement import Mode

if TYPE_CHECKING:
    from shoal.lab.sim.scenarios.moves import MovesRun

CRASH_S: Final = 0.4
"""A process may crash within this time after an entry is written."""
FLURRY_S: Final = (0.35, 0.7)
"""In a flurry a second move of a channel is requested while the first is still widening."""
NAP_S: Final = (2.0, 12.0)


@dataclass(frozen=True, slots=True)
class MovesMix:
    """Rates of the different requests and faults at pace 1, drawn by seed."""

    pause_s: float
    together: int
    eager: float
    back: float
    flurry: float
    deadly: float
    naps_per_s: float

    @classmethod
    def draw(cls, rng: Random) -> Self:
        """Draws the rates."""
        return cls(
            pause_s=rng.choice((0.4, 1.5, 4.0)),
            together=rng.choice((1, 2, 4)),
            eager=rng.choice((0.0, 0.5, 1.0)),
            back=rng.choice((0.1, 0.5)),
            flurry=rng.choice((0.0, 0.3, 0.8)),
            deadly=rng.choice((0.0, 0.0, 0.04, 0.12)),
            naps_per_s=rng.choice((0.0, 0.0, 0.1, 0.4)),
        )


class Operator:
    """Requests moves as long as the run is in its moving phase."""

    def __init__(self, run: MovesRun) -> None:
        self.run = run
        self.random = run.world.rng("operator")
        self.mix = replace(MovesMix.draw(self.random), **run.fixed_operator)
        self.asked: dict[bytes, Kind] = {}
        """The last request of each channel."""
        self._count = 0

    def start(self) -> None:
        """Starts to request moves and to pause clients."""
        self._ask()
        if self.mix.naps_per_s:
            self._nap_later()

    # Moves

    def _ask(self) -> None:
        run, random = self.run, self.random
        if not run.moving:
            return
        for channel in random.sample(run.movable, min(len(run.movable), random.randint(1, self.mix.together))):
            self._request(channel)
            if random.random() < self.mix.flurry:
                for number in range(1, random.randint(3, 5)):
                    run.world.after(number * random.uniform(*FLURRY_S), self._request, channel)
        run.world.after(random.expovariate(run.pace / self.mix.pause_s), self._ask)

    def _request(self, name: str) -> None:
        run, random, channel = self.run, self.random, name.encode()
        if not run.moving or name in run.spared:
            return
        past = run.watch.past(channel)
        if past and random.random() < self.mix.back:
            mode, members = random.choice(past)
            servers = tuple(sorted(members))
        else:
            mode = random.choice(list(Mode))
            servers = run.some_servers(random, mode)
        self.request(name, mode, servers, name not in run.idle_channels and random.random() < self.mix.eager)

    def request(self, name: str, mode: Mode, servers: tuple[str, ...], eager: bool) -> None:
        """Requests a move."""
        run, channel = self.run, name.encode()
        self._count += 1
        self.asked[channel] = mode, frozenset(servers)
        request = MoveRequest(channel, servers, mode, eager, str(self._count))
        run.world.note("request", name, str(request))
        run.coordinator.store.put(move_key(channel), encode_request(request))

    # Crashes

    def strike(self, entry: Entry) -> None:
        """Called when an entry was written; may crash a process that takes part in the move."""
        if self.run.faults.active and not self.run.peaceful and self.random.random() < self.mix.deadly:
            node = self._victim(self.random.choice(MORTALS), entry)
            self.run.world.after(self.random.choice((0.0, 1.0)) * self.random.uniform(0.0, CRASH_S), self._kill, node)

    def _victim(self, kind: str, entry: Entry) -> Node:
        run, random = self.run, self.random
        server = random.choice(entry.servers)
        match kind:
            case "agent":
                name = f"agent-{server}"
            case "server":
                name = server
            case "client":
                name = random.choice(run.apps).node.name
            case "mover":
                name = random.choice(run.conductors)
            case _:
                name = kind
        return run.network.nodes[name]

    def _kill(self, node: Node) -> None:
        self.run.faults.crash(node)

    # Pauses of clients

    def _nap_later(self) -> None:
        self.run.world.after(self.random.expovariate(self.run.pace * self.mix.naps_per_s), self._nap)

    def _nap(self) -> None:
        run, random = self.run, self.random
        if not run.faults.active:
            return
        app = random.choice(run.apps)
        if app.node.running:
            run.sleepers.add(app.record.client)
            run.world.note("nap", app.node.name)
            app.node.pause()
            run.world.after(random.uniform(*NAP_S), self._wake, app, dict(run.watch.switches))
        self._nap_later()

    def _wake(self, app: App, switches: dict[bytes, int]) -> None:
        """Resumes the client, and counts the plans of its channels that it missed."""
        if app.node.paused:
            watch, seen = self.run.watch, self.run.watch.seen
            missed = [watch.switches[name] - switches.get(name, 0) for name in app.engaged()]
            seen["client slept through a plan"] += any(missed)
            seen["client slept through several plans"] += any(count > 1 for count in missed)
            app.node.resume()
