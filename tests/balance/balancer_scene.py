"""A balancer's core with a simulated coordinator and provider, for tests of the core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from msgspec.structs import replace
from tests.balance import tiny_policy
from tests.balance.tiny_policy import Wish

from shoal.balance.balancer import Balancer
from shoal.balance.balancer_keys import Ask, AskOutcome, BalancerState, Pin, Why
from shoal.balance.balancer_options import BalancerOptions
from shoal.balance.change import Place
from shoal.balance.effects import (
    AddHosts,
    BalancerView,
    Effect,
    HurryMove,
    ProposalReady,
    ProviderState,
    PutMark,
    PutState,
    RemoveServer,
    Reply,
    WriteMove,
)
from shoal.balance.policies import POLICIES
from shoal.balance.settings import BalanceSettings
from shoal.load.window import LoadWindow, window_schema
from shoal.load_kinds import KINDS, REGISTRY
from shoal.plan.entry import Entry, Phase
from shoal.plan.keys import Mark
from shoal.plan.move_request import MoveRequest
from shoal.plan.placement import Mode, Placement
from shoal.plan.ring import Ring, ServerAddress

T = 1_000_000
TINY = "tiny"
SETTINGS = BalanceSettings()
OPTIONS = BalancerOptions(policy=TINY, auto=True, empty_s=5.0, move_timeout_s=20.0, join_timeout_s=30.0, retry_s=5.0)

E = TypeVar("E")


def ring_of(*ids: str, version: int = 1, guests: tuple[str, ...] = (), before: Ring | None = None) -> Ring:
    servers = tuple(ServerAddress(server, "localhost", 1) for server in ids)
    return before.next(servers, guests) if before else Ring(version, servers, (), guests)


def window_of(
    start_s: int,
    hosts: Sequence[str],
    load: Mapping[tuple[str, bytes], Mapping[str, Any]] | None = None,
    *,
    capacity: float = 1000.0,
    incomplete: Sequence[str] = (),
) -> LoadWindow:
    """A window of two seconds; `load` is the load of channels on hosts."""
    rates = dict.fromkeys(("publications", "forwarded", "messages_sent", "bytes_in", "bytes_out"), 0.0)
    load = load or {}
    rows = []
    for host in hosts:
        units = [{**rates, **facts} for (at, _), facts in load.items() if at == host]
        sent = sum(unit["bytes_out"] for unit in units)
        rows.append(
            {
                **rates,
                "host": host,
                "unit": None,
                "bytes_out": sent,
                "capacity_bytes_per_s": capacity,
                "bandwidth_bytes_per_s": sent,
                "cpu_share": 0.1,
                "connections": 3,
                "complete": host not in incomplete,
            }
        )
    for (host, channel), facts in load.items():
        rows.append(
            {
                **rates,
                "publishers": 1,
                "subscribers": 1,
                "pattern_subscribers": 0,
                **facts,
                "host": host,
                "unit": channel,
                "complete": True,
            }
        )
    rows = [{"kind": row["unit"] and "channel", "host_kind": "server", "seconds": 2, **row} for row in rows]
    return LoadWindow(start_s, start_s + 2, pa.Table.from_pylist(rows, window_schema(KINDS)))


BUSY = {("s1", b"hot"): {"publications": 10.0, "bytes_out": 900.0, "messages_sent": 90.0}}


class Scene:
    """Time, a coordinator and a provider, and the effects of the core."""

    def __init__(self, *servers: str, options: BalancerOptions = OPTIONS) -> None:
        self.ring = ring_of(*servers)
        self.options = options
        self.now = float(T)
        self.entries: dict[bytes, Entry] = {}
        self.requests: dict[bytes, MoveRequest] = {}
        self.whys: dict[bytes, Why] = {}
        self.marks: dict[str, Mark] = {}
        self.provider = ProviderState(servers_min=1, servers_max=9)
        self.asks: dict[str, Ask] = {}
        self.answers: dict[str, AskOutcome] = {}
        self.proposals: dict[str, bytes] = {}
        self.recorded: set[str] = set()
        self.pins: dict[bytes, Pin] = {}
        self.state = BalancerState()
        self.effects: list[Effect] = []
        self.load: Mapping[tuple[str, bytes], Mapping[str, Any]] = BUSY
        self.window_at = T
        self.core = Balancer(SETTINGS, options, REGISTRY)

    def take_over(self) -> None:
        """The next leader continues from the state of the coordinator."""
        moved_at = {channel: why.at_s for channel, why in self.whys.items()}
        self.core = Balancer(SETTINGS, self.options, REGISTRY, self.state, moved_at)

    def look(self, seconds: float = 0.25, *windows: LoadWindow) -> list[Effect]:
        """Lets time pass, and carries out the effects of the core."""
        self.now += seconds
        view = BalancerView(
            self.ring,
            self.entries,
            self.requests,
            self.marks,
            self.provider,
            dict(self.asks),
            dict(self.proposals),
            self.recorded,
            pins=self.pins,
        )
        found = self.core.observe(windows, view, self.now)
        for effect in found:
            self._carry_out(effect)
        self.effects += found
        return found

    def window(self, **facts: Any) -> list[Effect]:
        """Two seconds pass, and their window is closed."""
        window = window_of(self.window_at, self.ring.ids, self.load, **facts)
        self.window_at += 2
        self.now = max(self.now, self.window_at + 0.5)
        return self.look(0.0, window)

    def windows(self, count: int) -> list[Effect]:
        return [effect for _ in range(count) for effect in self.window()]

    def end_moves(self, *, moved: bool = True) -> None:
        """The conductor has finished all requests."""
        for channel, request in self.requests.items():
            if moved:
                version = self.entries[channel].newness + 1 if channel in self.entries else self.ring.version + 1
                self.entries[channel] = Entry(channel, Placement(version, request.mode, request.servers))
        self.requests.clear()

    def drop(self, server: str) -> None:
        """The keeper takes a server out of the ring."""
        left = tuple(other for other in self.ring.ids if other != server)
        self.ring = ring_of(*left, before=self.ring, guests=tuple(s for s in self.ring.guests if s != server))

    def join(self, *servers: str) -> None:
        """Servers join the ring; all members are homes or guests by their marks in the pool."""
        ids = tuple(dict.fromkeys((*self.ring.ids, *servers)))
        guests = tuple(server for server in ids if server in self.marks and self.marks[server].is_guest)
        self.ring = ring_of(*ids, before=self.ring, guests=guests)

    def took(self, kind: type[E]) -> list[E]:
        """The effects of a kind since the last call."""
        found: list[E] = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return found

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case WriteMove():
                self.requests[effect.request.unit] = effect.request
                self.whys[effect.request.unit] = effect.why
            case HurryMove():
                self.requests[effect.request.unit] = effect.request
            case PutMark(mark=None):
                self.marks.pop(effect.server, None)
            case PutMark(mark=mark):
                assert mark is not None
                self.marks[effect.server] = mark
            case PutState():
                self.state = effect.state
            case ProposalReady():
                self.proposals[effect.digest] = effect.data
            case Reply():
                del self.asks[effect.id]
                self.answers[effect.id] = effect.answer
            case AddHosts() | RemoveServer() | _:
                pass


def single(*servers: str) -> tuple[Mode, tuple[str, ...]]:
    return Mode.SINGLE, servers


def resting(channel: bytes, *servers: str, version: int = 2, mode: Mode = Mode.SINGLE) -> Entry:
    return Entry(channel, Placement(version, mode, servers))


def pinned(*servers: str, mode: Mode = Mode.SINGLE) -> Pin:
    return Pin(Place(mode, servers), float(T))


def moving(channel: bytes, old: str, new: str) -> Entry:
    before, after = Placement(2, Mode.SINGLE, (old,)), Placement(3, Mode.SINGLE, (new,))
    return replace(resting(channel, new), placement=after, phase=Phase.NARROW, earlier=(before,), revision=6, since=6)


@pytest.fixture
def wish(monkeypatch: pytest.MonkeyPatch) -> Wish:
    """The next decision of the policy `tiny`; no change at first."""
    monkeypatch.setitem(POLICIES, TINY, tiny_policy.__name__)
    monkeypatch.setattr(tiny_policy, "wish", Wish())
    return tiny_policy.wish
