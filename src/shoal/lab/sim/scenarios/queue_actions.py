"""What an operator does with a queue in the scenario `queue`: pause, purge, configure, drop, and dead letters.

Owns the operator's process and the checks of what it is told. Repairs are calls of the shipped `Queue`. Creating,
configuring and dropping are requests to the leader, as the commands write them. What the calls do is watched on the
stores (`queue_witness`).

An operator repeats a call until it succeeds. At the end it sets the queue to rights: it gives out messages, has room
and no halted key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from shoal.errors import QueueFullError, QueueNotFoundError, ShoalError
from shoal.lab.sim.history import number_in
from shoal.lab.sim.scenarios.queue_history import StoredQueue
from shoal.lab.sim.scenarios.queue_witness import Witness
from shoal.lab.sim.world.process import Process
from shoal.plan.keys import report_key
from shoal.plan.kinds import QUEUE
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.queue_report import decode_queue_report, holds_older
from shoal.plan.queue_request import ConfigureQueue, CreateQueue, DropQueue, QueueRequest
from shoal.plan.queue_settings import QueueSettings
from shoal.queues.queue import DeadLetter, Queue

if TYPE_CHECKING:
    from shoal.lab.sim.scenarios.queue import QueueRun

T = TypeVar("T")
PAUSED_S: Final = (0.3, 2.5)
"""How long a queue is paused."""
AGAIN_S: Final = 0.2
"""The pause before a call is repeated, and between two looks at a request."""
ACTIONS: Final = ("pause", "purge", "configure", "drop", "repair")
CHOICES: Final[dict[str, tuple[object, ...]]] = {
    "messages_max": (10, 30, 60),
    "bytes_max": (700, 20_000),
    "keys_max": (3, 1_000_000),
    "attempts_max": (1, 2, 3, 5),
    "dedupe_s": (5.0, 15.0, 30.0),
    "dedupe_ids_max": (6, 100_000),
    "dead_max": (3, 1000),
    "lease_s": (4.0, 5.0, 9.0),
    "on_dead": ("continue", "halt"),
}
"""The settings that an operator chooses from."""
ACTION_CORNERS: Final = {
    "queue paused": "paused",
    "message accepted while paused": "accepted while paused",
    "purged messages": "purged",
    "purge of a held key": "purged held",
    "purge of delayed messages": "purged delayed",
    "purge while a shard moves": "purged in a move",
    "queue dropped with messages": "dropped messages",
    "queue created again": "created again",
    "settings changed": "configured",
    "bound set below what is there": "bound below",
    "too many bytes": "full of bytes",
    "too many keys": "too many keys",
    "too many ids": "too many ids",
    "dead letter put back": "replayed",
    "dead letter put back into a halted key": "replayed halted",
    "dead letters of one key put back": "replayed several",
    "no room for a dead letter": "replay refused",
    "dead letters dropped": "forgotten",
    "halted key released": "released",
}


class Operator:
    """The operator of a run."""

    def __init__(self, run: QueueRun, witness: Witness) -> None:
        self.over = False
        """Whether everything is set to rights at the end."""
        self.paused: set[tuple[bytes, bytes]] | None = None
        """While the queue is paused: the keys that were held when it began, with their tokens."""
        self._run = run
        self._witness = witness
        self._rng: Random = run.world.rng("actions")
        self._kinds = run.fixed_actions or tuple(self._rng.sample(ACTIONS, self._rng.choice((1, 2, 5))))
        self._requests = 0

    @property
    def meets_dead_letters(self) -> bool:
        """Whether it looks after dead letters, so that there should be many."""
        return "repair" in self._kinds

    async def work(self, process: Process, queue: Queue) -> None:
        """Acts until applications are quiet, then sets the queue to rights."""
        actions: dict[str, Callable[[Queue], Awaitable[None]]] = {
            "pause": self._pause,
            "purge": self._purge,
            "configure": self._configure,
            "drop": self._drop,
            "repair": self._repair,
        }
        while self._run.active:
            await asyncio.sleep(self._rng.expovariate(1 / self._run.actions_every_s))
            await actions[self._rng.choice(self._kinds)](queue)
        await self._resume(queue)
        await self._set_to_rights()
        while not self.over:
            await self._release(queue)
            await asyncio.sleep(AGAIN_S)
            self.over = self._run.is_empty and not self._halted

    @property
    def _halted(self) -> bool:
        run = self._run
        return any(StoredQueue(run.values(store), run.prefix).halted() for store in run.current_stores)

    async def _insist(self, doing: str, call: Callable[[], Awaitable[T]]) -> tuple[T, bool]:
        """Repeats a call until it succeeds. Returns the result, and whether the first attempt led to it."""
        self._witness.doing = doing
        first = True
        while True:
            entry = self._run.operator.entry
            try:
                found = await call()
                break
            except QueueNotFoundError as error:
                first = False
                self._check_not_found(doing, error, entry)
                await asyncio.sleep(AGAIN_S)
            except ShoalError:
                first = False
                await asyncio.sleep(AGAIN_S)
        self._witness.doing = ""
        return found, first

    def _check_not_found(self, doing: str, error: QueueNotFoundError, before: QueueEntry | None) -> None:
        """A queue that is there all the time is found. After an abandon, stores that keep shards need a moment. After a
        drop, a client that does not reach the coordinator may know the queue of before. A store that was started
        without its directory has no queue."""
        run, entry = self._run, self._run.operator.entry
        if run.history.dropped_at or run.recovers:
            return
        if before is None or entry is None or entry.inherits or entry.dropped:
            return
        if entry.version == before.version:
            self._run.violated("not found", f"{doing} at t={self._run.world.now:.3f}: {error}")

    def _effects(self, since: int, operation: str) -> list[int]:
        return [number for name, number in self._witness.effects[since:] if name == operation]

    def _check_told(self, operation: str, told: int, since: int) -> None:
        """What an operation returns is what it did."""
        done = len(self._effects(since, operation))
        if told != done:
            text = f"{operation} said {told} and did {done} until t={self._run.world.now:.3f}"
            self._run.violated("misreported", text)

    # Pause

    async def _pause(self, queue: Queue) -> None:
        run = self._run
        await self._insist("pause", queue.pause)
        held = [StoredQueue(run.values(store), run.prefix).held() for store in run.stores]
        run.exercised["paused"] += 1
        accepted = run.exercised["accepted"]
        self.paused = set().union(*held)
        await asyncio.sleep(self._rng.uniform(*PAUSED_S))
        run.exercised["accepted while paused"] += run.exercised["accepted"] > accepted
        await self._resume(queue)

    async def _resume(self, queue: Queue) -> None:
        self.paused = None
        await self._insist("resume", queue.resume)

    def check_start(self, key: bytes, token: bytes, text: str) -> None:
        """A message was started: a paused queue has not given out its key."""
        entry = self._run.operator.entry
        if self.paused is None or (key, token) in self.paused or entry is None:
            return
        if int(token.partition(b".")[0]) == entry.version and entry.began == ():
            self._run.violated("paused", text)

    # Purge

    async def _purge(self, queue: Queue) -> None:
        run, entry, began, since = self._run, self._run.operator.entry, self._run.world.now, len(self._witness.effects)
        told, first = await self._insist("purge", queue.purge)
        if first:
            self._check_told("purge", told, since)
        run.exercised["purged"] += told > 0
        if entry is None or run.operator.entry is not entry or entry.move is not None:
            return
        for number in run.stored_numbers:
            put = run.history.puts[number]
            if put.answered_at is not None and put.answered_at < began:
                run.violated("left", f"{number}, accepted at t={put.answered_at:.3f}, by a purge from t={began:.3f}")

    # Requests to the leader

    async def _request(self, request: QueueRequest) -> None:
        """Asks the leader, and waits until the request has ended. A queue that cannot be in force because a store holds
        an older one is dropped and created again, as the store's report says."""
        await self._answered()
        await self._drop_older()
        await self._ask(request)
        await self._drop_older()

    async def _drop_older(self) -> None:
        while self._meets_older:
            self._run.exercised["dropped with an older one"] += 1
            await self._ask(DropQueue(self._run.unit, ""))
            await self._ask(CreateQueue(self._run.unit, self._some_settings(), ""))

    async def _ask(self, request: QueueRequest) -> None:
        await self._answered()
        self._requests += 1
        self._run.operator.request(msgspec.structs.replace(request, id=f"a{self._requests}"))
        await self._answered()

    async def _answered(self) -> None:
        while self._run.operator.asked:  # noqa: ASYNC110 - the leader is another process
            await asyncio.sleep(AGAIN_S)

    @property
    def _meets_older(self) -> bool:
        entry = self._run.operator.entry
        if entry is None or entry.dropped:
            return False
        for store in self._run.stores:
            stored = self._run.coordinator.store.get(report_key(store, QUEUE))
            status = decode_queue_report(stored.value).queues.get(self._run.unit) if stored is not None else None
            if status is not None and holds_older(status.trouble, entry.version):
                return True
        return False

    async def _configure(self, queue: Queue) -> None:
        run, before = self._run, self._run.operator.entry
        if before is None:
            return
        names = self._rng.sample(list(CHOICES), self._rng.choice((1, 2, 3)))
        chosen = msgspec.structs.replace(before.settings, **{name: self._rng.choice(CHOICES[name]) for name in names})
        await self._request(ConfigureQueue(run.unit, chosen, ""))
        entry = run.operator.entry
        if entry is not None and entry.settings == chosen:
            run.history.settings_hold(run.world.now)
            run.exercised["configured"] += 1
            run.exercised["bound below"] += len(run.stored_numbers) > chosen.messages_max

    async def _set_to_rights(self) -> None:
        """The settings of the beginning, so that everything can continue. The number of shards stays."""
        entry = self._run.operator.entry
        if entry is not None:
            settings = msgspec.structs.replace(self._run.settings, shards=len(entry.places))
            await self._request(ConfigureQueue(self._run.unit, settings, ""))

    async def _drop(self, queue: Queue) -> None:
        run = self._run
        await self._request(DropQueue(run.unit, ""))
        await asyncio.sleep(self._rng.choice((0.0, 1.0)))
        await self._request(CreateQueue(run.unit, self._some_settings(), ""))

    def _some_settings(self) -> QueueSettings:
        on_dead = self._rng.choice(("continue", "halt")) if self.meets_dead_letters else "continue"
        return msgspec.structs.replace(self._run.settings, on_dead=on_dead)

    # Dead letters

    async def _repair(self, queue: Queue) -> None:
        try:
            letters = await queue.dead()
        except ShoalError:
            return
        what = self._rng.choice(("replay", "replay", "forget", "release"))
        if what == "replay":
            await self._replay(queue, letters)
        elif what == "forget":
            since = len(self._witness.effects)
            told, first = await self._insist("forget", lambda: queue.forget(*(letter.entry for letter in letters)))
            self._run.exercised["forgotten"] += told
            if first:
                self._check_told("forget", told, since)
        else:
            await self._release(queue)

    async def _replay(self, queue: Queue, letters: list[DeadLetter]) -> None:
        """One after the other, as `shoal queue replay --all` does."""
        run = self._run
        batches: dict[bytes, list[tuple[int, float]]] = {}
        for letter in letters:
            since = len(self._witness.effects)
            told, first = await self._insist("replay", partial(_replayed, queue, letter.entry))
            if told is None:
                run.exercised["replay refused"] += 1
                break
            if not first:
                continue
            self._check_told("replay", told, since)
            run.exercised["replayed"] += told
            number = number_in(letter.message.payload)
            if told:
                batches.setdefault(letter.message.key, []).append((number, run.history.replays[number][-1]))
        for batch in batches.values():
            run.exercised["replayed several"] += len(batch) > 1
            run.history.replayed.append(batch)

    async def _release(self, queue: Queue) -> None:
        try:
            halted = [status.key for status in await queue.keys() if status.state == "halted"]
        except ShoalError:
            return
        for key in halted:
            since = len(self._witness.effects)
            told, first = await self._insist("release", partial(queue.release, key))
            self._run.exercised["released"] += told
            if first:
                self._check_told("release", told, since)


async def _replayed(queue: Queue, entry: str) -> bool | None:
    """Whether a dead letter was put back; None if the queue is full."""
    try:
        return await queue.replay(entry)
    except QueueFullError:
        return None
