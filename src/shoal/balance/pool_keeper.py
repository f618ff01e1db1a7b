"""The pool keeper: changes the pool states of servers, from guest to home, and from home to removed.

Owns the transitions of a server's mark (`shoal.plan.keys.Mark`) and when each is due. A policy decides whether a server
is drained; the following steps depend only on the state in the coordinator, so the next leader continues them.

    home --drain decided--> freeing --no channel left--> drain --empty for a while--> out --left by clients--> removed
    guest --drain decided--> drain        freeing, drain --to be kept--> home, guest
    guest --too few homes--> home         home, freeing --dead--> lost --no entry names it--> returned
    returned --back, and has room--> home                                drain --dead--> out

A server with a pinned channel is not drained: one that is being drained is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Final, NamedTuple

import pyarrow.compute as pc

from shoal.balance.effects import BalancerView, HurryMove, PutMark, RemoveServer
from shoal.load.kinds import CHANNEL, SERVER
from shoal.load.window import LoadWindow
from shoal.plan.entry import Entry, Phase
from shoal.plan.keys import TAKES, Mark
from shoal.plan.move_request import MoveRequest
from shoal.plan.ring import Ring

_MUST_BE_UNNAMED: Final = {Mark.LOST, Mark.FREEING, Mark.DRAIN}
"""The marks whose next step requires that no entry names the server."""


LEFT_S: Final = 10.0
"""How long a server runs on after it has left the ring. Its clients hear of the new ring and leave it after `linger_s`;
earlier they could not tell it from a server that died, and would report gaps."""
FORGET_S: Final = 15.0
"""How long a server is kept out of the ring after it was stopped: by then its agent's lease has expired."""


class Quiet(NamedTuple):
    """Since when a server is known to have had no publications, and neither publications nor subscribers."""

    published_s: int | None
    used_s: int | None


class Quietness:
    """Measures how long each server has been quiet, window by window. A server that is missing in a window, or has not
    reported every second of it, does not count as quiet."""

    def __init__(self) -> None:
        self._servers: dict[str, Quiet] = {}
        self._until_s = 0

    @property
    def until_s(self) -> int:
        """The end of the last window."""
        return self._until_s

    def learn(self, window: LoadWindow) -> None:
        """Takes the next window."""
        hosts, units = window.hosts_of(SERVER), window.units_of(CHANNEL)
        complete = {
            host for host, whole in zip(hosts["host"].to_pylist(), hosts["complete"].to_pylist(), strict=True) if whole
        }
        published = _hosts_with(units, pc.greater(pc.add(units["publications"], units["forwarded"]), 0))
        used = published | _hosts_with(units, pc.greater(units["subscribers"], 0))
        joined = window.start_s == self._until_s
        before = self._servers if joined else {}
        self._servers = {
            host: Quiet(
                None if host in published else before.get(host, Quiet(None, None)).published_s or window.start_s,
                None if host in used else before.get(host, Quiet(None, None)).used_s or window.start_s,
            )
            for host in complete
        }
        self._until_s = window.end_s

    def unpublished_s(self, server: str) -> float:
        """For how long a server has had no publications."""
        since = self._servers.get(server, Quiet(None, None)).published_s
        return 0.0 if since is None else float(self._until_s - since)

    def unused_s(self, server: str, after_s: float) -> float:
        """For how long a server has had no subscribers and no publications, counted from `after_s` at the earliest."""
        since = self._servers.get(server, Quiet(None, None)).used_s
        return 0.0 if since is None else max(0.0, self._until_s - max(since, after_s))


def _hosts_with(units: object, condition: object) -> set[str]:
    return set(units.filter(condition)["host"].unique().to_pylist())  # type: ignore[attr-defined]


