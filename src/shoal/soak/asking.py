"""Moves of a round: asks for them as `shoal plan move` does, and writes down how far they come.

Owns the requests and the log of moves. It sees what is in the coordinator, and nothing else.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final

import msgspec

from shoal.cluster.acl import ADMIN
from shoal.cluster.local import LocalCluster
from shoal.coordination.interface import Change, Coordinator, KeyWrite
from shoal.coordination.redis import RedisCoordinator
from shoal.errors import CoordinatorError, PlanError, ProtocolError
from shoal.plan import keys
from shoal.plan.entry import Entry, Phase
from shoal.plan.moving import MoveRequest, decode_report, encode_request
from shoal.plan.placement import BY_THE_RING, Mode
from shoal.plan.signing import Verifier
from shoal.soak.ledger import Fate, Ledger, Move, target_of
from shoal.soak.outcome import Options
from shoal.soak.records import Asked, Busy, Counted, Dropped, Log, Noted, Phased, Stayed, Wrong
from shoal.soak.schedule import Wish, choose_servers, draw_burst, draw_idle, draw_wishes
from shoal.soak.shape import Kind, Shape
from shoal.soak.watching import PLACES_FILE, Places

COORDINATOR_S_MAX: Final = 10.0
PLAIN_SUBSCRIBERS: Final = 3
SAMPLE_S: Final = 0.25
LOOK_S: Final = 0.5


class Asking:
    """Asks for the moves of one round. `began_at` is when the load began; `members` says who is in the ring."""

    def __init__(
        self,
        coordinator: Coordinator,
        verifier: Verifier,
        wishes: Sequence[Wish],
        members: Callable[[], Collection[str]],
        rng: Random,
        log: Log,
    ) -> None:
        self.ledger = Ledger()
        self._coordinator = coordinator
        self._verifier = verifier
        self._wishes = wishes
        self._channels = sorted({wish.channel for wish in wishes})
        self._members = members
        self._random = rng
        self._log = log
        self._counts: Counter[str] = Counter()
        self._asked_all = False

    @property
    def settled(self) -> bool:
        """Whether all moves were asked for and have come to an end."""
        return self._asked_all and not self.ledger.open

    async def watch(self) -> None:
        """Writes down how entries and requests change, until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch(keys.RING_KEY, self._ring))
            group.create_task(self._watch(keys.ENTRIES_PREFIX, self._entry))
            group.create_task(self._watch(keys.MOVES_PREFIX, self._request))
            group.create_task(self._sample())

    async def run(self, began_at: float) -> None:
        """Asks for every move at its time, then watches on until it is cancelled."""
        for at_s, wishes in groupby(self._wishes, key=lambda wish: wish.at_s):
            await asyncio.sleep(max(0.0, began_at + at_s - monotonic()))
            await self._ask({wish.channel: wish for wish in wishes})
        self._asked_all = True
        while True:
            await self._look_for_dropped()
            await asyncio.sleep(LOOK_S)

    async def finish(self) -> None:
        """Writes down what is still open, and why, and ends the log."""
        try:
            reports = await self._coordinator.list(keys.REPORTS_PREFIX)
        except CoordinatorError as error:
            reports = {}
            self._log.write(Wrong(f"unsettled: the coordinator does not answer: {error}"))
        for move in self.ledger.open:
            self._log.write(Stayed(move.channel, self._why(move, [kept.value for kept in reports.values()])))
        waiting = sum(entry.phase != "end" for entry in self.ledger.entries.values()) - len(self.ledger.open)
        self._log.write(Noted(f"{waiting} channels are at narrow, and wait for somebody idle or plain", monotonic()))
        for corner, times in self._counts.items():
            self._log.write(Counted(corner, times))
        self._log.end()

    # Asking

    async def _ask(self, wishes: dict[str, Wish]) -> None:
        """Asks for moves of different channels at once. They are written down first: the mover may be faster than the
        coordinator's answer."""
        requests = [request for wish in wishes.values() if (request := self._request_of(wish)) is not None]
        self._counts["moves at once"] += len(requests) > 1
        at = monotonic()
        for request in requests:
            channel = request.channel.decode()
            last = self.ledger.last(channel)
            self._counts["move during a move"] += last is not None and last.fate is Fate.OPEN
            self._counts["move asked eagerly" if request.eager else "move asked lazily"] += 1
            self._take(Asked(channel, request.mode, request.servers, request.eager, at))
        try:
            await self._coordinator.write_all(
                [KeyWrite(keys.move_key(request.channel), encode_request(request)) for request in requests]
            )
        except CoordinatorError as error:
            self._counts["move not asked for: the coordinator was away"] += len(requests)
            self._log.write(Noted(f"{len(requests)} moves could not be asked for: {error}", monotonic()))
            for request in requests:
                self._take(Dropped(request.channel.decode(), monotonic()))

    def _request_of(self, wish: Wish) -> MoveRequest | None:
        """The request for a move to somewhere else than the channel is; None if there is nowhere."""
        last, entry = self.ledger.last(wish.channel), self.ledger.entries.get(wish.channel)
        before = last.target if last is not None else target_of(entry) if entry is not None else None
        servers = choose_servers(wish.mode, self._members(), before, self._random)
        if not servers:
            self._counts["move not possible"] += 1
            return None
        return MoveRequest(wish.channel.encode(), servers, wish.mode, wish.eager, secrets.token_hex(4))

    # Watching

    async def _sample(self) -> None:
        """Writes down how busy the machine is: where it has nothing left, latency says little about moves."""
        before = _processor_ticks()
        while True:
            await asyncio.sleep(SAMPLE_S)
            now = _processor_ticks()
            idle, total = now[0] - before[0], now[1] - before[1]
            before = now
            self._log.write(Busy(round(1 - idle / max(total, 1), 3), monotonic()))

    async def _watch(self, prefix: str, take: Callable[[Change], None]) -> None:
        async with aclosing(self._coordinator.watch(prefix)) as changes:
            async for change in changes:
                take(change)

    def _entry(self, change: Change) -> None:
        if change.now is None:
            return
        try:
            entry = self._verifier.entry(change.now.value)
        except PlanError as error:
            self._log.write(Wrong(f"forged: {change.key}: {error}"))
            return
        self._take(_phased(entry, monotonic()))

    def _ring(self, change: Change) -> None:
        """A channel without an entry lives at its home, which counts as its entry here."""
        if change.now is None or change.key != keys.RING_KEY:
            return
        ring = self._verifier.ring(change.now.value)
        for channel in self._channels:
            known = self.ledger.entries.get(channel)
            if known is None or not known.revision:
                home = ring.home(channel.encode())
                at_home = Phased(
                    channel, Phase.END, 0, BY_THE_RING | ring.version, Mode.SINGLE, (home,), (), monotonic()
                )
                self._take(at_home)

    async def _look_for_dropped(self) -> None:
        """Finds requests that were dropped so soon that the watch has not seen them at all."""
        try:
            requests = await self._coordinator.list(keys.MOVES_PREFIX)
        except CoordinatorError:
            return
        for move in self.ledger.open:
            if keys.move_key(move.channel.encode()) not in requests:
                self._take(Dropped(move.channel, monotonic()))

    def _request(self, change: Change) -> None:
        channel = keys.move_channel(change.key)
        if change.now is None and channel is not None:
            self._take(Dropped(channel.decode(), monotonic()))

    def _take(self, record: Asked | Phased | Dropped) -> None:
        self._log.write(record)
        self.ledger.take(record)

    def _why(self, move: Move, reports: list[bytes]) -> str:
        """What is known of a move that has not ended."""
        entry = self.ledger.entries.get(move.channel)
        words = [f"asked for {move.target[0]} on {','.join(sorted(move.target[1]))}"]
        if entry is not None:
            words.append(f"entry at {entry.phase}, revision {entry.revision}, helped {','.join(entry.helped) or '-'}")
        for data in reports:
            try:
                report = decode_report(data)
            except ProtocolError as error:
                words.append(str(error))
                continue
            said = report.channels.get(move.channel.encode())
            words.append(f"{report.server} says {said}" if said else f"{report.server} says nothing")
        return "; ".join(words)


