"""The report of a store's agent: which queues are in force on its store.

Owns the record and its stored form, in the coordinator at `reports/queue/<store>`. The leader reads it before it ends a
request, `shoal queue create` before it returns.
"""

from __future__ import annotations

from typing import Final

import msgspec

from shoal.errors import ProtocolError
from shoal.plan.kinds import QUEUE
from shoal.plan.move_request import decode_body, encode_body

LOST: Final = "the store has lost the queue"
"""The trouble of a queue that was on a store and is not there any more."""


class QueueStatus(msgspec.Struct, frozen=True, array_like=True):
    """One queue on a store."""

    newness: int
    """The newest entry (`QueueEntry.newness`) that the store has carried out; 0 if none."""
    trouble: str = ""
    """Why the queue is not available, or its newest entry not carried out; empty if there is no obstacle."""
    copied: int = 0
    """The move (`ShardMove.since`) whose shard is copied to this store completely; 0 if none."""
    refused: int = 0
    """The move that this store cannot carry out, because of the trouble; 0 if none."""


class QueueReport(msgspec.Struct, frozen=True, array_like=True):
    """The queues on one store, by name: all whose entries name the store."""

    store: str
    queues: dict[bytes, QueueStatus]

    @property
    def host(self) -> str:
        """The reporting host."""
        return self.store


_decoder: Final = msgspec.msgpack.Decoder(QueueReport)


def encode_queue_report(report: QueueReport) -> bytes:
    """The stored form of a report."""
    return encode_body(QUEUE, report)


def decode_queue_report(data: bytes) -> QueueReport:
    """The report in `data`; ProtocolError if it is invalid."""
    try:
        return decode_body(data, QUEUE, _decoder)
    except ValueError as error:
        raise ProtocolError(f"the report of a store's agent cannot be read: {error}") from error
