"""A model of the coordinator on the simulated network, behind the `Coordinator` interface.

Owns: the state of the store (versioned keys, leases, memberships, barriers), the requests and answers on the network,
and the deliveries of watches. Never touches: what the stored values mean.

What it shares with the coordinator on Redis:
- An unanswered request is sent again until its time limit, then `CoordinatorUnavailableError` is raised; whether it
  took effect is unknown. A change that is sent twice takes effect once.
- Leases and memberships end by the coordinator's own clock, also while the coordinator is down.
- A crash loses nothing: keys, versions, tokens, leases and answers to requests survive.
- Watches may skip states, but never the last one. They survive partitions and crashes of the coordinator, but not of
  the watching process. They can be slower than requests, so a `get` can return a state that a watch has not shown yet.
- `write_all` is not atomic: many writes, and sometimes a few, go in several requests.

Barriers are never forgotten: no simulated run is long enough for that.
"""

from __future__ import annotations

import asyncio
import builtins
from abc import ABC, abstractmethod
from asyncio import Future
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from shoal.coordination import names
from shoal.coordination.interface import (
    Barrier,
    Change,
    Coordinator,
    KeyWrite,
    Lease,
    LeaseInfo,
    Membership,
    Versioned,
)
from shoal.errors import ConflictError, CoordinatorError, CoordinatorUnavailableError, LeaseLostError
from shoal.lab.sim.world.fault_options import Range
from shoal.lab.sim.world.loop import Handle, SimLoop
from shoal.lab.sim.world.network import Network
from shoal.lab.sim.world.world import Event

ATTEMPTS_PER_TIMEOUT: Final = 3
"""How often a request is sent within its time limit, as on Redis."""

BATCH_WRITES_MAX: Final = 200
"""Maximum number of writes in one request of `write_all`, as on Redis."""

CHANGES_PER_TURN: Final = 100
"""A watch with more changes than this lets other tasks run in between, as on Redis."""

EXPIRY_MARGIN_S: Final = 0.001
"""How long after the expiry of a membership the coordinator removes it."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """Timing of the coordinator, in seconds of virtual time, and how often it splits a `write_all`."""

    request_timeout_s: float = 2.0
    watch_delay_s: Range = (0.000_5, 0.05)
    watch_retry_s: float = 0.5
    split_probability: float = 0.25
    """How often a `write_all` that would fit one request is sent in two."""


# -- The store ---------------------------------------------------------------------------------------------------------


class _Grant:
    """A lease or a membership; `expires` is by the store's clock."""

    __slots__ = ("data", "expires", "holder", "token")

    def __init__(self, holder: str, token: int, expires: float, data: bytes) -> None:
        self.holder = holder
        self.token = token
        self.expires = expires
        self.data = data


