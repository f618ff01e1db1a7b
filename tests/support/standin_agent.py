"""A stand-in for the agent of a server: joins the cluster and holds its lease, and does nothing else.

python tests/support/standin_agent.py --server s1 --address 127.0.0.1:7001     (SHOAL_URL in the environment)
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import secrets

import msgspec

from shoal.coordination.interface import Lease, Membership
from shoal.errors import CoordinatorError
from shoal.plan.ring import ServerAddress
from shoal.runtime import PRODUCTION


async def hold_lease(address: ServerAddress, lease_s: float) -> None:
    holder = f"standin-{os.getpid()}-{secrets.token_hex(4)}"
    data = msgspec.msgpack.encode(address)
    async with await PRODUCTION.coordinator(os.environ["SHOAL_URL"], 5.0) as coordinator:
        held: Lease | None = None
        member: Membership | None = None
        for _ in itertools.count():
            with contextlib.suppress(CoordinatorError):
                if member is None or not await member.renew():
                    member = await coordinator.join("servers", address.id, data, lease_s)
                if held is None or not await coordinator.renew(held):
                    held = await coordinator.acquire(f"servers/{address.id}", holder, lease_s, takeover=True)
            await asyncio.sleep(lease_s / 6)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--lease-s", type=float, default=3.0)
    args = parser.parse_args()
    host, _, port = args.address.rpartition(":")
    tls = os.environ["SHOAL_URL"].startswith("shoals:")
    asyncio.run(hold_lease(ServerAddress(args.server, host, int(port), tls=tls), args.lease_s))


if __name__ == "__main__":
    main()
