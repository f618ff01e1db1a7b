"""Orders to the processes of an engine soak, their reports, and the lines of their logs.

Owns all three. Emitters and readers live through the whole soak, so their logs are complete.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec

from shoal.lab.air_quality import AirQuality
from shoal.lab.harness import Go, Ready, Stop

EMITTED, ASKED, IN_FORCE, REMOVED = "emitted", "asked", "in-force", "removed"
DELIVERED, GAP = "delivered", "gap"


class StartEmitter(msgspec.Struct, tag=True, frozen=True):
    """Emit `rate` events in a second from `Go` to `Stop`."""

    url: str
    name: str
    log: str
    city: AirQuality
    rate: float


class StartReader(msgspec.Struct, tag=True, frozen=True):
    """Add every filter whose number belongs to `number` of `readers` readers, then read until the process ends. From
    `Go` to `Stop`, further filters come and go."""

    url: str
    name: str
    log: str
    city: AirQuality
    number: int
    readers: int
    adds_per_s: float
    """How many filters come in a second. As many go."""


class EngineClientStatus(msgspec.Struct, tag=True, frozen=True):
    """Number of events emitted, or delivered. `ended`: an emitter has been told that all are taken."""

    count: int
    ended: bool = False


Order: TypeAlias = StartEmitter | StartReader | Go | Stop
ORDERS: Final = msgspec.json.Decoder(Order)
REPORTS: Final = msgspec.json.Decoder(EngineClientStatus | Ready)


class Line(NamedTuple):
    """One line of a log. `at` is the machine's monotonic clock, which all processes share."""

    what: str
    at: float
    client: str
    emitter: str
    """The emitter of an event, in `EMITTED` and `DELIVERED`."""
    number: int
    """The number of an event, or of a filter."""
    filters: tuple[int, ...] = ()
    """The filters that a delivery names."""


class ClientLog:
    """Appends lines to a file."""

    def __init__(self, path: Path, client: str) -> None:
        self._file = path.open("a")
        self._client = client

    def write(self, what: str, at: float, emitter: str, number: int, filters: str = "-") -> None:
        """Notes what has happened."""
        self._file.write(f"{what} {at:.6f} {self._client} {emitter} {number} {filters or '-'}\n")

    def flush(self) -> None:
        """Writes the noted lines to the log."""
        self._file.flush()


def read_log(path: Path) -> list[Line]:
    """The lines of a log."""
    found = []
    for line in path.read_text().split("\n")[:-1]:
        what, at, client, emitter, number, filters = line.split(" ")
        numbers = () if filters == "-" else tuple(map(int, filters.split(",")))
        found.append(Line(what, float(at), client, emitter, int(number), numbers))
    return found


def owner_of(number: int, cell: int, readers: int) -> int:
    """The reader of a filter. The filters of one cell belong to several readers."""
    return (number // 7 + cell) % readers
