"""`Queue`: put, take, inspect. The shell around a producer's core, and the entry to everything else.

Owns the calls of applications, the links to the stores of the queue, and one task for each of them that sends batches.
It never decides where a queue lives: its plan entry says so. When a shard is not open on a store, it reads the entry
again; messages of the shard wait meanwhile, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from shoal.errors import (
    AlreadyAcceptedError,
    ConfigError,
    ConnectError,
    PayloadTooLargeError,
    ProtocolError,
    PublishError,
    QueueError,
    QueueNameError,
    QueueNotFoundError,
    QueueUnavailableError,
    ShoalError,
    TooManyIdsError,
    TooManyKeysError,
)
from shoal.limits import Limits
from shoal.message import Attributes, GivenAttributes
from shoal.plan.queue_entry import QueueEntry, ShardPhase
from shoal.plan.queue_mover import first_states, settings_at
from shoal.plan.queue_settings import QueueSettings, check_settings
from shoal.queues.consumer import ConsumerCore
from shoal.queues.consumer_shell import JobStream
from shoal.queues.job import FollowUp
from shoal.queues.message_format import (
    check_delay,
    check_id,
    check_key,
    check_payload,
    check_queue_name,
    decode_dead_letter,
    decode_message,
    encode_message,
)
from shoal.queues.producer import WITHDRAWN, Outgoing, ProducerCore
from shoal.queues.queue_state import STATE_FIELDS
from shoal.queues.script_loader import Script, Scripts, load_scripts
from shoal.queues.settings import ConsumerSettings
from shoal.queues.store_link import PERMANENT, Login, StoreLink
from shoal.rules import ALL_RULES, Rules, rule
from shoal.runtime import Runtime

MOVE_ORDER: Final = rule("move_order", "A message waits behind earlier ones of its shard that a moving shard refused.")
RETURN_CHECK: Final = rule("return_check", "A client reads the plan before it uses a store that may have been away.")
STORE_OPENED: Final = rule("store_opened", "A store that has come back is used after its agent has read the plan.")
FRESH_PLACES: Final = rule("fresh_places", "Operations on a whole queue read first where its shards are.")

ID_BITS: Final = 64
PAGE: Final = 256
"""Keys, messages or dead letters of one request."""
KEYS_MAX: Final = 1024
"""Keys of a shard that a store lists."""
_ENTRY: Final = re.compile(r"[0-9]{1,16}-[0-9]{1,16}")
"""A dead letter on its store."""
REFRESH_S: Final = 5.0
"""While a store does not answer, the entry is read again this often: its shards may have moved before."""


class QueueStatistics(msgspec.Struct, frozen=True):
    """What a queue holds now."""

    messages: int
    """Waiting, delayed and in flight."""
    bytes: int
    keys: int
    """Keys with messages."""
    ready: int
    """Keys that wait for a consumer."""
    held: int
    """Keys that consumers hold."""
    delayed: int
    """Messages that are not due yet."""
    halted: int
    """Keys that wait for an operator."""
    dead: int
    """Dead letters."""
    consumers: int
    waiting_consumers: int
    ids: int
    """Message ids that are remembered."""
    paused: bool
    oldest_s: float
    """Age of the message that is next, by the producer's clock; 0 if none waits."""
    settings: QueueSettings


class KeyStatus(msgspec.Struct, frozen=True):
    """A key with messages, or with a failed head."""

    key: bytes
    messages: int
    state: Literal["ready", "held", "retry", "halted"]
    consumer: str
    """The consumer that holds it."""
    attempts: int
    """Attempts of its head."""
    lease_s: float
    """How long the consumer keeps it without a sign of life; 0 if none holds it."""


class Message(msgspec.Struct, frozen=True):
    """A stored message, as `peek` and `dead` show it."""

    number: str
    key: bytes
    id: bytes | None
    payload: bytes
    attributes: Attributes | None
    put_at: float


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that failed for the last time. `entry` names it in `replay` and `forget`, and changes when its shard
    moves to another store."""

    entry: str
    message: Message
    reason: str
    attempts: int
    at: float
    """When it was given up, by the store's clock."""


