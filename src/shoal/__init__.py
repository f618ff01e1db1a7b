"""Publish/subscribe on unmodified Redis and Valkey servers that moves with the load and loses nothing.

    import shoal

    async with shoal.connect() as bus:
        async with bus.subscribe("tile.3.4") as messages:
            await bus.publish("tile.3.4", b"north")
            async for message in messages: ...

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
    from shoal.message import Gap, Message, Retraction
    from shoal.queues.job import Job
    from shoal.workers.app import App
    from shoal.workers.retry import Backoff, Dead, Retry

__all__ = [
    "App",
    "Backoff",
    "Bus",
    "BusStatistics",
    "Dead",
    "Gap",
    "Job",
    "Limits",
    "Message",
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
    "Dead": "shoal.workers.retry",
    "Gap": "shoal.message",
    "Job": "shoal.queues.job",
    "Limits": "shoal.limits",
    "Message": "shoal.message",
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
