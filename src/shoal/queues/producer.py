r"""The producer's core: which messages go to the store next, and what became of them.

Owns the batches of one producer of one queue. Does no I/O. One batch is on its way at a time: a second one could be
accepted while the first is refused, and overtake it. A batch whose reply was lost is sent again under the same number,
and the store answers it as the first time.

    waiting --next_batch()--> on its way --answered()--> accepted, refused, or waiting again (full="wait")
                                |   ^                \--> given back (`moved`), if the shard is not open on this store
                                +---+ lost(): sent again

A queue on several stores has one such core for each of them. Messages of a shard that is not open on the store are
given back in order, with all that wait behind them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from shoal.errors import (
    AlreadyAcceptedError,
    ProtocolError,
    QueueError,
    QueueFullError,
    QueueUnavailableError,
    ShoalError,
    TooManyIdsError,
    TooManyKeysError,
)
from shoal.limits import Limits
from shoal.rules import ALL_RULES, Rules, rule

SAFE_PUT: Final = rule("safe_put", "`put` returns when the store has confirmed the message.")

_PLACE: Final = attrgetter("shard", "key")
"""The order of messages in groups: the store adds those of a key with one command."""
ACCEPTED, DUPLICATE, FULL, KEYS, IDS, BEHIND, MOVED = "A", "D", "F", "K", "I", "B", "M"


WITHDRAWN: Final = -1.0
"""`give_up_at` of a message whose caller does not wait any longer: it is not sent, or not sent again."""
CAREFUL_BATCHES: Final = 16
"""Batches without groups after one of which not all messages were accepted."""
_GROUPS: Final = 3
"""The place of the groups in the arguments of a put."""
_GROUP_MAX: Final = 255
"""Messages of one group: their number is a byte."""


class Outgoing:
    """A message that was put. `outcome` is None while it is undecided, then True or the error."""

    __slots__ = ("body", "delay_ms", "give_up_at", "id", "key", "outcome", "shard", "waits")

    def __init__(
        self, shard: int, key: bytes, id: bytes, delay_ms: int, body: bytes, waits: bool, give_up_at: float
    ) -> None:
        self.shard = shard
        self.key = key
        self.id = id
        self.delay_ms = delay_ms
        self.body = body
        self.waits = waits
        """Whether the caller waits while the queue is full."""
        self.give_up_at = give_up_at
        self.outcome: bool | ShoalError | None = None


class ProducerCore:
    """One producer of one queue. `name` identifies it on the store."""

    def __init__(self, queue: str, name: bytes, version: int, limits: Limits, rules: Rules = ALL_RULES) -> None:
        self._queue = queue
        self._name = name
        self._version = version
        self._limits = limits
        self._rules = rules
        self._waiting: deque[Outgoing] = deque()
        self._batch: list[Outgoing] = []
        self._number = 0
        self._grouped = False
        """Whether the batch is sent in groups."""
        self._careful = 0
        """Batches that are sent without groups, because one with groups could not be accepted as a whole."""
        self._again = False
        """Whether the batch must be sent again, without groups."""
        self._not_before = 0.0
        self._full_delay_s = limits.queue_full_retry_s
        self.repeated = 0
        """Batches that were sent again."""
        self.messages = 0
        """Messages that the queue held when the store last answered."""
        self.moved: list[Outgoing] = []
        """Messages of shards that are not open on this store, in order. The caller takes them."""

    @property
    def idle(self) -> bool:
        """Whether nothing is waiting or on its way."""
        return not self._waiting and not self._batch

    @property
    def next_at(self) -> float | None:
        """When `next_batch` has something to send; None if nothing waits, or a batch is on its way."""
        return self._not_before if self._waiting and not self._batch else None

    def has_shard(self, shard: int) -> bool:
        """Whether a message of this shard waits here or is on its way."""
        return any(message.shard == shard for message in (*self._batch, *self._waiting, *self.moved))

    def add(self, messages: Sequence[Outgoing]) -> list[Outgoing]:
        """Accept messages for sending. Returns those that are decided at once: none, while the rules hold."""
        self._waiting += messages
        if SAFE_PUT in self._rules:
            return []
        for message in messages:
            message.outcome = True
        return [*messages]

    def next_batch(self, now: float) -> list[bytes] | None:
        """The arguments of the next `put`; None if there is nothing to send now."""
        if self._again:
            self._again = False
            return self._arguments()
        if self._batch or not self._waiting or now < self._not_before:
            return None
        size, plain = 0, True
        waiting, batch, limits = self._waiting, self._batch, self._limits
        while waiting and len(batch) < limits.queue_batch_messages_max:
            message = waiting[0]
            if message.give_up_at == WITHDRAWN:
                waiting.popleft()
                continue
            size += len(message.body)
            if batch and size > limits.queue_batch_bytes_max:
                break
            plain = plain and not message.id and not message.delay_ms
            batch.append(waiting.popleft())
        if not batch:
            return None
        self._grouped = plain and not self._careful
        self._number += 1
        return self._arguments()

    def lost(self, now: float) -> tuple[list[bytes] | None, list[Outgoing]]:
        """The reply was lost. Return the same batch, to be sent again, and no message; or None and the messages, which
        are given up because their time is over."""
        if any(now < message.give_up_at for message in self._batch):
            self.repeated += 1
            return self._arguments(), []
        return None, self._finish(
            QueueUnavailableError(
                f"the store of queue {self._queue} did not answer in time",
                do="check `shoal status`; the message may have been stored: put it again with the same id",
            )
        )

    def failed(self, error: ShoalError) -> list[Outgoing]:
        """The store refused the batch as a whole."""
        return self._finish(error)

    def abandon(self, error: ShoalError) -> list[Outgoing]:
        """Give up everything, because the queue is closed."""
        decided = [*self._finish(error), *self._waiting]
        for message in self._waiting:
            message.outcome = error
        self._waiting.clear()
        return decided

    def answered(self, letters: bytes, messages: int, now: float) -> list[Outgoing]:
        """The store's reply: a letter for each message. Returns the messages that are decided. Without letters the same
        batch must come again without groups: if there is no room for all of it, its first messages are accepted."""
        if self._grouped and not letters:
            self._grouped, self._careful, self._again = False, CAREFUL_BATCHES, True
            return []
        all_accepted = not letters.strip(b"A")
        self._careful = max(self._careful - 1, 0) if all_accepted else CAREFUL_BATCHES
        batch, self._batch = self._batch, []
        if len(letters) != len(batch):
            raise ProtocolError(f"the store answered {len(letters)} of {len(batch)} messages")
        self.messages = messages
        if all_accepted:
            self._full_delay_s = self._limits.queue_full_retry_s
            for message in batch:
                message.outcome = True
            return batch
        decided: list[Outgoing] = []
        again: list[Outgoing] = []
        full: QueueError | None = None
        before: dict[bytes, QueueError] = {}
        away: set[int] = set()
        for message, letter in zip(batch, letters.decode(), strict=True):
            if letter == MOVED:
                away.add(message.shard)
                self.moved.append(message)
                continue
            if letter == ACCEPTED:
                message.outcome = True
                decided.append(message)
                continue
            behind = full or before.get(message.key) if letter == BEHIND else None
            error = behind or self._error(letter, message)
            if letter == FULL:
                full = error
            elif letter != DUPLICATE:
                before[message.key] = error
            if message.waits and isinstance(error, QueueFullError) and now < message.give_up_at:
                again.append(message)
            else:
                message.outcome = error
                decided.append(message)
        self._waiting.extendleft(reversed(again))
        if away:
            self.moved += [message for message in self._waiting if message.shard in away]
            self._waiting = deque(message for message in self._waiting if message.shard not in away)
        if again:
            self._not_before = now + self._full_delay_s
            self._full_delay_s = min(2 * self._full_delay_s, self._limits.queue_full_retry_s_max)
        else:
            self._full_delay_s = self._limits.queue_full_retry_s
        return decided

    def _finish(self, error: ShoalError) -> list[Outgoing]:
        batch, self._batch, self._again = self._batch, [], False
        for message in batch:
            message.outcome = error
        return batch

    def _arguments(self) -> list[bytes]:
        words = [b"%d" % self._version, self._name, b"%d" % self._number]
        if not self._grouped:
            words.append(b"")
            for message in self._batch:
                words += (b"%d" % message.shard, message.key, message.body, message.id, b"%d" % message.delay_ms)
            return words
        groups, shard, count = bytearray(), -1, 0
        words.append(b"")
        for message in sorted(self._batch, key=_PLACE):  # stable: messages of a key keep their order
            if message.shard != shard or count == _GROUP_MAX:
                groups += bytes((message.shard, 0))
                shard, count = message.shard, 0
            groups[-1] = count = count + 1
            words += (message.key, message.body)
        words[_GROUPS] = bytes(groups)
        return words

    def _error(self, letter: str, message: Outgoing) -> QueueError:
        if letter == DUPLICATE:
            id, key = (name.decode(errors="backslashreplace") for name in (message.id, message.key))
            with_key = "" if key == id else f" and key {key!r}"
            return AlreadyAcceptedError(
                f"queue {self._queue} has already accepted a message with id {id!r}{with_key}",
                do="if this is a repetition, it is stored and nothing is to be done; otherwise choose another id",
            )
        if letter == KEYS:
            return TooManyKeysError(
                f"queue {self._queue} holds as many keys as it may (keys_max)",
                do="start more consumers, use fewer keys, or raise keys_max",
            )
        if letter == IDS:
            return TooManyIdsError(
                f"queue {self._queue} remembers as many message ids as it may (dedupe_ids_max)",
                do="raise dedupe_ids_max, shorten dedupe_s, or put without an id",
            )
        return QueueFullError(
            f"queue {self._queue} is full: it holds {self.messages} messages",
            do='start more consumers, raise messages_max and bytes_max, or put with full="wait"',
        )
