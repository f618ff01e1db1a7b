"""How much one channel of many publishers carries on one server, and on several.

Owns the measurement. Each server has a link of its own that is really limited (`shoal.experiments.real.network`), so
small that it is full long before a core is: that keeps the limit of the servers apart from that of the machine's
processors, and what both were used is told beside the result. Where links cannot be limited, a server counts as full
when it sends what it was said to be able to.

The same publishers speak faster and faster. A load is carried if everything arrives, nearly all of it in time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np

from shoal.cluster.server_meter import ServerMeter
from shoal.experiments.real.clients import MeasuringClients, Window
from shoal.experiments.real.meters import CpuMeter
from shoal.experiments.real.micro import mean_load_ratio
from shoal.experiments.real.network import Network, run_on_network
from shoal.experiments.real.rig import FAIL_RATIO, MACHINE_SHARE_MAX, Link, limited_cluster, place
from shoal.limits import DEFAULT_LIMITS
from shoal.plan.placement import Mode, Placement

CHANNEL: Final = "soak.hot"
LINK: Final = Link(bytes_per_s=0.5e6, wire_share=1.15)
PAYLOAD_BYTES: Final = 1000
DELIVERY_BYTES: Final = 1200.0
"""What a delivery takes of a link, about; where links are limited it is measured."""
PUBLISHERS: Final = 120
SUBSCRIBERS: Final = 2
LOADS: Final = tuple(0.9 * 1.08**step for step in range(10))
"""By what all links can carry, about. The first that is not carried is the last that is tried; no link carries the last
of these."""
LOADS_BELOW: Final = (0.8, 0.7, 0.6, 0.5, 0.4)
"""If not even the first is carried."""
PRACTICE: Final = 0.5
SECONDS: Final = 2.0
"""How long each load lasts."""
LATE_S: Final = 3.0
"""How long after that a delivery may take to count as delivered."""
REPORT_S: Final = 0.8
"""How long the last reports of agents may take; they are waited for where load is judged by them."""
IN_TIME_SHARE: Final = 95.0
IN_TIME_MS: Final = 150.0
"""So many of a hundred deliveries of a load that is carried take no longer than this."""
LINK_FULL: Final = 0.9
"""The share of a link from which on it is the limit."""


class Step(msgspec.Struct, frozen=True):
    """One load that was tried."""

    share: float
    """Of what all links can carry."""
    deliveries_per_s: float
    undelivered: int
    gaps: int
    late_ms: float
    """What `IN_TIME_SHARE` of a hundred deliveries took at the most."""
    link_share: float
    """Of the fullest link while publishers spoke."""
    load_ratio: float
    """Of the busiest server, as its agent reports it."""
    server_cpu_share: float
    """Of one core."""
    machine_cpu_share: float
    """Of all cores, by anybody."""

    @property
    def is_carried(self) -> bool:
        """Whether everything arrived, nearly all of it in time, and no server sent more than it can."""
        in_time = not self.undelivered and not self.gaps and self.late_ms <= IN_TIME_MS
        return in_time and (self.link_share > 0 or self.load_ratio <= FAIL_RATIO)

    @property
    def limited_by(self) -> str:
        """What was full."""
        if self.link_share >= LINK_FULL:
            return "links"
        if not self.link_share:
            return "configured capacity"
        return "cores" if self.machine_cpu_share >= MACHINE_SHARE_MAX else "unknown"


class Carried(msgspec.Struct, frozen=True):
    """What one channel carried."""

    servers: int
    limited: bool
    one: list[Step]
    """The loads that were tried on one server."""
    several: list[Step]
    """Those on all servers."""

    @property
    def vs_one_server(self) -> float:
        """How many times the load of one server all of them carried."""
        one = _carried(self.one)
        return _carried(self.several) / one if one else 0.0

    @property
    def limited_by(self) -> str:
        """What ended the measurement on all servers."""
        failed = [step.limited_by for step in self.several if not step.is_carried]
        return failed[-1] if failed else "nothing"

    def facts(self) -> dict[str, Any]:
        """What is printed."""
        return {
            "carried_vs_one_server": round(self.vs_one_server, 2),
            "carried_limited_by": self.limited_by,
            "carried": {
                "deliveries_per_s": {"1": round(_carried(self.one)), f"{self.servers}": round(_carried(self.several))},
                "publishers": PUBLISHERS,
                "subscribers": SUBSCRIBERS,
                **LINK.facts(self.limited),
                "steps": {
                    "1": [_shown(step) for step in self.one],
                    f"{self.servers}": [_shown(step) for step in self.several],
                },
            },
        }


def measure_carried(servers: int, note: Callable[[str], None]) -> Carried:
    """Measures one server, then all of them."""
    limit = LINK.limit
    found: list[list[Step]] = []
    for count in (1, servers):
        note(f"what one channel carries on {count} server{'s'[: count - 1]}")

        async def work(network: Network, count: int = count) -> list[Step]:
            return await _try_loads(network, count)

        found.append(run_on_network(limit, work))
    return Carried(servers, limit is not None, *found)


async def _try_loads(network: Network, servers: int) -> list[Step]:
    async with (
        limited_cluster(network, LINK, servers) as cluster,
        MeasuringClients(network.clients_prefix) as clients,
        ServerMeter(cluster) as meter,
    ):
        mode = Mode.SINGLE if servers == 1 else Mode.ALL_SUBSCRIBERS
        await place(cluster, CHANNEL, Placement(1, mode, tuple(server.id for server in cluster.servers)))
        await clients.begin(cluster.url, DEFAULT_LIMITS, CHANNEL, PAYLOAD_BYTES, np.zeros(1))
        await clients.join(PUBLISHERS, SUBSCRIBERS)
        trial = _Trial(network, clients, meter, servers)
        await trial.run(PRACTICE)  # a publisher learns where a channel is when it publishes
        weight = (await trial.run(PRACTICE)).weight
        trial.weight = weight or DELIVERY_BYTES
        found: list[Step] = []
        for share in LOADS:
            found.append((await trial.run(share)).step)
            if not found[-1].is_carried:
                break
        for share in LOADS_BELOW if not found[0].is_carried else ():
            found.append((await trial.run(share)).step)
            if found[-1].is_carried:
                break
    return found


class _Tried(msgspec.Struct, frozen=True):
    step: Step
    weight: float
    """What one delivery took of the links; 0 where there are none."""


class _Trial:
    """Tries loads on one cluster. `weight` is what one delivery takes of a link."""

    def __init__(self, network: Network, clients: MeasuringClients, meter: ServerMeter, servers: int) -> None:
        self.weight = DELIVERY_BYTES
        self._network = network
        self._clients = clients
        self._meter = meter
        self._servers = servers

    async def run(self, share: float) -> _Tried:
        publications = share * self._servers * LINK.bytes_per_s / (SUBSCRIBERS * self.weight)
        self._meter.take()
        cpu, before, began_s = CpuMeter(), self._network.sent(), time.time()
        watching = asyncio.create_task(self._watch(before))
        window = await self._clients.measure(SECONDS, publications / PUBLISHERS, LATE_S)
        fullest = await watching
        used = cpu.look(self._clients.pids)
        sent = sum(self._network.sent().values()) - sum(before.values())
        if not self._network.is_limited:
            await asyncio.sleep(REPORT_S)
        seconds = self._meter.take()
        step = Step(
            share=share,
            deliveries_per_s=window.expected / SECONDS,
            undelivered=window.undelivered,
            gaps=window.gaps,
            late_ms=_late_ms(window),
            link_share=fullest / (LINK.bytes_per_s * SECONDS),
            load_ratio=mean_load_ratio(seconds, began_s, began_s + SECONDS),
            server_cpu_share=max((second.cpu_share for second in seconds), default=0.0),
            machine_cpu_share=used.machine,
        )
        return _Tried(step, sent / max(len(window.delays_ms), 1))

    async def _watch(self, before: dict[str, int]) -> int:
        """The most that one link carried while publishers spoke."""
        await asyncio.sleep(SECONDS)
        return max((sent - before[server] for server, sent in self._network.sent().items()), default=0)


def _late_ms(window: Window) -> float:
    return float(np.percentile(window.delays_ms, IN_TIME_SHARE)) if len(window.delays_ms) else float("inf")


def _carried(steps: list[Step]) -> float:
    """The most that was carried, in deliveries a second."""
    return max((step.deliveries_per_s for step in steps if step.is_carried), default=0.0)


def _shown(step: Step) -> dict[str, Any]:
    return {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in msgspec.structs.asdict(step).items()
    } | {"carried": step.is_carried}
