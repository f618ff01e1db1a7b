"""`Queue`: put, take, inspect. The shell around a producer's core, and the entry to everything else.

Owns the calls of applications, the link to the store, and the one task that sends batches. It never decides where a
queue lives: its plan entry says so.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from shoal.errors import (
    AlreadyAcceptedError,
    ConnectError,
    QueueError,
    QueueNotFoundError,
    QueueUnavailableError,
    ShoalError,
)
from shoal.limits import Limits
from shoal.message import Attributes, GivenAttributes
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.queue_settings import QueueSettings
from shoal.queues.consumer import ConsumerCore
from shoal.queues.consumer_shell import JobStream, TurnRunner
from shoal.queues.job import FollowUp
from shoal.queues.message_format import check_id, check_key, check_queue_name, decode_message, encode_message
from shoal.queues.producer import Outgoing, ProducerCore
from shoal.queues.script_loader import Script, Scripts, load_scripts
from shoal.queues.settings import ConsumerSettings
from shoal.queues.store_link import PERMANENT, Login, StoreLink
from shoal.rules import ALL_RULES, Rules
from shoal.runtime import Runtime

ID_BITS: Final = 64
PAGE: Final = 256
"""Keys, messages or dead letters of one request."""
STATE_FIELDS: Final = (
    "now", "wall", "counter", "messages", "bytes", "keys", "owned", "ready", "delayed", "ids", "ids_old", "generation",
    "generation_at", "buried",
)  # fmt: skip
"""The numbers of a queue's `state` key, in the order of the scripts."""


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
    """A message that failed for the last time. `entry` names it in `replay` and `forget`."""

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
    """Has a queue created if there is none, and returns its entry. None: `Queue.create` makes it on its store."""


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
        self._link: StoreLink | None = None
        self._producer: ProducerCore | None = None
        self._opening = asyncio.Lock()
        self._sender: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._waiters: dict[Outgoing, asyncio.Future[None]] = {}
        self._job_streams: list[JobStream] = []
        self._consumer_count = 0
        self._left: list[asyncio.Task[None]] = []
        """Links to stores that do not have the queue any more, while they close."""
        self._closed = False

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
        message is independent of all others. A message whose `id` was accepted with the same key within `dedupe_s` is
        refused with AlreadyAcceptedError. With `delay` (seconds), or `at` (seconds since 1970), it joins its key when
        it is due. With full="wait", a full queue is waited for, for up to `queue_put_timeout_s`.
        """
        if at is not None:
            if delay:
                raise TypeError("put() takes either delay=... or at=..., not both")
            delay = max(0.0, at - self._context.runtime.wall())
        (outgoing,) = await self._send([NewMessage(payload, key, id, delay, attributes)], full)
        if isinstance(outgoing.outcome, ShoalError):
            raise outgoing.outcome

    async def put_many(
        self, messages: Iterable[NewMessage | bytes | str], *, full: Literal["raise", "wait"] = "raise"
    ) -> PutResult:
        """Store messages in order. Returns when all are safe or refused; a refused message does not stop the others,
        except those of the same key behind it, or of any key if the queue is full."""
        accepted = 0
        refused: list[tuple[int, ShoalError]] = []
        given = [one if isinstance(one, NewMessage) else NewMessage(one) for one in messages]
        for start in range(0, len(given), self._limits.queue_batch_messages_max):
            part = given[start : start + self._limits.queue_batch_messages_max]
            for position, outgoing in enumerate(await self._send(part, full), start):
                if isinstance(outgoing.outcome, ShoalError):
                    refused.append((position, outgoing.outcome))
                else:
                    accepted += 1
        return PutResult(accepted, tuple(refused))

    async def _send(self, messages: Sequence[NewMessage], full: str) -> list[Outgoing]:
        if full not in ("raise", "wait"):
            raise ValueError(f'full is "raise" or "wait", not {full!r}')
        give_up_at = asyncio.get_running_loop().time() + self._limits.queue_put_timeout_s
        encoded = [self._encode(message) for message in messages]
        entry, _, producer = await self._open(create=True)
        outgoing = [
            Outgoing(entry.shard_of(key), key, id, delay_ms, body, full == "wait", give_up_at)
            for key, id, delay_ms, body in encoded
        ]
        loop = asyncio.get_running_loop()
        futures = []
        for message in outgoing:
            futures.append(loop.create_future())
            self._waiters[message] = futures[-1]
        self._tell(producer.add(outgoing))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._run_sender(), name=f"producer of {self.name}")
        self._wake.set()
        await asyncio.gather(*futures)
        return outgoing

    def _encode(self, message: NewMessage) -> tuple[bytes, bytes, int, bytes]:
        self._put_count += 1
        number = b"%016x-%x" % (self._number, self._put_count)
        payload = message.payload.encode() if isinstance(message.payload, str) else message.payload
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise TypeError(f"a payload must be bytes or str, not {type(payload).__name__}")
        key = number if message.key is None else check_key(message.key)
        id = b"" if message.id is None else check_id(message.id)
        if not 0 <= message.delay < 10 * 366 * 86400:
            raise ValueError(f"a delay is between 0 and ten years in seconds, not {message.delay}")
        put_us = int(self._context.runtime.wall() * 1e6)
        body = encode_message(number, id, put_us, bytes(payload), message.attributes, self._limits)
        return key, id, round(message.delay * 1000), body

    async def _run_sender(self) -> None:
        assert self._producer is not None
        assert self._link is not None
        producer, link = self._producer, self._link
        loop = asyncio.get_running_loop()
        arguments: list[bytes] | None = None
        while not producer.idle:
            if arguments is None:
                arguments = producer.next_batch(loop.time())
            if arguments is None:
                at = producer.next_at
                self._wake.clear()
                try:
                    async with asyncio.timeout(None if at is None else max(at - loop.time(), 0.0) + 0.001):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                continue
            try:
                letters, messages = await self._run(link, self._scripts.put, arguments)
                decided = producer.answered(letters, messages, loop.time())
                arguments = None
            except ShoalError as error:
                if isinstance(error, ConnectError) and not isinstance(error, PERMANENT):
                    arguments, decided = producer.lost(loop.time())
                    if arguments is not None:
                        await asyncio.sleep(self._limits.reconnect_delay_s_min)
                else:
                    arguments, decided = None, producer.failed(error)
            self._tell(decided)

    def _tell(self, decided: Iterable[Outgoing]) -> None:
        for message in decided:
            future = self._waiters.pop(message, None)
            if future is not None and not future.done():
                future.set_result(None)

    # JobStream

    def take(
        self,
        *,
        max_in_flight: int = 64,
        ack_timeout: float | None = None,
        settings: ConsumerSettings | None = None,
    ) -> JobStream:
        """Take jobs: `async with queue.take() as jobs: async for job in jobs`.

        `max_in_flight` bounds the messages that this consumer holds. With `ack_timeout`, a job that was not ended after
        that many seconds is handed out again; after three times the consumer leaves, and iterating raises
        ConsumerInactiveError. Other settings of the consumer are in `settings`.
        """
        chosen = msgspec.structs.replace(settings or ConsumerSettings(), max_in_flight=max_in_flight)
        chosen.validate()

        async def start(jobs: JobStream) -> tuple[ConsumerCore, TurnRunner]:
            entry, link, _ = await self._open(create=True)
            stored = (await self.stats()).settings
            self._consumer_count += 1
            name = b"%016x-%x" % (self._number, self._consumer_count)
            core = ConsumerCore(
                self.name, name, entry.version, stored.lease_s, chosen, self._limits, self._context.rules, ack_timeout
            )
            await link.listen(self._prefix + b"in:" + name, jobs.pushed)
            self._job_streams.append(jobs)

            async def run_turn(arguments: list[bytes]) -> list[Any]:
                reply: list[Any] = await self._run(link, self._scripts.turn, arguments)
                return reply

            return core, run_turn

        async def stop(jobs: JobStream) -> None:
            if jobs in self._job_streams:
                self._job_streams.remove(jobs)
            if self._link is not None and jobs.started:
                with contextlib.suppress(ConnectError):  # the inbox ended with the connection
                    await self._link.unlisten(self._prefix + b"in:" + jobs.core.name)

        return JobStream(self.name, start, stop, self._put_follow_ups, self._limits)

    async def _put_follow_ups(self, staged: list[FollowUp]) -> None:
        """Store follow-ups. One that was stored by an earlier attempt is not stored again."""
        for one in staged:
            queue = self if one.queue is None or one.queue == self.name else self._sibling(one.queue)
            message = NewMessage(one.payload, one.key, one.id, one.delay, one.attributes)
            (outgoing,) = await queue._send([message], "wait")
            if isinstance(outgoing.outcome, ShoalError) and not isinstance(outgoing.outcome, AlreadyAcceptedError):
                raise outgoing.outcome

    # Inspecting and changing

    async def stats(self) -> QueueStatistics:
        """Return what the queue holds."""
        conf, state, consumers, waiting, dead, halted, first = await self._admin(b"stats")
        words = [int(word) for word in conf.split()]
        now = dict(zip(STATE_FIELDS, map(int, state.split()), strict=True))
        age_s = 0.0
        if first is not None:
            age_s = max(0.0, self._context.runtime.wall() - decode_message(first).put_us / 1e6)
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
        """Return up to `count` keys with work, those that consumers hold or that failed first."""
        entry, _, _ = await self._open()
        found: list[KeyStatus] = []
        for shard in range(len(entry.places)):
            if len(found) < count:
                listed = await self._admin(b"keys", b"%d" % shard, b"%d" % min(count - len(found), PAGE))
                found += map(_key_status, listed)
        return found

    async def peek(self, key: str | bytes | None = None, count: int = 10) -> list[Message]:
        """Return the first messages of a key, or the first message of each of several keys, without taking them."""
        entry, _, _ = await self._open()
        if key is None:
            names = [status.key for status in await self.keys(count) if status.messages]
            return [message for name in names for message in await self.peek(name, 1)]
        raw = check_key(key)
        shard = b"%d" % entry.shard_of(raw)
        bodies = await self._admin(b"peek", shard, raw, b"0", b"%d" % min(count, PAGE))
        return [_message(raw, body) for body in bodies]

    async def purge(self) -> int:
        """Drop all messages, also those in flight, whose consumers get JobLostError. Returns how many. Dead letters
        stay."""
        return await self._drop_pages(b"purge")

    async def drop(self) -> int:
        """Drop the queue on its store, with its dead letters. Returns how many messages were dropped. Not for
        applications: `shoal queue drop` also removes it from the plan."""
        return await self._drop_pages(b"drop")

    async def pause(self) -> None:
        """Stop giving out jobs. Consumers finish what they hold; `put` works."""
        await self._admin(b"pause", b"1")

    async def resume(self) -> None:
        """End `pause`."""
        await self._admin(b"pause", b"0")

    async def configure(self, settings: QueueSettings) -> None:
        """Replace the limits of the queue on its store. The number of shards cannot be changed. Not for applications:
        `shoal queue configure` also changes the plan."""
        settings.validate()
        current = (await self.stats()).settings
        if settings.shards != current.shards:
            raise QueueError(f"queue {self.name} has {current.shards} shards", do="create another queue")
        entry, _, _ = await self._open()
        await self._admin(b"configure", *(b"%d" % word for word in settings.words(entry.version)))

    async def create(self, settings: QueueSettings | None = None) -> bool:
        """Create the queue with these settings. Returns False if there is one already, which stays as it is. The first
        `put` or `take` creates it too, with the default settings."""
        chosen = settings or QueueSettings()
        chosen.validate()
        if self._context.create is not None:
            try:
                await self._open()
            except QueueNotFoundError:
                await self._context.create(self.name, chosen)
                await self._open()
                return True
            return False
        entry, _, _ = await self._open()
        made = await self._admin(b"create", *(b"%d" % word for word in chosen.words(entry.version)))
        return bool(made)

    async def dead(self, count: int = 100, after: str = "") -> list[DeadLetter]:
        """Return dead letters, the oldest first, after the entry `after`."""
        listed = await self._admin(b"dead", after.encode(), b"%d" % count)
        return [_dead_letter(entry, fields) for entry, fields in listed]

    async def replay(self, entry: str) -> bool:
        """Put a dead letter back: to the head of its key if the key is halted, otherwise to the tail. Returns False if
        there is no such dead letter; raises QueueFullError if there is no room."""
        return bool(await self._admin(b"replay", entry.encode()))

    async def forget(self, *entries: str) -> int:
        """Drop dead letters. Returns how many."""
        return int(await self._admin(b"forget", *(entry.encode() for entry in entries)))

    async def release(self, key: str | bytes) -> bool:
        """Let a halted key continue with its next message. Returns False if it was not halted."""
        raw = check_key(key)
        entry, _, _ = await self._open()
        return bool(await self._admin(b"release", b"%d" % entry.shard_of(raw), raw))

    async def drain(self) -> None:
        """Wait until the store has answered every `put`."""
        if self._waiters:
            await asyncio.wait([*self._waiters.values()])

    async def aclose(self) -> None:
        """Leave with all consumers, then end the connection. Messages that `put` still waits for fail."""
        self._closed = True
        for jobs in list(self._job_streams):
            await jobs.aclose()
        if self._producer is not None:
            error = QueueUnavailableError(
                f"queue {self.name} was closed before the store confirmed", do="wait for `put` before closing"
            )
            self._tell(self._producer.abandon(error))
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)
        if self._link is not None:
            await self._link.close()
        await asyncio.gather(*self._left)

    async def _drop_pages(self, operation: bytes) -> int:
        total = 0
        while True:
            dropped, visited = await self._admin(operation, b"%d" % PAGE)
            total += int(dropped)
            if not visited:
                return total

    async def _admin(self, *arguments: bytes) -> Any:
        _, link, _ = await self._open()
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._limits.connect_timeout_s
        while True:
            try:
                return await self._run(link, self._scripts.admin, [*arguments])
            except PERMANENT:
                raise
            except ConnectError as error:
                if loop.time() >= give_up_at:
                    raise QueueUnavailableError(
                        f"the store of queue {self.name} does not answer ({error})", do="check `shoal status`"
                    ) from error
                await asyncio.sleep(self._limits.reconnect_delay_s_min)

    async def _run(self, link: StoreLink, script: Script, arguments: list[bytes]) -> Any:
        """Run a script. If the queue was dropped, the next call looks for it again."""
        if link is not self._link:
            raise QueueNotFoundError(f"queue {self.name} was dropped", do="use it again; the first put creates it")
        try:
            return await link.run(script, self._prefix, arguments)
        except QueueNotFoundError as error:
            if self._context.create is not None and link is self._link:  # another call may have found out too
                self._forget_place(error)
            raise

    def _forget_place(self, error: QueueNotFoundError) -> None:
        assert self._link is not None
        assert self._producer is not None
        self._tell(self._producer.abandon(error))
        self._left.append(asyncio.create_task(self._link.close()))
        self._left = [task for task in self._left if not task.done()]
        self._entry = self._link = self._producer = self._sender = None

    async def _find(self, create: bool) -> QueueEntry:
        try:
            return await self._context.find(self.name)
        except QueueNotFoundError:
            if not create or self._context.create is None:
                raise
            return await self._context.create(self.name, None)

    async def _made(self, link: StoreLink, limit_s: float) -> None:
        """Wait until the store has a queue whose entry is new: its agent makes it."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + limit_s
        while True:
            try:
                await link.run(self._scripts.admin, self._prefix, [b"stats"])
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

    async def _open(self, create: bool = False) -> tuple[QueueEntry, StoreLink, ProducerCore]:
        if self._closed:
            raise QueueError("the queue is closed", do="open a new bus")
        async with self._opening:
            if self._entry is None or self._link is None or self._producer is None:
                context = self._context
                entry = await self._find(create)
                if len(entry.stores) != 1:
                    raise QueueUnavailableError(
                        f"queue {self.name} is on {len(entry.stores)} stores, and this version of Shoal knows one",
                        do="upgrade this process",
                    )
                name = f"shoal-queue:{self._number:016x}"
                link = StoreLink(
                    entry.stores[0], context.login, name, self._limits, context.runtime, self._connection_lost
                )
                if context.create is not None:
                    limits = self._limits
                    try:
                        await self._made(link, limits.queue_put_timeout_s if create else limits.connect_timeout_s)
                    except BaseException:
                        await link.close()
                        raise
                self._entry, self._link = entry, link
                producer = b"%016x" % self._number
                self._producer = ProducerCore(self.name, producer, entry.version, self._limits, context.rules)
            return self._entry, self._link, self._producer

    def _connection_lost(self) -> None:
        for jobs in self._job_streams:
            jobs.connection_lost()


def _key_status(line: list[Any]) -> KeyStatus:
    key, messages, owner, attempts, lease_ms = line
    state: Literal["ready", "held", "retry", "halted"] = "held"
    if owner in (b"", b"-"):
        state = "retry" if owner else "ready"
    elif owner == b"!":
        state = "halted"
    consumer = owner.decode() if state == "held" else ""
    return KeyStatus(key, messages, state, consumer, attempts, max(lease_ms, 0) / 1000)


def _message(key: bytes, body: bytes) -> Message:
    stored = decode_message(body)
    attributes, payload = stored.split()
    return Message(stored.number.decode(), key, stored.id or None, payload, attributes, stored.put_us / 1e6)


def _dead_letter(entry: bytes, fields: list[bytes]) -> DeadLetter:
    named = dict(zip(fields[::2], fields[1::2], strict=True))
    return DeadLetter(
        entry.decode(),
        _message(named[b"key"], named[b"body"]),
        named[b"reason"].decode(errors="replace"),
        int(named[b"attempts"]),
        int(named[b"at"]) / 1000,
    )
