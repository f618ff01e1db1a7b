"""Replays an archive: publishes its messages again, in their order, at their original speed, faster, or at once.

Owns the pace, the ids and the checkpoint. `archive_order` has the order; a `Target` publishes: to channels, or into a
queue (`queue_target`).

One process does it. A schedule has one clock, and the order of a publisher's messages has one sender: with several
tasks, each would have its own clock and its own connections, and a faster one would run ahead of the others.

Every message has the attribute `shoal_id`, which names the archived message (`message_ids`). A replay that is killed
and continued publishes the messages since its last checkpoint again, with the same ids.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from shoal.bus import Bus
from shoal.errors import CheckpointError, ConfigError
from shoal.history.table import channel_name, read_attributes
from shoal.message import Attributes
from shoal.pipeline.archive_order import AT, LOOKAHEAD_US, ArchiveOrder, NumberCheck
from shoal.pipeline.event_archive import TimeSpan
from shoal.pipeline.log_buckets import buckets_of, percentile_us
from shoal.pipeline.message_ids import ID_ATTRIBUTE, archived_id
from shoal.wire.glob import glob_match

TO_DEFAULT: Final = "replay.*"
"""Where messages go unless the user says otherwise: `*` stands for the name of the channel."""
CHECKPOINT_FILE: Final = "replay.json"
CHECKPOINT_S: Final = 5.0
"""Time between two checkpoints."""
SLEEP_S_MIN: Final = 0.001
ROWS: Final = 1024
"""Messages between two chances for the connections to be served; `publish` only waits while its buffer is full."""
_COLUMNS: Final = ("channel", "publisher", "epoch", "sequence", "server", "entry", "payload", "attributes", AT)

Progress = Callable[["ReplayState", float], None]
"""Is told how far the replay is: its state, and the done share of the archive's time."""


class Target(Protocol):
    """Where messages are published."""

    def name(self, channel: str) -> bytes:
        """The name under which messages of an archived channel are published. ConfigError if they must not be."""

    async def publish(self, name: bytes, payload: bytes, attributes: Attributes) -> None:
        """Publishes a message; waits while a buffer is full."""

    async def confirm(self) -> None:
        """Waits until everything that was published is confirmed. Raises an error otherwise."""


class ChannelTarget:
    """Channels of a cluster. A channel that is recorded is refused, unless `into_recorded`: replayed messages would be
    archived and replayed again."""

    def __init__(self, bus: Bus, to: str, recorded: list[bytes], *, into_recorded: bool = False) -> None:
        if to.count("*") > 1 or not to:
            raise ConfigError(f"--to is {to!r}", do="give a name, with at most one * for the original name")
        self._bus = bus
        self._to = to.encode("utf-8", "surrogateescape")
        self._recorded = [] if into_recorded else recorded
        self._names: dict[str, bytes] = {}

    def name(self, channel: str) -> bytes:
        """The rule of `--to`, applied to a channel."""
        found = self._names.get(channel)
        if found is None:
            found = self._to.replace(b"*", channel_name(channel))
            if any(glob_match(mark, found) for mark in self._recorded):
                shown = found.decode("utf-8", "backslashreplace")
                raise ConfigError(
                    f"{channel} would be replayed into {shown}, which is recorded and would be replayed again later",
                    do="give --to with names that are not recorded, or --into-recorded",
                )
            self._names[channel] = found
        return found

    async def publish(self, name: bytes, payload: bytes, attributes: Attributes) -> None:
        """Publishes a message."""
        await self._bus.publish(name, payload, attributes=attributes)

    async def confirm(self) -> None:
        """Waits for the servers."""
        await self._bus.drain()


class ReplayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is replayed where, as the user gave it. A checkpoint is only valid for the same plan."""

    archive: str
    channel: str | None
    since: str | None
    until: str | None
    to: str
    queue: str | None = None
    """The queue that is replayed into, instead of channels."""
    key: str | None = None
    """The attribute with the key of a message in the queue."""


class ReplayState(msgspec.Struct, kw_only=True):
    """How far a replay has come: the checkpoint."""

    plan: ReplayPlan
    from_us: int | None
    to_us: int | None
    """The span of the archive. It stays the same when a replay is continued: new messages are not added, and an age
    (3d) is not measured again."""
    at_us: int | None = None
    """The time of the last confirmed message, as `archive_order.AT`."""
    last_id: str | None = None
    """Its id."""
    messages: int = 0
    bytes: int = 0
    resumed: int = 0
    """How often the replay was continued."""
    done: bool = False
    numbers: NumberCheck = msgspec.field(default_factory=NumberCheck)


class Checkpoint:
    """The checkpoint in a directory; the caller holds its lock (`job_folders.locked`). None: nowhere."""

    def __init__(self, directory: Path | None) -> None:
        self._path = None if directory is None else directory / CHECKPOINT_FILE

    def read(self, plan: ReplayPlan) -> ReplayState | None:
        """The saved state; None if there is none. CheckpointError if it is of another replay, or damaged."""
        if self._path is None or not self._path.exists():
            return None
        try:
            state = msgspec.json.decode(self._path.read_bytes(), type=ReplayState)
        except msgspec.DecodeError as error:
            raise CheckpointError(f"{self._path} is damaged: {error}", do="name another --checkpoint") from error
        if state.plan != plan:
            raise CheckpointError(f"{self._path} is of another replay", do="name another --checkpoint, or remove it")
        state.resumed += 1
        return state

    def write(self, state: ReplayState) -> None:
        """Saves a state, in one step."""
        if self._path is not None:
            new = self._path.with_suffix(".new")
            new.write_bytes(msgspec.json.encode(state))
            new.replace(self._path)


class Pace:
    """When messages are due. `speed` is a factor; None: at once."""

    def __init__(self, speed: float | None) -> None:
        self._speed = speed
        self._zero: float | None = None
        self._late: dict[int, int] = {}
        """Messages by bucket of their lateness."""

    def due(self, at_us: int, now_s: float) -> float:
        """The time when a message is due. The first one is due at once."""
        if self._speed is None:
            return now_s
        if self._zero is None:
            self._zero = now_s - at_us / 1e6 / self._speed
        return self._zero + at_us / 1e6 / self._speed

    def sent(self, late_s: list[float]) -> None:
        """Some messages were published this late."""
        buckets, counts = np.unique(buckets_of(np.array(late_s) * 1e6), return_counts=True)
        for bucket, count in zip(buckets.tolist(), counts.tolist(), strict=True):
            self._late[bucket] = self._late.get(bucket, 0) + count

    def late_ms(self, share: float) -> float | None:
        """A percentile of the lateness; None if there is no schedule."""
        if self._speed is None:
            return None
        found = percentile_us(np.array([*self._late]), np.array([*self._late.values()]), share)
        return None if found is None else found / 1000


class Replay:
    """One replay. `run` publishes everything and returns when all of it is confirmed."""

    def __init__(
        self, order: ArchiveOrder, target: Target, pace: Pace, state: ReplayState, checkpoint: Checkpoint
    ) -> None:
        self._order = order
        self._target = target
        self._pace = pace
        self._state = state
        self._checkpoint = checkpoint
        self._saved_s = time.monotonic()
        self.published = 0
        """Messages of this run, repeated ones included."""

    async def run(self, progress: Progress) -> None:
        """Publishes the remaining messages. If interrupted, saves how far they are confirmed."""
        state, order = self._state, self._order
        for channel in order.channels:
            self._target.name(channel)  # raises before anything is published
        tables = order.tables(None if state.at_us is None else state.at_us - LOOKAHEAD_US)
        skip = _Skip(state)
        coming = asyncio.create_task(asyncio.to_thread(next, tables, None))
        try:
            while (table := await coming) is not None:
                coming = asyncio.create_task(asyncio.to_thread(next, tables, None))
                for rows in _python_rows(skip.rest(table)):
                    await self._publish(rows, progress)
            state.done = True
            await self._save()
        except asyncio.CancelledError:
            await self._save()
            raise
        finally:
            coming.cancel()

    async def _publish(self, rows: list[tuple[Any, ...]], progress: Progress) -> None:
        state, late_s = self._state, list[float]()
        for channel, publisher, epoch, sequence, server, entry, payload, attributes, at_us in rows:
            now_s = time.monotonic()
            due_s = self._pace.due(at_us, now_s)
            if due_s - now_s > SLEEP_S_MIN:
                await self._wait(due_s, progress)
                now_s = time.monotonic()
            late_s.append(now_s - due_s)
            id = archived_id(channel, publisher, epoch, sequence, server, entry)
            kept = {**(read_attributes(attributes) or {}), ID_ATTRIBUTE: id}
            await self._target.publish(self._target.name(channel), payload, kept)
            if publisher:
                state.numbers.came((channel, publisher, epoch), sequence)
            state.messages += 1
            state.bytes += len(payload)
            state.at_us, state.last_id = at_us, id
            self.published += 1
        self._pace.sent(late_s)
        progress(state, self._share())
        await asyncio.sleep(0)
        if time.monotonic() - self._saved_s >= CHECKPOINT_S:
            await self._save()

    async def _wait(self, due_s: float, progress: Progress) -> None:
        """Waits until a message is due. A long wait is used to save."""
        while (left_s := due_s - time.monotonic()) > 0:
            if left_s > 1.0 and time.monotonic() - self._saved_s >= CHECKPOINT_S:
                progress(self._state, self._share())
                await self._save()
            await asyncio.sleep(min(left_s, CHECKPOINT_S))

    async def _save(self) -> None:
        """Saves the state when everything that was published is confirmed."""
        await self._target.confirm()
        while self._order.claims:  # another thread adds to them
            self._state.numbers.add_claim(self._order.claims.popleft())
        self._checkpoint.write(self._state)
        self._saved_s = time.monotonic()

    def _share(self) -> float:
        first, last = self._order.span
        if self._state.at_us is None or first is None or last is None or last <= first:
            return 0.0
        return (self._state.at_us - first) / (last - first)


class _Skip:
    """Skips messages that were confirmed before a replay was continued: everything up to the last confirmed message. If
    the archive no longer has that one, everything that is earlier."""

    def __init__(self, state: ReplayState) -> None:
        self._at_us, self._id = state.at_us, state.last_id

    def rest(self, table: pa.Table) -> pa.Table:
        """The rows that are left of a table."""
        if self._at_us is None:
            return table
        times = table[AT].to_numpy()
        begin, end = (int(np.searchsorted(times, self._at_us, side)) for side in ("left", "right"))
        if begin == table.num_rows:
            return table.slice(0, 0)
        for place, row in enumerate(next(_python_rows(table.slice(begin, end - begin)), [])):
            if archived_id(*row[:6]) == self._id:
                begin += place + 1
                break
        self._at_us = None
        return table.slice(begin)


def _python_rows(table: pa.Table) -> Iterator[list[tuple[Any, ...]]]:
    for batch in table.select(_COLUMNS).to_batches(ROWS):
        yield list(zip(*(batch.column(name).to_pylist() for name in _COLUMNS), strict=True))


def read_speed(text: str) -> float | None:
    """The factor that `--speed` gives; None for `max`. ConfigError for anything else."""
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise ConfigError(f"--speed is {text!r}", do="give a factor above 0, such as 1 or 10, or max")
    return speed


def first_state(plan: ReplayPlan, span: TimeSpan) -> ReplayState:
    """The state of a replay that begins."""
    return ReplayState(plan=plan, from_us=span.from_us, to_us=span.to_us)