class PutResult(msgspec.Struct, frozen=True):
    """The outcome of `put_many`. `refused` has the position and the error of each message that was not stored."""

    accepted: int
    refused: tuple[tuple[int, ShoalError], ...] = ()


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message for `put_many`."""

    payload: bytes | str
    key: str | bytes | None = None
    id: str | bytes | None = None
    delay: float = 0.0
    attributes: GivenAttributes | None = None


class _PutCall:
    """A call that waits until its messages are decided."""

    __slots__ = ("future", "left")

    def __init__(self, future: asyncio.Future[None], left: int) -> None:
        self.future = future
        self.left = left
        """Messages that are not decided."""


@dataclass(frozen=True, slots=True)
class QueueContext:
    """What a queue needs from its bus."""

    limits: Limits
    runtime: Runtime
    login: Callable[[], Login]
    find: Callable[[str], Awaitable[QueueEntry]]
    """Reads the entry of a queue; QueueNotFoundError if there is none."""
    rules: Rules = ALL_RULES
    create: Callable[[str, QueueSettings | None], Awaitable[QueueEntry]] | None = None
    """Has a queue created if there is none, and returns its entry. None: stores have no agents, so `Queue.create` makes
    it there, and links load the scripts."""


class _StorePath:
    """A client's way to one store of a queue: the link, the producer's core, and the task that sends its batches."""

    def __init__(self, link: StoreLink, producer: ProducerCore) -> None:
        self.link = link
        self.producer = producer
        self.sender: asyncio.Task[None] | None = None
        self.wake = asyncio.Event()


class _ConsumerAccess:
    """A consumer's way to one store (`shoal.queues.consumer_shell.StoreAccess`)."""

    def __init__(
        self,
        link: StoreLink,
        core: ConsumerCore,
        prefix: bytes,
        run: Callable[[list[bytes]], Awaitable[list[Any]]],
        pushed: Callable[[bytes], None],
    ) -> None:
        self.core = core
        self._run = run
        self._link = link
        self._prefix = prefix
        self._pushed = pushed

    async def listen(self) -> None:
        """Receive pushed jobs from now on."""
        await self._link.listen(self._prefix + b"in:" + self.core.name, self._pushed)

    async def run_turn(self, arguments: list[bytes]) -> list[Any]:
        """Run a turn on the store."""
        return await self._run(arguments)


