"""redis-py's asyncio pub/sub surface on a Shoal cluster: existing code moves by changing an import.

    import shoal.redis as redis                       # was: import redis.asyncio as redis

    client = redis.Redis.from_url("shoal://client:password@host:7400")
    async with client.pubsub() as pubsub:
        await pubsub.subscribe("news")
        async for message in pubsub.listen(): ...

Owns the shapes that redis-py's users know, and nothing of the protocol. What cannot hold on many servers is
in `docs/redis-surface.md`.

    client.py    Redis: publish, pubsub(), and looking around
    pubsub.py    PubSub: subscribe, get_message, listen, run
    sources.py   what a PubSub reads from
    shapes.py    encoding, errors, and the values that both speak in
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