@asynccontextmanager
async def begin_asking(cluster: LocalCluster, shape: Shape, options: Options, directory: Path) -> AsyncIterator[Asking]:
    """Draws the moves of a round and says where plain subscribers are to stand; watches entries until it is left."""
    key = bytes.fromhex(cluster.state.public_key)
    verifier = Verifier(key)
    rng = shape.rng("moves")
    wishes = _draw(shape, options, rng)
    async with await RedisCoordinator.connect(cluster.url_for(ADMIN), timeout_s=COORDINATOR_S_MAX) as coordinator:
        ring = await coordinator.get(keys.RING_KEY)
        assert ring is not None, "a cluster that has started has a ring"
        home = verifier.ring(ring.value).home
        at_home = [channel.name for channel in shape.channels if channel.placement is None]
        plain = tuple((name, home(name.encode())) for name in at_home[:PLAIN_SUBSCRIBERS])
        (directory / PLACES_FILE).write_bytes(msgspec.json.encode(Places(cluster.servers, key, plain)))
        asking = Asking(coordinator, verifier, wishes, partial(_members, cluster), rng, Log(directory / "moves.log"))
        watching = asyncio.create_task(asking.watch())
        try:
            yield asking
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


def _draw(shape: Shape, options: Options, rng: Random) -> list[Wish]:
    spoken = [channel.name for channel in shape.channels if channel.kind is not Kind.IDLE]
    if options.burst:
        return draw_burst(spoken, shape.seconds, rng)
    idle = [channel.name for channel in shape.channels if channel.kind is Kind.IDLE][: options.moves // 2]
    wishes = draw_wishes(spoken, options.moves - len(idle), shape.seconds, rng)
    return sorted(wishes + draw_idle(idle, shape.seconds, rng), key=lambda wish: wish.at_s)


def _processor_ticks() -> tuple[int, int]:
    """Ticks that all processors were idle, and all ticks."""
    user, nice, system, idle, iowait, *others = map(int, Path("/proc/stat").read_text().split()[1:9])
    return idle + iowait, user + nice + system + idle + iowait + sum(others)


def _members(cluster: LocalCluster) -> list[str]:
    return [server.id for server in cluster.status().servers if server.in_ring]


def _phased(entry: Entry, at: float) -> Phased:
    placement = entry.placement
    return Phased(
        entry.channel.decode(),
        entry.phase,
        entry.newness,
        placement.version,
        placement.mode,
        placement.servers,
        entry.helped,
        at,
    )
