"""Names of redis-py that a Shoal cluster does not have.

Owns the error that says so, and what to do instead.
"""

from __future__ import annotations

from typing import Final

_INSTEAD: Final = {
    "ConnectionPool": "leave it out, the client manages its connections",
    "BlockingConnectionPool": "leave it out, the client manages its connections",
    "connection_pool": "leave it out, the client manages its connections",
    "Sentinel": "use Redis.from_url with the cluster's address, the cluster replaces failed servers itself",
    "RedisCluster": "use Redis.from_url with the cluster's address, the plan spreads channels over servers",
}
_KEYS: Final = "shoal.redis is pub/sub only; use redis.asyncio with a Redis server for it"


def missing(name: str, owner: str, original: object) -> AttributeError:
    """The error for a name that `owner` does not have; `original` is redis-py's counterpart of the owner."""
    if name not in _INSTEAD and not hasattr(original, name):
        return AttributeError(f"{owner} has no attribute {name!r}")
    return AttributeError(f"{owner} has no {name!r}: {_INSTEAD.get(name, _KEYS)} (see docs/redis-surface.md)")
