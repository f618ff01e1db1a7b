"""The core of a store's agent: brings the queues on its store into the state that their plan entries demand.

Owns the steps of each queue and the report about them. Entries and the store's replies in, commands for the store
(`Ask`) out; a core without I/O. `shoal.queues.agent.process` is its shell.

    read --not there--> create --> share --> in force         share: the signed entry is copied to the store,
    read --other limits--> configure --> share                so that clients find it without the coordinator
    read --as it should be--> in force
    read --an older version, of which this store continues shards--> renew --> share
    read --an older version that was dropped, of which only copies or nothing is here--> delete, page by page --> create
    read --an older version that was abandoned, or dropped while the store was away--> shut: clients are sent away; the
                                                  messages stay until the queue comes to this store, as a new version
    read --dropped, there--> delete, page by page --> unshare --> in force

Then a mover (`shoal.queues.shard_mover`) brings the shards to the state that the entry wants: `ships` has the queues
that are so far, `shipped` takes what their movers report. A store whose shards have all moved away keeps the queue
without them: it tells clients that come late to look elsewhere. It is deleted with the queue.

In each life of the store, and after each loss of the connection, the scripts are loaded and every queue is read again.
The scripts that change messages come last, when the plan was read anew and every queue is as it says: they *open* the
store. Until then clients of a store that was away get nothing done there. Otherwise one that was connected before its
shards were abandoned would go on with messages that are given up.

A queue that was in force is never created again: if its store comes back without it, acknowledged messages are lost.
The core reports that instead of hiding it behind an empty queue. Nor does it make a queue in the place of another
version: an operator decides about its messages, and a drop of the queue deletes them. A queue that was dropped, and of
which only copies of moved shards or nothing is left, is deleted.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from shoal.logs import get_log
from shoal.plan.queue_entry import REVISION_BITS, QueueEntry
from shoal.plan.queue_mover import first_states, renewed_states, settings_at, wanted_states
from shoal.plan.queue_report import LOST, QueueReport, QueueStatus, holds_another
from shoal.plan.signature import Verifier
from shoal.queues.message_format import KEY_PREFIX
from shoal.queues.queue_state import unpack_state
from shoal.queues.script_loader import Script, Scripts
from shoal.queues.shard_mover import ShardStatus
from shoal.wire.commands import Request

DROP_PAGE: Final = 500
"""Keys and delayed messages that one call of `drop` deletes: it blocks the store for some milliseconds."""
ASKS_MAX: Final = 64
"""Queues with a command under way. The others wait for their turn."""
RETRY_S: Final = 1.0
"""How long the agent waits before it repeats what the store refused."""
CONF_WORDS: Final = 12
"""Numbers in a queue's `conf` key. The states of its shards follow if one of them is not open."""
_CONF: Final = re.compile(rb"\d{1,16}(?: \d{1,16}){%d}(?: [a-z]+)?" % (CONF_WORDS - 1))
SCRIPTS: Final = b""
"""The unit of the commands that load scripts; no queue has this name."""

_log: Final = get_log(__name__)


class Ask(msgspec.Struct, frozen=True):
    """Commands for the store about one queue, sent together. Their replies, or the first error, go to `replied` or
    `failed`."""

    unit: bytes
    requests: tuple[Request, ...]


class Step(enum.Enum):
    """The next step of a queue."""

    READ = "read"
    CREATE = "create"
    CONFIGURE = "configure"
    SHARE = "share"
    DELETE = "delete"
    UNSHARE = "unshare"
    RENEW = "renew"
    SHUT = "shut"
    DONE = "done"


@dataclass(slots=True)
class _Queue:
    """One queue whose entry names this store, or named it before."""

    named: bool
    entry: QueueEntry
    line: bytes
    """The signed entry."""
    status: QueueStatus
    step: Step = Step.READ
    asked: bool = False
    """Whether a command is under way."""
    outdated: bool = False
    """Whether the entry or the store's life has changed since that command was sent."""
    retry_at: float = 0.0
    tried: bool = False
    """Whether the entry was carried out since the connection began, or the store refused it."""
    is_here: bool = True
    """Whether the store has the queue, or must have it."""
    version: int = 0
    """The version that the store has; 0 if none."""
    shipped: ShardStatus = field(default_factory=ShardStatus)

    def reported(self) -> QueueStatus:
        """The status, with what the mover has done."""
        status, shipped = self.status, self.shipped
        if self.entry.dropped:
            return status
        move = self.entry.move
        refused = shipped.refused if move is not None and shipped.refused == move.since else 0
        trouble = status.trouble or (shipped.trouble if refused else "")
        return QueueStatus(min(status.newness, shipped.newness), trouble, shipped.copied, refused)


