"""What every experiment on real servers begins with: a cluster behind links of a known capacity.

Owns the two figures of a link and how they belong together, where channels are placed by hand, and the words that say
how the limit of the network was kept apart from that of the processors.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from shoal.cluster.acl import ADMIN
from shoal.cluster.local import LocalCluster
from shoal.coordination.redis import RedisCoordinator
from shoal.experiments.real.meters import cores
from shoal.experiments.real.network import Network, may_limit
from shoal.plan.keys import entry_key
from shoal.plan.placement import Placement
from shoal.plan.signing import Signer

FAIL_RATIO: Final = 1.15
"""Load ratio at which a link is full, as the paper observed of its servers."""
COORDINATOR_S_MAX: Final = 10.0
MACHINE_SHARE_MAX: Final = 0.9
"""Share of all cores above which a response time may be theirs, and not the network's."""
SERVER_SHARE_MAX: Final = 0.5
"""Share of one core above which a server may be slow by itself."""


@dataclass(frozen=True, slots=True)
class Link:
    """The link of each server. `bytes_per_s` counts everything that leaves; `wire_share` is how many bytes that is for
    one byte of Redis's, since each small message is a packet with headers of its own."""

    bytes_per_s: float
    wire_share: float

    @property
    def capacity_bytes_per_s(self) -> float:
        """What the server is said to be able to send, in bytes of Redis's: at `FAIL_RATIO` times this the link is
        full."""
        return self.bytes_per_s / (self.wire_share * FAIL_RATIO)

    @property
    def limit(self) -> float | None:
        """What the network keeps to; None where it cannot."""
        return self.bytes_per_s if may_limit() else None

    def facts(self, limited: bool) -> dict[str, Any]:
        """The parameters of a result."""
        return {
            "cores": cores(),
            "link_bytes_per_s": self.bytes_per_s if limited else None,
            "capacity_bytes_per_s": round(self.capacity_bytes_per_s),
            "wire_bytes_per_byte": self.wire_share,
            "limited_by": "tc tbf in network namespaces" if limited else "configured capacity alone",
            "cores_and_bandwidth": SEPARATION if limited else NO_SEPARATION,
        }


SEPARATION: Final = (
    "Each server has a namespace and a link of its own, so small that it is full long before a core is: cpu_share "
    "tells what the busiest server took of one core, and what everything on the machine took of all cores. Where a "
    f"server is below {SERVER_SHARE_MAX:g} and the machine below {MACHINE_SHARE_MAX:g}, the link is the limit."
)
NO_SEPARATION: Final = (
    "Nothing slows servers down here (that needs root, ip and tc): what a server sends is compared with the capacity "
    f"that its agent was told, and a load ratio above {FAIL_RATIO:g} counts as failure."
)


@contextlib.asynccontextmanager
async def limited_cluster(network: Network, link: Link, servers: int, **more: Any) -> AsyncIterator[LocalCluster]:
    """A cluster on a network, whose agents know what their servers may send. `more` goes to the cluster."""
    async with LocalCluster(
        servers,
        sites=network.site,
        agent_command=network.agent,
        max_out_bytes_per_s=link.capacity_bytes_per_s,
        **more,
    ) as cluster:
        yield cluster


async def place(cluster: LocalCluster, channel: str, placement: Placement) -> None:
    """Writes the entry of a channel that nobody uses yet."""
    signer, name = Signer(cluster.directory.key_file.read_bytes()), channel.encode()
    async with await RedisCoordinator.connect(cluster.url_for(ADMIN), timeout_s=COORDINATOR_S_MAX) as coordinator:
        await coordinator.put(entry_key(name), signer.entry(name, placement))