class _Grants:
    """Names that belong to a holder until they expire. Tokens grow with each new holder of a name."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.held: dict[str, _Grant] = {}
        self._clock = clock
        self._tokens: dict[str, int] = {}

    def get(self, name: str) -> _Grant | None:
        """The grant of a name, unless it has ended."""
        grant = self.held.get(name)
        return grant if grant is not None and self._clock() < grant.expires else None

    def take(self, name: str, holder: str, ttl_s: float, takeover: bool, data: bytes = b"") -> int | None:
        """The token of the new or renewed grant; None if another holder has the name."""
        grant = self.get(name)
        if grant is not None and grant.holder == holder:
            token = grant.token
        elif grant is None or takeover:
            token = self._tokens[name] = self._tokens.get(name, 0) + 1
        else:
            return None
        self.held[name] = _Grant(holder, token, self._clock() + ttl_s, data)
        return token

    def keep(self, name: str, token: int, ttl_s: float) -> bool:
        """Extends the grant with this token; False if it has ended."""
        grant = self.get(name)
        if grant is None or grant.token != token:
            return False
        grant.expires = self._clock() + ttl_s
        return True

    def give_up(self, name: str, token: int) -> bool:
        """Ends the grant with this token; False if it had ended before."""
        grant = self.get(name)
        if grant is None or grant.token != token:
            return False
        del self.held[name]
        return True

    def drop_expired(self) -> bool:
        """Removes expired grants; returns whether there were any."""
        now = self._clock()
        expired = [name for name, grant in self.held.items() if now >= grant.expires]
        for name in expired:
            del self.held[name]
        return bool(expired)


class Store:
    """The state of the coordinator, and its operations. `clock` is the store's own."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.keys: dict[str, Versioned] = {}
        self.on_change: Callable[[str], None] | None = None
        """Called with each key that was written or deleted."""
        self.on_group_change: Callable[[str], None] | None = None
        """Called with each group that a member joined or left."""
        self.on_arrival: Callable[[str], None] | None = None
        """Called with each barrier that a member reached."""
        self.refused = 0
        """Writes that were refused because their lease had been lost."""
        self._clock = clock
        self._versions: dict[str, int] = {}
        self._leases = _Grants(clock)
        self._groups: dict[str, _Grants] = {}
        self._barriers: dict[str, dict[str, None]] = {}

    # Keys

    def get(self, key: str) -> Versioned | None:
        """The newest value of a key, or None."""
        return self.keys.get(key)

    def get_all(self, keys: Sequence[str]) -> builtins.list[Versioned | None]:
        """The newest values of several keys."""
        return [self.keys.get(key) for key in keys]

    def put(self, key: str, value: bytes, expect: int | None = None, fence: Lease | None = None) -> int:
        """Writes a key and returns the new version."""
        self._check_fence(key, fence)
        self._compare(key, expect)
        version = self._versions[key] = self._versions.get(key, 0) + 1
        self.keys[key] = Versioned(value, version)
        self._changed(key)
        return version

    def delete(self, key: str, expect: int | None = None, fence: Lease | None = None) -> None:
        """Removes a key."""
        self._check_fence(key, fence)
        self._compare(key, expect)
        if self.keys.pop(key, None) is not None:
            self._changed(key)

    def write_all(
        self, writes: Sequence[KeyWrite], fence: Lease | None = None
    ) -> builtins.list[int | CoordinatorError]:
        """Makes many writes; returns the outcome of each, in order."""
        if writes:
            self._check_fence(writes[0].key, fence)
        return [self._write(write) for write in writes]

    def list(self, prefix: str) -> dict[str, Versioned]:
        """All keys with that prefix."""
        return {key: value for key, value in sorted(self.keys.items()) if key.startswith(prefix)}

    # Leases

    def acquire(self, name: str, holder: str, ttl_s: float, takeover: bool = False) -> Lease | None:
        """Takes a lease, or renews it for its holder; None if another holder has it."""
        token = self._leases.take(name, holder, ttl_s, takeover)
        return None if token is None else Lease(name, holder, token, ttl_s)

    def renew(self, lease: Lease) -> bool:
        """Holds the lease for another `ttl_s`; False if it was lost."""
        return self._leases.keep(lease.name, lease.token, lease.ttl_s)

    def release(self, lease: Lease) -> None:
        """Gives the lease up."""
        self._leases.give_up(lease.name, lease.token)

    def lease_of(self, name: str) -> LeaseInfo | None:
        """The holder of a lease, or None."""
        grant = self._leases.get(name)
        if grant is None:
            return None
        return LeaseInfo(name, grant.holder, grant.token, grant.expires - self._clock())

    def leases(self, prefix: str) -> dict[str, LeaseInfo]:
        """All leases that are held, with that prefix."""
        infos = (self.lease_of(name) for name in sorted(self._leases.held) if name.startswith(prefix))
        return {info.name: info for info in infos if info is not None}

    # Memberships

    def join(self, group: str, member: str, holder: str, data: bytes, ttl_s: float) -> int:
        """Makes `holder` the holder of a membership, in place of any other; returns the token."""
        grants = self._groups.get(group)
        if grants is None:
            grants = self._groups[group] = _Grants(self._clock)
        token = grants.take(member, holder, ttl_s, takeover=True, data=data)
        assert token is not None, "a takeover is never refused"
        self._group_changed(group)
        return token

    def stay(self, group: str, member: str, token: int, ttl_s: float) -> bool:
        """Extends a membership by `ttl_s`; False if it was lost."""
        grants = self._groups.get(group)
        return grants is not None and grants.keep(member, token, ttl_s)

    def leave(self, group: str, member: str, token: int) -> None:
        """Ends a membership."""
        grants = self._groups.get(group)
        if grants is not None and grants.give_up(member, token):
            self._group_changed(group)

    def members(self, group: str) -> dict[str, bytes]:
        """The members of a group and their data."""
        grants = self._groups.get(group)
        if grants is None:
            return {}
        found = ((member, grants.get(member)) for member in sorted(grants.held))
        return {member: grant.data for member, grant in found if grant is not None}

    def first_expiry(self, group: str) -> float | None:
        """When the first membership of a group expires unless it is renewed, by the store's clock."""
        grants = self._groups.get(group)
        return min((grant.expires for grant in grants.held.values()), default=None) if grants is not None else None

    def drop_expired(self, group: str) -> bool:
        """Removes expired members; returns whether there were any."""
        grants = self._groups.get(group)
        return grants is not None and grants.drop_expired()

    # Barriers

    def arrive(self, name: str, member: str) -> None:
        """Counts a member at a barrier."""
        self._barriers.setdefault(name, {})[member] = None
        if self.on_arrival is not None:
            self.on_arrival(name)

    def arrived(self, name: str) -> int:
        """How many members have reached a barrier."""
        return len(self._barriers.get(name, ()))

    def take_back(self, name: str, member: str, parties: int) -> bool:
        """Removes a member from a barrier. If the barrier is open, does nothing and returns True."""
        members = self._barriers.get(name, {})
        if len(members) >= parties:
            return True
        members.pop(member, None)
        return False

    def _write(self, write: KeyWrite) -> int | CoordinatorError:
        try:
            if write.value is not None:
                return self.put(write.key, write.value, write.expect)
            self.delete(write.key, write.expect)
            return 0
        except ConflictError as error:
            return error

    def _check_fence(self, key: str, fence: Lease | None) -> None:
        if fence is None:
            return
        grant = self._leases.get(fence.name)
        if grant is None or grant.token != fence.token:
            self.refused += 1
            raise LeaseLostError(
                f"{fence.holder} lost the lease {fence.name} (token {fence.token}), so {key} was not written",
                do="stop the work that needs the lease, then acquire it again",
            )

    def _compare(self, key: str, expect: int | None) -> None:
        if expect is None:
            return
        now = self.keys.get(key)
        found = 0 if now is None else now.version
        if found != expect:
            is_there = f"is at version {found}" if found else "does not exist"
            wanted = f"version {expect} was expected" if expect else "it was expected not to exist"
            raise ConflictError(f"{key} {is_there}, {wanted}", do="read it again, then decide again")

    def _changed(self, key: str) -> None:
        if self.on_change is not None:
            self.on_change(key)

    def _group_changed(self, group: str) -> None:
        if self.on_group_change is not None:
            self.on_group_change(group)


