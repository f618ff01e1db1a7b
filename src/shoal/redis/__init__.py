"""redis-py's asyncio pub/sub API on a Shoal cluster. Existing code moves by changing an import.

    import shoal.redis as redis                       # was: import redis.asyncio as redis

    client = redis.Redis.from_url("shoal://client:password@host:7400")
    async with client.pubsub() as pubsub:
        await pubsub.subscribe("news")
        async for message in pubsub.listen(): ...

Owns redis-py's classes, messages and errors, and nothing of Shoal's protocol. `docs/redis-surface.md` lists what
differs on a cluster of many servers.

    client.py      Redis: publish, pubsub(), and queries
    pubsub.py      PubSub: subscribe, get_message, listen, run
    connection.py  PubSubConnection: the bus, feeds and read queue of a PubSub
    feeds.py       one subscription of a PubSub, and the order in which a reader gets items
    buses.py       the open buses of a client, and their end
    deadlines.py   socket_timeout and socket_connect_timeout
    options.py     redis-py's keywords and URLs
    conversion.py  converts values and errors between Shoal and redis-py
    missing_names.py  the error for names of redis-py that a cluster does not have
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis import asyncio as redis_py
from redis import exceptions
from redis.exceptions import (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    BusyLoadingError,
    ChildDeadlockedError,
    ConnectionError,
    DataError,
    InvalidResponse,
    OutOfMemoryError,
    PubSubError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
    WatchError,
)

from shoal.redis.client import Redis, from_url
from shoal.redis.conversion import MessagesLostError, Subscription
from shoal.redis.missing_names import missing
from shoal.redis.pubsub import PubSub

StrictRedis = Redis

__all__ = [
    "AuthenticationError",
    "AuthenticationWrongNumberOfArgsError",
    "BusyLoadingError",
    "ChildDeadlockedError",
    "ConnectionError",
    "DataError",
    "InvalidResponse",
    "MessagesLostError",
    "OutOfMemoryError",
    "PubSub",
    "PubSubError",
    "ReadOnlyError",
    "Redis",
    "RedisError",
    "ResponseError",
    "StrictRedis",
    "Subscription",
    "TimeoutError",
    "WatchError",
    "exceptions",
    "from_url",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise missing(name, "shoal.redis", redis_py)
