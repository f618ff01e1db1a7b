"""Moves of shards in the scenario `queue`: the leader, the requests, and the faults that hit a move in each phase.

Owns the plan entry of the queue. The leader is a part of the scenario: it applies the shipped table of phases
(`shoal.plan.queue_mover`) to reports that arrive late, as a leader does that can itself be late. The agents of stores
are shipped code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from shoal.lab.sim.world.world import World
from shoal.limits import Limits
from shoal.plan.queue_entry import QueueEntry, ShardPhase
from shoal.plan.queue_mover import begin, give_up, next_step
from shoal.queues.keyspace.collections import Hash, Stream, Value, Values
from shoal.queues.shard_mover import ShardStatus

LOOK_S: Final = (0.01, 0.15)
"""How often the leader looks at reports."""
LATE_SHARE: Final = 0.03
LATE_S: Final = (1.0, 4.0)
"""In this share of its looks the leader is that late."""
ABORT_SHARE: Final = 0.05
"""The leader aborts a move before the switch in this share of its looks: an operator cancels."""
REPORT_S: Final = (0.001, 0.1)
FAULT_SHARE: Final = 0.12
"""Share of the phases in which one participant of the move is killed."""
MOVE_CORNERS: Final = {
    "shard moved": "move ended",
    "shard moved back": "moved back",
    "several shards in one request": "several shards",
    "move aborted before the copy": "aborted in prepare",
    "move aborted after the seal": "aborted in copy",
    "move of held keys": "moved held",
    "move of delayed messages": "moved delayed",
    "move of keys that wait for a retry": "moved retry",
    "move of message ids": "moved ids",
    "move of dead letters": "moved dead",
    "store killed in prepare": "killed in prepare",
    "store killed in copy": "killed in copy",
    "store killed in open": "killed in open",
    "agent killed in copy": "agent killed in copy",
    "put sent to another store": "put rerouted",
    "job goes on at another store": "key rehomed",
}


class MoveLeader:
    """Moves shards of one queue at random."""

    def __init__(
        self,
        world: World,
        limits: Limits,
        entry: QueueEntry,
        exercised: Counter[str],
        every_s: float,
        kill: Callable[[str, str], None],
        values_of: Callable[[str], Values],
    ) -> None:
        """`kill` gets the name of a store and what to kill of it: the store or its agent."""
        self.entry = entry
        self.stores = entry.stores
        self.going = False
        """Whether new moves begin."""
        self._world = world
        self._limits = limits
        self._exercised = exercised
        self._every_s = every_s
        self._kill = kill
        self._values_of = values_of
        self._rng: Random = world.rng("moves")
        self._reports: dict[str, ShardStatus] = {}
        self._stage: object = None
        self._since = 0.0
        self._begin_at = 0.0
        self._left: dict[int, set[str]] = {}

    def start(self) -> None:
        """The queue exists: moves may begin."""
        self.going = True
        self._begin_at = self._world.now + self._rng.expovariate(1 / self._every_s)
        self._look()

    def report(self, store: str, status: ShardStatus) -> None:
        """An agent reports. The leader sees it a little later."""

        def arrive() -> None:
            known = self._reports.get(store)
            if known is None or status.newness >= known.newness:
                self._reports[store] = status

        self._world.after(self._rng.uniform(*REPORT_S), arrive)

    def _look(self) -> None:
        rng = self._rng
        if self.entry.move is not None:
            self._go_on()
        elif self.going and self._world.now >= self._begin_at:
            self._begin()
        late = self.going and rng.random() < LATE_SHARE
        self._world.after(rng.uniform(*(LATE_S if late else LOOK_S)), self._look)

    def _begin(self) -> None:
        rng = self._rng
        shards = rng.sample(range(len(self.entry.places)), rng.choice((1, 1, 1, 2, 3)))
        store = rng.choice(self.stores)
        entry = begin(self.entry, dict.fromkeys(shards, store))
        if entry is not None:
            self._exercised["several shards"] += len(shards) > 1
            self._write(entry)

    def _go_on(self) -> None:
        move = self.entry.move
        assert move is not None
        if self.entry.stage != self._stage:
            self._stage, self._since = self.entry.stage, self._world.now
        if move.phase is not ShardPhase.OPEN and self._rng.random() < ABORT_SHARE:
            self._exercised[f"aborted in {move.phase.name.lower()}"] += 1
            self._write(give_up(self.entry))
            return
        age_s = self._world.now - self._since
        said = self._reports.get(move.destination)
        entry, why = next_step(self.entry, said, lambda timeout_s: age_s >= timeout_s, self._limits)
        if entry is None:
            return
        if why is not None:
            self._exercised["given up"] += 1
        if entry.move is not None and entry.move.phase is ShardPhase.OPEN:
            self._count_content(move.source, move.shard)
        elif move.phase is ShardPhase.OPEN:
            self._exercised["move ended"] += 1
            left = self._left.setdefault(move.shard, set())
            self._exercised["moved back"] += move.destination in left
            left.add(move.source)
        self._write(entry)

    def _write(self, entry: QueueEntry) -> None:
        entry.check()
        assert entry.revision == self.entry.revision + 1
        self.entry = entry
        move, rng = entry.move, self._rng
        if move is None:
            self._begin_at = self._world.now + rng.expovariate(1 / self._every_s)
        elif self.going and rng.random() < FAULT_SHARE:
            store = rng.choice((move.source, move.destination))
            what = rng.choice(("store", "store", "agent"))
            delay_s = rng.choice((0.0, rng.uniform(0.0, 0.1)))
            self._world.after(delay_s, self._strike, store, what, move.phase.name.lower())

    def _strike(self, store: str, what: str, phase: str) -> None:
        if self.going:
            self._exercised[f"killed in {phase}" if what == "store" else f"agent killed in {phase}"] += 1
            self._kill(store, what)

    def _count_content(self, store: str, shard: int) -> None:
        prefix = b":%d:" % shard
        for key, value in self._values_of(store).items():
            if prefix not in key:
                continue
            if key.endswith(b":owners") and isinstance(value, Hash):
                owners = {line.split()[0] for line in value.fields.values()}
                self._exercised["moved held"] += bool(owners - {b"-", b"!"})
                self._exercised["moved retry"] += b"-" in owners
            for end, name in ((b":delayed", "delayed"), (b":ids:0", "ids"), (b":ids:1", "ids"), (b":dead", "dead")):
                self._exercised[f"moved {name}"] += key.endswith(end)


def merged(entry: QueueEntry, stores: Sequence[tuple[str, Values]], prefix: bytes) -> Values:
    """The keys of a queue on all its stores, each shard from the one store that counts: where it is open; if it is open
    nowhere, where the entry places it. The other copy is not complete, or is being dropped."""
    counting: dict[int, str] = {}
    for shard in range(len(entry.places)):
        open_at = [name for name, values in stores if _letter(values.get(prefix + b"conf"), shard) == b"o"]
        move = entry.move
        switched = move is not None and move.shard == shard and move.phase is ShardPhase.OPEN
        counting[shard] = open_at[0] if open_at and not switched else entry.store_of(shard).id
    found: Values = {}
    dead = Stream()
    for name, values in stores:
        for key, value in values.items():
            rest = key.removeprefix(prefix)
            number = rest.partition(b":")[0]
            if number.isdigit():
                if counting[int(number)] == name:
                    found[key] = value
            elif rest == b"dead" and isinstance(value, Stream):
                dead.entries += [one for one in value.entries if counting[int(one[1][1])] == name]
            elif rest in (b"ready", b"due") and value:
                found[key] = value
    if dead.entries:
        found[prefix + b"dead"] = dead
    return found


def _letter(conf: Value | None, shard: int) -> bytes:
    """The state of a shard on a store; empty if the queue is not there."""
    if not isinstance(conf, bytes):
        return b""
    words = conf.split()
    return b"o" if len(words) == 12 else words[12][shard : shard + 1]
