"""The application's API: `connect()`, `Bus` and `Subscription`.

Owns the asyncio side of a client. The protocol is in the router (`shoal.channels`), which does no I/O. This package
does the I/O for the router and provides the awaitable calls for applications.

    client.py         Bus: publish, subscribe, drain, open and close
    subscription.py   Subscription: messages and gaps, in order
    shell.py          executes the router's effects: connections, timer, waiting callers
    connections.py    one connection to one server, from the reconnect delay to its end
    departure.py      how long a closing bus lingers
    since.py          recorded history before live messages
    plan_source.py    reads the public key and the ring from the coordinator
    location.py       finds the local cluster
    collector.py      metrics of all buses of the process
"""

from __future__ import annotations

from shoal.bus.client import Bus, BusStatistics, connect
from shoal.bus.subscription import Subscription

__all__ = ["Bus", "BusStatistics", "Subscription", "connect"]
