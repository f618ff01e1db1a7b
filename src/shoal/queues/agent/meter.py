"""The meter of a store: turns samples of the store and its queues into a telemetry record for each second.

Owns which queues are asked, and how the figures are derived. A core without I/O; `telemetry` asks the store.

    signs of each queue --changed--> `admin load` of the queue --,
    INFO -------------------------------------------------------+--> record

A queue that has not changed costs its store the four short commands of its signs a second. The totals of a queue are
exact; its shards get parts of them: puts and dones by the samples that the scripts count, messages by the lengths of
some ready keys, the rest by the number of held keys. So a balancer sees which shards are busy, and the store pays for
one command in 64 messages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec

from shoal.errors import ProtocolError
from shoal.load.record import HostRow, RecordId, TelemetryRecord
from shoal.load.table import UnitTable
from shoal.plan.queue_settings import NUMBER_MAX
from shoal.plan.shard_names import shard_name
from shoal.queues.message_format import put_us_of
from shoal.queues.queue_kind import QUEUE, STORE
from shoal.queues.queue_state import unpack_state

SHARDS_A_SECOND_MAX: Final = 4096
"""Shards that are asked about in one second, about 20 ms of the store's time. Other queues that have changed wait for
the next second, and are reported as uncounted."""

_CLOCK, _MESSAGES, _BYTES, _KEYS, _OWNED, _READY, _DELAYED, _IDS, _IDS_OLD = 0, 3, 4, 5, 6, 7, 8, 9, 10
_PUTS, _PUT_BYTES, _DONES = 14, 15, 16
"""Places in the state of a queue: see STATE in `scripts/common.lua`."""
_STATE_WORDS: Final = 17
_MOVING: Final = (3, 4, 5, 6, 7, 8, 13, 14, 15, 16)
"""The words that tell whether anything has happened: not the clocks, and not the counter that every turn may raise."""


@dataclass(frozen=True, slots=True)
class StoreSample:
    """The store's own counters at one moment."""

    at_s: float
    """When it was taken, on the caller's clock."""
    run_id: str
    cpu_seconds_total: float
    loop_seconds_total: float | None
    """Time that the event loop was not idle; None before Redis 7.2."""
    file_bytes: int
    """The size of the append-only file. It shrinks when the store rewrites it."""
    connections: int
    memory_bytes: int
    memory_max_bytes: int

    @classmethod
    def from_info(cls, info: bytes, at_s: float) -> StoreSample:
        """A sample from the reply to INFO."""
        lines = (line.partition(":") for line in info.decode("utf-8", "replace").splitlines())
        fields = {name: value for name, colon, value in lines if colon}
        loop = fields.get("eventloop_duration_sum")
        try:
            return cls(
                at_s=at_s,
                run_id=fields["run_id"],
                cpu_seconds_total=float(fields["used_cpu_sys"]) + float(fields["used_cpu_user"]),
                loop_seconds_total=None if loop is None else int(loop) / 1e6,
                file_bytes=int(fields.get("aof_current_size", 0)),
                connections=int(fields["connected_clients"]),
                memory_bytes=int(fields["used_memory"]),
                memory_max_bytes=int(fields.get("maxmemory", 0)),
            )
        except (KeyError, ValueError) as error:
            raise ProtocolError(f"INFO has a missing or malformed field: {error}") from error


class QueueSigns(NamedTuple):
    """What tells whether a queue has changed: its state, and what the state does not count."""

    state: bytes
    consumers: int
    dead: int
    halted: int

    @classmethod
    def questions(cls, prefix: bytes) -> tuple[tuple[bytes, bytes], ...]:
        """The commands whose replies are the signs of a queue."""
        return (
            (b"GET", prefix + b"state"),
            (b"ZCARD", prefix + b"leases"),
            (b"XLEN", prefix + b"dead"),
            (b"SCARD", prefix + b"halted"),
        )

    @classmethod
    def read(cls, replies: Sequence[Any]) -> QueueSigns | None:
        """The signs in the replies to the questions; None if there is no such queue, or if a client has damaged it."""
        state, consumers, dead, halted = replies
        if state is None:
            return None
        try:
            _check_numbers(unpack_state(state))
        except ValueError:
            return None
        return cls(state, consumers, dead, halted)

    @property
    def clock_ms(self) -> int:
        """The queue's clock."""
        return unpack_state(self.state)[_CLOCK]

    @property
    def needs_time(self) -> bool:
        """Whether something in the queue waits for a time: a delayed message, a retry, a lease, the end of an id."""
        state = unpack_state(self.state)
        parked = state[_KEYS] > state[_OWNED] + state[_READY]
        return bool(state[_DELAYED] or parked or self.consumers or state[_IDS] or state[_IDS_OLD])


