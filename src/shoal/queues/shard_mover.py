"""The mover's core: what the agent of a store does with the shards of one queue, call by call.

Owns the part of one store in the moves of one queue. Does no I/O. Its inputs are entries of the queue and replies of
the script `ship`; its results are the next call and a report for the leader.

    place     bring the store to the state that the entry wants; shards that are gone are dropped in pages
    size      (prepare, at the destination) how large is the shard? A shard that is too large is refused
    seal      (copy, at the destination) nothing in the shard changes any more at the source
    export, import   page by page, from the cursor that the destination has stored

It keeps no state that matters: both stores know how far the copy is. A mover that starts again asks them, and every
call can be repeated. Calls carry the revision of the entry, and a store that has seen a newer one refuses them.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from shoal.limits import Limits
from shoal.plan.queue_entry import QueueEntry, ShardMove, ShardPhase
from shoal.plan.queue_mover import pause_s, settings_at, wanted_states

DROP_MESSAGES: Final = 1000
"""Messages that one call drops."""
_UNKNOWN: Final = b"?"
_END, _MISCOUNTED = b"end", b"miscounted"


class ShipCall(NamedTuple):
    """A call of the script `ship` on a store."""

    store: str
    arguments: list[bytes]


class ShardStatus(msgspec.Struct, frozen=True, array_like=True):
    """What the leader must know (`shoal.plan.queue_mover.ShardReport`)."""

    newness: int = 0
    copied: int = 0
    refused: int = 0
    trouble: str = ""


class ShardMover:
    """One queue on one store."""

    def __init__(self, store: str, limits: Limits) -> None:
        self.status = ShardStatus()
        self.pages = 0
        """Pages that were imported."""
        self._store = store
        self._limits = limits
        self._entry: QueueEntry | None = None
        self._step = ""
        self._dropping: list[bytes] = []
        self._facts = b""
        self._cursor = b""
        self._page: list[bytes] = []

    @property
    def entry(self) -> QueueEntry | None:
        """The newest entry that it knows."""
        return self._entry

    def observe(self, entry: QueueEntry) -> None:
        """The entry of the queue."""
        if self._entry is None or entry.newness > self._entry.newness:
            self._entry = entry
            self._step = "place"

    def next_call(self) -> ShipCall | None:
        """The next call; None if there is nothing to do until the next entry."""
        entry = self._entry
        if entry is None or not self._step:
            return None
        if self._step == "place":
            move = entry.move
            words = settings_at(entry, self._store).words(entry.version)
            since = b"%d" % (move.since if move is not None else 0)
            states = wanted_states(entry, self._store).encode()
            return self._call(self._store, b"place", since, states, *(b"%d" % word for word in words))
        if self._step == "drop":
            return self._call(self._store, b"drop", self._dropping[0], b"%d" % DROP_MESSAGES)
        move = entry.move
        assert move is not None
        shard, since = b"%d" % move.shard, b"%d" % move.since
        if self._step == "size":
            return self._call(move.source, b"size", shard)
        if self._step == "seal":
            return self._call(move.source, b"seal", shard, since)
        if self._step == "export":
            return self._call(move.source, b"export", shard, since, self._cursor)
        to, *records = self._page or [_UNKNOWN]
        return self._call(self._store, b"import", shard, since, self._facts, self._cursor, to, *records)

    def answered(self, reply: Any) -> None:
        """The reply to the call."""
        entry = self._entry
        assert entry is not None
        move = entry.move if entry.move is not None and entry.move.destination == self._store else None
        match self._step:
            case "place":
                self._placed([bytes(shard) for shard in reply], entry, move)
            case "drop":
                if not reply:
                    del self._dropping[0]
                if not self._dropping:
                    self._step = "place"
            case "size":
                assert move is not None
                messages, size, _, ids = reply
                estimate_s = pause_s(messages, size, ids)
                if estimate_s > self._limits.move_pause_s_max:
                    self.refuse(
                        f"with {messages} messages it would stand still for about {estimate_s:.1f} s, and "
                        f"move_pause_s_max is {self._limits.move_pause_s_max:g}"
                    )
                else:
                    self._report_placed(entry)
            case "seal":
                self._facts, self._cursor, self._page = bytes(reply), _UNKNOWN, []
                self._step = "import"
            case "export":
                self._page = [*reply]
                self._step = "import"
            case "import":
                self._imported(bytes(reply), move)

    def refuse(self, why: str) -> None:
        """The move cannot be carried out."""
        entry = self._entry
        if entry is not None and entry.move is not None and entry.move.destination == self._store:
            self._step = ""
            self.status = msgspec.structs.replace(self.status, refused=entry.move.since, trouble=why)

    def _placed(self, left: list[bytes], entry: QueueEntry, move: ShardMove | None) -> None:
        self._dropping = left
        if left:
            self._step = "drop"
            if move is None or move.phase is ShardPhase.OPEN or b"%d" % move.shard not in left:
                self.status = msgspec.structs.replace(self.status, newness=entry.newness)
        elif move is not None and move.phase is ShardPhase.PREPARE:
            self._step = "size"
        else:
            self._report_placed(entry)
            if move is not None and move.phase is ShardPhase.COPY:
                self._step = "seal"

    def _report_placed(self, entry: QueueEntry) -> None:
        self.status = msgspec.structs.replace(self.status, newness=entry.newness)
        self._step = ""

    def _imported(self, cursor: bytes, move: ShardMove | None) -> None:
        assert move is not None
        if self._page and cursor == self._page[0]:
            self.pages += 1
        self._cursor, self._page = cursor, []
        self._step = "export"
        if cursor == _END:
            self._step = ""
            self.status = msgspec.structs.replace(self.status, copied=move.since)
        elif cursor == _MISCOUNTED:
            self.refuse("the copy does not have as many messages as the shard")

    def _call(self, store: str, operation: bytes, *arguments: bytes) -> ShipCall:
        assert self._entry is not None
        words = [operation, b"%d" % self._entry.version, b"%d" % self._entry.revision, *arguments]
        return ShipCall(store, words)
