"""Replays an archive into a queue: each message is put with a key, and with the id of the archived message.

Owns the key, the id, and the batches. The queue drops a message whose id it remembers, so messages that a continued
replay repeats are stored once, as long as the queue remembers ids (`dedupe_s`).
"""

from __future__ import annotations

import hashlib
from typing import Final

from shoal.errors import AlreadyAcceptedError, ConfigError, QueueFullError
from shoal.history.table import channel_name
from shoal.message import Attributes
from shoal.pipeline.message_ids import ID_ATTRIBUTE
from shoal.queues.message_format import ID_BYTES_MAX, KEY_BYTES_MAX
from shoal.queues.queue import NewMessage, Queue

BATCH: Final = 256
"""Messages that are put together."""


class QueueTarget:
    """A queue of a cluster. The key of a message is the value of its attribute `key_attribute`; without one, or if it
    does not have the attribute, the name of its channel. A full queue is waited for."""

    def __init__(self, queue: Queue, key_attribute: str | None = None) -> None:
        self._queue = queue
        self._key_attribute = key_attribute
        self._batch: list[NewMessage] = []

    def name(self, channel: str) -> bytes:
        """The channel's own name: it is the key."""
        return channel_name(channel)

    async def publish(self, name: bytes, payload: bytes, attributes: Attributes) -> None:
        """Puts a message with its batch."""
        value = attributes.get(self._key_attribute) if self._key_attribute else None
        key = name if value is None else str(value).encode()
        if not 1 <= len(key) <= KEY_BYTES_MAX:
            raise ConfigError(
                f"the key of a message has {len(key)} bytes",
                do=f"choose an attribute of 1 to {KEY_BYTES_MAX} bytes with --key",
            )
        id = replayed_id(str(attributes[ID_ATTRIBUTE]))
        self._batch.append(NewMessage(payload, key=key, id=id, attributes=attributes))
        if len(self._batch) >= BATCH:
            await self.confirm()

    async def confirm(self) -> None:
        """Waits until the store has synced everything that was put."""
        while self._batch:
            outcome = await self._queue.put_many(self._batch, full="wait")
            left: list[NewMessage] = []
            for position, error in outcome.refused:
                if isinstance(error, AlreadyAcceptedError):
                    continue
                if not isinstance(error, QueueFullError):
                    raise error
                left.append(self._batch[position])
            self._batch = left


def replayed_id(archived: str) -> bytes:
    """The id of an archived message in a queue: a digest if it is too long."""
    id = archived.encode("utf-8", "surrogateescape")
    return id if len(id) <= ID_BYTES_MAX else hashlib.blake2b(id, digest_size=32).hexdigest().encode()
