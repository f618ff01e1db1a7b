"""A model of the coordinator on the simulated network, with callbacks in place of awaits.

Owns: versioned keys, leases and watches as `shoal.coordination.interface` promises them, and the way of
requests over the network. Never touches: plans and memberships, which are only values here.

What it shares with the real thing and cores must live with:
- A request that is not answered in time ends with `CoordinatorUnavailableError`; whether it took effect is
  unknown.
- Leases end by the coordinator's own clock. It goes on while the coordinator is down.
- A crash loses nothing that was answered: keys, versions, tokens and leases survive.
- Watches may skip states, never the last one; they survive partitions and crashes of the coordinator, not of
  the watcher. News takes a while, longer than a request may, so a `get` can know more than a watch has said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from shoal.coordination.interface import Change, Lease, LeaseInfo, Versioned
from shoal.errors import ConflictError, CoordinatorError, CoordinatorUnavailableError, LeaseLostError
from shoal.sim.network import Network
from shoal.sim.node import Node
from shoal.sim.options import Range
from shoal.sim.world import Event

Callback = Callable[[Any], object]
"""Gets the result of a request, or the `CoordinatorError` that the interface would raise (as a value)."""


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """Times of the coordinator, in seconds of virtual time."""

    request_timeout_s: float = 2.0
    watch_delay_s: Range = (0.000_5, 0.05)
    watch_retry_s: float = 0.5


@dataclass(slots=True)
class _Held:
    """A lease as the store keeps it; `expires` is by the store's clock."""

    holder: str
    token: int
    expires: float


class Watch:
    """What a process on `node` wants to hear about; `cancel()` ends it."""

    __slots__ = ("busy", "callback", "cancelled", "changed", "incarnation", "node", "prefix", "seen")

    def __init__(self, node: Node, prefix: str, callback: Callable[[Change], object]) -> None:
        self.node = node
        self.prefix = prefix
        self.callback = callback
        self.incarnation = node.incarnation
        self.cancelled = False
        self.busy = False
        self.changed: dict[str, None] = {}
        self.seen: dict[str, Versioned | None] = {}

    @property
    def alive(self) -> bool:
        """Whether there is still a process that wants it."""
        return not self.cancelled and self.incarnation == self.node.incarnation

    def cancel(self) -> None:
        """Nothing is heard from now on."""
        self.cancelled = True


class _Request:
    """A request under way, as its process remembers it."""

    __slots__ = ("callback", "incarnation", "node", "timer")

    def __init__(self, node: Node, callback: Callback) -> None:
        self.node = node
        self.callback = callback
        self.incarnation = node.incarnation
        self.timer: Event | None = None

    def answer(self, result: Any) -> None:
        """Hand the result over, once, to the process that asked and to no later one."""
        if self.timer is not None and self.timer.pending and self.incarnation == self.node.incarnation:
            self.timer.cancel()
            self.callback(result)


