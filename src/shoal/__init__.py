"""Publish/subscribe on unmodified Redis and Valkey servers that moves with the load and loses nothing.

    import shoal

    async with shoal.connect() as bus:
        async with bus.subscribe("tile.3.4") as messages:
            await bus.publish("tile.3.4", b"north")
            async for message in messages: ...
        jobs = bus.queue("orders")
        await jobs.put(b"...", key="customer-17")
        async for job in jobs.take():
            await job.done()

Owns the names that `import shoal` offers. They are loaded when they are first used, so that importing the
package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from shoal.version import __version__

if TYPE_CHECKING:
    from shoal import errors, testing
    from shoal.bus import Bus, BusStatistics, Subscription, connect
    from shoal.errors import ShoalError
    from shoal.limits import Limits
    from shoal.message import Gap, Match, Message, Retraction
    from shoal.plan.queue_settings import QueueSettings
    from shoal.queues.consumer_shell import JobStream
    from shoal.queues.job import Job
    from shoal.queues.queue import NewMessage, PutResult, Queue
    from shoal.queues.settings import ConsumerSettings
    from shoal.workers.app import App
    from shoal.workers.retry import Backoff, Dead, Retry

__all__ = [
    "App",
    "Backoff",
    "Bus",
    "BusStatistics",
    "ConsumerSettings",
    "Dead",
    "Gap",
    "Job",
    "JobStream",
    "Limits",
    "Match",
    "Message",
    "NewMessage",
    "PutResult",
    "Queue",
    "QueueSettings",
    "Retraction",
    "Retry",
    "ShoalError",
    "Subscription",
    "__version__",
    "connect",
    "errors",
    "testing",
]

_HOMES: Final = {
    "App": "shoal.workers.app",
    "Backoff": "shoal.workers.retry",
    "Bus": "shoal.bus",
    "BusStatistics": "shoal.bus",
    "ConsumerSettings": "shoal.queues.settings",
    "Gap": "shoal.message",
    "Job": "shoal.queues.job",
    "JobStream": "shoal.queues.consumer_shell",
    "Dead": "shoal.workers.retry",
    "Limits": "shoal.limits",
    "Match": "shoal.message",
    "Message": "shoal.message",
    "NewMessage": "shoal.queues.queue",
    "PutResult": "shoal.queues.queue",
    "Queue": "shoal.queues.queue",
    "QueueSettings": "shoal.plan.queue_settings",
    "Retraction": "shoal.message",
    "Retry": "shoal.workers.retry",
    "ShoalError": "shoal.errors",
    "Subscription": "shoal.bus",
    "connect": "shoal.bus",
}


def __getattr__(name: str) -> Any:
    if name in ("errors", "testing"):
        return importlib.import_module(f"shoal.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
