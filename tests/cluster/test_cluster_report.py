"""The report of `shoal status`: all servers are asked at the same time, and what does not answer is named."""

from __future__ import annotations

import asyncio

from shoal.cluster.cluster_report import ClusterReport, ServerReport, read_report
from shoal.cluster.server_load import ServerLoad, measure_loads
from shoal.coordination.link import Address
from shoal.plan.ring import ServerAddress

FROZEN = 20
TIMEOUT_S = 0.3


class Frozen:
    """A server that accepts connections and never answers, like a process that is stopped."""

    def __init__(self) -> None:
        self.open = self.peak = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.peak = max(self.peak, self.open)
        while await reader.read(1000):
            pass
        self.open -= 1
        writer.close()


async def test_frozen_servers_are_asked_at_the_same_time() -> None:
    """One after the other, with three samples each, one frozen server cost 15 s."""
    frozen = Frozen()
    async with await asyncio.start_server(frozen.serve, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        servers = [ServerAddress(f"s{number}", "127.0.0.1", port) for number in range(FROZEN)]
        loads = await measure_loads(servers, Address("127.0.0.1", 1, "admin", "x"), 0.01, TIMEOUT_S)
    assert frozen.peak == FROZEN
    assert len(loads) == FROZEN
    assert all(isinstance(load, str) for load in loads.values())


async def test_without_the_coordinator_the_known_servers_are_reported() -> None:
    report = await read_report(
        Address("127.0.0.1", 1, "admin", "x"),
        servers=[ServerAddress("s1", "127.0.0.1", 1)],
        interval_s=0.01,
        timeout_s=TIMEOUT_S,
    )
    assert report.silent == ("coordinator", "s1")
    assert not report.ready
    assert report.trouble is not None


def a_server(id: str, *, lease: bool | None = True, trouble: str | None = None) -> ServerReport:
    load = None if trouble else ServerLoad(id, 1, 1, 0, 1.0, 1.0, 0.1, 1)
    return ServerReport(id, "h", 1, True, "home", lease, load, trouble)


def a_report(*servers: ServerReport, leader: str | None = "l", leases_known: bool = True) -> ClusterReport:
    return ClusterReport("h:1", True, 3, leader, leases_known, 0, 0, 0, 0, "", servers, {}, None)


def test_a_cluster_is_ready_if_it_is_led_and_all_its_servers_answer_and_hold_their_lease() -> None:
    assert a_report(a_server("s1"), a_server("s2")).ready
    assert not a_report(a_server("s1"), leader=None).ready
    assert not a_report(a_server("s1", lease=False)).ready
    assert not a_report(a_server("s1"), a_server("s2", trouble="does not answer")).ready
    assert not a_report().ready
    assert a_report(a_server("s1", lease=None), leader=None, leases_known=False).ready  # a login that may not read it
