"""A simulated machine with one process on it: clock, timers, pauses, crashes and restarts.

Owns: the state of a node, and when its process may run. Never touches: links
(`shoal.lab.sim.world.network` is told of each change through `Watcher`).

Invariants:
- The process does not run while the node is down or paused; timers that become due meanwhile run at resume.
- A timer belongs to one process: it never fires after a crash, even if the node is up again.
- `clock()` never goes back, not even after a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from shoal.lab.sim.world.world import Event, World

WAKE_JITTER_S: Final = 0.000_05
"""At resume, waiting timers run within this time, so that timers and data can come in any order."""


class Watcher(Protocol):
    """Told of each change of a node's state: the network."""

    def node_paused(self, node: Node) -> None:
        """The process of `node` stopped reading and writing."""

    def node_resumed(self, node: Node) -> None:
        """It reads and writes again."""

    def node_crashed(self, node: Node, power: bool) -> None:
        """The process has ended; with `power` the kernel is down too."""

    def node_restarted(self, node: Node) -> None:
        """The kernel answers again."""


class Node:
    """One machine. `on_crash` and `on_restart` are set by the scenario, which drops the process and starts a new one.
    `incarnation` counts the processes."""

    __slots__ = (
        "_clock_offset_s",
        "_clock_rate",
        "_deferred",
        "_paused_at",
        "_rng",
        "_watcher",
        "host",
        "incarnation",
        "kernel_up",
        "kill",
        "name",
        "on_crash",
        "on_restart",
        "paused",
        "paused_s",
        "up",
        "wake",
        "world",
    )

    def __init__(
        self, world: World, watcher: Watcher, name: str, host: str, clock_rate: float, clock_offset_s: float
    ) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.up = True
        self.kernel_up = True
        self.paused = False
        self.paused_s = 0.0
        """Total length of the pauses that have ended."""
        self.incarnation = 1
        self.kill: Callable[[], None] | None = None
        """Stops the process in a crash, before any other part of the world is told."""
        self.wake: Callable[[], None] | None = None
        """Tells the process that a pause has ended."""
        self.on_crash: Callable[[], None] | None = None
        self.on_restart: Callable[[], None] | None = None
        self._watcher = watcher
        self._clock_rate = clock_rate
        self._clock_offset_s = clock_offset_s
        self._deferred: list[Event] = []
        self._paused_at = 0.0
        self._rng = world.rng(f"node/{name}")

    def __repr__(self) -> str:
        return f"<Node {self.name}>"

    @property
    def running(self) -> bool:
        """Whether the process is up and not paused."""
        return self.up and not self.paused

    def clock(self) -> float:
        """The node's clock in seconds: offset + rate x true time."""
        return self._clock_offset_s + self._clock_rate * self.world.now

    def true_time(self, clock: float) -> float:
        """The virtual time at which this node's clock shows `clock`."""
        return (clock - self._clock_offset_s) / self._clock_rate

    def at(self, clock: float, fn: Callable[..., object], *args: Any) -> Event:
        """Run `fn(*args)` when this node's clock shows `clock`; not while paused, never after a crash."""
        return self._timer(self.true_time(clock), fn, args)

    def after(self, delay_s: float, fn: Callable[..., object], *args: Any) -> Event:
        """Run `fn(*args)` after `delay_s` seconds of this node's clock; not while paused, never after a crash."""
        return self._timer(self.world.now + delay_s / self._clock_rate, fn, args)

    def call(self, fn: Callable[..., object], *args: Any) -> None:
        """Run `fn(*args)` in the process: now, or at resume if it is paused, unless it crashes first."""
        if self.paused:
            self._deferred.append(Event(self.world.now, fn, args))
        elif self.up:
            fn(*args)

    def pause(self) -> None:
        """The process stops (SIGSTOP): it reads nothing, writes nothing, its timers wait."""
        if self.up and not self.paused:
            self.paused = True
            self._paused_at = self.world.now
            self._watcher.node_paused(self)

    def resume(self) -> None:
        """The process resumes; whether timers or data come first is random."""
        if not self.paused:
            return
        self.paused = False
        self.paused_s += self.world.now - self._paused_at
        deferred, self._deferred = self._deferred, []
        if deferred:
            self.world.after(self._rng.random() * WAKE_JITTER_S, self._run_deferred, deferred, self.incarnation)
        if self.wake is not None:
            self.wake()
        self._watcher.node_resumed(self)

    def crash(self, *, power: bool = False) -> None:
        """The process ends at once. Its peers are reset by the kernel; with `power` they learn nothing."""
        if not self.up:
            return
        self.up = False
        self.kernel_up = not power
        self.paused = False
        self._deferred.clear()
        if self.kill is not None:
            self.kill()
            self.kill = self.wake = None
        self.incarnation += 1
        self._watcher.node_crashed(self, power)
        if self.on_crash is not None:
            self.on_crash()

    def restart(self) -> None:
        """The machine is up with a new process; `on_restart` builds it (and makes it listen again)."""
        if self.up:
            return
        self.up = True
        self.kernel_up = True
        if self.on_restart is not None:
            self.on_restart()
        self._watcher.node_restarted(self)

    def _timer(self, time: float, fn: Callable[..., object], args: tuple[Any, ...]) -> Event:
        event = self.world.at(time, self._due)
        event.args = (event, fn, args, self.incarnation)
        return event

    def _due(self, event: Event, fn: Callable[..., object], args: tuple[Any, ...], incarnation: int) -> None:
        event.args = ()
        if incarnation != self.incarnation or not self.up:
            return
        if self.paused:
            event.fn, event.args = fn, args
            self._deferred.append(event)
            return
        fn(*args)

    def _run_deferred(self, events: list[Event], incarnation: int) -> None:
        for event in events:
            fn, args = event.fn, event.args
            if fn is not None:
                event.fn = None
                self._due(event, fn, args, incarnation)