class ShardLoad(NamedTuple):
    """One shard in the reply to `admin load`."""

    ready: int
    held: int
    delayed: int
    puts: int
    """Samples since the queue is on the store; `dones` likewise."""
    dones: int
    sampled_messages: int
    """Messages of the `sampled_keys` first ready keys."""
    sampled_keys: int
    next_put_us: int
    """When the next message was put; 0 if none is ready."""


class QueueLoad(NamedTuple):
    """A queue on one store, as `admin load` describes it."""

    state: tuple[int, ...]
    consumers: int
    dead: int
    halted: int
    shards: Mapping[int, ShardLoad]

    @classmethod
    def read(cls, reply: Any, shards: Sequence[int]) -> QueueLoad:
        """The load in the reply about these shards; ProtocolError if it is invalid."""
        try:
            state, consumers, dead, halted, *rows = reply
            found = {shard: _shard_load(row) for shard, row in zip(shards, rows, strict=True)}
            load = cls(read_state(state), int(consumers), int(dead), int(halted), found)
            _check_numbers((*load.state, *(number for row in found.values() for number in row)))
            return load
        except (TypeError, ValueError) as error:
            raise ProtocolError(f"the load of a queue cannot be read: {error}") from error


def _shard_load(row: Any) -> ShardLoad:
    ready, held, delayed, puts, dones, messages, keys, first = row
    numbers = (ready, held, delayed, puts, dones, messages, keys, put_us_of(bytes(first)) or 0)
    return ShardLoad._make(map(int, numbers))


def read_state(line: bytes) -> tuple[int, ...]:
    """The numbers of a queue's state; ValueError if it has too few."""
    words = tuple(map(int, line.split()))
    if len(words) < _STATE_WORDS:
        raise ValueError(f"a state of {len(words)} numbers")
    return words


def _check_numbers(numbers: Sequence[int]) -> None:
    """ValueError for numbers that no script has written."""
    if not all(0 <= number <= NUMBER_MAX for number in numbers):
        raise ValueError("a number that no script has written")


class QueueFigures(msgspec.Struct, frozen=True):
    """A queue on one store in the last second, for metrics."""

    messages: int
    oldest_s: float
    held: int
    ready: int
    delayed: int
    consumers: int
    dead: int
    halted: int
    puts_total: int
    dones_total: int


class StoreMeter:
    """Measures one store. `instance` is the incarnation of its agent, in hex."""

    def __init__(self, store: str, instance: str, site: str = "") -> None:
        self.figures: dict[bytes, QueueFigures] = {}
        """The queues in the last second."""
        self._store = store
        self._instance = instance
        self._site = site
        self._sequence = 0
        self._sample: StoreSample | None = None
        self._loads: dict[bytes, QueueLoad] = {}
        self._left_out = 0

    def changed(self, queues: Mapping[bytes, Sequence[int]], signs: Mapping[bytes, QueueSigns]) -> list[bytes]:
        """The queues to ask about: of those on the store, with their shards there, the ones whose signs have changed.
        Those that waited longest come first."""
        news: list[bytes] = []
        for queue, now in signs.items():
            before = self._loads.get(queue)
            if before is None or tuple(before.shards) != tuple(queues[queue]) or _differs(now, before):
                news.append(queue)
        room, found = SHARDS_A_SECOND_MAX, list[bytes]()
        for queue in sorted(news, key=lambda queue: self._age(queue)):
            room -= len(queues[queue])
            if room < 0 and found:
                break
            found.append(queue)
        self._left_out = len(news) - len(found)
        return found

    def _age(self, queue: bytes) -> int:
        load = self._loads.get(queue)
        return 0 if load is None else load.state[1]

    def close_second(
        self, second: int, wall_s: float, sample: StoreSample, queues: Mapping[bytes, QueueLoad | None]
    ) -> TelemetryRecord:
        """The record of a second. `queues` are all queues on the store: their new load, None if it has not changed."""
        before, self._sample = self._sample, sample
        rows: dict[bytes, dict[str, Any]] = {}
        loads: dict[bytes, QueueLoad] = {}
        self.figures = {}
        for queue, news in queues.items():
            last = self._loads.get(queue)
            load = news or last
            if load is None:
                continue
            loads[queue] = load
            of_shards = _shard_rows(load, last, wall_s)
            rows.update((shard_name(queue, shard), row) for shard, row in of_shards.items())
            self.figures[queue] = _figures(load, of_shards)
        self._loads = loads
        self._sequence += 1
        return TelemetryRecord(
            RecordId(self._store, self._instance, second, self._sequence),
            STORE,
            self._host_row(sample, before, len(queues)),
            {QUEUE.name: UnitTable.of_rows(QUEUE, rows)},
            self._site,
        )

    def _host_row(self, now: StoreSample, before: StoreSample | None, queues: int) -> HostRow:
        if before is not None and (before.run_id != now.run_id or now.at_s <= before.at_s):
            before = None
        interval_s = None if before is None else now.at_s - before.at_s
        cpu = busy = written = None
        if before is not None and interval_s is not None:
            cpu = max(0.0, now.cpu_seconds_total - before.cpu_seconds_total) / interval_s
            busy = cpu
            if now.loop_seconds_total is not None and before.loop_seconds_total is not None:
                busy = max(0.0, now.loop_seconds_total - before.loop_seconds_total) / interval_s
            grown = now.file_bytes - before.file_bytes
            written = grown / interval_s if grown >= 0 else None
        return {
            "interval_s": interval_s,
            "uncounted": self._left_out,
            "busy_share": busy,
            "cpu_share": cpu,
            "memory_bytes": now.memory_bytes,
            "memory_max_bytes": float(now.memory_max_bytes),
            "written_bytes_per_s": written,
            "connections": now.connections,
            "queues": queues,
        }