class Queue:
    """One queue of a cluster. It connects when it is used."""

    def __init__(self, name: str, context: QueueContext, sibling: Callable[[str], Queue]) -> None:
        """`sibling` returns another queue of the same bus, for follow-ups."""
        self.name = name
        self._prefix = check_queue_name(name)
        self._context = context
        self._limits = context.limits
        self._scripts: Scripts = load_scripts(context.rules)
        self._sibling = sibling
        self._number = context.runtime.random.getrandbits(ID_BITS)
        self._put_count = 0
        self._entry: QueueEntry | None = None
        self._paths: dict[str, _StorePath] = {}
        self._routes: dict[int, str] = {}
        self._held: dict[int, deque[Outgoing]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop that has used it first."""
        self._opening = asyncio.Lock()
        self._repairing = asyncio.Lock()
        self._repairs = 0
        self._refresher: asyncio.Task[None] | None = None
        self._refresh_wanted = False
        self._refresh_delay_s = context.limits.queue_moving_retry_s
        self._refreshed_at = 0.0
        """When the entry was asked for, the last time that it was read."""
        self.rerouted = 0
        """Messages that a store has given back, because their shard is not open there. Not for applications."""
        self._waiters: dict[Outgoing, _PutCall] = {}
        self._job_streams: list[JobStream] = []
        self._consumer_count = 0
        self._left: list[asyncio.Task[None]] = []
        """Links to stores that do not have the queue any more, while they close."""
        self._closed = False

    @property
    def producers(self) -> list[ProducerCore]:
        """The producer's cores, one for each store. Not for applications."""
        return [path.producer for path in self._paths.values()]

    # Putting

    async def put(
        self,
        payload: bytes | str,
        *,
        key: str | bytes | None = None,
        id: str | bytes | None = None,
        delay: float = 0.0,
        at: float | None = None,
        attributes: GivenAttributes | None = None,
        full: Literal["raise", "wait"] = "raise",
    ) -> None:
        """Store a message. Returns when it is safe: it survives a kill -9 of anything.

        Messages with the same `key` are processed one after the other, in the order of their puts; without a key, a
        message is independent of all others. A message whose `id` was accepted with the same key, or without a key,
        within `dedupe_s` is refused with AlreadyAcceptedError. With `delay` (seconds), or `at` (seconds since 1970), it
        joins its key when it is due. With full="wait", a full queue is waited for, for up to `queue_put_timeout_s`.
        """
        if at is not None:
            if delay:
                raise TypeError("put() takes either delay=... or at=..., not both")
            if isinstance(at, bool) or not isinstance(at, int | float):
                raise TypeError(f"at=... is a number of seconds since 1970, not {type(at).__name__}")
            delay = at - self._context.runtime.wall()
            delay = 0.0 if delay < 0 else delay
        outgoing = self._encode(payload, key, id, delay, attributes)
        await self._send([outgoing], full)
        if isinstance(outgoing.outcome, ShoalError):
            raise outgoing.outcome

    async def put_many(
        self, messages: Iterable[NewMessage | bytes | str], *, full: Literal["raise", "wait"] = "raise"
    ) -> PutResult:
        """Store messages in order. Returns when all are safe or refused; a refused message does not stop the others,
        except those of the same key behind it, or of any key if the queue is full or its store does not answer. A value
        of the wrong type raises TypeError, and nothing is stored."""
        if isinstance(messages, str | bytes | bytearray | memoryview):
            raise TypeError("put_many() takes several messages; put() takes one")
        refused: list[tuple[int, ShoalError]] = []
        sent: list[Outgoing] = []
        positions: list[int] = []
        stopped: dict[bytes, ShoalError] = {}
        for position, one in enumerate(messages):
            message = one if isinstance(one, NewMessage) else NewMessage(one)
            try:
                outgoing = self._encode(message.payload, message.key, message.id, message.delay, message.attributes)
            except (PublishError, QueueNameError) as error:
                refused.append((position, error))
                if message.key is not None:
                    with contextlib.suppress(QueueNameError):  # an invalid key has no other messages
                        stopped.setdefault(check_key(message.key), error)
                continue
            if outgoing.key in stopped:
                refused.append((position, stopped[outgoing.key]))
            else:
                sent.append(outgoing)
                positions.append(position)
        await self._send_batches(sent, full)
        for position, outgoing in zip(positions, sent, strict=True):
            if isinstance(outgoing.outcome, ShoalError):
                refused.append((position, outgoing.outcome))
        accepted = sum(outgoing.outcome is True for outgoing in sent)
        return PutResult(accepted, tuple(sorted(refused, key=lambda one: one[0])))

    async def _send_batches(self, messages: list[Outgoing], full: str) -> None:
        """Send messages, batch after batch. A message behind a refused one of its key is not sent, because it would
        overtake it when the caller repeats the refused one; nothing is sent behind a refusal that concerns all keys."""
        step = self._limits.queue_batch_messages_max
        refused: dict[bytes, ShoalError] = {}
        for start in range(0, len(messages), step):
            batch = messages[start : start + step]
            if refused:
                for message in batch:
                    message.outcome = refused.get(message.key)
                batch = [message for message in batch if message.outcome is None]
            await self._send(batch, full)
            for message in batch:
                error = message.outcome
                if not isinstance(error, ShoalError) or isinstance(error, AlreadyAcceptedError):
                    continue
                if not isinstance(error, TooManyKeysError | TooManyIdsError | PayloadTooLargeError):
                    for later in messages[start + step :]:
                        later.outcome = error
                    return
                refused.setdefault(message.key, error)

    async def _send(self, messages: Sequence[Outgoing], full: str) -> None:
        """Send messages; returns when all are decided."""
        if full not in ("raise", "wait"):
            raise ValueError(f'full is "raise" or "wait", not {full!r}')
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._limits.queue_put_timeout_s
        entry = await self._open(create=True)
        part = entry.settings.bytes_max if len(entry.stores) == 1 else entry.settings.bytes_max // len(entry.places)
        if any(len(message.body) > part for message in messages):
            entry, messages = await self._without_too_large(messages)
        waits, shard_of = full == "wait", entry.shard_of
        for message in messages:
            message.shard, message.waits, message.give_up_at = shard_of(message.key), waits, give_up_at
        if messages:
            call = _PutCall(loop.create_future(), len(messages))
            self._waiters.update(dict.fromkeys(messages, call))
            self._route(messages)
            try:
                await call.future
            except asyncio.CancelledError:
                for message in messages:
                    message.give_up_at = WITHDRAWN
                    self._waiters.pop(message, None)
                raise

    async def _without_too_large(self, messages: Sequence[Outgoing]) -> tuple[QueueEntry, list[Outgoing]]:
        """The newest entry, and the messages that fit an empty queue. The others never fit: they are refused, because
        one that waits holds back all messages of this client, and so are those of their keys behind them."""
        entry, fitting = await self._current(), list[Outgoing]()
        refused: dict[bytes, ShoalError] = {}
        for message in messages:
            most = settings_at(entry, entry.store_of(entry.shard_of(message.key)).id).bytes_max
            if len(message.body) > most:
                refused[message.key] = PayloadTooLargeError(
                    f"the message has {len(message.body)} bytes, and queue {self.name} holds {most} on its store",
                    do="store the payload elsewhere and put a reference, or raise bytes_max of the queue",
                )
            message.outcome = refused.get(message.key)
            if message.outcome is None:
                fitting.append(message)
        return entry, fitting

    def _encode(
        self,
        payload: bytes | str,
        key: str | bytes | None,
        id: str | bytes | None,
        delay: float,
        attributes: GivenAttributes | None,
    ) -> Outgoing:
        """A message as the store gets it, but for its shard. One without a key has a key of its own: its id, because
        stores look for a repetition among the ids of a key."""
        self._put_count += 1
        number = b"%016x-%x" % (self._number, self._put_count)
        data = check_payload(payload)
        delay_ms = 0 if type(delay) is float and delay == 0 else round(check_delay(delay) * 1000)
        own_id = b"" if id is None else check_id(id)
        own_key = own_id or number if key is None else check_key(key)
        put_us = max(0, int(self._context.runtime.wall() * 1e6))
        body = encode_message(number, own_id, put_us, data, attributes, self._limits)
        return Outgoing(0, own_key, own_id, delay_ms, body, False, 0.0)

    def _route(self, messages: Iterable[Outgoing]) -> None:
        """Give messages to the producers of their stores. Those of a shard that is moving wait behind earlier ones."""
        by_store: dict[str, list[Outgoing]] = {}
        store_of: dict[int, str] = {}  # of shards that are not moving: it does not change meanwhile
        for message in messages:
            shard = message.shard
            store = store_of.get(shard)
            if store is None:
                if shard in self._held and MOVE_ORDER in self._context.rules:
                    self._held[shard].append(message)
                    continue
                store = store_of[shard] = self._store_of(shard)
            found = by_store.get(store)
            if found is None:
                found = by_store[store] = []
            found.append(message)
        for store, found in by_store.items():
            path = self._path(store)
            self._tell(path.producer.add(found))
            if path.sender is None or path.sender.done():
                path.sender = asyncio.create_task(self._run_sender(path), name=f"producer of {self.name} at {store}")
            path.wake.set()

    def _store_of(self, shard: int) -> str:
        """The store that gets the next message of a shard. It changes when the old one has answered all earlier
        ones."""
        assert self._entry is not None
        wanted, current = self._entry.store_of(shard).id, self._routes.get(shard)
        if current is None or current == wanted or not self._path(current).producer.has_shard(shard):
            self._routes[shard] = current = wanted
        return current

    async def _run_sender(self, path: _StorePath) -> None:
        producer = path.producer
        loop = asyncio.get_running_loop()
        arguments: list[bytes] | None = None
        while not producer.idle:
            if arguments is None:
                arguments = producer.next_batch(loop.time())
            if arguments is None:
                at = producer.next_at
                path.wake.clear()
                try:
                    async with asyncio.timeout(None if at is None else max(at - loop.time(), 0.0) + 0.001):
                        await path.wake.wait()
                except TimeoutError:
                    pass
                continue
            try:
                letters, _, messages = (await self._run(path, self._scripts.put, arguments)).partition(b" ")
                decided = producer.answered(letters, int(messages), loop.time())
                arguments = None
            except ShoalError as error:
                if isinstance(error, ConnectError) and not isinstance(error, PERMANENT):
                    arguments, decided = producer.lost(loop.time())
                    self._ask_places(lost=True)
                    if arguments is not None:
                        await asyncio.sleep(self._limits.reconnect_delay_s_min)
                else:
                    arguments, decided = None, producer.failed(error)
            self._tell(decided)
            if producer.moved:
                moved, producer.moved = producer.moved, []
                self.rerouted += len(moved)
                for message in moved:
                    self._held.setdefault(message.shard, deque()).append(message)
                self._ask_places()

    # Where shards are

    def _ask_places(self, lost: bool = False) -> None:
        """Read the entry again soon. With `lost`, because a store does not answer, not often."""
        loop = asyncio.get_running_loop()
        if self._closed or (lost and loop.time() - self._refreshed_at < REFRESH_S):
            return
        self._refresh_wanted = True
        if self._refresher is None or self._refresher.done():
            if loop.time() - self._refreshed_at >= REFRESH_S:
                self._refresh_delay_s = self._limits.queue_moving_retry_s
            self._refresher = asyncio.create_task(self._run_refresher(), name=f"places of {self.name}")

    async def _run_refresher(self) -> None:
        loop = asyncio.get_running_loop()
        while self._refresh_wanted and not self._closed:
            self._refresh_wanted = False
            await asyncio.sleep(self._refresh_delay_s)
            self._refresh_delay_s = min(2 * self._refresh_delay_s, self._limits.queue_moving_retry_s_max)
            self._refreshed_at = loop.time()
            await self._read_entry()
            self._release_held(loop.time())

    async def _read_entry(self) -> None:
        """Read the entry, and use it if it is newer. If the queue was dropped, the known one ends: a store may still
        have the queue, but messages in it would never be taken. Without the coordinator the known entry counts."""
        try:
            self._take_entry(await self._context.find(self.name))
        except QueueNotFoundError as error:
            if self._entry is not None:
                self._forget_places(error)
        except ShoalError:
            pass

    def _take_entry(self, entry: QueueEntry) -> None:
        """Use a newer entry."""
        if self._entry is None or entry.newness <= self._entry.newness:
            return
        if entry.version != self._entry.version:
            self._forget_places(
                QueueUnavailableError(
                    f"an operator has abandoned a store of queue {self.name}, or the queue was created again",
                    do="put it again; the message may be lost",
                )
            )
            return
        self._entry = entry
        self._refresh_delay_s = self._limits.queue_moving_retry_s
        for store in entry.stores:
            if store.id in self._paths:
                self._paths[store.id].link.address = store
        for jobs in list(self._job_streams):
            jobs.use(entry)

    def _release_held(self, now: float) -> None:
        """Send the messages that waited for a shard, in order. Those that waited for too long are given up."""
        held, self._held = self._held, {}
        for waiting in held.values():
            late = [message for message in waiting if now >= message.give_up_at]
            for message in late:
                message.outcome = QueueUnavailableError(
                    f"a part of queue {self.name} is moving to another store and is not open yet",
                    do="check `shoal status`; the message was not stored: put it again",
                )
            self._tell(late)
            self._route(message for message in waiting if message.outcome is None)

    def _path(self, store: str) -> _StorePath:
        path = self._paths.get(store)
        if path is None:
            assert self._entry is not None
            address = self._entry.store(store)
            assert address is not None
            context, name = self._context, f"shoal-queue:{self._number:016x}"
            link = StoreLink(
                address,
                context.login,
                name,
                self._limits,
                context.runtime,
                lambda: self._connection_lost(store),
                lambda: self._store_opened(store),
                loads=context.create is None or STORE_OPENED not in context.rules,
            )
            producer = b"%016x" % self._number
            path = _StorePath(link, ProducerCore(self.name, producer, self._entry.version, self._limits, context.rules))
            self._paths[store] = path
        return path

    def _connection_lost(self, store: str) -> None:
        for jobs in self._job_streams:
            jobs.connection_lost(store)

    async def _store_opened(self, store: str) -> bool:
        """There is a new connection to a store, which may have been away. Its shards may have been abandoned meanwhile,
        so the entry is read before the store gets anything. Without the coordinator the known entry counts. Returns
        whether the path is still used."""
        path = self._paths.get(store)
        if RETURN_CHECK in self._context.rules:
            await self._read_entry()
        return path is not None and self._paths.get(store) is path

    async def _open(self, create: bool = False) -> QueueEntry:
        if self._closed:
            raise QueueError("the queue is closed", do="open a new bus")
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._loop is not None:
                raise QueueError(
                    f"queue {self.name} is used in two event loops, and its bus belongs to the first one",
                    do="open a bus in each event loop",
                )
            self._loop = loop
        if self._entry is not None and not self._opening.locked():
            return self._entry
        async with self._opening:
            if self._entry is None:
                self._entry = await self._find(create)
                if self._context.create is not None:
                    limits = self._limits
                    try:
                        await self._made(limits.queue_put_timeout_s if create else limits.connect_timeout_s)
                    except BaseException as error:
                        self._forget_places(error if isinstance(error, ShoalError) else QueueError("not opened"))
                        raise
            return self._entry

    async def _current(self) -> QueueEntry:
        """The entry as the plan has it now. A client that neither puts nor takes does not hear of moves otherwise."""
        if self._entry is not None and FRESH_PLACES in self._context.rules:
            self._take_entry(await self._context.find(self.name))
        return await self._open()

    async def _find(self, create: bool) -> QueueEntry:
        try:
            return await self._context.find(self.name)
        except QueueNotFoundError:
            if not create or self._context.create is None:
                raise
            return await self._context.create(self.name, None)

    async def _made(self, limit_s: float) -> None:
        """Wait until a store has the queue, whose entry may be new: the store's agent makes it."""
        assert self._entry is not None
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + limit_s
        link = self._path(self._entry.store_of(0).id).link
        while True:
            try:
                await link.run(self._scripts.look, self._prefix, [b"stats"])
                return
            except (QueueNotFoundError, ConnectError) as error:
                if isinstance(error, PERMANENT):
                    raise
                if loop.time() >= give_up_at:
                    raise QueueUnavailableError(
                        f"store {link.address.id} does not have queue {self.name} yet ({error})",
                        do="check `shoal status`: the store and its agent must run; nothing was stored",
                    ) from error
            await asyncio.sleep(self._limits.reconnect_delay_s_min)

    async def _run(self, path: _StorePath, script: Script, arguments: list[bytes]) -> Any:
        """Run a script. If the queue was dropped, the next call looks for it again."""
        if self._paths.get(path.link.address.id) is not path:
            raise QueueNotFoundError(
                f"queue {self.name} was dropped, or an operator abandoned a store of it", do="use it again"
            )
        try:
            return await path.link.run(script, self._prefix, arguments)
        except QueueNotFoundError as error:
            if self._context.create is not None and self._paths.get(path.link.address.id) is path:
                self._forget_places(error)
            raise

    def _forget_places(self, error: ShoalError) -> None:
        """Give up what waits, and close all links. The next call looks for the queue again, as another producer: a
        store that keeps its shards under a new version remembers the batches of this one."""
        self._give_up(error)
        self._number = self._context.runtime.random.getrandbits(ID_BITS)
        paths, self._paths, self._routes, self._entry = [*self._paths.values()], {}, {}, None
        for path in paths:
            path.wake.set()  # its sender has nothing left, and ends
            self._left.append(asyncio.create_task(path.link.close(), name=f"close {path.link.address.id}"))
        self._left = [task for task in self._left if not task.done()]

    def _give_up(self, error: ShoalError) -> None:
        """End all messages that wait for a store."""
        held = [message for waiting in self._held.values() for message in waiting]
        self._held = {}
        for message in held:
            message.outcome = error
        self._tell(held)
        for path in self._paths.values():
            self._tell(path.producer.abandon(error))

    def _tell(self, decided: Iterable[Outgoing]) -> None:
        waiters = self._waiters
        for message in decided:
            call = waiters.pop(message, None)
            if call is not None:
                call.left -= 1
                if not call.left and not call.future.done():
                    call.future.set_result(None)

    # JobStream

    def take(
        self,
        *,
        max_in_flight: int | None = None,
        ack_timeout: float | None = None,
        settings: ConsumerSettings | None = None,
    ) -> JobStream:
        """Take jobs: `async with queue.take() as jobs: async for job in jobs`.

        `max_in_flight` bounds the messages that this consumer holds (64, or as `settings` say). With `ack_timeout`, a
        job that was not ended after that many seconds is handed out again; after three times the consumer leaves, and
        iterating raises ConsumerInactiveError. Other settings of the consumer are in `settings`.
        """
        if settings is not None and not isinstance(settings, ConsumerSettings):
            raise ConfigError(f"settings is {settings!r}", do="give shoal.ConsumerSettings(...)")
        chosen = settings or ConsumerSettings()
        if max_in_flight is not None:
            chosen = msgspec.structs.replace(chosen, max_in_flight=max_in_flight)
        chosen.validate()
        limit: object = ack_timeout
        if limit is not None and not (isinstance(limit, int | float) and limit > 0):  # also for NaN
            raise ConfigError(f"ack_timeout is {limit!r}", do="give seconds above 0, or None")

        group: list[ConsumerCore] = []
        self._consumer_count += 1
        name = b"%016x-%x" % (self._number, self._consumer_count)
        lease_s = 0.0

        async def start(jobs: JobStream) -> QueueEntry:
            nonlocal lease_s
            entry = await self._open(create=True)
            lease_s = (await self._statistics_at(entry.store_of(0).id)).settings.lease_s
            if jobs not in self._job_streams:
                self._job_streams.append(jobs)
            return self._entry or entry

        def reach(jobs: JobStream, store: str) -> _ConsumerAccess:
            assert self._entry is not None
            core = ConsumerCore(
                self.name,
                name,
                self._entry.version,
                lease_s,
                chosen,
                self._limits,
                self._context.rules,
                ack_timeout,
                group,
            )
            path = self._path(store)

            async def run_turn(arguments: list[bytes]) -> list[Any]:
                reply: list[Any] = await self._run(path, self._scripts.turn, arguments)
                return reply

            return _ConsumerAccess(path.link, core, self._prefix, run_turn, lambda data: jobs.pushed(store, data))

        async def stop(jobs: JobStream) -> None:
            if jobs in self._job_streams:
                self._job_streams.remove(jobs)
            for path in self._paths.values() if jobs.started else ():
                with contextlib.suppress(ConnectError):  # the inbox ended with the connection
                    await path.link.unlisten(self._prefix + b"in:" + name)

        return JobStream(self.name, start, reach, stop, self._put_follow_ups, self._ask_places, self._limits)

    async def _put_follow_ups(self, staged: list[FollowUp]) -> None:
        """Store follow-ups. One that was stored by an earlier attempt is not stored again."""
        for one in staged:
            queue = self if one.queue is None or one.queue == self.name else self._sibling(one.queue)
            outgoing = queue._encode(one.payload, one.key, one.id, one.delay, one.attributes)
            await queue._send([outgoing], "wait")
            if isinstance(outgoing.outcome, ShoalError) and not isinstance(outgoing.outcome, AlreadyAcceptedError):
                raise outgoing.outcome

    # Inspecting and changing

    async def stats(self) -> QueueStatistics:
        """Return what the queue holds, on all its stores. While a shard is copied to another store, it counts twice."""
        newness = None
        while newness != (entry := await self._current()).newness:  # a shard may have moved between two stores' answers
            found = [await self._statistics_at(store.id) for store in entry.stores if entry.shards_at(store.id)]
            newness = entry.newness
        if len(found) == 1:
            return found[0]
        summed = {name: sum(getattr(one, name) for one in found) for name in _SUMMED}
        return msgspec.structs.replace(
            found[0],
            **summed,
            consumers=max(one.consumers for one in found),
            waiting_consumers=max(one.waiting_consumers for one in found),
            oldest_s=max(one.oldest_s for one in found),
            settings=entry.settings,
        )

    async def _statistics_at(self, store: str) -> QueueStatistics:
        conf, state, consumers, waiting, dead, halted, first = await self._look(store, b"stats")
        words = [int(word) for word in conf.split()[:12]]
        now = dict(zip(STATE_FIELDS, map(int, state.split()), strict=True))
        age_s = 0.0
        if first is not None and (put_at := _message(b"", first).put_at):
            age_s = max(0.0, self._context.runtime.wall() - put_at)
        return QueueStatistics(
            messages=now["messages"],
            bytes=now["bytes"],
            keys=now["keys"],
            ready=now["ready"],
            held=now["owned"],
            delayed=now["delayed"],
            halted=halted,
            dead=dead,
            consumers=consumers,
            waiting_consumers=waiting,
            ids=now["ids"] + now["ids_old"],
            paused=bool(words[11]),
            oldest_s=age_s,
            settings=QueueSettings.from_words(words),
        )

    async def keys(self, count: int = 100) -> list[KeyStatus]:
        """Return up to `count` keys with work: first those that are halted or wait for a retry, then those that
        consumers hold, then the others."""
        found = await self._keys(max(count, PAGE)) if count > 0 else []
        return sorted(found, key=lambda status: _KEY_ORDER[status.state])[:count]

    async def _keys(self, count: int) -> list[KeyStatus]:
        """Up to `count` keys of each shard."""
        entry = await self._current()
        most = b"%d" % min(count, KEYS_MAX)
        found: list[KeyStatus] = []
        for shard in range(len(entry.places)):
            found += map(_key_status, await self._call(self._scripts.look, shard, b"keys", b"%d" % shard, most))
        return found

    async def peek(self, key: str | bytes | None = None, count: int = 10) -> list[Message]:
        """Return the first messages of a key, or the first message of each of several keys, without taking them."""
        entry = await self._current()
        if key is None:
            names = [status.key for status in await self._keys(count) if status.messages] if count > 0 else []
            return [message for name in names[:count] for message in await self.peek(name, 1)]
        raw = check_key(key)
        shard = entry.shard_of(raw)
        found: list[Message] = []
        while len(found) < count:
            start, more = b"%d" % len(found), b"%d" % min(count - len(found), PAGE)
            bodies = await self._call(self._scripts.look, shard, b"peek", b"%d" % shard, raw, start, more)
            if not bodies:
                break
            found += [_message(raw, body) for body in bodies]
        return found

    async def purge(self) -> int:
        """Drop all messages, also those in flight, whose consumers get JobLostError. Returns how many. Dead letters
        stay, and so does a shard that is just moving."""
        total = 0
        for store in await self._stores_with_shards():
            visited = PAGE
            while visited == PAGE:  # the last page finds everything that is there, at one moment
                dropped, visited = await self._repair(store, b"purge", b"%d" % PAGE)
                total += int(dropped)
        return total

    async def drop(self) -> int:
        """Drop the queue on its stores, with its dead letters. Returns how many messages were dropped. Not for
        applications: `shoal queue drop` also removes it from the plan."""
        total = 0
        for store in await self._stores_with_shards():
            visited = 1
            while visited:
                version = b"%d" % (await self._open()).version
                dropped, visited = await self._admin(store, b"drop", version, b"%d" % PAGE)
                total += int(dropped)
        return total

    async def pause(self) -> None:
        """Stop giving out jobs. Consumers finish what they hold; `put` works."""
        await self._set_paused(True)

    async def resume(self) -> None:
        """End `pause`."""
        await self._set_paused(False)

    async def _set_paused(self, paused: bool) -> None:
        """Changes are numbered, and odd ones pause: a store that gets a shard takes the later of two."""
        change = int(paused)
        while True:
            entry = await self._current()
            stores = [store.id for store in entry.stores if entry.shards_at(store.id)]
            if entry.move is not None and entry.move.phase is ShardPhase.COPY and entry.move.destination not in stores:
                stores.append(entry.move.destination)  # before, it has heard of no change
            known = max([int(await self._repair(store, b"pause", b"%d" % change)) for store in stores])
            if known > change:
                change = known if known % 2 == paused else known + 1
            elif entry.newness == (await self._current()).newness:
                return

    async def configure(self, settings: QueueSettings) -> None:
        """Replace the limits of the queue on its store. The number of shards cannot be changed. Not for applications:
        `shoal queue configure` also changes the plan."""
        check_settings(settings)
        entry = await self._current()
        if settings.shards != len(entry.places):
            raise QueueError(f"queue {self.name} has {len(entry.places)} shards", do="create another queue")
        changed = msgspec.structs.replace(entry, settings=settings)
        for store in entry.stores:
            words = settings_at(changed, store.id).words(entry.version)
            await self._admin(store.id, b"configure", *(b"%d" % word for word in (*words, entry.revision)))

    async def create(self, settings: QueueSettings | None = None) -> bool:
        """Create the queue with these settings. Returns False if there is one already, which stays as it is. The first
        `put` or `take` creates it too, with the default settings."""
        chosen = check_settings(settings)
        if self._context.create is not None:
            try:
                await self._open()
            except QueueNotFoundError:
                created = await self._context.create(self.name, chosen)
                await self._open()
                return created.settings == chosen  # otherwise another client was first
            return False
        entry = msgspec.structs.replace(await self._current(), settings=chosen)
        made = True
        for store in entry.stores:
            words = settings_at(entry, store.id).words(entry.version)
            states = first_states(entry, store.id).encode()
            made = (
                bool(
                    await self._call(
                        self._scripts.admin, store.id, b"create", *(b"%d" % word for word in words), states
                    )
                )
                and made
            )
        return made

    async def dead(self, count: int = 100, after: str = "") -> list[DeadLetter]:
        """Return dead letters, the oldest of each store first, after the entry `after`."""
        start, _, at = after.partition("@")
        found: list[DeadLetter] = []
        for store in sorted(await self._stores_with_shards()):
            last = start if store == at else ""
            # An entry with a larger name is not from a script, and the last one of its store.
            while store >= at and len(found) < count and (not last or _ENTRY.fullmatch(last)):
                listed = await self._look(store, b"dead", last.encode(), b"%d" % min(count - len(found), PAGE))
                if not listed:
                    break
                found += [_dead_letter(entry, store, fields) for entry, fields in listed]
                last = listed[-1][0].decode()
        return found

    async def replay(self, entry: str) -> bool:
        """Put a dead letter back: to the head of its key if the key is halted, otherwise to the tail. Returns False if
        there is no such dead letter; raises QueueFullError if there is no room."""
        number, _, store = entry.partition("@")
        if store not in await self._stores_with_shards() or not _ENTRY.fullmatch(number):
            return False
        return bool(await self._repair(store, b"replay", number.encode()))

    async def forget(self, *entries: str) -> int:
        """Drop dead letters. Returns how many."""
        count = 0
        for store in await self._stores_with_shards():
            named = [number for number, _, at in (entry.partition("@") for entry in entries) if at == store]
            numbers = [number.encode() for number in named if _ENTRY.fullmatch(number)]
            for start in range(0, len(numbers), PAGE):
                count += int(await self._repair(store, b"forget", *numbers[start : start + PAGE]))
        return count

    async def release(self, key: str | bytes) -> bool:
        """Let a halted key continue with its next message. Returns False if it was not halted."""
        raw = check_key(key)
        shard = (await self._current()).shard_of(raw)
        return bool(await self._repair(shard, b"release", b"%d" % shard, raw))

    async def drain(self) -> None:
        """Wait until the store has answered every `put`."""
        if self._waiters:
            await asyncio.wait({call.future for call in self._waiters.values()})

    async def aclose(self) -> None:
        """Leave with all consumers, then end the connections. Messages that `put` still waits for fail."""
        self._closed = True
        for jobs in list(self._job_streams):
            await jobs.aclose()
        error = QueueUnavailableError(
            f"queue {self.name} was closed before the store confirmed", do="wait for `put` before closing"
        )
        self._give_up(error)
        tasks = [self._refresher] if self._refresher is not None else []
        tasks += [path.sender for path in self._paths.values() if path.sender is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for path in self._paths.values():
            await path.link.close()
        await asyncio.gather(*self._left, return_exceptions=True)

    async def _stores_with_shards(self) -> list[str]:
        """The stores that have shards. The destination of a move may not have the queue yet."""
        entry = await self._current()
        return [store.id for store in entry.stores if entry.shards_at(store.id)]

    async def _look(self, where: str | int, *arguments: bytes) -> Any:
        return await self._call(self._scripts.look, where, *arguments)

    async def _repair(self, where: str | int, *arguments: bytes) -> Any:
        """One at a time: a store refuses a call that is older than the last one that it knows."""
        async with self._repairing:
            self._repairs += 1
            return await self._call(self._scripts.repair, where, *arguments, number=self._repairs)

    async def _admin(self, where: str | int, *arguments: bytes) -> Any:
        return await self._call(self._scripts.admin, where, *arguments)

    async def _call(self, script: Script, where: str | int, *arguments: bytes, number: int = 0) -> Any:
        """Run an operation on a store, or on the store of a shard. One with a number is carried out once."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._limits.connect_timeout_s
        while True:
            entry = await self._open()
            store = entry.store_of(where).id if isinstance(where, int) else where
            if entry.store(store) is None:
                raise QueueUnavailableError(f"store {store} has left queue {self.name}", do="try again")
            caller = [b"%d" % entry.version, b"%016x-repair" % self._number, b"%d" % number] if number else []
            try:
                return await self._run(self._path(store), script, [*caller, *arguments])
            except PERMANENT:
                raise
            except ConnectError as error:
                if loop.time() >= give_up_at:
                    raise QueueUnavailableError(
                        f"the store of queue {self.name} does not answer ({error})", do="check `shoal status`"
                    ) from error
                self._ask_places()
                await asyncio.sleep(self._limits.reconnect_delay_s_min)


_SUMMED: Final = ("messages", "bytes", "keys", "ready", "held", "delayed", "halted", "dead", "ids")
"""Counts that are summed over the stores of a queue."""


_KEY_ORDER: Final = {"halted": 0, "retry": 1, "held": 2, "ready": 3}
"""Keys that an operator looks for come first."""


def _key_status(line: list[Any]) -> KeyStatus:
    key, messages, owner, attempts, lease_ms = line
    state: Literal["ready", "held", "retry", "halted"] = "held"
    if owner in (b"", b"-"):
        state = "retry" if owner else "ready"
    elif owner == b"!":
        state = "halted"
    consumer = owner.decode(errors="replace") if state == "held" else ""
    return KeyStatus(key, messages, state, consumer, attempts, max(lease_ms, 0) / 1000)


def _message(key: bytes, body: bytes) -> Message:
    try:
        stored = decode_message(body)
        attributes, payload = stored.split()
    except ProtocolError:  # not from a client of ours: shown as it is
        return Message("", key, None, body, None, 0.0)
    return Message(
        stored.number.decode(errors="replace"), key, stored.id or None, payload, attributes, stored.put_us / 1e6
    )


def _dead_letter(entry: bytes, store: str, fields: list[bytes]) -> DeadLetter:
    name = f"{entry.decode()}@{store}"
    try:
        found = decode_dead_letter(fields)
    except ProtocolError as error:  # not from a script: it can be forgotten
        return DeadLetter(name, Message("", b"", None, b"", None, 0.0), error.what, 0, 0.0)
    return DeadLetter(name, _message(found.key, found.body), found.reason, found.attempts, found.at_ms / 1000)
