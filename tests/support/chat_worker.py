"""A worker of a chat server, written for redis-py: `python -m tests.support.chat_worker URL`.

Prints its port. A client sends the name of its room in the first line. After "joined", each line that it sends goes to
all clients of the room, whichever worker they are connected to.
"""

from __future__ import annotations

import asyncio
import sys

import shoal.redis as redis


class ChatWorker:
    """The clients of one worker, and one subscription for each of them."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one client until it leaves."""
        room = (await reader.readline()).strip()
        async with self._client.pubsub(ignore_subscribe_messages=True) as pubsub:
            await pubsub.subscribe(room)
            writer.write(b"joined\n")
            sending = asyncio.create_task(self._forward(pubsub, writer))
            while line := await reader.readline():
                await self._client.publish(room, line)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        writer.close()

    async def _forward(self, pubsub: redis.PubSub, writer: asyncio.StreamWriter) -> None:
        async for message in pubsub.listen():
            writer.write(message["data"])


async def main(url: str) -> None:
    """Serves until the process is killed."""
    async with redis.from_url(url) as client:
        server = await asyncio.start_server(ChatWorker(client).serve, "127.0.0.1")
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
