"""How much one channel with many publishers carries on one server, and on several.

Owns the measurement. Each server has its own limited link (`shoal.lab.experiments.real.network`), so small that it is
full long before a core is. That separates the limit of the servers from that of the machine's processors; the result
shows the use of both. Where links cannot be limited, a server counts as full when it sends its configured capacity.

The same publishers publish faster and faster. A load is carried if everything arrives, and nearly all of it in time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np

from shoal.cluster.server_meter import ServerMeter
from shoal.lab.experiments.real.clients import MeasuringClients, start_clients
from shoal.lab.experiments.real.limited_cluster import (
    FAIL_RATIO,
    MACHINE_SHARE_MAX,
    LinkLimit,
    limited_cluster,
    place_channels,
)
from shoal.lab.experiments.real.network import ExperimentNetwork, run_on_network
from shoal.lab.experiments.real.observation import observe
from shoal.limits import DEFAULT_LIMITS
from shoal.plan.placement import Mode, Placement

CHANNEL: Final = "soak.hot"
LINK: Final = LinkLimit(bytes_per_s=0.5e6, wire_share=1.15)
PAYLOAD_BYTES: Final = 1000
DELIVERY_BYTES: Final = 1200.0
"""Approximate size of a delivery on a link; where links are limited it is measured."""
PUBLISHERS: Final = 120
SUBSCRIBERS: Final = 2
LOADS: Final = tuple(0.9 * 1.08**step for step in range(10))
"""Loads to try, as shares of what all links can carry, up to the first that is not carried. No link carries the last of
these."""
LOADS_BELOW: Final = (0.8, 0.7, 0.6, 0.5, 0.4)
"""Loads to try if not even the first is carried."""
WARM_UP: Final = 0.5
"""Load of the warm-up."""
SECONDS: Final = 2.0
"""How long each load lasts."""
LATE_S: Final = 3.0
"""A delivery that takes longer than this after the end of publishing counts as undelivered."""
REPORT_S: Final = 0.8
"""How long the agents' last reports may take, where load is judged by them."""
IN_TIME_PERCENTILE: Final = 95.0
IN_TIME_MS: Final = 150.0
"""A load is carried in time if this percentile of its delays is no longer than this."""
LINK_FULL: Final = 0.9
"""Above this share of its capacity a link is the limit."""


class LoadStep(msgspec.Struct, frozen=True):
    """One load that was tried."""

    share: float
    """Of what all links can carry."""
    deliveries_per_s: float
    undelivered: int
    gaps: int
    late_ms: float
    """`IN_TIME_PERCENTILE` of the delays."""
    link_share: float
    """Of the busiest link, while clients published."""
    load_ratio: float
    """Of the busiest server, as its agent reports it."""
    server_cpu_share: float
    """Of one core."""
    machine_cpu_share: float
    """Of all cores, by any process."""

    @property
    def is_carried(self) -> bool:
        """Whether everything arrived, nearly all of it in time, and no server exceeded its capacity."""
        in_time = not self.undelivered and not self.gaps and self.late_ms <= IN_TIME_MS
        return in_time and (self.link_share > 0 or self.load_ratio <= FAIL_RATIO)

    @property
    def limited_by(self) -> str:
        """The resource that was the limit."""
        if self.link_share >= LINK_FULL:
            return "links"
        if not self.link_share:
            return "configured capacity"
        return "cores" if self.machine_cpu_share >= MACHINE_SHARE_MAX else "unknown"


class Carried(msgspec.Struct, frozen=True):
    """How much one channel carried."""

    servers: int
    limited: bool
    one: list[LoadStep]
    """Loads that were tried on one server."""
    several: list[LoadStep]
    """Loads that were tried on all servers."""

    @property
    def vs_one_server(self) -> float:
        """The load that all servers carried, divided by the load of one server."""
        one = _carried(self.one)
        return _carried(self.several) / one if one else 0.0

    @property
    def limited_by(self) -> str:
        """The resource that limited all servers together."""
        failed = [step.limited_by for step in self.several if not step.is_carried]
        return failed[-1] if failed else "nothing"

    def facts(self) -> dict[str, Any]:
        """The facts that are printed."""
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
    found: list[list[LoadStep]] = []
    for count in (1, servers):
        note(f"load of one channel on {count} server{'s'[: count - 1]}")

        async def work(network: ExperimentNetwork, count: int = count) -> list[LoadStep]:
            return await _try_loads(network, count)

        found.append(run_on_network(limit, work))
    return Carried(servers, limit is not None, *found)


async def _try_loads(network: ExperimentNetwork, servers: int) -> list[LoadStep]:
    async with (
        limited_cluster(network, LINK, servers) as cluster,
        start_clients(network) as clients,
        ServerMeter(cluster) as meter,
    ):
        mode = Mode.SINGLE if servers == 1 else Mode.ALL_SUBSCRIBERS
        await place_channels(cluster, {CHANNEL: Placement(1, mode, tuple(server.id for server in cluster.servers))})
        await clients.open(cluster.url, DEFAULT_LIMITS, CHANNEL, PAYLOAD_BYTES, np.zeros(1))
        await clients.set_clients(PUBLISHERS, SUBSCRIBERS)
        trial = _Trial(network, clients, meter, servers)
        await trial.run(WARM_UP)  # a publisher learns where a channel lives when it first publishes
        await trial.run(WARM_UP)
        trial.delivery_bytes = trial.measured_bytes or DELIVERY_BYTES
        found: list[LoadStep] = []
        for share in LOADS:
            found.append(await trial.run(share))
            if not found[-1].is_carried:
                break
        for share in LOADS_BELOW if not found[0].is_carried else ():
            found.append(await trial.run(share))
            if found[-1].is_carried:
                break
    return found


class _Trial:
    """Tries loads on one cluster, for an assumed size of a delivery, and measures the real size."""

    def __init__(self, network: ExperimentNetwork, clients: MeasuringClients, meter: ServerMeter, servers: int) -> None:
        self.delivery_bytes = DELIVERY_BYTES
        self.measured_bytes = 0.0
        """Size of a delivery on the links in the last run; 0 where links are not limited."""
        self._network = network
        self._clients = clients
        self._meter = meter
        self._servers = servers

    async def run(self, share: float) -> LoadStep:
        publications = share * self._servers * LINK.bytes_per_s / (SUBSCRIBERS * self.delivery_bytes)
        seen = await observe(
            self._network,
            self._clients,
            self._meter,
            seconds=SECONDS,
            per_s=publications / PUBLISHERS,
            wait_s_max=LATE_S,
            report_s=0.0 if self._network.is_limited else REPORT_S,
        )
        window = seen.window
        self.measured_bytes = seen.sent_bytes / max(len(window.delays_ms), 1)
        return LoadStep(
            share=share,
            deliveries_per_s=window.expected / SECONDS,
            undelivered=window.undelivered,
            gaps=window.gaps,
            late_ms=window.delay_ms(IN_TIME_PERCENTILE),
            link_share=seen.link_bytes / (LINK.bytes_per_s * SECONDS),
            load_ratio=seen.load_ratio,
            server_cpu_share=seen.server_cpu_share,
            machine_cpu_share=seen.machine_cpu_share,
        )


def _carried(steps: list[LoadStep]) -> float:
    """The highest load that was carried, in deliveries a second."""
    return max((step.deliveries_per_s for step in steps if step.is_carried), default=0.0)


def _shown(step: LoadStep) -> dict[str, Any]:
    return {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in msgspec.structs.asdict(step).items()
    } | {"carried": step.is_carried}
