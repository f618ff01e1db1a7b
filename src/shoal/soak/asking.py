"""Moves of a round: asks for them as `shoal plan move` does, and writes down how far they come.

Owns the requests. What it sees of the plan is in `following.py`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final

import msgspec

from shoal.cluster.acl import ADMIN
from shoal.cluster.local import LocalCluster
from shoal.coordination.interface import Coordinator, KeyWrite
from shoal.coordination.redis import RedisCoordinator
from shoal.errors import CoordinatorError
from shoal.plan import keys
from shoal.plan.moving import MoveRequest, encode_request
from shoal.plan.signing import Verifier
from shoal.soak.following import Following, watching
from shoal.soak.ledger import Fate, target_of
from shoal.soak.outcome import Options
from shoal.soak.records import Asked, Dropped, Log, Noted
from shoal.soak.schedule import Wish, choose_servers, draw_burst, draw_idle, draw_wishes
from shoal.soak.shape import Kind, Shape
from shoal.soak.watching import PLACES_FILE, Places

COORDINATOR_S_MAX: Final = 10.0
PLAIN_SUBSCRIBERS: Final = 3
LOOK_S: Final = 0.5


class Asking(Following):
    """Asks for the moves of one round. `members` says who is in the ring."""

    def __init__(
        self,
        coordinator: Coordinator,
        verifier: Verifier,
        wishes: Sequence[Wish],
        members: Callable[[], Collection[str]],
        rng: Random,
        log: Log,
    ) -> None:
        super().__init__(coordinator, verifier, {wish.channel for wish in wishes}, log)
        self._wishes = wishes
        self._members = members
        self._random = rng
        self._asked_all = False

    @property
    def settled(self) -> bool:
        """Whether all moves were asked for and have come to an end."""
        return self._asked_all and super().settled

    async def run(self, began_at: float) -> None:
        """Asks for every move at its time after `began_at`, then watches on until it is cancelled."""
        for at_s, wishes in groupby(self._wishes, key=lambda wish: wish.at_s):
            await asyncio.sleep(max(0.0, began_at + at_s - monotonic()))
            await self._ask({wish.channel: wish for wish in wishes})
        self._asked_all = True
        while True:
            await self._look_for_dropped()
            await asyncio.sleep(LOOK_S)

    async def _ask(self, wishes: dict[str, Wish]) -> None:
        """Asks for moves of different channels at once. They are written down first: the mover may be faster than the
        coordinator's answer."""
        requests = [request for wish in wishes.values() if (request := self._request_of(wish)) is not None]
        self.counts["moves at once"] += len(requests) > 1
        at = monotonic()
        for request in requests:
            channel = request.channel.decode()
            last = self.ledger.last(channel)
            self.counts["move during a move"] += last is not None and last.fate is Fate.OPEN
            self.counts["move asked eagerly" if request.eager else "move asked lazily"] += 1
            self.take(Asked(channel, request.mode, request.servers, request.eager, at))
        try:
            await self._coordinator.write_all(
                [KeyWrite(keys.move_key(request.channel), encode_request(request)) for request in requests]
            )
        except CoordinatorError as error:
            self.counts["move not asked for: the coordinator was away"] += len(requests)
            self.log.write(Noted(f"{len(requests)} moves could not be asked for: {error}", monotonic()))
            for request in requests:
                self.take(Dropped(request.channel.decode(), monotonic()))

    def _request_of(self, wish: Wish) -> MoveRequest | None:
        """The request for a move to somewhere else than the channel is; None if there is nowhere."""
        last, entry = self.ledger.last(wish.channel), self.ledger.entries.get(wish.channel)
        before = last.target if last is not None else target_of(entry) if entry is not None else None
        servers = choose_servers(wish.mode, self._members(), before, self._random)
        if not servers:
            self.counts["move not possible"] += 1
            return None
        return MoveRequest(wish.channel.encode(), servers, wish.mode, wish.eager, secrets.token_hex(4))

    def _requested(self, data: bytes) -> None:
        """All requests are our own, and were written down before they were made."""

    async def _look_for_dropped(self) -> None:
        """Finds requests that were dropped so soon that the watch has not seen them at all."""
        try:
            requests = await self._coordinator.list(keys.MOVES_PREFIX)
        except CoordinatorError:
            return
        for move in self.ledger.open:
            if keys.move_key(move.channel.encode()) not in requests:
                self.take(Dropped(move.channel, monotonic()))


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
        async with watching(asking):
            yield asking


def _draw(shape: Shape, options: Options, rng: Random) -> list[Wish]:
    spoken = [channel.name for channel in shape.channels if channel.kind is not Kind.IDLE]
    if options.burst:
        return draw_burst(spoken, shape.seconds, rng)
    idle = [channel.name for channel in shape.channels if channel.kind is Kind.IDLE][: options.moves // 2]
    wishes = draw_wishes(spoken, options.moves - len(idle), shape.seconds, rng)
    return sorted(wishes + draw_idle(idle, shape.seconds, rng), key=lambda wish: wish.at_s)


def _members(cluster: LocalCluster) -> list[str]:
    return [server.id for server in cluster.status().servers if server.in_ring]