# -- Watches -----------------------------------------------------------------------------------------------------------


class _Watch(ABC, Generic[T]):
    """A watch of one process, and the changes that have arrived and were not read yet."""

    __slots__ = ("busy", "cancelled", "client", "heard", "subject", "waiter")

    def __init__(self, client: ModelClient, subject: str) -> None:
        self.client = client
        self.subject = subject
        self.busy = False
        """Whether a parcel is in flight. There is one at a time, so that parcels stay in order."""
        self.cancelled = False
        self.heard: deque[T] = deque()
        self.waiter: Future[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether the watch is open and its process runs."""
        return not self.cancelled and self.client.alive

    @property
    @abstractmethod
    def pending(self) -> bool:
        """Whether there are changes to send."""

    @abstractmethod
    def pack(self, store: Store) -> Any:
        """The newest state of what has changed, as a parcel. It then counts as sent."""

    @abstractmethod
    def put_back(self, parcel: Any) -> None:
        """The parcel was lost: its content must be sent again."""

    @abstractmethod
    def news(self, parcel: Any) -> list[T]:
        """The part of a parcel that the process does not know yet. It then counts as known."""

    def hear(self, news: list[T]) -> None:
        """Adds changes for the process to read."""
        self.heard.extend(news)
        self.wake()

    def wake(self) -> None:
        """Wakes the generator."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class _KeyWatch(_Watch[Change]):
    """A watch of keys with a prefix."""

    __slots__ = ("changed", "known")

    def __init__(self, client: ModelClient, prefix: str) -> None:
        super().__init__(client, prefix)
        self.changed: dict[str, None] = {}
        self.known: dict[str, int] = {}

    @property
    def pending(self) -> bool:
        return bool(self.changed)

    def pack(self, store: Store) -> list[Change]:
        changes = [Change(key, store.get(key)) for key in self.changed]
        self.changed = {}
        return changes

    def put_back(self, parcel: list[Change]) -> None:
        self.changed = dict.fromkeys(change.key for change in parcel) | self.changed

    def news(self, parcel: list[Change]) -> list[Change]:
        known = self.known
        news = []
        for change in parcel:
            if change.now is None:
                if known.pop(change.key, None) is not None:
                    news.append(change)
            elif known.get(change.key) != change.now.version:
                known[change.key] = change.now.version
                news.append(change)
        return news


class _StateWatch(_Watch[T]):
    """A watch of one state that is sent as a whole: the members of a group, the arrivals at a barrier."""

    __slots__ = ("known", "read", "stale")

    def __init__(self, client: ModelClient, subject: str, read: Callable[[str], T]) -> None:
        super().__init__(client, subject)
        self.read = read
        self.stale = True
        self.known: T | None = None

    @property
    def pending(self) -> bool:
        return self.stale

    def pack(self, store: Store) -> T:
        self.stale = False
        return self.read(self.subject)

    def put_back(self, parcel: T) -> None:
        self.stale = True

    def news(self, parcel: T) -> list[T]:
        if parcel == self.known:
            return []
        self.known = parcel
        return [parcel]


# -- The node ----------------------------------------------------------------------------------------------------------


class _Request:
    """An open request. `served` and `answer` are the coordinator's and survive its crashes."""

    __slots__ = ("answer", "args", "client", "future", "give_up", "operation", "served", "timer")

    def __init__(
        self, client: ModelClient, operation: str, args: tuple[Any, ...], future: Future[Any], give_up: float
    ) -> None:
        self.client = client
        self.operation = operation
        self.args = args
        self.future = future
        self.give_up = give_up
        self.timer: Handle | None = None
        self.served = False
        self.answer: Any = None


_READS: Final = frozenset(("get", "get_all", "list", "lease_of", "leases", "members"))
"""A repeated read is executed again; a repeated change only gets its first answer again."""

FULL_DISK: Final = "the coordinator does not accept writes (MISCONF Errors writing to the AOF file)"
"""What the coordinator on Redis raises then, see `shoal.coordination.link`."""

_LEASE_OPERATIONS: Final = frozenset(("acquire", "renew", "release", "lease_of", "join", "stay", "leave"))
"""The operations that `mute_leases` mutes."""


class ModelCoordinator:
    """The store on its own node, which can be crashed, paused and partitioned like any other."""

    def __init__(self, network: Network, name: str = "coordinator", options: CoordinatorOptions | None = None) -> None:
        self.network = network
        self.node = network.node(name)
        self.options = options or CoordinatorOptions()
        self.store = Store(self.node.clock)
        self.store.on_change = self._key_changed
        self.store.on_group_change = self._group_changed
        self.store.on_arrival = self._member_arrived
        self.serving: tuple[str, int] | None = None
        """The node whose request is being served, and its incarnation. None if the scenario itself uses the store."""
        self._muted: dict[str, float] = {}
        self._news_at: dict[str, float] = {}
        self._full_until = 0.0
        self._joins = 0
        self._key_watches: dict[_KeyWatch, None] = {}
        self._group_watches: dict[str, dict[_StateWatch[dict[str, bytes]], None]] = {}
        self._barrier_watches: dict[str, dict[_StateWatch[int], None]] = {}
        self._expiries: dict[str, Event] = {}
        self._rng = network.world.rng(f"coordinator/{name}")
        self._splits = network.world.rng(f"coordinator/{name}/splits")

    def client(self, loop: SimLoop, timeout_s: float | None = None) -> ModelClient:
        """The coordinator as the process on this loop uses it; `timeout_s` bounds each operation."""
        return ModelClient(self, loop, self.options.request_timeout_s if timeout_s is None else timeout_s)

    def mute_leases(self, node_name: str, until: float) -> None:
        """Until that virtual time, requests of a node about leases and memberships have no effect and no answer."""
        self._muted[node_name] = until

    def delay_news(self, node_name: str, until: float) -> None:
        """Until that virtual time, a node hears of no changed key; then of the newest state."""
        self._news_at[node_name] = until

    def fill_disk(self, until: float) -> None:
        """Until that virtual time, all writes are refused, as by a Redis that cannot write its append-only file. Reads
        continue, and leases run out."""
        self._full_until = until

    # What clients call

    def serve(self, request: _Request) -> None:
        """A request has arrived."""
        client, operation = request.client, request.operation
        if operation in _LEASE_OPERATIONS and self.network.world.now < self._muted.get(client.node.name, 0.0):
            return
        if not request.served or operation in _READS:
            self.serving = client.origin
            try:
                if operation not in _READS and self.network.world.now < self._full_until:
                    raise CoordinatorUnavailableError(FULL_DISK)
                request.answer = getattr(self.store, operation)(*request.args)
            except CoordinatorError as error:
                request.answer = error
            finally:
                self.serving = None
            request.served = True
        self.network.world.mix_values(client.origin, operation, request.args, request.answer)
        self.network.datagram(self.node, client.node, client.answered, request, request.answer)

    def new_holder(self) -> str:
        """A holder for a membership, different for each `join`."""
        self._joins += 1
        return f"join {self._joins}"

    def batches(self, writes: Sequence[KeyWrite]) -> list[Sequence[KeyWrite]]:
        """Writes, grouped by request."""
        size = BATCH_WRITES_MAX
        if 1 < len(writes) <= size and self._splits.random() < self.options.split_probability:
            at = self._splits.randrange(1, len(writes))
            return [writes[:at], writes[at:]]
        return [writes[start : start + size] for start in range(0, len(writes), size)]

    def watch_keys(self, watch: _KeyWatch) -> None:
        """Sends a process all keys, then the changes, until the watch is cancelled."""
        self._key_watches[watch] = None
        watch.changed = dict.fromkeys(self.store.list(watch.subject))
        self._schedule(watch)

    def watch_group(self, watch: _StateWatch[dict[str, bytes]]) -> None:
        """Sends a process the members of a group."""
        self._group_watches.setdefault(watch.subject, {})[watch] = None
        self._schedule(watch)
        self._await_expiry(watch.subject)

    def watch_barrier(self, watch: _StateWatch[int]) -> None:
        """Sends a process the number of members that have reached a barrier."""
        self._barrier_watches.setdefault(watch.subject, {})[watch] = None
        self._schedule(watch)

    # Deliveries of watches

    def _key_changed(self, key: str) -> None:
        dead = []
        for watch in self._key_watches:
            if not watch.alive:
                dead.append(watch)
            elif key.startswith(watch.subject):
                watch.changed[key] = None
                self._schedule(watch)
        for watch in dead:
            del self._key_watches[watch]

    def _group_changed(self, group: str) -> None:
        self._state_changed(self._group_watches, group)
        self._await_expiry(group)

    def _member_arrived(self, name: str) -> None:
        self._state_changed(self._barrier_watches, name)

    def _state_changed(self, watches: dict[str, dict[_StateWatch[T], None]], subject: str) -> None:
        dead = []
        of_subject = watches.get(subject, {})
        for watch in of_subject:
            if not watch.alive:
                dead.append(watch)
            else:
                watch.stale = True
                self._schedule(watch)
        for watch in dead:
            del of_subject[watch]

    def _await_expiry(self, group: str) -> None:
        """While a group is watched, schedules a check for the first expiry."""
        first = self.store.first_expiry(group)
        if first is None or not any(watch.alive for watch in self._group_watches.get(group, ())):
            return
        at = self.node.true_time(first) + EXPIRY_MARGIN_S
        waiting = self._expiries.get(group)
        if waiting is not None and waiting.pending:
            if waiting.time <= at:
                return
            waiting.cancel()
        self._expiries[group] = self.network.world.at(at, self._expire, group)

    def _expire(self, group: str) -> None:
        if self.store.drop_expired(group):
            self._state_changed(self._group_watches, group)
        self._await_expiry(group)

    def _schedule(self, watch: _Watch[Any], delay_s: float = 0.0) -> None:
        """Schedules the next parcel of a watch."""
        if watch.pending and not watch.busy and watch.alive:
            watch.busy = True
            if isinstance(watch, _KeyWatch):
                delay_s += max(0.0, self._news_at.get(watch.client.node.name, 0.0) - self.network.world.now)
            delay_s += self._rng.uniform(*self.options.watch_delay_s)
            self.network.world.after(delay_s, self._send_news, watch)

    def _send_news(self, watch: _Watch[Any]) -> None:
        parcel = watch.pack(self.store)
        delay_s = self._rng.uniform(*self.options.watch_delay_s)
        self.network.world.after(delay_s, self._news_arrive, watch, parcel)

    def _news_arrive(self, watch: _Watch[Any], parcel: Any) -> None:
        """Delivers the parcel; if it is lost, the client asks again later."""
        network, here, there = self.network, self.node.name, watch.client.node.name
        if self.node.running and network.path_open(here, there) and network.path_open(there, here):
            watch.client.node.call(self._tell, watch, parcel)
        else:
            watch.busy = False
            watch.put_back(parcel)
            self._schedule(watch, self.options.watch_retry_s)

    def _tell(self, watch: _Watch[Any], parcel: Any) -> None:
        watch.busy = False
        if not watch.alive:
            return
        news = watch.news(parcel)
        if news:
            self.network.world.mix_values(watch.client.origin, watch.subject, news)
            watch.client.loop.run(watch.hear, news)
        self._schedule(watch)


# -- The client --------------------------------------------------------------------------------------------------------

_TITLES: Final = {
    "get": "read",
    "get_all": "read",
    "put": "write",
    "write_all": "write",
    "acquire": "take",
    "members": "list",
    "stay": "renew",
    "arrive": "reach barrier",
    "take_back": "leave barrier",
}
"""Names of operations in errors, where they differ from the method's."""


class ModelClient(Coordinator):
    """The coordinator for one process: each operation is a request and an answer on the simulated network."""

    def __init__(self, coordinator: ModelCoordinator, loop: SimLoop, timeout_s: float) -> None:
        self.loop = loop
        self.node = loop.node
        self.origin = loop.node.name, loop.node.incarnation
        self._coordinator = coordinator
        self._network = coordinator.network
        self._timeout_s = timeout_s
        self._retry_s = self._timeout_s / ATTEMPTS_PER_TIMEOUT
        self._closed = False
        self._watches: dict[_Watch[Any], None] = {}

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return not self.loop.dead and self.node.incarnation == self.origin[1]

    # Keys

    async def get(self, key: str) -> Versioned | None:
        """See `Coordinator.get`."""
        names.check_path("key", key)
        found: Versioned | None = await self._ask("get", key)
        return found

    async def get_all(self, keys: Sequence[str]) -> builtins.list[Versioned | None]:
        """See `Coordinator.get_all`."""
        for key in keys:
            names.check_path("key", key)
        found: list[Versioned | None] = await self._ask("get_all", tuple(keys)) if keys else []
        return found

    async def put(self, key: str, value: bytes, expect: int | None = None, *, fence: Lease | None = None) -> int:
        """See `Coordinator.put`."""
        _check_write(key, value)
        version: int = await self._ask("put", key, bytes(value), expect, fence)
        return version

    async def delete(self, key: str, expect: int | None = None, *, fence: Lease | None = None) -> None:
        """See `Coordinator.delete`."""
        _check_write(key, None)
        await self._ask("delete", key, expect, fence)

    async def write_all(
        self, writes: Sequence[KeyWrite], *, fence: Lease | None = None
    ) -> builtins.list[int | CoordinatorError]:
        """See `Coordinator.write_all`."""
        for write in writes:
            _check_write(write.key, write.value)
        names.check_different("key", [write.key for write in writes])
        outcomes: list[int | CoordinatorError] = []
        for batch in self._coordinator.batches(writes):
            outcomes += await self._ask("write_all", batch, fence)
        return outcomes

    async def list(self, prefix: str) -> dict[str, Versioned]:
        """See `Coordinator.list`."""
        found: dict[str, Versioned] = await self._ask("list", names.check_prefix(prefix))
        return found

    def watch(self, prefix: str) -> AsyncGenerator[Change, None]:
        """See `Coordinator.watch`."""
        watch = _KeyWatch(self, names.check_prefix(prefix))
        return self._follow(watch, self._coordinator.watch_keys)

    # Leases

    async def acquire(self, name: str, holder: str, ttl_s: float, takeover: bool = False) -> Lease | None:
        """See `Coordinator.acquire`."""
        names.check_path("lease", name)
        names.check_name("holder", holder)
        names.check_ttl(ttl_s)
        lease: Lease | None = await self._ask("acquire", name, holder, ttl_s, takeover)
        return lease

    async def renew(self, lease: Lease) -> bool:
        """See `Coordinator.renew`."""
        kept: bool = await self._ask("renew", lease)
        return kept

    async def release(self, lease: Lease) -> None:
        """See `Coordinator.release`."""
        await self._ask("release", lease)

    async def lease_of(self, name: str) -> LeaseInfo | None:
        """See `Coordinator.lease_of`."""
        info: LeaseInfo | None = await self._ask("lease_of", names.check_path("lease", name))
        return info

    async def leases(self, prefix: str) -> dict[str, LeaseInfo]:
        """See `Coordinator.leases`."""
        infos: dict[str, LeaseInfo] = await self._ask("leases", names.check_prefix(prefix))
        return infos

    # Groups and barriers

    async def join(self, group: str, member: str, data: bytes, ttl_s: float) -> Membership:
        """See `Coordinator.join`."""
        names.check_area("group", group)
        names.check_name("member", member)
        names.check_size("member's data", data, names.MEMBER_DATA_BYTES_MAX)
        names.check_ttl(ttl_s)
        token: int = await self._ask("join", group, member, self._coordinator.new_holder(), bytes(data), ttl_s)
        return ModelMembership(self, group, member, token, ttl_s)

    async def members(self, group: str) -> dict[str, bytes]:
        """See `Coordinator.members`."""
        found: dict[str, bytes] = await self._ask("members", names.check_area("group", group))
        return found

    def watch_members(self, group: str) -> AsyncGenerator[dict[str, bytes], None]:
        """See `Coordinator.watch_members`."""
        watch = _StateWatch(self, names.check_area("group", group), self._coordinator.store.members)
        return self._follow(watch, self._coordinator.watch_group)

    def barrier(self, name: str, member: str, parties: int) -> Barrier:
        """See `Coordinator.barrier`."""
        names.check_name("barrier", name)
        names.check_name("member", member)
        names.check_parties(parties)
        return ModelBarrier(self, name, member, parties)

    async def close(self) -> None:
        """See `Coordinator.close`."""
        self._closed = True
        for watch in list(self._watches):
            watch.wake()

    # For memberships and barriers

    async def stay(self, group: str, member: str, token: int, ttl_s: float) -> bool:
        """Keeps a membership."""
        kept: bool = await self._ask("stay", group, member, token, ttl_s)
        return kept

    async def leave(self, group: str, member: str, token: int) -> None:
        """Gives a membership up."""
        await self._ask("leave", group, member, token)

    async def arrive(self, name: str, member: str, parties: int) -> None:
        """Reaches a barrier, and returns when it is open."""
        watch = _StateWatch(self, name, self._coordinator.store.arrived)
        async with aclosing(self._follow(watch, self._coordinator.watch_barrier)) as counts:
            await self._ask("arrive", name, member)
            async for count in counts:
                if count >= parties:
                    return
        raise self._closed_error("watch barrier", name)

    async def take_back(self, name: str, member: str, parties: int) -> bool:
        """Leaves a barrier; True if it is open."""
        is_open: bool = await self._ask("take_back", name, member, parties)
        return is_open

    # Requests

    def answered(self, request: _Request, answer: Any) -> None:
        """An answer has arrived on the node."""
        if self.alive and not request.future.done():
            self.loop.run(request.future.set_result, answer)

    async def _ask(self, operation: str, *args: Any) -> Any:
        """Sends a request and waits for its answer; returns or raises it."""
        if self._closed:
            raise self._closed_error(operation, args[0])
        loop = self.loop
        request = _Request(self, operation, args, loop.create_future(), loop.time() + self._timeout_s)
        self._send(request)
        try:
            answer = await request.future
        finally:
            if request.timer is not None:
                request.timer.cancel()
        if isinstance(answer, CoordinatorError):
            raise answer
        return answer

    def _send(self, request: _Request) -> None:
        """Sends a request for the first time or again, and sets the timer after which it has failed."""
        coordinator = self._coordinator
        self._network.datagram(self.node, coordinator.node, coordinator.serve, request)
        left_s = request.give_up - self.loop.time()
        request.timer = self.loop.call_later(min(self._retry_s, left_s), self._not_answered, request)

    def _not_answered(self, request: _Request) -> None:
        if request.future.done():
            return
        operation, subject = request.operation, request.args[0]
        if self._closed:
            request.future.set_result(self._closed_error(operation, subject))
        elif request.give_up - self.loop.time() < 0.001:  # the grain of the loop's clock
            what = f"cannot {_title(operation, subject)} at {self._coordinator.node.name} within {self._timeout_s:g} s"
            advice = "check that the coordinator runs and that its address is right (shoal status)"
            request.future.set_result(CoordinatorUnavailableError(f"{what} (it did not answer)", do=advice))
        else:
            self._send(request)

    @staticmethod
    def _closed_error(operation: str, subject: Any) -> CoordinatorError:
        what = f"cannot {_title(operation, subject)}: the coordinator was closed"
        return CoordinatorError(what, do="connect again")

    async def _follow(self, watch: _WatchT, begin: Callable[[_WatchT], None]) -> AsyncGenerator[Any, None]:
        """Yields the changes of a watch until the watch or the client is closed."""
        if self._closed:
            raise self._closed_error("watch", watch.subject)
        heard = watch.heard
        yielded = 0
        self._watches[watch] = None
        begin(watch)
        try:
            while not self._closed:
                if heard:
                    yield heard.popleft()
                    yielded += 1
                    if yielded % CHANGES_PER_TURN == 0:
                        await asyncio.sleep(0)
                else:
                    watch.waiter = self.loop.create_future()
                    await watch.waiter
        finally:
            watch.cancelled = True
            self._watches.pop(watch, None)


_WatchT = TypeVar("_WatchT", bound=_Watch[Any])


class ModelMembership(Membership):
    """A membership in a group."""

    def __init__(self, client: ModelClient, group: str, member: str, token: int, ttl_s: float) -> None:
        self.group = group
        self.member = member
        self.ttl_s = ttl_s
        self._client = client
        self._token = token

    async def renew(self) -> bool:
        """See `Membership.renew`."""
        return await self._client.stay(self.group, self.member, self._token, self.ttl_s)

    async def leave(self) -> None:
        """See `Membership.leave`."""
        await self._client.leave(self.group, self.member, self._token)


class ModelBarrier(Barrier):
    """A barrier."""

    def __init__(self, client: ModelClient, name: str, member: str, parties: int) -> None:
        self.name = name
        self.member = member
        self.parties = parties
        self._client = client

    async def wait(self, timeout_s: float) -> bool:
        """See `Barrier.wait`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._client.arrive(self.name, self.member, self.parties)
        except TimeoutError:
            return await self._client.take_back(self.name, self.member, self.parties)
        return True


def _check_write(key: str, value: bytes | None) -> None:
    names.check_path("key", key)
    if value is not None:
        names.check_size("value", value, names.VALUE_BYTES_MAX)


def _title(operation: str, subject: Any) -> str:
    """A description of the operation for errors."""
    if isinstance(subject, Lease):
        subject = subject.name
    elif not isinstance(subject, str):
        first: KeyWrite | str = subject[0]
        key = first if isinstance(first, str) else first.key
        subject = key if len(subject) == 1 else f"{key} and {len(subject) - 1} more"
    return f"{_TITLES.get(operation, operation)} {subject}"