class Store:
    """The state of the coordinator and what each operation does to it. `clock` is the store's own."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.keys: dict[str, Versioned] = {}
        self.on_change: Callable[[str], None] | None = None
        self.refused = 0
        """Writes that came from whoever did not hold the lease any more."""
        self._clock = clock
        self._versions: dict[str, int] = {}
        self._tokens: dict[str, int] = {}
        self._held: dict[str, _Held] = {}

    def get(self, key: str) -> Versioned | None:
        """The newest value of a key, or None."""
        return self.keys.get(key)

    def put(self, key: str, value: bytes, expect: int | None = None, fence: Lease | None = None) -> int:
        """Write; the new version."""
        self._compare(key, expect, fence)
        version = self._versions[key] = self._versions.get(key, 0) + 1
        self.keys[key] = Versioned(value, version)
        self._changed(key)
        return version

    def delete(self, key: str, expect: int | None = None, fence: Lease | None = None) -> None:
        """Remove."""
        self._compare(key, expect, fence)
        if self.keys.pop(key, None) is not None:
            self._changed(key)

    def list(self, prefix: str) -> dict[str, Versioned]:
        """All keys with that prefix."""
        return {key: value for key, value in sorted(self.keys.items()) if key.startswith(prefix)}

    def acquire(self, name: str, holder: str, ttl_s: float, takeover: bool = False) -> Lease | None:
        """Take a lease, or renew it for its holder; None when somebody else has it."""
        held = self._valid(name)
        if held is not None and held.holder != holder and not takeover:
            return None
        if held is None or held.holder != holder:
            self._tokens[name] = self._tokens.get(name, 0) + 1
        self._held[name] = _Held(holder, self._tokens[name], self._clock() + ttl_s)
        return Lease(name, holder, self._tokens[name], ttl_s)

    def renew(self, lease: Lease) -> bool:
        """Hold for another `ttl_s`; False when it was lost."""
        held = self._valid(lease.name)
        if held is None or held.token != lease.token:
            return False
        held.expires = self._clock() + lease.ttl_s
        return True

    def release(self, lease: Lease) -> None:
        """Give it up."""
        held = self._valid(lease.name)
        if held is not None and held.token == lease.token:
            del self._held[lease.name]

    def lease_of(self, name: str) -> LeaseInfo | None:
        """Who holds it, or None."""
        held = self._valid(name)
        if held is None:
            return None
        return LeaseInfo(name, held.holder, held.token, held.expires - self._clock())

    def leases(self, prefix: str) -> dict[str, LeaseInfo]:
        """All leases that are held, with that prefix."""
        infos = (self.lease_of(name) for name in sorted(self._held) if name.startswith(prefix))
        return {info.name: info for info in infos if info is not None}

    def _valid(self, name: str) -> _Held | None:
        held = self._held.get(name)
        return held if held is not None and self._clock() < held.expires else None

    def _compare(self, key: str, expect: int | None, fence: Lease | None) -> None:
        if fence is not None:
            held = self._valid(fence.name)
            if held is None or held.token != fence.token:
                self.refused += 1
                raise LeaseLostError(f"the lease {fence.name!r} with token {fence.token} is not held any more")
        now = self.keys.get(key)
        version = 0 if now is None else now.version
        if expect is not None and version != expect:
            raise ConflictError(f"{key!r} has version {version}, not {expect}")

    def _changed(self, key: str) -> None:
        if self.on_change is not None:
            self.on_change(key)


_OPERATIONS = frozenset(("get", "put", "delete", "list", "acquire", "renew", "release", "lease_of", "leases"))


class ModelCoordinator:
    """The store on a node of its own: crash, pause and partition that node as any other."""

    def __init__(self, network: Network, name: str = "coordinator", options: CoordinatorOptions | None = None) -> None:
        self.network = network
        self.node = network.node(name)
        self.options = options or CoordinatorOptions()
        self.store = Store(self.node.clock)
        self.store.on_change = self._key_changed
        self.serving: tuple[str, int] | None = None
        """Who asks for what is being done: a node, and which life of it. None: nobody on the network."""
        self._watches: list[Watch] = []
        self._rng = network.world.rng(f"coordinator/{name}")

    def request(self, node: Node, operation: str, args: tuple[Any, ...], callback: Callback) -> None:
        """Ask from `node`; the callback gets what the interface's method would return or raise."""
        if operation not in _OPERATIONS:
            raise ValueError(f"the coordinator has no operation {operation!r}")
        request = _Request(node, callback)
        timeout_s = self.options.request_timeout_s
        request.timer = node.after(timeout_s, self._time_out, request, operation, timeout_s)
        self.network.datagram(node, self.node, self._serve, request, operation, args)

    def watch(self, node: Node, prefix: str, callback: Callable[[Change], object]) -> Watch:
        """Tell a process on `node` the state of all keys with `prefix`, then what changes."""
        watch = Watch(node, prefix, callback)
        self._watches.append(watch)
        watch.changed = dict.fromkeys(self.store.list(prefix))
        self._schedule(watch)
        return watch

    def _serve(self, request: _Request, operation: str, args: tuple[Any, ...]) -> None:
        result: Any
        self.serving = request.node.name, request.incarnation
        try:
            result = getattr(self.store, operation)(*args)
        except CoordinatorError as error:
            result = error
        self.serving = None
        self.network.datagram(self.node, request.node, request.answer, result)

    def _time_out(self, request: _Request, operation: str, timeout_s: float) -> None:
        request.callback(CoordinatorUnavailableError(f"no answer to {operation} within {timeout_s:g} s"))

    def _key_changed(self, key: str) -> None:
        self._watches = [watch for watch in self._watches if watch.alive]
        for watch in self._watches:
            if key.startswith(watch.prefix):
                watch.changed[key] = None
                self._schedule(watch)

    def _schedule(self, watch: Watch, delay_s: float = 0.0) -> None:
        """Send news soon; one parcel at a time, so that news never overtakes news."""
        if watch.changed and not watch.busy and watch.alive:
            watch.busy = True
            delay_s += self._rng.uniform(*self.options.watch_delay_s)
            self.network.world.after(delay_s, self._send_news, watch)

    def _send_news(self, watch: Watch) -> None:
        """The state of the changed keys leaves the coordinator."""
        changes = [Change(key, self.store.get(key)) for key in watch.changed]
        watch.changed = {}
        delay_s = self._rng.uniform(*self.options.watch_delay_s)
        self.network.world.after(delay_s, self._news_arrive, watch, changes)

    def _news_arrive(self, watch: Watch, changes: list[Change]) -> None:
        """Or not: then the watcher asks again later."""
        watch.busy = False
        there, back = (self.node.name, watch.node.name), (watch.node.name, self.node.name)
        if self.node.running and self.network.path_open(*there) and self.network.path_open(*back):
            watch.node.call(self._tell, watch, changes)
            self._schedule(watch)
        else:
            watch.changed = dict.fromkeys(change.key for change in changes) | watch.changed
            self._schedule(watch, self.options.watch_retry_s)

    def _tell(self, watch: Watch, changes: list[Change]) -> None:
        for change in _news(watch, changes):
            watch.callback(change)


def _news(watch: Watch, changes: list[Change]) -> Iterator[Change]:
    """The changes that the watcher has not seen, as long as it wants them."""
    for change in changes:
        if watch.alive and (change.key not in watch.seen or watch.seen[change.key] != change.now):
            watch.seen[change.key] = change.now
            yield change
