"""How long a shard pauses while it moves between the stores of a real cluster.

Owns the cluster, its queue, and one producer that puts message after message into the shard that moves. The pause of a
move is the longest of these puts: nothing else that an application does waits longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Coroutine
from typing import Final

import shoal
from shoal.cluster.acl import ADMIN
from shoal.cluster.local import LocalCluster
from shoal.coordination.interface import Coordinator
from shoal.errors import ConflictError
from shoal.lab.bench.contender import BenchError
from shoal.plan.keys import entry_key, move_key
from shoal.plan.kinds import QUEUE, STORE
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.queue_request import MoveShards, encode_queue_request
from shoal.plan.queue_settings import QueueSettings
from shoal.plan.signature import Verifier
from shoal.queues.queue import NewMessage, Queue
from shoal.runtime import PRODUCTION

NAME: Final = b"bench"
PAYLOAD: Final = b"x" * 100
MOVE_S_MAX: Final = 60.0
"""How long a move, or an answer of the coordinator, may take on a busy machine."""
POLL_S: Final = 0.02


async def measure_pauses(messages: int, keys: int, moves: int) -> list[float]:
    """Fill a queue, move its shards one after the other; return the pause of each move in milliseconds."""
    async with LocalCluster(1, tls=False) as cluster:
        stores = await cluster.add_hosts(STORE, 2)
        verifier = Verifier(bytes.fromhex(cluster.state.public_key))
        async with (
            shoal.connect(cluster.url) as bus,
            await PRODUCTION.coordinator(cluster.url_for(ADMIN), MOVE_S_MAX) as coordinator,
        ):
            queue = bus.queue(NAME.decode())
            await queue.create(QueueSettings(messages_max=10 * messages + 1_000_000))
            given = [NewMessage(PAYLOAD, f"key-{number % keys}") for number in range(messages)]
            if (await queue.put_many(given)).refused:
                raise BenchError("the queue refused messages")
            pauses = []
            for number in range(moves):
                entry = await read_entry(coordinator, verifier)
                shard = number % len(entry.places)
                target = next(store for store in stores if store != entry.store_of(shard).id)
                move = move_shard(coordinator, verifier, shard, target)
                pauses.append(await _longest_put_ms(queue, entry, shard, move))
            return pauses


async def _longest_put_ms(queue: Queue, entry: QueueEntry, shard: int, move: Coroutine[None, None, None]) -> float:
    """Put messages into a shard while it moves; return the duration of the longest put in milliseconds."""
    name = next(key for number in range(100_000) if entry.shard_of(key := b"probe-%d" % number) == shard)
    longest_s = 0.0

    async def produce() -> None:
        nonlocal longest_s
        while not moving.done():
            began = time.monotonic()
            await queue.put(PAYLOAD, key=name)
            longest_s = max(longest_s, time.monotonic() - began)

    moving = asyncio.create_task(move)
    try:
        await asyncio.gather(moving, produce())
    finally:
        moving.cancel()
    return 1000 * longest_s


async def move_shard(coordinator: Coordinator, verifier: Verifier, shard: int, target: str) -> None:
    """Move a shard; return when it is at its target. The leader drops a request while a store is away, and on a busy
    machine an agent may miss its lease for a moment. An agent may also have asked for the queue again. Then this
    request is made again."""
    give_up_at = time.monotonic() + MOVE_S_MAX
    while True:
        await _no_request(coordinator)
        if (await read_entry(coordinator, verifier)).store_of(shard).id == target:
            return
        if time.monotonic() > give_up_at:
            raise BenchError(f"shard {shard} did not move to {target} within {MOVE_S_MAX:g} s")
        request = encode_queue_request(MoveShards(NAME, {shard: target}, secrets.token_hex(8)))
        with contextlib.suppress(ConflictError):
            await coordinator.put(move_key(NAME, QUEUE), request, expect=0)


async def _no_request(coordinator: Coordinator) -> None:
    """Waits until the leader has carried out the request."""
    async with asyncio.timeout(MOVE_S_MAX):
        while await coordinator.get(move_key(NAME, QUEUE)) is not None:  # noqa: ASYNC110 - another process ends it
            await asyncio.sleep(POLL_S)


async def read_entry(coordinator: Coordinator, verifier: Verifier) -> QueueEntry:
    """The plan's entry of the queue."""
    stored = await coordinator.get(entry_key(NAME, QUEUE))
    if stored is None:
        raise BenchError("the queue has no entry")
    return verifier.line(stored.value, QueueEntry)
