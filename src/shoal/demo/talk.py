"""What the demo and its crowd processes say to each other, over the crowd's standard input and output.

Owns the words and their frames: a length of four bytes, then MessagePack.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Final, TypeAlias

import msgspec

from shoal.demo.audit import Publications, Receipt, Tally
from shoal.limits import Limits


class Begin(msgspec.Struct, tag=True, frozen=True):
    """The first word to a crowd: the cluster, the size of the world, and which crowd of how many it is."""

    url: str
    limits: Limits
    tiles: int
    crowd: int
    crowds: int
    seed: int
    update_bytes: int = 0
    """Smallest payload of an update; shorter ones are filled up."""


class Grow(msgspec.Struct, tag=True, frozen=True):
    """So many players in all should play now: others join, or the newest leave."""

    players: int


class Gather(msgspec.Struct, tag=True, frozen=True):
    """So many players, those who have played longest, should be in the town; the others walk about."""

    players: int


class Rest(msgspec.Struct, tag=True, frozen=True):
    """Publish no more, but read on; answered by `Rested`."""


class Account(msgspec.Struct, tag=True, frozen=True):
    """Say what was published and received; answered by `Accounts`."""


class Tick(msgspec.Struct, tag=True, frozen=True):
    """How a crowd is, several times a second. `responses_ms` are those since the last tick."""

    players: int
    tally: Tally
    responses_ms: list[float]
    back_until: float
    """Every update published before this moment (of the monotonic clock) has come back to its player."""
    gap_reasons: dict[str, int]
    """Reason of reported gaps to how many there were."""
    troubles: list[str]


class Rested(msgspec.Struct, tag=True, frozen=True):
    """Servers have everything that the crowd published."""


class Accounts(msgspec.Struct, tag=True, frozen=True):
    """What the crowd's players published and received."""

    publications: Publications
    receipts: list[Receipt]
    tally: Tally


Order: TypeAlias = Begin | Grow | Gather | Rest | Account
Answer: TypeAlias = Tick | Rested | Accounts

_LENGTH: Final = struct.Struct("<I")
_encoder: Final = msgspec.msgpack.Encoder()
_orders: Final[msgspec.msgpack.Decoder[Order]] = msgspec.msgpack.Decoder(Order)
_answers: Final[msgspec.msgpack.Decoder[Answer]] = msgspec.msgpack.Decoder(Answer)


def frame(word: Order | Answer) -> bytes:
    """A word as it goes over the pipe."""
    body = _encoder.encode(word)
    return _LENGTH.pack(len(body)) + body


async def read_order(stream: asyncio.StreamReader) -> Order | None:
    """The next order; None when the demo has ended."""
    body = await _body(stream)
    return None if body is None else _orders.decode(body)


async def read_answer(stream: asyncio.StreamReader) -> Answer | None:
    """The next answer; None when the crowd has ended."""
    body = await _body(stream)
    return None if body is None else _answers.decode(body)


async def _body(stream: asyncio.StreamReader) -> bytes | None:
    try:
        (length,) = _LENGTH.unpack(await stream.readexactly(_LENGTH.size))
        return await stream.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
