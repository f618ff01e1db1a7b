"""What applications hold: `connect()`, `Bus` and `Subscription`.

Owns the asyncio side of a client. The protocol is the router's (`shoal.channels`), which does no I/O; here
are the parts that do it for the router and give applications something to await.

    client.py         Bus: publish, subscribe, drain, the life of a client
    subscription.py   Subscription: messages and gaps, in order
    adapter.py        carries the router's effects out: connections, timer, waiting callers
    connections.py    one connection to one server, from its delay to its end
    leaving.py        when a closing bus may go
    plan_source.py    the coordinator, asked for key and ring
    locate.py         where the local cluster is
    collector.py      all buses of the process as metrics
"""

from __future__ import annotations

from shoal.bus.client import Bus, BusStatistics, connect
from shoal.bus.subscription import Subscription

__all__ = ["Bus", "BusStatistics", "Subscription", "connect"]
