"""A worker of a FastAPI chat, written for redis-py: `python -m tests.support.chat_worker URL`.

Prints its port. A guest opens the websocket `/rooms/NAME`. After "joined", each line that it sends goes to all guests
of the room, whichever worker they are connected to.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, WebSocket

import shoal.redis as redis


async def forward(pubsub: redis.PubSub, guest: WebSocket) -> None:
    """Sends the lines of a room to one guest."""
    async for message in pubsub.listen():
        await guest.send_text(message["data"])


def chat(url: str) -> FastAPI:
    """The application of one worker, with one client of the cluster and a subscription for each guest."""
    client = redis.from_url(url, decode_responses=True)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with client:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.websocket("/rooms/{room}")
    async def join(guest: WebSocket, room: str) -> None:
        await guest.accept()
        async with client.pubsub(ignore_subscribe_messages=True) as pubsub:
            await pubsub.subscribe(room)
            await guest.send_text("joined")
            forwarding = asyncio.create_task(forward(pubsub, guest))
            async for line in guest.iter_text():
                await client.publish(room, line)
            forwarding.cancel()
            await asyncio.gather(forwarding, return_exceptions=True)

    return app


def main(url: str) -> None:
    """Serves until the process is killed."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(chat(url), log_level="warning")).run(sockets=[listening])


if __name__ == "__main__":
    main(sys.argv[1])
