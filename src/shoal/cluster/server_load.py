"""Load of servers, from their INFO replies.

Owns the interpretation of INFO for display. Nothing is decided from it; the balancer uses the analyzer's measurements.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final, TypeAlias

import hiredis
import msgspec

from shoal.coordination.link import Address
from shoal.errors import ShoalError
from shoal.plan.ring import ServerAddress
from shoal.runtime import PRODUCTION
from shoal.wire.connection import Connection

Sample: TypeAlias = tuple[float, dict[str, str]]
"""The time and the fields of an INFO reply."""

_SAMPLES: Final = ("INFO", "all")


class ServerLoad(msgspec.Struct, frozen=True):
    """A server's activity between two samples. `load_ratio` is the share of one core that its main thread used."""

    id: str
    connections: int
    channels: int
    patterns: int
    messages_per_s: float
    bytes_out_per_s: float
    load_ratio: float
    memory_bytes: int


async def measure_loads(
    servers: Sequence[ServerAddress], login: Address, interval_s: float, timeout_s: float
) -> dict[str, ServerLoad | str]:
    """The load of each server over `interval_s`, all at the same time; the problem instead for a server that does not
    answer within `timeout_s`."""
    found = await asyncio.gather(*(_measure(server, login, interval_s, timeout_s) for server in servers))
    return {server.id: load for server, load in zip(servers, found, strict=True)}


@contextlib.asynccontextmanager
async def connected(host: ServerAddress, login: Address, timeout_s: float) -> AsyncIterator[Connection]:
    """A connection to a server or store, which ends at once with the block."""
    to = PRODUCTION.with_tls(login.tls).address_book.reach(host)
    connection = Connection(
        to.host,
        to.port,
        username=login.username,
        password=login.password,
        name="shoal-status",
        dial=to.dial,
        connect_timeout_s=timeout_s,
        answer_timeout_s=timeout_s,
    )
    try:
        await connection.open()
        yield connection
    finally:
        connection.abort()


async def _measure(server: ServerAddress, login: Address, interval_s: float, timeout_s: float) -> ServerLoad | str:
    try:
        async with asyncio.timeout(timeout_s) as limit, connected(server, login, timeout_s) as connection:
            before, first = await _sample(connection), await _sample(connection)
            limit.reschedule(asyncio.get_running_loop().time() + interval_s + timeout_s)
            await asyncio.sleep(interval_s)
            second = await _sample(connection)
    except TimeoutError:
        return f"does not answer within {timeout_s:g} s"
    except (ShoalError, hiredis.ReplyError) as error:
        return str(error)
    return _compare(server.id, before, first, second)


async def _sample(connection: Connection) -> Sample:
    (reply,) = await connection.ask(_SAMPLES)
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)
    return time.monotonic(), parse_info(text)


def parse_info(text: str) -> dict[str, str]:
    """Parse the fields of an INFO reply."""
    lines: Iterable[str] = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {name: value for name, _, value in (line.partition(":") for line in lines)}


def _compare(server: str, before: Sample, first: Sample, second: Sample) -> ServerLoad:
    """Return the difference of the last two samples, minus the cost of a sample itself, which the first two show."""
    elapsed_s = second[0] - first[0]
    now = second[1]
    sample_bytes = _bytes_out(first[1]) - _bytes_out(before[1])
    return ServerLoad(
        id=server,
        connections=int(now["connected_clients"]) - 1,
        channels=int(now["pubsub_channels"]),
        patterns=int(now["pubsub_patterns"]),
        messages_per_s=(_publishes(now) - _publishes(first[1])) / elapsed_s,
        bytes_out_per_s=max(0.0, (_bytes_out(now) - _bytes_out(first[1]) - sample_bytes) / elapsed_s),
        load_ratio=min(1.0, (_cpu_s(now) - _cpu_s(first[1])) / elapsed_s),
        memory_bytes=int(now["used_memory"]),
    )


def _bytes_out(info: dict[str, str]) -> int:
    """Return the total bytes sent by the server."""
    return int(info["total_net_output_bytes"])


def _publishes(info: dict[str, str]) -> int:
    """Return the total number of published messages."""
    calls = dict(part.split("=", 1) for part in info.get("cmdstat_publish", "calls=0").split(","))
    return int(calls["calls"])


def _cpu_s(info: dict[str, str]) -> float:
    """Return the CPU time of the main thread, or of the whole server if it does not report that."""
    user = info.get("used_cpu_user_main_thread", info["used_cpu_user"])
    system = info.get("used_cpu_sys_main_thread", info["used_cpu_sys"])
    return float(user) + float(system)
