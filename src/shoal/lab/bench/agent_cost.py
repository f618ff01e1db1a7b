"""The cost of an agent: its own CPU time for each message that it observes, and that of its server.

Owns this one measurement. One publisher sends as fast as the server accepts it, on channels without subscribers. That
is the hardest case: everything that the server sends goes to the agent.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from shoal.cluster.acl import READER
from shoal.cluster.local import LocalCluster
from shoal.cluster.parts import agent_name
from shoal.lab.bench.contender_worker import Flood, Measured
from shoal.lab.bench.flood import PREFIX
from shoal.lab.harness import LoadProcess
from shoal.lab.machine import process_cpu_s
from shoal.load.kinds import CHANNEL
from shoal.load.record import DATA_FIELD, decode
from shoal.load_kinds import KINDS
from shoal.runtime import PRODUCTION
from shoal.wire.blocking_connection import ask
from shoal.wire.envelope import TELEMETRY_KEY

SETTLE_S_MAX: Final = 20.0
"""How long the agent may take to report what it has observed."""
FLOOD_S_MAX: Final = 120.0


async def measure(cluster: LocalCluster, process: LoadProcess, order: Flood) -> dict[str, Any]:
    """Floods the only server of the cluster with its agent, kills the agent, and floods the server again.

    The agent `kept_up` if telemetry contains every message in the end; `lag_s` is the time from the last message until
    then.
    """
    (server,), (agent,) = cluster.state.servers, cluster.state.agents
    assert server.process is not None
    assert agent.process is not None
    agent_s, server_s = process_cpu_s(agent.process.pid), process_cpu_s(server.process.pid)
    with_agent = await process.ask(order, Measured, FLOOD_S_MAX)
    server_s = process_cpu_s(server.process.pid) - server_s
    observed = await _settled(cluster, order.messages)
    lag_s = time.monotonic() - with_agent.ended_at
    agent_s = process_cpu_s(agent.process.pid) - agent_s
    name = agent_name(server.id)
    cluster.hold(name)
    await cluster.kill(name)
    alone_s = process_cpu_s(server.process.pid)
    alone = await process.ask(order, Measured, FLOOD_S_MAX)
    alone_s = process_cpu_s(server.process.pid) - alone_s
    per_message_us = 1e6 / order.messages
    return {
        "contender": "agent",
        "workload": "observed",
        "messages_per_s": order.messages / (with_agent.ended_at - with_agent.began_at),
        "messages_per_s_without_agent": order.messages / (alone.ended_at - alone.began_at),
        "cpu_us_agent": agent_s * per_message_us,
        "cpu_us_server": server_s * per_message_us,
        "cpu_us_server_without_agent": alone_s * per_message_us,
        "observed": observed,
        "kept_up": observed == order.messages,
        "lag_s": lag_s,
    }


async def _settled(cluster: LocalCluster, expected: int) -> int:
    """How many messages of the flood telemetry contains, when it has all of them or `SETTLE_S_MAX` is over."""
    deadline = time.monotonic() + SETTLE_S_MAX
    observed = 0
    while observed < expected and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
        observed = await _observed(cluster)
    return observed


async def _observed(cluster: LocalCluster) -> int:
    (server,) = cluster.servers
    password = cluster.state.passwords[READER]
    to = PRODUCTION.with_tls(cluster.state.tls_for(READER)).address_book.reach(server)
    command = "XRANGE", TELEMETRY_KEY, "-", "+"
    reply = await asyncio.to_thread(ask, to.host, to.port, READER, password, *command, dial=to.dial)
    observed = 0
    for _, fields in reply:
        record = decode(dict(zip(fields[::2], fields[1::2], strict=True))[DATA_FIELD], KINDS)
        rows = record.tables[CHANNEL].rows().items()
        observed += sum(row["publications"] for name, row in rows if name.startswith(PREFIX))
    return observed
