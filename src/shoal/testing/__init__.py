"""Tests of handlers without a server: queues that run the same scripts as a store, in this process.

    async def test_order_is_shipped():
        async with shoal.testing.queues() as bus:
            await bus.queue("orders").put(b"book", key="ann")
            await shoal.testing.run(app, bus)
            bus.clock.advance(60)          # retries and delays without waiting

    def test_without_async():
        with shoal.testing.sync_queues() as bus:
            bus.put("orders", b"book", key="ann")
            bus.run(app)

Needs `pip install 'shoal[testing]'`. docs/workers.md has more.

    queues.py         queues(), the bus that it gives, and run()
    sync_queues.py    the same for tests without an event loop
    memory_store.py   a store in this process: connections, scripts, pushed jobs
    clock.py          the clock of the queues
"""

from __future__ import annotations

from shoal.testing.clock import Clock
from shoal.testing.queues import QueuesBus, queues, run
from shoal.testing.sync_queues import SyncQueues, sync_queues

__all__ = ["Clock", "QueuesBus", "SyncQueues", "queues", "run", "sync_queues"]