class PoolKeeper:
    """Decides the next marks. It remembers the members of the ring, and when it first saw each server drained, and
    out of the ring."""

    def __init__(self, empty_s: float, retry_s: float, *, is_confirmed: bool = True) -> None:
        self._empty_s = empty_s
        self._is_confirmed = is_confirmed
        self._retry_s = retry_s
        self._members: frozenset[str] = frozenset()
        self._drained_at: dict[str, float] = {}
        self._left_at: dict[str, float] = {}
        self._removing: dict[str, float] = {}
        self._stopped_at: dict[str, float] = {}
        self._holding: set[str] = set()
        """The servers with pinned channels, at this step."""

    def steps(
        self, view: BalancerView, ring: Ring, quiet: Quietness, removed: Set[str], now_s: float
    ) -> Iterator[PutMark | RemoveServer]:
        """The steps that are due now."""
        named = named_servers(view) if _MUST_BE_UNNAMED & {*view.marks.values()} else {}
        yield from self._note_deaths(view, ring, removed)
        self._holding = {
            server for servers in pinned_servers(view.pins, view.entries, ring).values() for server in servers
        }
        for server, mark in sorted(view.marks.items()):
            yield from self._next(server, mark, view, ring, named, quiet, now_s)
            if mark is Mark.OUT and server in removed and server not in view.provider.servers:
                yield from self._forget(server, now_s)
        for server in [server for server in self._drained_at if view.marks.get(server) is not Mark.DRAIN]:
            del self._drained_at[server]
        for server in [server for server in self._left_at if view.marks.get(server) is not Mark.OUT]:
            del self._left_at[server]

    def _note_deaths(self, view: BalancerView, ring: Ring, removed: Set[str]) -> Iterator[PutMark]:
        """Marks servers that have left the ring without being marked `out`: they have died."""
        before = self._members.union(*(members.ids for members in ring.earlier))
        self._members = frozenset(ring.ids)
        for server in sorted(before - self._members - removed):
            mark = view.marks.get(server)
            if mark is Mark.DRAIN:
                yield PutMark(server, Mark.OUT, "it died while it was drained")
            elif mark is None or mark is Mark.FREEING:
                yield PutMark(server, Mark.LOST, "it died")

    def _next(
        self,
        server: str,
        mark: Mark,
        view: BalancerView,
        ring: Ring,
        named: Mapping[str, int],
        quiet: Quietness,
        now_s: float,
    ) -> Iterator[PutMark | RemoveServer]:
        here = server in ring.ids
        if mark is Mark.LOST and server not in named:
            yield PutMark(server, Mark.RETURNED, "no entry names it any more: it may come back empty")
        elif mark in (Mark.FREEING, Mark.DRAIN) and here and server in self._holding:
            yield PutMark(server, keep_mark(mark), "it has a pinned channel")
        elif mark is Mark.FREEING and here and server not in named and quiet.unpublished_s(server) > 0:
            yield PutMark(server, Mark.DRAIN, "its channels have moved")
        elif mark is Mark.DRAIN and here:
            since = self._drained_at.setdefault(server, max(now_s, float(quiet.until_s)))
            empty = server not in named and server not in ring.homes and server not in view.recorded
            if not self._is_confirmed or (empty and quiet.unused_s(server, since) >= self._empty_s):
                yield PutMark(server, Mark.OUT, f"it was unused for {self._empty_s:g} s")
        elif mark is Mark.OUT and not here and server in view.provider.servers:
            left_s = now_s - self._left_at.setdefault(server, now_s)
            if left_s >= LEFT_S and self._may_remove(server, now_s):
                self._removing[server] = now_s
                yield RemoveServer(server)

    def _forget(self, server: str, now_s: float) -> Iterator[PutMark]:
        """Drops the mark of a removed server after its lease has expired; before that, the server would look like a new
        one."""
        if now_s - self._stopped_at.setdefault(server, now_s) >= FORGET_S:
            del self._stopped_at[server]
            yield PutMark(server, None, "it was removed")

    def _may_remove(self, server: str, now_s: float) -> bool:
        """Whether enough time has passed since the last request to remove the server."""
        asked_at = self._removing.get(server)
        return asked_at is None or now_s - asked_at >= self._retry_s


def ended(view: BalancerView, ring: Ring) -> Iterator[str]:
    """Servers marked `out` that the provider has stopped. An earlier leader may have died before it noted that."""
    if view.provider.knows_all:
        out = (server for server, mark in sorted(view.marks.items()) if mark is Mark.OUT)
        yield from (server for server in out if server not in ring.ids and server not in view.provider.servers)


def named_servers(view: BalancerView) -> dict[str, int]:
    """How many entries and requests name each server, in a current placement or as a server to be helped."""
    counts: dict[str, int] = {}
    for entry in view.entries.values():
        for server in {*entry.servers, *entry.helped}:
            counts[server] = counts.get(server, 0) + 1
    for request in view.requests.values():
        for server in request.servers:
            counts[server] = counts.get(server, 0) + 1
    return counts


