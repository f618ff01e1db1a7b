"""Orders to a load process of a soak, and its reports.

Owns both sets of messages. `shoal.lab.harness` carries them. The worker ends when its orders end.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from shoal.lab.harness import Stop
from shoal.lab.soak.load_shape import LoadShape
from shoal.plan.ring import ServerAddress

Role: TypeAlias = Literal["publish", "subscribe", "watch"]
"""Publishers, subscribers, or plain clients that watch."""


class PlainPlaces(msgspec.Struct, frozen=True):
    """What plain clients need: the servers, the key that signs entries, and which plain subscriber is where."""

    servers: tuple[ServerAddress, ...]
    key: bytes
    subscribers: tuple[tuple[str, str], ...]
    """Channel and server."""


class StartLoad(msgspec.Struct, tag=True, frozen=True):
    """The first order: the role of the process and its number, the cluster, and the load of the round."""

    role: Role
    number: int
    directory: str
    """Where the log of the process goes."""
    url: str
    shape: LoadShape
    places: PlainPlaces | None = None
    """For plain clients."""


class RaiseLoad(msgspec.Struct, tag=True, frozen=True):
    """Publish at the rates for raised load from now on."""


class LoadStatus(msgspec.Struct, frozen=True):
    """Report, several times a second. `ready`: load can begin. `settled`: nothing is outstanding."""

    messages: int
    deliveries: int
    ready: bool
    settled: bool


LoadOrder: TypeAlias = StartLoad | RaiseLoad | Stop

ORDERS: Final[msgspec.json.Decoder[LoadOrder]] = msgspec.json.Decoder(LoadOrder)
REPORTS: Final = msgspec.json.Decoder(LoadStatus)