def _moving(state: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(state[place] for place in _MOVING)


def _differs(now: QueueSigns, before: QueueLoad) -> bool:
    counts = (before.consumers, before.dead, before.halted)
    return _moving(unpack_state(now.state)) != _moving(before.state) or now[1:] != counts


def _figures(load: QueueLoad, rows: Mapping[int, Mapping[str, Any]]) -> QueueFigures:
    return QueueFigures(
        messages=load.state[_MESSAGES],
        oldest_s=max((row["oldest_s"] for row in rows.values()), default=0.0),
        held=load.state[6],
        ready=load.state[7],
        delayed=load.state[8],
        consumers=load.consumers,
        dead=load.dead,
        halted=load.halted,
        puts_total=load.state[_PUTS],
        dones_total=load.state[_DONES],
    )


def _shard_rows(load: QueueLoad, before: QueueLoad | None, wall_s: float) -> dict[int, dict[str, Any]]:
    """The figures of the shards of a queue since the load before; without one, only levels are known."""
    shards = load.shards
    messages = _messages(load)
    stored = apportion(load.state[_BYTES], messages)
    puts = _work(load, before, _PUTS, [shard.puts for shard in shards.values()], "puts")
    dones = _work(load, before, _DONES, [shard.dones for shard in shards.values()], "dones")
    bytes_in = apportion(_grown(load, before, _PUT_BYTES), puts)
    rows: dict[int, dict[str, Any]] = {}
    for place, (number, shard) in enumerate(shards.items()):
        rows[number] = {
            "puts": puts[place],
            "dones": dones[place],
            "bytes_in": bytes_in[place],
            "messages": messages[place],
            "bytes_stored": stored[place],
            "oldest_s": max(0.0, wall_s - shard.next_put_us / 1e6) if shard.next_put_us else 0.0,
            "held": shard.held,
            "ready": shard.ready,
            "delayed": shard.delayed,
            "consumers": load.consumers,
            "dead": load.dead,
            "halted": load.halted,
        }
    return rows


def _messages(load: QueueLoad) -> list[int]:
    """The messages of each shard: delayed ones are counted, ready keys are estimated from some, held keys share the
    rest."""
    shards = load.shards.values()
    delayed = [shard.delayed for shard in shards]
    left = max(0, load.state[_MESSAGES] - sum(delayed))
    ready = [shard.ready * shard.sampled_messages / max(shard.sampled_keys, 1) for shard in shards]
    held = [float(shard.held) for shard in shards]
    rest = max(0.0, left - sum(ready))
    if rest and sum(held):
        weights = [own + rest * part / sum(held) for own, part in zip(ready, held, strict=True)]
    else:
        weights = ready
    return [own + part for own, part in zip(delayed, apportion(left, weights), strict=True)]


def _grown(load: QueueLoad, before: QueueLoad | None, place: int) -> int:
    """How much a total has grown. One that shrinks began again: the queue was made anew."""
    if before is None:
        return 0
    grown = load.state[place] - before.state[place]
    return load.state[place] if grown < 0 else grown


def _work(load: QueueLoad, before: QueueLoad | None, place: int, samples: Sequence[int], name: str) -> list[int]:
    """A total of the queue, in parts for its shards: by the samples since the load before, or by all of them."""
    grown = _grown(load, before, place)
    news = list[int]()
    for shard, now in zip(load.shards, samples, strict=True):
        known = before.shards.get(shard) if before is not None else None
        then = 0 if known is None else getattr(known, name)
        news.append(now - then if now >= then else now)
    return apportion(grown, news if any(news) else samples)


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Whole parts of a total in proportion to weights, equal ones if all weights are 0. The sum is the total."""
    if not weights:
        return []
    whole = math.fsum(weights)
    shares = [weight / whole for weight in weights] if whole > 0 else [1 / len(weights)] * len(weights)
    ends, reached = [0], 0.0
    for share in shares:
        reached += share
        ends.append(min(total, round(total * reached)))
    ends[-1] = total
    return [end - begin for begin, end in pairwise(ends)]
