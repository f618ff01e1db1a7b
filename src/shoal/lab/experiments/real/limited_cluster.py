"""A cluster whose servers are behind links of a known capacity: the start of every experiment on real servers.

Owns the figures of a link, the placement of channels by hand, and the explanation of how the limit of the network is
separated from that of the processors.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from shoal.cluster.acl import ADMIN
from shoal.cluster.local import LocalCluster
from shoal.lab.experiments.real.network import ExperimentNetwork, may_limit
from shoal.plan.keys import entry_key
from shoal.plan.placement import Placement
from shoal.plan.signature import Signer
from shoal.runtime import PRODUCTION

FAIL_RATIO: Final = 1.15
"""Load ratio at which a link is full, as the paper observed of its servers."""
COORDINATOR_S_MAX: Final = 10.0
MACHINE_SHARE_MAX: Final = 0.9
"""Above this share of all cores, processors may be the cause of long response times."""
SERVER_SHARE_MAX: Final = 0.5
"""Above this share of one core, a server may be the cause."""


@dataclass(frozen=True, slots=True)
class LinkLimit:
    """The link of each server. `bytes_per_s` counts everything that leaves; `wire_share` is the number of bytes on the
    link for one byte that Redis sends, since each small message is a packet with its own headers."""

    bytes_per_s: float
    wire_share: float

    @property
    def capacity_bytes_per_s(self) -> float:
        """The configured capacity of the server, in bytes that Redis sends: the link is full at `FAIL_RATIO` times
        this."""
        return self.bytes_per_s / (self.wire_share * FAIL_RATIO)

    @property
    def limit(self) -> float | None:
        """The limit of the network; None where links cannot be limited."""
        return self.bytes_per_s if may_limit() else None

    def facts(self, limited: bool) -> dict[str, Any]:
        """The parameters of a result."""
        return {
            "cores": os.cpu_count() or 1,
            "link_bytes_per_s": self.bytes_per_s if limited else None,
            "capacity_bytes_per_s": round(self.capacity_bytes_per_s),
            "wire_bytes_per_byte": self.wire_share,
            "limited_by": "tc tbf in network namespaces" if limited else "configured capacity alone",
            "cores_and_bandwidth": SEPARATION if limited else NO_SEPARATION,
        }


SEPARATION: Final = (
    "Each server has its own network namespace and a link that is so small that it is full long before a core is. "
    "cpu_share is the share of one core that the busiest server used, and the share of all cores that the whole "
    f"machine used. While a server is below {SERVER_SHARE_MAX:g} and the machine below {MACHINE_SHARE_MAX:g}, the link "
    "is the limit."
)
NO_SEPARATION: Final = (
    "Links are not limited here (that needs root, ip and tc). The traffic of a server is compared with its configured "
    f"capacity, and a load ratio above {FAIL_RATIO:g} counts as failure."
)


@contextlib.asynccontextmanager
async def limited_cluster(
    network: ExperimentNetwork, link: LinkLimit, servers: int, **more: Any
) -> AsyncIterator[LocalCluster]:
    """A cluster on a network, whose agents know the capacity of their servers. `more` goes to the cluster."""
    async with LocalCluster(
        servers,
        sites=network.site,
        agent_command=network.agent,
        max_out_bytes_per_s=link.capacity_bytes_per_s,
        **more,
    ) as cluster:
        yield cluster


async def place_channels(cluster: LocalCluster, placements: Mapping[str, Placement]) -> None:
    """Writes the plan entries of channels that are not in use yet."""
    signer = Signer(cluster.directory.key_file.read_bytes())
    async with await PRODUCTION.coordinator(cluster.url_for(ADMIN), COORDINATOR_S_MAX) as coordinator:
        for channel, placement in placements.items():
            name = channel.encode()
            await coordinator.put(entry_key(name), signer.entry(name, placement))
