"""Requests the moves of a round, as `shoal plan move` does, and logs their progress.

Owns the requests. The rest of the plan is followed in `plan_follower`.
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

from shoal.cluster.acl import ADMIN
from shoal.cluster.local import LocalCluster
from shoal.coordination.interface import Coordinator, KeyWrite
from shoal.errors import CoordinatorError
from shoal.lab.soak.load_orders import PlainPlaces
from shoal.lab.soak.load_shape import LoadShape, PublishPattern
from shoal.lab.soak.move_ledger import Fate, target_of
from shoal.lab.soak.move_schedule import PlannedMove, choose_servers, draw_burst, draw_idle, draw_moves
from shoal.lab.soak.outcome import SoakOptions
from shoal.lab.soak.plan_follower import PlanFollower, followed
from shoal.lab.soak.round_log import MoveRequested, Note, RequestRemoved, RoundLog
from shoal.plan import keys
from shoal.plan.move_request import MoveRequest, decode_request, encode_request
from shoal.plan.signature import Verifier
from shoal.runtime import PRODUCTION

COORDINATOR_S_MAX: Final = 10.0
PLAIN_SUBSCRIBERS: Final = 3
LOOK_S: Final = 0.5


class MoveRequester(PlanFollower):
    """Requests the moves of one round. `members` returns the servers in the ring."""

    def __init__(
        self,
        coordinator: Coordinator,
        verifier: Verifier,
        moves: Sequence[PlannedMove],
        members: Callable[[], Collection[str]],
        rng: Random,
        log: RoundLog,
    ) -> None:
        super().__init__(coordinator, verifier, {move.channel for move in moves}, log)
        self._moves = moves
        self._members = members
        self._random = rng
        self._has_requested_all = False
        self._newest: dict[str, str] = {}
        self._seen: dict[str, str] = {}
        self.places: PlainPlaces | None = None
        """Where plain clients should be."""

    @property
    def settled(self) -> bool:
        """Whether all moves were requested and have ended."""
        return self._has_requested_all and super().settled

    async def run(self, began_at: float) -> None:
        """Requests every move at its time after `began_at`. Runs until it is cancelled."""
        for at_s, moves in groupby(self._moves, key=lambda move: move.at_s):
            await asyncio.sleep(max(0.0, began_at + at_s - monotonic()))
            await self._request_all({move.channel: move for move in moves})
        self._has_requested_all = True
        while True:
            await self._look_for_removed()
            await asyncio.sleep(LOOK_S)

    async def _request_all(self, moves: dict[str, PlannedMove]) -> None:
        """Requests moves of different channels at once. They are logged first, since the conductor may be faster than
        the coordinator's answer."""
        requests = [request for move in moves.values() if (request := self._request_of(move)) is not None]
        self.counts["moves at once"] += len(requests) > 1
        at = monotonic()
        for request in requests:
            channel = request.unit.decode()
            last = self.ledger.last(channel)
            self.counts["move during a move"] += last is not None and last.fate is Fate.OPEN
            self.counts["move asked eagerly" if request.eager else "move asked lazily"] += 1
            self._newest[channel] = request.id
            self.take(MoveRequested(channel, request.mode, request.servers, request.eager, at))
        try:
            await self._coordinator.write_all(
                [KeyWrite(keys.move_key(request.unit), encode_request(request)) for request in requests]
            )
        except CoordinatorError as error:
            self.counts["move not requested: the coordinator was away"] += len(requests)
            self.log.write(Note(f"{len(requests)} moves could not be requested: {error}", monotonic()))
            for request in requests:
                self.take(RequestRemoved(request.unit.decode(), monotonic()))

    def _request_of(self, move: PlannedMove) -> MoveRequest | None:
        """The request for a move to another placement; None if there is no other."""
        last, entry = self.ledger.last(move.channel), self.ledger.entries.get(move.channel)
        before = last.target if last is not None else target_of(entry) if entry is not None else None
        servers = choose_servers(move.mode, self._members(), before, self._random)
        if not servers:
            self.counts["move not possible"] += 1
            return None
        return MoveRequest(move.channel.encode(), servers, move.mode, move.eager, secrets.token_hex(4))

    def _requested(self, data: bytes) -> None:
        """Remembers which request the watch has seen: all are made here, and were logged before."""
        request = decode_request(data)
        self._seen[request.unit.decode()] = request.id

    def _removed(self, channel: str) -> None:
        """Logs that the newest request of a channel is gone. A new request is logged before it is written, so the news
        that the one before is gone may come later than that."""
        if self._seen.get(channel) == self._newest.get(channel):
            super()._removed(channel)

    async def _look_for_removed(self) -> None:
        """Finds requests that were removed so soon that the watch has not seen them."""
        try:
            requests = await self._coordinator.list(keys.moves_prefix())
        except CoordinatorError:
            return
        for move in self.ledger.open:
            if keys.move_key(move.channel.encode()) not in requests:
                self.take(RequestRemoved(move.channel, monotonic()))


@asynccontextmanager
async def start_moves(
    cluster: LocalCluster, shape: LoadShape, options: SoakOptions, directory: Path
) -> AsyncIterator[MoveRequester]:
    """Draws the moves of a round and places its plain subscribers; follows the plan until the block is left."""
    key = bytes.fromhex(cluster.state.public_key)
    verifier = Verifier(key)
    rng = shape.rng("moves")
    moves = _draw(shape, options, rng)
    async with await PRODUCTION.coordinator(cluster.url_for(ADMIN), COORDINATOR_S_MAX) as coordinator:
        ring = await coordinator.get(keys.RING_KEY)
        assert ring is not None, "a cluster that has started has a ring"
        home = verifier.ring(ring.value).home
        at_home = [channel.name for channel in shape.channels if channel.placement is None]
        plain = tuple((name, home(name.encode())) for name in at_home[:PLAIN_SUBSCRIBERS])
        log = RoundLog(directory / "moves.log")
        requester = MoveRequester(coordinator, verifier, moves, partial(_members, cluster), rng, log)
        requester.places = PlainPlaces(cluster.servers, key, plain)
        async with followed(requester):
            yield requester


def _draw(shape: LoadShape, options: SoakOptions, rng: Random) -> list[PlannedMove]:
    busy = [channel.name for channel in shape.channels if channel.kind is not PublishPattern.IDLE]
    if options.burst:
        return draw_burst(busy, shape.seconds, rng)
    idle = [channel.name for channel in shape.channels if channel.kind is PublishPattern.IDLE][: options.moves // 2]
    moves = draw_moves(busy, options.moves - len(idle), shape.seconds, rng)
    return sorted(moves + draw_idle(idle, shape.seconds, rng), key=lambda move: move.at_s)


def _members(cluster: LocalCluster) -> list[str]:
    return [server.id for server in cluster.status().servers if server.in_ring]
