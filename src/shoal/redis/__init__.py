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
    feeds.py       the subscriptions and connections behind a PubSub
    conversion.py  converts values and errors between Shoal and redis-py
"""

from __future__ import annotations

from redis.exceptions import (
    AuthenticationError,
    ConnectionError,
    DataError,
    PubSubError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from shoal.redis.client import Redis, from_url
from shoal.redis.conversion import MessagesLostError, Subscription
from shoal.redis.pubsub import PubSub

__all__ = [
    "AuthenticationError",
    "ConnectionError",
    "DataError",
    "MessagesLostError",
    "PubSub",
    "PubSubError",
    "Redis",
    "RedisError",
    "ResponseError",
    "Subscription",
    "TimeoutError",
    "from_url",
]
