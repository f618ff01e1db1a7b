"""The demo's moves: busy tiles are replicated, moved and brought back while players go on.

Owns when which tile moves where, and what is told of it. `Plot` is pure: it is handed the ring's members, the plan's
entries and the time, and hands back what to ask for. `carry_out` asks the coordinator, as `shoal plan move` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import msgspec

from shoal.coordination.interface import Coordinator
from shoal.demo.script import Kind
from shoal.errors import CoordinatorError
from shoal.plan import keys
from shoal.plan.book import PlanBook
from shoal.plan.entry import Entry, Phase
from shoal.plan.moving import MoveRequest, encode_request
from shoal.plan.placement import Mode, Placement
from shoal.plan.signing import Verifier

TURNS: Final = (
    (0.12, 0, Mode.ALL_SUBSCRIBERS),
    (0.16, 1, Mode.ALL_PUBLISHERS),
    (0.22, 2, Mode.SINGLE),
    (0.30, 0, Mode.SINGLE),
    (0.52, 2, Mode.ALL_PUBLISHERS),
    (0.84, 0, Mode.ALL_SUBSCRIBERS),
    (0.86, 1, Mode.SINGLE),
    (0.88, 2, Mode.SINGLE),
)
"""When, as a share of the time; which of the busy tiles; how it is to live then."""
TILES: Final = 1 + max(tile for _, tile, _ in TURNS)
WIDTH: Final = 2
"""Servers of a replicated tile."""
LOOK_S: Final = 0.1


class Moved(msgspec.Struct):
    """A move under way. `before` is the version of the placement that the tile had when it was asked for."""

    request: MoveRequest
    asked_at: float
    before: int


class Plot:
    """Which tile moves when. `tell` takes what there is to tell."""

    def __init__(
        self, channels: Sequence[str], seconds: float, start: float, tell: Callable[[float, Kind, str], None]
    ) -> None:
        self.asked = 0
        self.ended = 0
        self._tell = tell
        self._due = [
            (start + share * seconds, channels[tile], mode) for share, tile, mode in TURNS if tile < len(channels)
        ]
        self._versions: dict[bytes, int] = {}
        self._under_way: dict[bytes, Moved] = {}

    @property
    def under_way(self) -> int:
        """Moves that have been asked for and have neither ended nor been given up."""
        return len(self._under_way)

    def due(self, members: Sequence[str], placement: Callable[[bytes], Placement], now: float) -> list[MoveRequest]:
        """What to ask for now, other than where a tile is; a ring of one server has nowhere to move anything."""
        found = []
        while self._due and self._due[0][0] <= now:
            _, channel, mode = self._due.pop(0)
            if len(members) < WIDTH:
                continue
            name, width = channel.encode(), 1 if mode is Mode.SINGLE else WIDTH
            now_on = placement(name)
            for first in range(self.asked, self.asked + len(members)):
                chosen = tuple(members[(first + number) % len(members)] for number in range(width))
                if (now_on.mode, now_on.servers) != (mode, chosen):
                    found.append(MoveRequest(name, chosen, mode, False, secrets.token_hex(4)))
                    break
        return found

    def has_asked(self, request: MoveRequest, now: float) -> None:
        """The coordinator has a request."""
        self.asked += 1
        self._under_way[request.channel] = Moved(request, now, self._versions.get(request.channel, 0))
        to = " and ".join(request.servers)
        how = f"is replicated on {to} ({request.mode})" if request.mode is not Mode.SINGLE else f"moves to {to}"
        self._tell(now, "plan", f"{request.channel.decode()} {how}")

    def look(self, entries: Mapping[bytes, Entry], requests: Collection[bytes], now: float) -> None:
        """Compares the plan with what was asked for, and tells what has come of it."""
        for channel, moved in list(self._under_way.items()):
            entry, request = entries.get(channel), moved.request
            there = (
                entry is not None
                and entry.phase in (Phase.NARROW, Phase.END)
                and (entry.placement.mode, entry.placement.servers) == (request.mode, request.servers)
                and (entry.placement.version > moved.before or channel not in requests)
            )
            if there:
                self.ended += 1
                after = f"{now - moved.asked_at:.1f} s"
                self._tell(now, "good", f"moved: {channel.decode()} is on {', '.join(request.servers)}, after {after}")
            elif channel not in requests:
                self._tell(now, "seen", f"given up: {channel.decode()} stays where it was")
            if there or channel not in requests:
                del self._under_way[channel]
        self._versions = {channel: entry.placement.version for channel, entry in entries.items()}


async def carry_out(
    plot: Plot, coordinator: Coordinator, verifier: Verifier, members: Callable[[], Sequence[str]]
) -> None:
    """Asks for what is due and looks what has come of it, until it is cancelled. While the coordinator is away, moves
    that are due are left out."""
    while True:
        with contextlib.suppress(CoordinatorError):
            book = await _read_plan(coordinator, verifier)
            for request in plot.due(members(), book.placement, time.monotonic()):
                await coordinator.put(keys.move_key(request.channel), encode_request(request))
                plot.has_asked(request, time.monotonic())
            requests = await coordinator.list(keys.MOVES_PREFIX)
            book = await _read_plan(coordinator, verifier)  # after the requests: what is gone from there is in here
            asked = {channel for key in requests if (channel := keys.move_channel(key)) is not None}
            plot.look(book.entries, asked, time.monotonic())
        await asyncio.sleep(LOOK_S)


async def _read_plan(coordinator: Coordinator, verifier: Verifier) -> PlanBook:
    book = PlanBook(verifier)
    for key, kept in (await coordinator.list(keys.PLAN_PREFIX)).items():
        if key == keys.RING_KEY:
            book.accept_ring(kept.value)
        elif keys.entry_channel(key) is not None:
            book.accept_entry(kept.value)
    return book