def pinned_servers(pins: Iterable[bytes], entries: Mapping[bytes, Entry], ring: Ring) -> dict[bytes, tuple[str, ...]]:
    """The servers of each pinned channel, unless one of them is dead."""
    here = {*ring.ids}
    placed = {
        channel: entries[channel].placement.servers if channel in entries else (ring.home(channel),) for channel in pins
    }
    return {channel: servers for channel, servers in placed.items() if here.issuperset(servers)}


def hurries(view: BalancerView) -> Iterator[HurryMove]:
    """Requests for lazy moves away from servers that must become unnamed. A lazy move ends with the channel's next
    messages, so a silent channel would hold its old server forever."""
    waiting = {server for server, mark in view.marks.items() if mark in _MUST_BE_UNNAMED}
    if not waiting:
        return
    for channel, entry in sorted(view.entries.items()):
        left = {*entry.servers, *entry.helped} - {*entry.placement.servers}
        if entry.phase is not Phase.END and not entry.eager and channel not in view.requests and left & waiting:
            place = entry.placement
            id = f"hurry-{entry.newness}"
            yield HurryMove(MoveRequest(channel, place.servers, place.mode, True, id, goes_there=True))


REHOMED_RATIO_MAX: Final = 0.05
"""Load that may move when guests become homes, as a share of a server's capacity. Channels without an entry move with
the ring and not by a plan."""


def promotions(view: BalancerView, ring: Ring, window: LoadWindow) -> Iterator[PutMark]:
    """Guests that become homes: if fewer than half of the servers that take channels are homes, and almost no load
    would move with the ring."""
    takers = [server for server in ring.ids if view.marks.get(server) in TAKES]
    homes = [server for server in takers if server in ring.homes]
    wanted = (len(takers) + 1) // 2 - len(homes)
    guests = [server for server in takers if server not in ring.homes and view.marks.get(server) is Mark.GUEST]
    risen = guests[: max(wanted, 0)]
    if not risen or _rehomed_ratio(view, ring, risen, window) > REHOMED_RATIO_MAX:
        return
    for server in risen:
        yield PutMark(server, None, f"{len(homes)} of {len(takers)} servers are homes")


def returns(view: BalancerView, ring: Ring, window: LoadWindow, ratio_max: float) -> Iterator[PutMark]:
    """A server that died and came back, and becomes a home again: if the load of the channels that follow the ring to
    it, and the load that it has, are at most `ratio_max` of its capacity. One at a time."""
    hosts = window.hosts_of(SERVER)
    sent = pc.coalesce(hosts["bandwidth_bytes_per_s"], hosts["bytes_out"]).to_pylist()
    for server, load, capacity in zip(
        hosts["host"].to_pylist(), sent, hosts["capacity_bytes_per_s"].to_pylist(), strict=True
    ):
        if view.marks.get(server) is not Mark.RETURNED or server not in ring.ids:
            continue
        carried = load / capacity if capacity else 0.0
        if carried + _rehomed_ratio(view, ring, [server], window) <= ratio_max:
            yield PutMark(server, None, "it came back, and its share of the ring fits")
            return


def _rehomed_ratio(view: BalancerView, ring: Ring, risen: Sequence[str], window: LoadWindow) -> float:
    """The load of the channels whose home would change if these guests became homes, as a share of the mean
    capacity."""
    units, hosts = window.units_of(CHANNEL), window.hosts_of(SERVER)
    free = [channel not in view.entries for channel in units["unit"].to_pylist()]
    names = [channel for channel, is_free in zip(units["unit"].to_pylist(), free, strict=True) if is_free]
    sent = [rate for rate, is_free in zip(units["bytes_out"].to_pylist(), free, strict=True) if is_free]
    after = ring.next(ring.servers, tuple(guest for guest in ring.guests if guest not in risen))
    moved = sum(
        rate
        for rate, home, other in zip(sent, ring.homes_of(names), after.homes_of(names), strict=True)
        if home != other
    )
    capacity = pc.mean(hosts["capacity_bytes_per_s"]).as_py() or 0.0
    return moved / capacity if capacity > 0 else 0.0


def drain_mark(server: str, view: BalancerView, ring: Ring) -> Mark:
    """The first mark of a server that is drained."""
    return Mark.FREEING if server in ring.homes else Mark.DRAIN


def keep_mark(mark: Mark | None) -> Mark | None:
    """The mark of a server that was being drained and is kept."""
    return None if mark is None or mark is Mark.FREEING else Mark.GUEST
