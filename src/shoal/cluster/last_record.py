"""The last telemetry record of servers and stores, for `shoal top` and `shoal status`.

Owns the question and the meaning of its errors. All hosts are asked at the same time, and each has `timeout_s`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import hiredis

from shoal.cluster.server_load import connected
from shoal.coordination.link import Address
from shoal.errors import ShoalError
from shoal.extras import needed
from shoal.plan.ring import ServerAddress
from shoal.wire.envelope import TELEMETRY_KEY

if TYPE_CHECKING:
    from shoal.load.record import TelemetryRecord


class LastRecord(NamedTuple):
    """The last record of a host and when it was written, by the host's clock; or why there is none."""

    written_at: float
    record: TelemetryRecord | None
    trouble: str | None


async def last_records(hosts: Sequence[ServerAddress], login: Address, timeout_s: float) -> dict[str, LastRecord]:
    """The last record of each host."""
    found = await asyncio.gather(*(_last_record(host, login, timeout_s) for host in hosts))
    return {host.id: record for host, record in zip(hosts, found, strict=True)}


async def _last_record(host: ServerAddress, login: Address, timeout_s: float) -> LastRecord:
    try:
        async with asyncio.timeout(timeout_s), connected(host, login, timeout_s) as connection:
            (reply,) = await connection.ask((b"XINFO", b"STREAM", TELEMETRY_KEY))
        return _read(reply)
    except TimeoutError:
        return LastRecord(0.0, None, f"does not answer within {timeout_s:g} s")
    except hiredis.ReplyError as error:
        return LastRecord(0.0, None, _refusal(str(error)))
    except ShoalError as error:
        return LastRecord(0.0, None, str(error))
    except (KeyError, TypeError, ValueError):
        return LastRecord(0.0, None, "its telemetry stream has invalid data")


def _read(reply: Any) -> LastRecord:
    with needed("reading telemetry"):
        from shoal.load.record import DATA_FIELD, decode
        from shoal.load_kinds import KINDS

    entry, fields = reply[b"last-entry"]
    values = dict(zip(fields[::2], fields[1::2], strict=True))
    return LastRecord(int(entry.split(b"-")[0]) / 1000, decode(values[DATA_FIELD], KINDS), None)


def _refusal(text: str) -> str:
    """What a host's refusal means."""
    if "no such key" in text:
        return "no telemetry yet"
    return "this login may not read telemetry: use the role reader" if text.startswith("NOPERM") else text
