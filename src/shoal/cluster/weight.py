"""What an agent costs on this machine: its memory when it is idle, and the time that it needs to start.

Owns the measurement of `shoal doctor`: an agent beside a real server, in a temporary cluster that ends with the
measurement; nothing else is touched.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from shoal.cluster import child
from shoal.cluster.acl import CLIENT
from shoal.cluster.local import LocalCluster
from shoal.cluster.parts import agent_name, shoal_agent
from shoal.errors import ClusterError
from shoal.plan.ring import ServerAddress
from shoal.runtime import PRODUCTION
from shoal.wire.connection import Connection
from shoal.wire.envelope import HEARTBEAT_CHANNEL

START_S_MAX: Final = 60.0
"""How long to wait for an agent."""
SETTLE_S: Final = 2.0
"""How long an agent is left idle before its memory is read: it has closed two seconds of telemetry by then."""
MEGABYTE: Final = 1_000_000


class AgentWeight(msgspec.Struct, frozen=True):
    """The figures. Starts are the seconds from a new process to its first heartbeat; a cold one has no compiled loops
    yet."""

    agent_rss_mb: float
    agent_pss_mb: float
    agent_start_cold_s: float
    agent_start_warm_s: float


def measure_agent() -> AgentWeight:
    """Measures on this machine; takes about ten seconds."""
    log = logging.getLogger(child.__name__)  # its agent is killed on purpose
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        return asyncio.run(_measure())
    finally:
        log.setLevel(level)


async def _measure() -> AgentWeight:
    with TemporaryDirectory(prefix="shoal-weight-") as folder:
        cached = _copy_of_loops(Path(folder))
        async with LocalCluster(1, agent_command=lambda server: _agent_with_cache(folder, server)) as cluster:
            warm_s = await _restart(cluster)
            await asyncio.sleep(SETTLE_S)
            rss_mb, pss_mb = memory_mb(_pid(cluster))
            cached.unlink()
            cold_s = await _restart(cluster)
    return AgentWeight(rss_mb, pss_mb, cold_s, warm_s)


def _copy_of_loops(cache: Path) -> Path:
    """Copies the compiled loops, which are made if there are none, to another cache directory."""
    from shoal.channels.telemetry import loop_image

    loop_image.ensure()
    image = loop_image.place()
    if image is None or not image.exists():
        raise ClusterError("agents have no compiled loops", do="run python -m shoal.channels.telemetry.loop_builder")
    folder = cache / "shoal" / "loops"
    folder.mkdir(0o700, parents=True)
    return Path(shutil.copy(image, folder))


def _agent_with_cache(cache: str, server: ServerAddress) -> Sequence[str]:
    return ["env", f"XDG_CACHE_HOME={cache}", *shoal_agent(server)]


async def _restart(cluster: LocalCluster) -> float:
    """Restarts the agent; returns the seconds from its start to its first heartbeat."""
    server = cluster.servers[0]
    name = agent_name(server.id)
    cluster.hold(name)
    await cluster.kill(name)
    heartbeat = asyncio.Event()
    async with Connection(
        server.host,
        server.port,
        username=CLIENT,
        password=cluster.state.passwords[CLIENT],
        name="shoal-doctor",
        dial=PRODUCTION.dial,
        pushed=lambda _push: heartbeat.set(),
    ) as connection:
        await connection.ask((b"SUBSCRIBE", HEARTBEAT_CHANNEL))
        began = time.monotonic()
        cluster.release(name)
        try:
            await asyncio.wait_for(heartbeat.wait(), START_S_MAX)
        except TimeoutError:
            error = f"no heartbeat of the agent within {START_S_MAX:g} s"
            raise ClusterError(error, do="look for the cause with `shoal up`") from None
        return round(time.monotonic() - began, 2)


def _pid(cluster: LocalCluster) -> int:
    name = agent_name(cluster.servers[0].id)
    return next(each.pid for each in cluster.status().processes if each.name == name and each.pid is not None)


def memory_mb(pid: int) -> tuple[float, float]:
    """Resident and proportional memory of a process."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        words = line.split()
        if words[0] in ("Rss:", "Pss:"):
            found[words[0]] = round(int(words[1]) * 1024 / MEGABYTE, 1)
    return found["Rss:"], found["Pss:"]
