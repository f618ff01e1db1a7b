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


def holds_another(held: int, planned: int) -> str:
    """The trouble of a queue on a store that holds another version. An older one was dropped while the store was away,
    or ran without its directory."""
    way_out = _WAY_OUT if held < planned else ""
    return f"the store holds version {held} of the queue, the plan says {planned}{way_out}"


def holds_older(trouble: str, planned: int) -> bool:
    """Whether this is the trouble of a queue on a store that holds an older version."""
    return trouble.endswith(f" {planned}{_WAY_OUT}")


_WAY_OUT: Final = ": drop the queue, which deletes both, and create it again"


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
