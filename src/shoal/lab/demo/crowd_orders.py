"""Orders to a crowd process, and its reports.

Owns both sets of messages. `shoal.lab.harness` carries them.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from shoal.lab.demo.delivery_audit import Publications, Receipt, Tally
from shoal.lab.harness import Ready, Stop
from shoal.limits import Limits


class OpenCrowd(msgspec.Struct, tag=True, frozen=True):
    """The first order, answered with `Ready`: the cluster, the map, and which crowd of how many this is."""

    url: str
    limits: Limits
    tiles: int
    """The side of the map."""
    players_max: int
    """The most players that all crowds together will have."""
    crowd: int
    crowds: int
    seed: int
    update_bytes: int = 0
    """Smallest payload of an update; shorter ones are padded."""


class Grow(msgspec.Struct, tag=True, frozen=True):
    """How many players all crowds together should have: players join, or the newest leave."""

    players: int


class Gather(msgspec.Struct, tag=True, frozen=True):
    """Number of players that should be in the town: those that joined first. The others walk about."""

    players: int


class SendAccounts(msgspec.Struct, tag=True, frozen=True):
    """Report everything that was published and received; answered with `Accounts`."""


class CrowdStatus(msgspec.Struct, tag=True, frozen=True):
    """Report, several times a second. `responses_ms` are the response times since the last one."""

    players: int
    tally: Tally
    responses_ms: list[float]
    back_until: float
    """Every update published before this moment (monotonic clock) has come back to its player."""
    gap_reasons: dict[str, int]
    """Number of reported gaps by reason."""
    troubles: list[str]
    """Unexpected errors of players."""


class Stopped(msgspec.Struct, tag=True, frozen=True):
    """Report on `Stop`: servers have everything that the crowd published."""


class Accounts(msgspec.Struct, tag=True, frozen=True):
    """Report: what the players of the crowd published and received."""

    publications: Publications
    receipts: list[Receipt]
    tally: Tally


CrowdOrder: TypeAlias = OpenCrowd | Grow | Gather | Stop | SendAccounts
CrowdReport: TypeAlias = Ready | CrowdStatus | Stopped | Accounts

ORDERS: Final[msgspec.json.Decoder[CrowdOrder]] = msgspec.json.Decoder(CrowdOrder)
REPORTS: Final[msgspec.json.Decoder[CrowdReport]] = msgspec.json.Decoder(CrowdReport)
