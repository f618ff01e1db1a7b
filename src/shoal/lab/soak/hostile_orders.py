"""Orders to the process of hostile clients, and its reports.

Owns both sets of messages. The worker ends when its orders end.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from shoal.plan.ring import ServerAddress


class StartHostile(msgspec.Struct, tag=True, frozen=True):
    """The first order: the servers, and the password of the user that all clients have."""

    servers: tuple[ServerAddress, ...]
    username: str
    password: str
    seed: int


class RunPhase(msgspec.Struct, tag=True, frozen=True):
    """Runs an attack for a while, or sends harmless commands of the same sizes instead."""

    attack: str
    harmless: bool
    seconds: float


class PhaseOver(msgspec.Struct, tag=True, frozen=True):
    """The report on a phase: commands and bytes that were sent, commands that servers refused, connections lost."""

    attack: str
    harmless: bool
    commands: int
    bytes: int
    refused: int
    cut_off: int


HostileOrder: TypeAlias = StartHostile | RunPhase

ORDERS: Final[msgspec.json.Decoder[HostileOrder]] = msgspec.json.Decoder(HostileOrder)
REPORTS: Final = msgspec.json.Decoder(PhaseOver)
