"""The balancer's keys in the coordinator, and the encoding of their values.

Owns the names and the formats. Never touches the coordinator.

    balance/state               the state that the next leader needs: see `BalancerState`
    balance/windows             the source of load windows: see `shoal.balance.window_source`
    balance/why/<channel>       the reason and the measurements behind a channel's placement
    balance/pins/<channel>      a pin: policies leave the channel alone until it is released
    balance/proposals/<digest>  the bytes of a proposal that can be applied
    balance/asks/<id>           a request of a command to make or apply a proposal
    balance/answers/<id>        the outcome of that request, until it is read
"""

from __future__ import annotations

from typing import Final, Literal, TypeVar

import msgspec

from shoal.balance.change import ChannelMove, Place
from shoal.balance.window_source import WindowRoute
from shoal.errors import PlanError
from shoal.plan.keys import unit_of, unit_text

STATE_KEY: Final = "balance/state"
WINDOWS_KEY: Final = "balance/windows"
WHY_PREFIX: Final = "balance/why/"
PINS_PREFIX: Final = "balance/pins/"
PROPOSALS_PREFIX: Final = "balance/proposals/"
ASKS_PREFIX: Final = "balance/asks/"
ANSWERS_PREFIX: Final = "balance/answers/"

PROPOSALS_MAX: Final = 16
"""Proposals that are kept so that they can be applied. Above it the oldest is dropped."""

REMOVED_MAX: Final = 64
"""Removed servers that are remembered, because a ring may still name them."""

APPLIED_MAX: Final = 64
"""Applied plans that are remembered, so that none is applied twice."""

FORMAT: Final = 2
UPGRADE: Final = "upgrade this process"

T = TypeVar("T")


class BalancerState(msgspec.Struct, frozen=True):
    """The state that the next leader needs. Times are wall-clock seconds."""

    planned_at: float | None = None
    """When the last plan was applied; None if none was."""
    digest: str = ""
    """The plan under way; empty if there is none."""
    adding: dict[str, float] = {}
    """Servers that were requested and have not joined yet, and when they were requested."""
    removed: tuple[str, ...] = ()
    """The servers that were removed last, newest first."""
    applied: tuple[str, ...] = ()
    """Digests of the plans that were applied last, newest first."""
    adding_hosts: dict[str, tuple[str, float]] = {}
    """Hosts of other kinds that were requested and have not reported yet: the kind, and when they were requested."""


class Why(msgspec.Struct, frozen=True):
    """The reason for a channel's placement."""

    at_s: float
    policy: str
    digest: str
    window_end_s: float
    before: Place
    after: Place
    reason: str
    figures: dict[str, float]


class Pin(msgspec.Struct, frozen=True):
    """A pinned channel: where the operator wants it, and since when. If one of its servers dies, the channel is placed
    again, and the pin then holds it there."""

    place: Place
    at_s: float


class Ask(msgspec.Struct, frozen=True):
    """A command's request: make a proposal with a policy (empty: the configured one), or apply one."""

    do: Literal["propose", "apply"]
    policy: str = ""
    digest: str = ""


class AskOutcome(msgspec.Struct, frozen=True):
    """The outcome of an ask. `error` is why it failed, empty if it did not; `proposal` is the requested proposal."""

    error: str
    digest: str = ""
    proposal: bytes = b""
    moves: int = 0


def why_of(move: ChannelMove, policy: str, digest: str, window_end_s: float, at_s: float) -> Why:
    """The reason of a move, in the form in which it is stored."""
    return Why(at_s, policy, digest, window_end_s, move.before, move.after, move.reason, move.figures)


def why_key(channel: bytes) -> str:
    """The key of the reason for a channel's placement."""
    return WHY_PREFIX + unit_text(channel)


def why_channel(key: str) -> bytes | None:
    """The channel of a key made by `why_key`; None if it is not one."""
    return unit_of(key, WHY_PREFIX)


def pin_key(channel: bytes) -> str:
    """The key of a channel's pin."""
    return PINS_PREFIX + unit_text(channel)


def pin_channel(key: str) -> bytes | None:
    """The channel of a key made by `pin_key`; None if it is not one."""
    return unit_of(key, PINS_PREFIX)


def proposal_key(digest: str) -> str:
    """The key of a proposal's bytes."""
    return PROPOSALS_PREFIX + digest


def ask_key(id: str) -> str:
    """The key of an ask."""
    return ASKS_PREFIX + id


def answer_key(id: str) -> str:
    """The key of the answer to an ask."""
    return ANSWERS_PREFIX + id


def encode(record: BalancerState | WindowRoute | Why | Pin | Ask | AskOutcome) -> bytes:
    """The stored form of a value: the format first."""
    return _encoder.encode((FORMAT, record))


def decode(data: bytes, kind: type[T]) -> T:
    """The value in `data`; PlanError if it cannot be read. Also reads format 1, which had no number."""
    try:
        if not _is_marked(data):
            return msgspec.msgpack.decode(data, type=kind)
        found, body = msgspec.msgpack.decode(data, type=tuple[int, msgspec.Raw])
        if found > FORMAT:
            raise PlanError(f"a record of the balancer is of format {found}, this process knows {FORMAT}", do=UPGRADE)
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise PlanError(f"a record of the balancer cannot be read: {error}") from error


def _is_marked(data: bytes) -> bool:
    """Whether a value is a pair of format and body: a MessagePack array of two."""
    return data[:1] == b"\x92"


_encoder: Final = msgspec.msgpack.Encoder()
