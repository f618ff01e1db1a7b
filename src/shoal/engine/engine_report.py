"""What is written down about an engine: its lease, the instance that serves, its counts, and what is wanted of it.

Owns the keys in the coordinator, and their form.
"""

from __future__ import annotations

import msgspec

from shoal.coordination.interface import Coordinator
from shoal.engine.director import Wanted
from shoal.errors import ProtocolError
from shoal.load.engine_load import EngineLoad


class MemberReport(msgspec.Struct, frozen=True):
    """A process of an engine."""

    name: str
    cpu_s: float
    filters: int


class EngineReport(msgspec.Struct, frozen=True):
    """Counts of the instance that serves, a second old at most."""

    instance: int = 0
    configuration: str = ""
    phase: str = ""
    clients: int = 0
    filters: int = 0
    in_flight: int = 0
    events: int = 0
    events_per_s: float = 0.0
    """In the last second or so."""
    deliveries: int = 0
    choked: int = 0
    changes: int = 0
    """Changes of configuration that this instance has carried out."""
    last_change_s: float = 0.0
    given_up: dict[str, int] = {}
    """Changes that were given up, by reason."""
    head: str = ""
    matchers: list[str] = []
    exits: list[str] = []
    members: list[MemberReport] = []
    """All processes that live."""
    access_points: list[str] = []
    load: EngineLoad = EngineLoad()


_decoder = msgspec.json.Decoder(EngineReport)
_wanted_decoder = msgspec.json.Decoder(Wanted)
encode_report = encode_wanted = msgspec.json.Encoder().encode


def lease_name(engine: str) -> str:
    """The lease of an engine. Its holder serves."""
    return f"engines/{engine}"


def serving_key(engine: str) -> str:
    """The key that names the last instance that has matched events."""
    return f"engines/{engine}/serving"


def report_key(engine: str) -> str:
    """The key of the report."""
    return f"engines/{engine}/report"


def wanted_key(engine: str) -> str:
    """The key that tells how many operators are wanted."""
    return f"engines/{engine}/wanted"


def decode_wanted(data: bytes) -> Wanted:
    """What is wanted of an engine; ProtocolError if it cannot be read."""
    try:
        return _wanted_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"what is wanted of an engine cannot be read ({error})") from error


def decode_report(data: bytes) -> EngineReport:
    """A report; ProtocolError if it cannot be read."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"the report of an engine cannot be read ({error})") from error


async def read_report(coordinator: Coordinator, engine: str) -> EngineReport | None:
    """What the instance that serves has written down; None if none serves."""
    lease = await coordinator.lease_of(lease_name(engine))
    stored = await coordinator.get(report_key(engine))
    report = None if stored is None else decode_report(stored.value)
    return report if report is not None and lease is not None and lease.token == report.instance else None
