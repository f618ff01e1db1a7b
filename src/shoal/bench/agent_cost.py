"""What an agent costs: its own CPU for each message that it observes, and what observing adds to its server.

Owns this one measurement. One publisher sends as fast as the server takes it, on channels that nobody
subscribes to: the hardest case, for everything that the server then sends goes to the agent.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any, Final

import pyarrow.compute as pc

from shoal.bench.flood import PREFIX
from shoal.bench.worker import Order
from shoal.bench.workers import Worker
from shoal.channels.telemetry import DATA_FIELD, decode
from shoal.cluster.acl import READER
from shoal.cluster.local import LocalCluster
from shoal.cluster.parts import agent_name
from shoal.wire.blocking import ask
from shoal.wire.envelope import TELEMETRY_KEY

SETTLE_S_MAX: Final = 20.0
"""How long the agent may take to report what it has observed."""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


async def measure(cluster: LocalCluster, worker: Worker, order: Order) -> dict[str, Any]:
    """Floods the only server of the cluster with and without its agent, which is left dead.

    `kept_up` says that telemetry tells of every message in the end, `lag_s` how long after the last one.
    """
    (server,), (agent,) = cluster.state.servers, cluster.state.agents
    assert server.process is not None
    assert agent.process is not None
    agent_s, server_s = _cpu_s(agent.process.pid), _cpu_s(server.process.pid)
    answer = await worker.do(order)
    server_s = _cpu_s(server.process.pid) - server_s
    observed = await _settled(cluster, order.messages)
    lag_s = time.monotonic() - answer.ended_at
    agent_s = _cpu_s(agent.process.pid) - agent_s
    name = agent_name(server.id)
    cluster.hold(name)
    await cluster.kill(name)
    alone_s = _cpu_s(server.process.pid)
    alone = await worker.do(order)
    alone_s = _cpu_s(server.process.pid) - alone_s
    per_message_us = 1e6 / order.messages
    return {
        "contender": "agent",
        "workload": "observed",
        "messages_per_s": order.messages / (answer.ended_at - answer.began_at),
        "messages_per_s_without_agent": order.messages / (alone.ended_at - alone.began_at),
        "cpu_us_agent": agent_s * per_message_us,
        "cpu_us_server": server_s * per_message_us,
        "cpu_us_server_without_agent": alone_s * per_message_us,
        "observed": observed,
        "kept_up": observed == order.messages,
        "lag_s": lag_s,
    }


def _cpu_s(pid: int) -> float:
    """The CPU time that a process has used."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


async def _settled(cluster: LocalCluster, expected: int) -> int:
    """How many messages of the flood telemetry tells of, once it tells of all of them, or of no more."""
    deadline = time.monotonic() + SETTLE_S_MAX
    observed = 0
    while observed < expected and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
        observed = await _observed(cluster)
    return observed


async def _observed(cluster: LocalCluster) -> int:
    (server,) = cluster.servers
    password = cluster.state.passwords[READER]
    reply = await asyncio.to_thread(ask, server.host, server.port, READER, password, "XRANGE", TELEMETRY_KEY, "-", "+")
    observed = 0
    for _, fields in reply:
        channels = decode(dict(zip(fields[::2], fields[1::2], strict=True))[DATA_FIELD]).channels
        ours = channels.filter(pc.starts_with(channels.column("channel"), PREFIX.decode()))
        observed += pc.sum(ours.column("publications")).as_py() or 0
    return observed
