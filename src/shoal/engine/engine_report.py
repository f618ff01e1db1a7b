"""What an engine writes down about itself: its lease, the instance that serves, and its counts.

Owns the keys in the coordinator, and their form.
"""

from __future__ import annotations

import msgspec

from shoal.errors import ProtocolError


class EngineReport(msgspec.Struct, frozen=True):
    """Counts of the instance that serves, a second old at most."""

    instance: int = 0
    clients: int = 0
    filters: int = 0
    in_flight: int = 0
    events: int = 0
    deliveries: int = 0
    choked: int = 0


_decoder = msgspec.json.Decoder(EngineReport)
encode_report = msgspec.json.Encoder().encode


def lease_name(engine: str) -> str:
    """The lease of an engine. Its holder serves."""
    return f"engines/{engine}"


def standby_name(engine: str, holder: str = "") -> str:
    """The lease that an engine holds while it stands by."""
    return f"engines/{engine}/standby/{holder}"


def serving_key(engine: str) -> str:
    """The key that names the last instance that has matched events."""
    return f"engines/{engine}/serving"


def report_key(engine: str) -> str:
    """The key of the report."""
    return f"engines/{engine}/report"


def decode_report(data: bytes) -> EngineReport:
    """A report; ProtocolError if it cannot be read."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"the report of an engine cannot be read ({error})") from error
