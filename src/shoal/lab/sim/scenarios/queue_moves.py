"""Moves of shards in the scenario `queue`: the operator's requests, and the faults that hit a move in each phase.

Owns the requests and the watch of the queue's plan entry. Leaders and agents of stores are shipped code: the operator
only writes requests to the coordinator, reads entries when they are written, and kills a participant of a move soon
after some of them. Entries are checked as they are written: revisions without gaps, no shard open on two stores.

In some runs a store is away for so long that its shards are abandoned. Then it comes back, at first without its agent.
In others it is recovered from a copy of its directory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from random import Random
from typing import TYPE_CHECKING, Final

from shoal.coordination.acl import STORES
from shoal.errors import ForgedEntryError
from shoal.lab.sim.scenarios.queue_history import StoredQueue
from shoal.plan.keys import KEEPER_LEASE, entry_key, move_key
from shoal.plan.kinds import QUEUE
from shoal.plan.queue_entry import QueueEntry, ShardMove, ShardPhase
from shoal.plan.queue_request import AbandonShards, CreateQueue, MoveShards, QueueRequest, encode_queue_request
from shoal.plan.queue_settings import QueueSettings
from shoal.plan.signature import Verifier
from shoal.queues.keyspace.collections import Hash, Stream, Value, Values

if TYPE_CHECKING:
    from shoal.lab.sim.scenarios.queue import QueueRun

FAULT_SHARE: Final = 0.15
"""Share of the phases in which one participant of the move is killed."""
MORTALS: Final = ("store", "store", "agent", "leader")
AWAY_AT_S: Final = (1.0, 6.0)
AWAY_S: Final = (6.0, 10.0)
ALONE_S: Final = (0.0, 2.0)
"""When a store goes away whose shards are abandoned, for how long, and how long it is back before its agent is."""
LATE_S: Final = (0.5, 2.5)
"""If its shards are abandoned when it is back: how long after that, and how long before its agent is back."""
GONE_S: Final = (7.0, 9.0)
EMPTY_S: Final = (1.0, 3.0)
"""How long a store is gone until it is recovered, and how long it runs without its directory before. Leases end."""
STUNNED_AFTER_S: Final = (0.02, 0.3)
STUNNED_S: Final = (1.5, 3.0)
DEAF_S: Final = (0.8, 1.6)
SILENT_S: Final = (1.0, 2.0)
"""When a consumer is paused after a shard was sealed, for how much longer than its lease, how long it hears nothing of
the coordinator after that, and how long nothing of the source of the move after that."""
SEAL_LOOK_S: Final = 0.005
"""How often the operator checks whether a shard is sealed."""
DEAF_SHARE: Final = 0.7
"""How often agents of other stores hear nothing from the coordinator meanwhile."""
ABANDON_S: Final = 0.1
"""How often the operator tries to abandon it."""
MOVE_CORNERS: Final = {
    "shard moved": "move ended",
    "shard moved back": "moved back",
    "several shards in one request": "several shards",
    "move given up before the copy": "given up in prepare",
    "move given up after the seal": "given up sealed",
    "move of held keys": "moved held",
    "move of delayed messages": "moved delayed",
    "move of keys that wait for a retry": "moved retry",
    "move of message ids": "moved ids",
    "move of dead letters": "moved dead",
    **{
        f"{what} killed in {phase.name.lower()}": f"{what} killed in {phase.name.lower()}"
        for what in ("store", "agent", "leader")
        for phase in ShardPhase
    },
    **{f"another leader continues in {phase.name.lower()}": f"taken over in {phase.name}" for phase in ShardPhase},
    "shards of a store abandoned": "abandoned",
    "shards of a store abandoned that is back": "abandoned late",
    "shards of a store abandoned that is only cut off": "abandoned unplugged",
    "store recovered from its directory": "recovered",
    "store started without its directory before": "recovered from nothing",
    "put into a store that is back": "put after the return",
    "shards of another store continue after that": "inherited",
    "one of them is sealed": "inherited sealed",
    "put sent to another store": "put rerouted",
    "job goes on at another store": "key rehomed",
}


class MoveOperator:
    """Has the queue created and moves its shards at random."""

    def __init__(self, run: QueueRun, unit: bytes, verifier: Verifier, stores: Sequence[str], every_s: float) -> None:
        self.entry: QueueEntry | None = None
        """The entry in the coordinator."""
        self.going = False
        """Whether moves are requested."""
        self.returned: set[str] = set()
        """Nodes that are back after shards were abandoned."""
        self.stunned: set[str] = set()
        """Consumers that were paused for longer than their lease: they may be told that a job is lost which is done."""
        self._run = run
        self._unit = unit
        self._verifier = verifier
        self._stores = stores
        self._every_s = every_s
        self._rng: Random = run.world.rng("moves")
        self._requests = 0
        self._left: dict[int, set[str]] = {}
        self._writer: object = None
        self._lose_destination = False
        """Whether the destination of the next copy goes away."""
        self._patient = False
        """Whether the operator waits until it can abandon a store."""
        self._late = self._unplugged = False
        """Whether the shards of a store are abandoned when it is back, and whether it is away because it is cut off."""
        self._anchored = False
        """Whether each store has a shard that stays there; only in runs in which consumers are stunned."""
        self._directories: dict[str, Values] = {}
        """Of stores that are gone, until they are started from them."""
        self._stunned_until = 0.0
        """When a consumer that was stunned hears of everything again."""
        self._watch_entry()

    @property
    def asked(self) -> bool:
        """Whether a request is under way."""
        return self._run.coordinator.store.get(move_key(self._unit, QUEUE)) is not None

    def create(self, settings: QueueSettings) -> None:
        """Requests the queue."""
        self.request(CreateQueue(self._unit, settings, "create"))

    def start(self) -> None:
        """Requests moves from now on."""
        self.going = True
        self._ask_later()

    def _ask_later(self) -> None:
        self._run.world.after(self._rng.expovariate(1 / self._every_s), self._ask)

    def _ask(self) -> None:
        if not self.going:
            return
        self._ask_later()
        if self.entry is None or self.entry.dropped or self.asked or self._patient:
            return
        rng = self._rng
        self._requests += 1
        if self._run.stunned:
            self._move_one(self.entry)
            return
        shards = rng.sample(range(len(self.entry.places)), rng.choice((1, 1, 1, 2, 3)))
        self._run.exercised["several shards"] += len(shards) > 1
        self.request(MoveShards(self._unit, dict.fromkeys(shards, rng.choice(self._stores)), f"m{self._requests}"))

    def _move_one(self, entry: QueueEntry) -> None:
        """At first each store gets a shard that stays there, so that all consumers have a lease on every store. Then
        moves another one, unless a stunned consumer may not have heard of the last move."""
        stay = dict(enumerate(self._stores))
        self._anchored = all(entry.store_of(shard).id == store for shard, store in stay.items())
        if not self._anchored:
            self.request(MoveShards(self._unit, stay, f"m{self._requests}"))
        elif self._run.world.now > self._stunned_until:
            shard = self._rng.randrange(len(stay), len(entry.places))
            others = [store for store in self._stores if entry.store_of(shard).id != store]
            self.request(MoveShards(self._unit, {shard: self._rng.choice(others)}, f"m{self._requests}"))

    def request(self, request: QueueRequest) -> None:
        """Write a request to the coordinator."""
        self._run.coordinator.store.put(move_key(self._unit, QUEUE), encode_queue_request(request))

    # A store that goes away

    def lose_store(self) -> None:
        """A store and its agent are away soon, and come back after the operator has abandoned its shards."""
        self._run.world.after(self._rng.uniform(*AWAY_AT_S), self._lose_store)

    def _lose_store(self) -> None:
        """Some store at once, or the destination of the next copy."""
        entry, rng = self.entry, self._rng
        if entry is None:
            self._run.world.after(ABANDON_S, self._lose_store)
        elif rng.random() < 0.5:
            self._lose_destination = True
        else:
            self._lose(rng.choice(sorted({entry.store_of(shard).id for shard in range(len(entry.places))})))

    def _after_seal(self, move: ShardMove, act: Callable[[ShardMove], None], otherwise: Callable[[], None]) -> None:
        """Acts as soon as the shard of a move is sealed at its source, unless the move ends before."""
        if self.entry is None or self.entry.move != move:
            otherwise()
        elif self._state(move.source, move.shard) == b"s":
            act(move)
        else:
            self._run.world.after(SEAL_LOOK_S, self._after_seal, move, act, otherwise)

    def _lose_next(self) -> None:
        self._lose_destination = True

    def _lose(self, store: str) -> None:
        """The store and its agent go: they die, or are cut off. In some runs agents of other stores hear of nothing
        until it is back, and in some its shards are abandoned only then, before its agent is back."""
        entry, rng, run = self.entry, self._rng, self._run
        if entry is None:
            return
        if run.recovers:
            self._recover(store, bool(entry.shards_at(store)))
            return
        back_at = run.world.now + rng.uniform(*AWAY_S)
        if rng.random() < DEAF_SHARE:
            for other in self._stores:
                run.coordinator.delay_news(f"agent-{other}", back_at)
        agent_at = back_at + rng.uniform(*ALONE_S)
        how = run.world.rng("loss")
        self._late = how.random() < run.late_abandons
        self._unplugged = not self._late and how.random() < run.unplugged
        begins_at = run.world.now
        if self._late:
            begins_at = back_at + how.uniform(*LATE_S)
            agent_at = begins_at + how.uniform(*LATE_S)
        self._take_away(store, [f"agent-{store}"], back_at)
        self._take_away(f"agent-{store}", [store], agent_at)
        self._patient = True
        run.world.at(begins_at, self._abandon, store, entry.version, agent_at if self._late else back_at)

    def _recover(self, store: str, has_shards: bool) -> None:
        """The store and its agent are gone, and come back from a copy of the directory. In some runs the store is first
        started without it, on another machine: its agent must not make the queue again."""
        run, rng = self._run, self._run.world.rng("recovery")
        node, agent = run.network.nodes[store], run.network.nodes[f"agent-{store}"]
        if run.world.now > run.began_at + run.safety_s - GONE_S[1] - EMPTY_S[1]:
            return  # too late: every node is started when the phase of faults ends
        if not node.up:  # something is about to start it again
            run.world.after(ABANDON_S, self._recover, store, has_shards)
            return
        node.crash()
        agent.crash()
        directory = self._directories[store] = deepcopy(run.values(store))
        at = run.world.now + rng.uniform(*GONE_S)
        if has_shards and rng.random() < 0.5:
            run.world.at(at, self._start_from, store, {})
            run.world.at(at, agent.restart)
            run.exercised["recovered from nothing"] += 1
            at += rng.uniform(*EMPTY_S)
        run.world.at(at, self._start_from, store, directory)
        run.world.at(at + rng.uniform(*ALONE_S), agent.restart)
        run.exercised["recovered"] += 1

    def _start_from(self, store: str, directory: Values) -> None:
        """A store starts with these keys. It keeps those that it has if the queue was dropped meanwhile, and is there
        again: an operator does not start it from the directory of before then."""
        run, node = self._run, self._run.network.nodes[store]
        if directory:
            self._directories.pop(store, None)
            if node.up and version_of(run.values(store), run.prefix) > version_of(directory, run.prefix):
                return
        if node.up:  # it had nothing
            if any(StoredQueue(run.values(store), run.prefix).bodies()):
                run.violated("split", f"{store} has taken messages at t={run.world.now:.3f}, without its directory")
            node.crash()
        run.stores[store].model.keys.values = directory
        node.restart()

    def _take_away(self, name: str, friends: Sequence[str], back_at: float) -> None:
        """A node dies, or is cut off from all but its friends, and comes back."""
        run, node = self._run, self._run.network.nodes[name]
        run.world.at(back_at, self._note_return, name)
        if self._unplugged:
            cut = run.faults.cut([name], [other for other in run.network.nodes if other not in (name, *friends)])
            for end in run.network.ends(name):
                if end.peer.node.name not in friends:
                    run.faults.reset(end)
            run.world.at(back_at, cut.heal)
        else:
            node.crash()
            run.world.at(back_at, node.restart)

    def _note_return(self, name: str) -> None:
        self.returned.add(name)

    def _abandon(self, store: str, version: int, until: float) -> None:
        """Repeats the request until it is carried out, or too much of the store is back."""
        run = self._run
        self._patient = self.entry is not None and self.entry.version == version and run.world.now < until
        if not self._patient:
            return
        run.world.after(ABANDON_S, self._abandon, store, version, until)
        if not self.asked and store not in run.coordinator.store.members(STORES):
            self._requests += 1
            self.request(AbandonShards(self._unit, (store,), f"m{self._requests}"))

    def _abandoned(self, before: QueueEntry, entry: QueueEntry) -> None:
        """Messages of the shards that begin again are lost."""
        kept = [shard for shard in range(len(entry.places)) if before.store_of(shard).id in entry.heirs]
        self._run.exercised["inherited sealed"] += any(
            self._state(before.store_of(shard).id, shard) == b"s" for shard in kept
        )
        gone = {*range(len(entry.places))} - {*kept}
        self._run.exercised["abandoned"] += 1
        self._run.exercised["abandoned late"] += self._late
        self._run.exercised["abandoned unplugged"] += self._unplugged
        self._run.exercised["inherited"] += bool(kept)
        self._run.history.abandon(lambda key: entry.shard_of(key.encode()) in gone)

    # Entries

    def _watch_entry(self) -> None:
        """Observes each entry when it is written, before any watch does."""
        store = self._run.coordinator.store
        tell_watchers = store.on_change
        assert tell_watchers is not None
        key = entry_key(self._unit, QUEUE)

        def changed(name: str) -> None:
            if name == key:
                stored = store.get(key)
                if stored is not None:
                    self._written(stored.value)
                else:
                    self.entry = None
                    self._dropped()
            tell_watchers(name)

        store.on_change = changed

    def _dropped(self) -> None:
        """There is no queue any more. What is in the directory of a store that is gone, or was started without it, is
        given up with it, as far as producers know that it is there."""
        history, prefix = self._run.history, self._run.prefix
        history.dropped(self._run.world.now)
        for directory in self._directories.values():
            stored = StoredQueue(directory, prefix)
            numbers = [*stored.numbers(), *stored.dead()]
            history.remove(number for number in numbers if history.puts[number].answered_at is not None)

    def _written(self, data: bytes) -> None:
        run, before = self._run, self.entry
        try:
            entry = self._verifier.line(data, QueueEntry)
            entry.check()
        except (ForgedEntryError, ValueError) as error:
            run.violated("plan", f"an invalid entry was written: {error}")
            return
        run.world.note("entry", entry.revision, str(entry.move), entry.places)
        self.entry = entry
        run.history.set_settings(entry.settings, run.world.now)
        writer, self._writer = self._writer, run.coordinator.serving
        if before is None:
            run.exercised["created again"] += len(run.history.dropped_at) > 0
            return
        if entry.version > before.version:
            self._abandoned(before, entry)
        elif (entry.version, entry.revision) != (before.version, before.revision + 1):
            run.violated("plan", f"revision {entry.revision} was written after {before.revision}")
        if before.move is not None:
            self._count_end(before.move, entry)
            run.exercised[f"taken over in {before.move.phase.name}"] += writer != self._writer
        self._check_open(entry)
        if self._lose_destination and entry.move is not None and entry.move.phase is ShardPhase.COPY:
            self._lose_destination = False
            self._after_seal(entry.move, lambda move: self._lose(move.destination), self._lose_next)
        elif self._anchored and entry.move is not None and entry.move.phase is ShardPhase.COPY:
            self._after_seal(entry.move, self._stun_later, lambda: None)
        if entry.move is not None and self.going and self._rng.random() < FAULT_SHARE:
            self._strike_later(entry.move)

    def _count_end(self, move: ShardMove, entry: QueueEntry) -> None:
        """Counts what the phase of a move has led to."""
        exercised, phase = self._run.exercised, move.phase
        if phase is ShardPhase.OPEN:
            exercised["move ended"] += 1
            left = self._left.setdefault(move.shard, set())
            exercised["moved back"] += move.destination in left
            left.add(move.source)
        elif entry.move is None:
            exercised[f"given up in {phase.name.lower()}"] += 1
            exercised["given up sealed"] += self._state(move.source, move.shard) == b"s"
        elif entry.move.phase is ShardPhase.OPEN:
            self._count_content(move.source, move.shard)

    def _check_open(self, entry: QueueEntry) -> None:
        for shard in range(len(entry.places)):
            at = [store for store in self._run.current_stores if self._state(store, shard) == b"o"]
            if len(at) > 1:
                self._run.violated("split", f"shard {shard} is open on {at} at t={self._run.world.now:.3f}")

    def _state(self, store: str, shard: int) -> bytes:
        return state_of(self._run.values(store), self._run.prefix, shard)

    # Faults

    def _stun_later(self, move: ShardMove) -> None:
        rng = self._run.world.rng("stun")
        if rng.random() < self._run.stunned:
            self._run.world.after(rng.uniform(*STUNNED_AFTER_S), self._stun, move)

    def _stun(self, move: ShardMove) -> None:
        """A consumer that has keys of the shard is paused for longer than its lease, one at a time. When it wakes,
        others may have these keys at the destination. It reaches that store before it can read where the shard is, and
        reads that before the source can tell it what has become of the keys."""
        run, rng = self._run, self._run.world.rng("stun")
        if run.world.now < self._stunned_until:
            return
        owners = self._owners(move.source, move.shard)
        found = [node for node, jobs in run.takers.items() if any(core.name in owners for core in jobs.cores)]
        if not found:
            return
        name = rng.choice(found)
        self.stunned.add(name)
        pause_s = run.settings.lease_s + rng.uniform(*STUNNED_S)
        run.faults.pause(run.network.nodes[name], (pause_s, pause_s))
        deaf_s = pause_s + rng.uniform(*DEAF_S)
        silent_s = deaf_s + rng.uniform(*SILENT_S)
        self._stunned_until = run.world.now + silent_s
        run.faults.partition([name], ["coordinator"], (deaf_s, deaf_s))
        run.faults.partition([name], [move.source], (silent_s, silent_s))

    def _strike_later(self, move: ShardMove) -> None:
        rng = self._rng
        what = rng.choice(MORTALS)
        victim = rng.choice((move.source, move.destination))
        delay_s = rng.choice((0.0, rng.uniform(0.0, 0.1)))
        self._run.world.after(delay_s, self._strike, what, victim, move.phase.name.lower())

    def _strike(self, what: str, store: str, phase: str) -> None:
        lease = self._run.coordinator.store.lease_of(KEEPER_LEASE)
        leader = lease.holder.partition("/")[0] if lease is not None else ""
        names: Mapping[str, str] = {"store": store, "agent": f"agent-{store}", "leader": leader}
        if self.going and names[what] and self._run.kill(names[what]):
            self._run.exercised[f"{what} killed in {phase}"] += 1

    def _owners(self, store: str, shard: int) -> set[bytes]:
        value = self._run.values(store).get(self._run.prefix + b"%d:owners" % shard)
        return {line.split()[0] for line in value.fields.values()} if isinstance(value, Hash) else set()

    def _count_content(self, store: str, shard: int) -> None:
        prefix, exercised = self._run.prefix + b"%d:" % shard, self._run.exercised
        for key in self._run.values(store):
            if not key.startswith(prefix):
                continue
            if key.endswith(b":owners"):
                owners = self._owners(store, shard)
                exercised["moved held"] += bool(owners - {b"-", b"!"})
                exercised["moved retry"] += b"-" in owners
            for end, name in ((b":delayed", "delayed"), (b":ids:0", "ids"), (b":ids:1", "ids"), (b":dead", "dead")):
                exercised[f"moved {name}"] += key.endswith(end)


def merged(entry: QueueEntry, stores: Sequence[tuple[str, Values]], prefix: bytes) -> Values:
    """The keys of a queue on all its stores, each shard from the one store that counts."""
    counting = [counting_store(entry, stores, prefix, shard) for shard in range(len(entry.places))]
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


def counting_store(entry: QueueEntry, stores: Sequence[tuple[str, Values]], prefix: bytes, shard: int) -> str:
    """The store where a shard is open; if it is open nowhere, where the entry places it. Another copy is not complete,
    or is being dropped."""
    open_at = [name for name, values in stores if state_of(values, prefix, shard) == b"o"]
    move = entry.move
    switched = move is not None and move.shard == shard and move.phase is ShardPhase.OPEN
    return open_at[0] if open_at and not switched else entry.store_of(shard).id


def counts(entry: QueueEntry, store: str, values: Values, prefix: bytes) -> bool:
    """Whether a store has not the queue of a version that was abandoned there."""
    conf = values.get(prefix + b"conf")
    version = int(conf.split()[0]) if isinstance(conf, bytes) else entry.version
    inherits = store in entry.heirs and entry.inherits <= version < entry.version
    return version == entry.version or inherits


def version_of(values: Values, prefix: bytes) -> int:
    """The version of the queue on a store; 0 if it is not there."""
    conf = values.get(prefix + b"conf")
    return int(conf.split()[0]) if isinstance(conf, bytes) else 0


def state_of(values: Values, prefix: bytes, shard: int) -> bytes:
    """The state of a shard on a store; empty if the queue is not there."""
    conf: Value | None = values.get(prefix + b"conf")
    if not isinstance(conf, bytes):
        return b""
    words = conf.split()
    return b"o" if len(words) == 12 else words[12][shard : shard + 1]


__all__ = ["MOVE_CORNERS", "MoveOperator", "counting_store", "counts", "merged", "state_of", "version_of"]
