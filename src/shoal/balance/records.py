"""What the balancer keeps in the coordinator, and what others ask of it there: keys and bytes.

Owns the names and the forms. Never touches the coordinator.

    balance/state               what a balancer that takes over must know: see `BalancerState`
    balance/windows             where its load windows come from: see `shoal.balance.window_source`
    balance/why/<channel>       why a channel was placed where it is, and by which measurement
    balance/proposals/<digest>  the bytes of a proposal that may still be applied
    balance/asks/<id>           somebody wants a proposal, or one applied
    balance/answers/<id>        what became of it, until somebody has read it
"""

from __future__ import annotations

from typing import Final, Literal, TypeVar

import msgspec

from shoal.balance.change import ChannelMove, Place
from shoal.balance.window_source import Standing
from shoal.errors import PlanError
from shoal.plan.keys import unit_of, unit_text

STATE_KEY: Final = "balance/state"
WINDOWS_KEY: Final = "balance/windows"
WHY_PREFIX: Final = "balance/why/"
PROPOSALS_PREFIX: Final = "balance/proposals/"
ASKS_PREFIX: Final = "balance/asks/"
ANSWERS_PREFIX: Final = "balance/answers/"

PROPOSALS_MAX: Final = 16
"""Proposals that can be applied later. The oldest is forgotten."""

REMOVED_MAX: Final = 64
"""Servers that are remembered as removed: as long as some ring may still name them."""

APPLIED_MAX: Final = 64
"""Plans that are remembered as applied, so that none is applied twice."""

FORMAT: Final = 2
UPGRADE: Final = "upgrade this process"

T = TypeVar("T")


class BalancerState(msgspec.Struct, frozen=True):
    """What must outlive a balancer. Times are of the wall clock, in seconds."""

    planned_at: float | None = None
    """When the last plan was applied; None if none was."""
    digest: str = ""
    """The plan under way; empty if none is."""
    adding: dict[str, float] = {}
    """Servers that were asked for and have not joined yet, and since when."""
    removed: tuple[str, ...] = ()
    """Servers that were removed last, newest first."""
    applied: tuple[str, ...] = ()
    """Digests of the plans that were applied last, newest first."""
    adding_hosts: dict[str, tuple[str, float]] = {}
    """Hosts of other kinds that were asked for and have not reported yet: the kind, and since when."""


class Why(msgspec.Struct, frozen=True):
    """Why a channel was placed where it is."""

    at_s: float
    policy: str
    digest: str
    window_end_s: float
    before: Place
    after: Place
    reason: str
    figures: dict[str, float]


class Ask(msgspec.Struct, frozen=True):
    """What somebody wants: a proposal by a policy (the balancer's own if none is named), or that one is applied."""

    do: Literal["propose", "apply"]
    policy: str = ""
    digest: str = ""


class Answer(msgspec.Struct, frozen=True):
    """What became of an ask. `error` says why it came to nothing; `proposal` are the bytes that were asked for."""

    error: str
    digest: str = ""
    proposal: bytes = b""
    moves: int = 0


def why_of(move: ChannelMove, policy: str, digest: str, window_end_s: float, at_s: float) -> Why:
    """What is kept of a move that is carried out."""
    return Why(at_s, policy, digest, window_end_s, move.before, move.after, move.reason, move.figures)


def why_key(channel: bytes) -> str:
    """The key under which the reason for a channel's placement is kept."""
    return WHY_PREFIX + unit_text(channel)


def why_channel(key: str) -> bytes | None:
    """The channel that a reason is about; None if the key is not that of any channel's."""
    return unit_of(key, WHY_PREFIX)


def proposal_key(digest: str) -> str:
    """The key of a proposal's bytes."""
    return PROPOSALS_PREFIX + digest


def ask_key(id: str) -> str:
    """The key of an ask."""
    return ASKS_PREFIX + id


def answer_key(id: str) -> str:
    """The key of the answer to an ask."""
    return ANSWERS_PREFIX + id


def encode(record: BalancerState | Standing | Why | Ask | Answer) -> bytes:
    """A record as it is stored: the format first."""
    return _encoder.encode((FORMAT, record))


def decode(data: bytes, kind: type[T]) -> T:
    """A record as it was stored; PlanError if it is none. One of format 1, which had no number, is read too."""
    try:
        if not _is_marked(data):
            return msgspec.msgpack.decode(data, type=kind)
        found, body = msgspec.msgpack.decode(data, type=tuple[int, msgspec.Raw])
        if found > FORMAT:
            raise PlanError(f"a record of the balancer is of format {found}, this process knows {FORMAT}", do=UPGRADE)
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise PlanError(f"what the balancer keeps in the coordinator cannot be read: {error}") from error


def _is_marked(data: bytes) -> bool:
    """Whether a record is a pair of format and body: a MessagePack array of two."""
    return data[:1] == b"\x92"


_encoder: Final = msgspec.msgpack.Encoder()