class StoreAgentCore:
    """The queues of one store. `verifier` has the cluster's key; `before` is the last report of an earlier agent."""

    def __init__(self, store: str, verifier: Verifier, scripts: Scripts, before: QueueReport | None = None) -> None:
        self.store = store
        self._verifier = verifier
        self._scripts = scripts
        self._queues: dict[bytes, _Queue] = {}
        self._before = {unit: status.newness for unit, status in (before.queues if before is not None else {}).items()}
        """The newest entries that earlier agents have carried out."""
        self._late: set[bytes] = set()
        """Queues that are forgotten and have a command under way, whose reply is not for a new queue of the name."""
        self._connected = False
        self._loaded = self._loading = False
        """Whether the store has the scripts of the agent, and whether some are being loaded."""
        self._plan_read = self._open = False
        """Whether the plan was read since the connection began, and whether the store has the scripts of clients."""
        self._load_at = 0.0
        self._may_act = True
        self._reported: QueueReport | None = None

    # -- inputs ----------------------------------------------------------------------------------------------

    def entry(self, data: bytes) -> None:
        """Takes a signed entry. Raises ForgedEntryError if it is not the cluster's."""
        entry = self._verifier.line(data, QueueEntry)
        known = self._queues.get(entry.unit)
        if known is not None and entry.newness <= known.entry.newness:
            return
        named = entry.store(self.store) is not None
        if known is None:
            before = self._before.pop(entry.unit, 0)
            self._queues[entry.unit] = _Queue(
                named, entry, data, QueueStatus(before), shipped=ShardStatus(newness=before)
            )
            if entry.unit in self._late:
                self._late.discard(entry.unit)
                self._queues[entry.unit].asked = self._queues[entry.unit].outdated = True
        else:
            known.named, known.entry, known.line = named, entry, data
            known.status = QueueStatus(known.status.newness)
            self._restart(known)

    def forget(self, unit: bytes) -> None:
        """The plan has no entry for a queue any more: it was dropped, here first."""
        queue = self._queues.pop(unit, None)
        if queue is not None and queue.asked:
            self._late.add(unit)
        self._before.pop(unit, None)

    def ships(self) -> list[QueueEntry]:
        """The entries whose queues are made or read, so that their shards can be brought to the wanted state."""
        return [
            queue.entry
            for queue in self._queues.values()
            if queue.step is Step.DONE and queue.is_here and not queue.entry.dropped
        ]

    def shipped(self, unit: bytes, status: ShardStatus) -> None:
        """What the mover of a queue has done."""
        if (queue := self._queues.get(unit)) is not None:
            queue.shipped = status

    def connected(self) -> None:
        """There is a connection to the store, which may have restarted."""
        self._connected, self._loaded, self._loading, self._load_at = True, False, False, 0.0
        self._plan_read = self._open = False
        self._late.clear()
        for queue in self._queues.values():
            queue.asked = queue.outdated = False
            self._restart(queue)

    def disconnected(self) -> None:
        """The connection has ended."""
        self._connected = self._loaded = self._open = False

    def plan_read(self) -> None:
        """All entries were read, and given to `entry`, since there is a connection to the store."""
        self._plan_read = True

    def lease(self, held: bool) -> None:
        """The lease of the store is this agent's, or another one's: then only that one acts."""
        self._may_act = held

    def replied(self, unit: bytes, replies: list[Any], now: float) -> None:
        """Takes the replies to an `Ask`."""
        if unit == SCRIPTS:
            self._loading, self._loaded, self._open = False, True, self._loaded
            return
        self._late.discard(unit)
        queue = self._queues.get(unit)
        if queue is None or self._was_outdated(queue):
            return
        queue.step = self._after(queue, replies, now)
        if queue.step is Step.DONE:
            queue.status, queue.tried = QueueStatus(queue.entry.newness), True

    def failed(self, unit: bytes, error: str, now: float) -> None:
        """The store refused an `Ask`; it is repeated after `RETRY_S`."""
        if unit == SCRIPTS:
            self._loading, self._load_at = False, now + RETRY_S
            return
        self._late.discard(unit)
        queue = self._queues.get(unit)
        if queue is None or self._was_outdated(queue):
            return
        if error.startswith("NOSCRIPT"):
            self._loaded, self._open, queue.step = False, False, Step.READ
        elif error.startswith("NOQUEUE"):
            queue.step = Step.READ
        else:
            self._trouble(queue, f"the store refuses to {queue.step.value} it: {error}", now)

    # -- effects ---------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the store has the scripts of the agent."""
        return self._loaded

    @property
    def open(self) -> bool:
        """Whether the store has the scripts of clients."""
        return self._open

    def asks(self, now: float) -> list[Ask]:
        """The commands to send now."""
        if not self._connected or not self._may_act:
            return []
        if not self._loaded:
            if self._loading or now < self._load_at:
                return []
            return [self._load(self._scripts.of_agent)]
        room = ASKS_MAX - sum(queue.asked for queue in self._queues.values())
        found: list[Ask] = []
        for unit, queue in self._queues.items():
            if len(found) >= room:
                break
            if queue.step is not Step.DONE and not queue.asked and now >= queue.retry_at:
                queue.asked = True
                found.append(Ask(unit, tuple(self._requests(queue))))
        if self._may_open() and now >= self._load_at:
            found.append(self._load(self._scripts.of_clients))
        return found

    def _may_open(self) -> bool:
        """Whether the scripts of clients can be loaded: what was planned for this store is done, or was refused."""
        if self._open or self._loading or not self._plan_read:
            return False
        return all(queue.tried for queue in self._queues.values())

    def _load(self, scripts: Iterable[Script]) -> Ask:
        self._loading = True
        return Ask(SCRIPTS, tuple((b"SCRIPT", b"LOAD", script.text) for script in scripts))

    def next_check_s(self, now: float) -> float | None:
        """After how long to call `asks` again without other inputs; None if only inputs can matter."""
        if not self._connected or not self._may_act:
            return None
        if not self._loaded:
            return None if self._loading else max(0.0, self._load_at - now)
        waiting = [queue.retry_at for queue in self._queues.values() if queue.step is not Step.DONE and not queue.asked]
        if self._may_open():
            waiting.append(self._load_at)
        return max(0.0, min(waiting) - now) if waiting else None

    def take_report(self) -> QueueReport | None:
        """The report, if it has changed since the last call."""
        report = QueueReport(self.store, dict(sorted(self.statuses.items())))
        if report == self._reported:
            return None
        self._reported = report
        return report

    @property
    def statuses(self) -> dict[bytes, QueueStatus]:
        """The queues on this store."""
        return {unit: queue.reported() for unit, queue in self._queues.items() if queue.named}

    @property
    def measured(self) -> dict[bytes, tuple[int, ...]]:
        """The queues that the store has, and their shards there."""
        return {
            unit: tuple(
                shard for shard, place in enumerate(queue.entry.places) if queue.entry.stores[place].id == self.store
            )
            for unit, queue in self._queues.items()
            if queue.status.newness and not queue.entry.dropped
        }

    # -- one queue -------------------------------------------------------------------------------------------

    def _requests(self, queue: _Queue) -> Iterator[Request]:
        prefix = KEY_PREFIX + queue.entry.unit + b":"
        match queue.step:
            case Step.READ:
                yield (b"GET", prefix + b"conf")
                yield (b"GET", prefix + b"entry")
                yield (b"GET", prefix + b"state")
            case Step.CREATE | Step.CONFIGURE:
                words = [b"%d" % word for word in settings_at(queue.entry, self.store).words(queue.entry.version)]
                if queue.step is Step.CREATE:
                    words.append(first_states(queue.entry, self.store).encode())
                else:
                    words.append(b"%d" % queue.entry.revision)
                yield self._admin(prefix, queue.step.value.encode(), *words)
            case Step.SHARE:
                yield (b"SET", prefix + b"entry", queue.line)
            case Step.DELETE:
                yield self._admin(prefix, b"drop", b"%d" % queue.version, b"%d" % DROP_PAGE)
            case Step.UNSHARE:
                yield (b"UNLINK", prefix + b"entry")
            case Step.RENEW:
                words = [b"%d" % word for word in settings_at(queue.entry, self.store).words(queue.entry.version)]
                letters = renewed_states(queue.entry, self.store, queue.version).encode()
                yield self._ship(prefix, queue.entry, b"renew", letters, *words)
            case Step.SHUT:
                yield self._ship(prefix, queue.entry, b"shut")
            case Step.DONE:
                return

    def _ship(self, prefix: bytes, entry: QueueEntry, operation: bytes, *arguments: bytes) -> Request:
        numbers = (b"%d" % entry.version, b"%d" % entry.revision)
        return (b"EVALSHA", self._scripts.ship.sha, b"1", prefix, operation, *numbers, *arguments)

    def _admin(self, prefix: bytes, *arguments: bytes) -> Request:
        return (b"EVALSHA", self._scripts.admin.sha, b"1", prefix, *arguments)

    def _after(self, queue: _Queue, replies: list[Any], now: float) -> Step:
        """The step after the current one, by the replies to it."""
        match queue.step:
            case Step.READ:
                conf, copy, state = replies
                return self._after_reading(queue, conf, copy, state, now)
            case Step.CREATE | Step.CONFIGURE | Step.RENEW:
                return Step.SHARE
            case Step.SHUT:
                return Step.READ if queue.named else Step.DONE
            case Step.DELETE:
                (_, visited), *_ = replies
                if visited:
                    return Step.DELETE
                return Step.UNSHARE if queue.entry.dropped else Step.READ
            case _:
                return Step.DONE

    def _after_reading(
        self, queue: _Queue, conf: bytes | None, copy: bytes | None, state: bytes | None, now: float
    ) -> Step:
        entry = queue.entry
        if conf is not None and _CONF.fullmatch(conf) is None:
            self._trouble(queue, "the store holds a damaged queue: restore its directory from a copy", now)
            return Step.READ
        words = [int(word) for word in conf.split()[:CONF_WORDS]] if conf is not None else None
        queue.is_here = words is not None or queue.named
        queue.version = words[0] if words is not None else 0
        if words is None and not queue.named:
            return Step.DONE if copy is None else Step.UNSHARE
        if words is not None and conf is not None and words[0] != entry.version:
            older = words[0] < entry.version
            dropped = older and not entry.inherits
            if _is_tombstone(conf) or (queue.named and _is_shut(conf)):
                return Step.DELETE
            if dropped and (_has_no_open(conf) or _is_unused(state) or (queue.named and entry.dropped)):
                return Step.DELETE
            if older and (entry.inherits or not queue.named):
                queue.is_here = queue.named
                if 0 < entry.inherits <= words[0] and self.store in entry.heirs:
                    return Step.RENEW
                return Step.DONE if _is_shut(conf) else Step.SHUT
            if queue.named:
                self._trouble(queue, holds_another(words[0], entry.version), now)
                return Step.READ
            queue.is_here = False
            return Step.DONE
        if entry.dropped:
            if words is not None:
                return Step.DELETE
            return Step.DONE if copy is None else Step.UNSHARE
        if words is None and "o" in wanted_states(entry, self.store):
            if queue.status.newness >> REVISION_BITS == entry.version or self.store in entry.heirs:
                self._trouble(queue, f"{LOST}: `shoal queue recover`, or drop the queue", now)
                return Step.READ
            return Step.CREATE
        limits = settings_at(entry, self.store).words(entry.version)
        if queue.named and words is not None and words[:-1] != limits[:-1]:  # the last word is whether it is paused
            return Step.CONFIGURE
        return Step.DONE if copy == queue.line else Step.SHARE

    def _trouble(self, queue: _Queue, why: str, now: float) -> None:
        if queue.status.trouble != why:
            _log.error("queue not in force", queue=queue.entry.unit, store=self.store, why=why)
        queue.status = QueueStatus(queue.status.newness, why)
        queue.step, queue.retry_at, queue.tried = Step.READ, now + RETRY_S, True

    def _restart(self, queue: _Queue) -> None:
        queue.step, queue.retry_at, queue.tried = Step.READ, 0.0, False
        queue.outdated = queue.asked

    def _was_outdated(self, queue: _Queue) -> bool:
        """Ends a command; returns whether the queue has begun again since it was sent."""
        queue.asked = False
        outdated, queue.outdated = queue.outdated, False
        return outdated


def _is_shut(conf: bytes) -> bool:
    """Whether the queue was abandoned on the store."""
    letters = conf.split()[CONF_WORDS:]
    return bool(letters) and {*letters[0]} == {*b"x"}


def _has_no_open(conf: bytes) -> bool:
    """Whether a queue has only copies of shards on the store: they were moved, or given up, and not deleted yet."""
    letters = conf.split()[CONF_WORDS:]
    return bool(letters) and not {*letters[0]} & {*b"ox"}


def _is_unused(state: bytes | None) -> bool:
    """Whether a queue was never used: a call that a network had kept made it again after it was dropped."""
    try:
        return state is not None and unpack_state(state)[2:] == (1, *[0] * 16)
    except ValueError:
        return False  # damaged


def _is_tombstone(conf: bytes) -> bool:
    """Whether a queue has no shard on the store."""
    letters = conf.split()[CONF_WORDS:]
    return bool(letters) and {*letters[0]} <= {*b"am"}
