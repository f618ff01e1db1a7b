"""Those who know nothing of Shoal: plain Redis subscribers and publishers, who stay on one server when their channel
moves, and one on each server who overhears what clients and agents say to each other about channels.

Owns nothing of the protocol: it is a Redis client (redis-py) that reads what servers send, and writes it down.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final, TypeAlias

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from shoal.coordination.link import parse_address
from shoal.errors import PlanError, ProtocolError
from shoal.message import Message
from shoal.plan.ring import ServerAddress
from shoal.plan.signing import Verifier
from shoal.sim.history import number_of
from shoal.soak.records import Counted, PlainGot, PlainPublished, PlainSubscribed, Told, foreign_payload
from shoal.soak.worker import Orders, Site
from shoal.wire import control, envelope

PLACES_FILE: Final = "places.json"
RETRY_S: Final = 0.2
POLL_S: Final = 1.0
PUBLISH_S: Final = 0.25
INTERNAL: Final = (envelope.INBOX_PREFIX + b"*", envelope.AGENT_CHANNEL + b"*")
"""Patterns, also for the one channel of the agents: whoever counts subscribers by name is not to count this one."""

Take: TypeAlias = Callable[[bytes, bytes], None]
"""Takes a message: its channel and what was sent."""


class Places(msgspec.Struct, frozen=True):
    """Where servers are, by which key entries are signed, and which plain subscriber stands where."""

    servers: tuple[ServerAddress, ...]
    key: bytes
    plain: tuple[tuple[str, str], ...]
    """Channel and server."""


class Watchers:
    """Everybody of this kind. They are settled whenever Shoal's own clients are."""

    def __init__(self, site: Site, directory: Path) -> None:
        self.settled = True
        self._log = site.log
        self._places = msgspec.json.decode((directory / PLACES_FILE).read_bytes(), type=Places)
        self._verifier = Verifier(self._places.key)
        self._numbers = 0
        self._waited_for = len(self._places.servers) + len(self._places.plain)

    @property
    def ready(self) -> bool:
        """Whether all have subscribed."""
        return self._waited_for <= 0

    async def run(self, orders: Orders) -> None:
        """Listens until `end`."""
        servers = {server.id: server for server in self._places.servers}
        async with asyncio.TaskGroup() as group:
            for server in servers.values():
                group.create_task(self._listen(server, INTERNAL, self._stands, self._overhear, orders))
            for number, (channel, name) in enumerate(self._places.plain):
                stands = partial(self._plain_stands, number, channel, name)
                took = partial(self._plain_got, number)
                group.create_task(self._listen(servers[name], (channel.encode(),), stands, took, orders))
                group.create_task(self._publish(servers[name], channel, orders))

    async def _listen(
        self, server: ServerAddress, names: tuple[bytes, ...], stands: Callable[[], None], take: Take, orders: Orders
    ) -> None:
        """Listens on one server, and comes back when the connection is lost."""
        while not orders.end.is_set():
            try:
                async with self._client(server) as client, client.pubsub() as pubsub:
                    await (pubsub.psubscribe if names == INTERNAL else pubsub.subscribe)(*names)
                    while not orders.end.is_set():
                        frame = await pubsub.get_message(timeout=POLL_S)
                        if frame is None:
                            continue
                        if frame["type"] in ("message", "pmessage"):
                            take(frame["channel"], frame["data"])
                        elif frame["data"] == len(names):  # the reply to the last name
                            stands()
            except (RedisError, OSError):
                self._log.write(Counted("plain connection lost", 1))
                await asyncio.sleep(RETRY_S)

    def _client(self, server: ServerAddress) -> Redis:
        login = parse_address(os.environ["SHOAL_URL"], None, None)
        return Redis(host=server.host, port=server.port, username=login.username, password=login.password)

    # Plain publishers and subscribers

    async def _publish(self, server: ServerAddress, channel: str, orders: Orders) -> None:
        """Publishes on one server, wherever the channel is, until everybody is to be quiet."""
        async with self._client(server) as client:
            while not orders.stop.is_set():
                self._numbers += 1
                number, at = self._numbers, monotonic()
                try:
                    await client.publish(channel, foreign_payload(number))
                except (RedisError, OSError):
                    self._log.write(Counted("plain connection lost", 1))
                else:
                    self._log.write(PlainPublished(number, channel, at))
                    self._log.write(Counted("plain publication", 1))
                await orders.pause(PUBLISH_S)

    def _plain_stands(self, number: int, channel: str, server: str) -> None:
        self._stands()
        self._log.write(PlainSubscribed(number, channel, server, monotonic()))

    def _plain_got(self, number: int, channel: bytes, blob: bytes) -> None:
        """Takes the envelope off, as a plain subscriber that wants the payload has to."""
        if not envelope.is_envelope(blob) or blob[2] & envelope.FOREIGN:
            self._log.write(Counted("plain message of a plain publisher", 1))
            return
        if blob[2] & envelope.BEACON:
            self._log.write(Counted("plain beacon", 1))
            return
        with_attributes = blob[2] & envelope.ATTRIBUTES
        payload = envelope.split_attributes(blob)[1] if with_attributes else blob[envelope.HEADER_BYTES :]
        forwarded = bool(blob[2] & envelope.FORWARDED)
        found = number_of(Message(channel.decode(), payload, 0, 0))
        self._log.write(PlainGot(number, found, forwarded, monotonic()))
        self._log.write(Counted("plain message", 1))

    # Overhearing

    def _stands(self) -> None:
        self._waited_for -= 1

    def _overhear(self, channel: bytes, data: bytes) -> None:
        try:
            told = self._told(channel, control.decode(data))
        except (ProtocolError, PlanError):
            self._log.write(Counted("control message that cannot be read", 1))
            return
        if told is not None:
            self._log.write(told)

    def _told(self, channel: bytes, word: control.Control) -> Told | None:
        """What a control message says about a channel; None if it says nothing of a move."""
        now = monotonic()
        match word:
            case control.Notice(name, entry):
                client = int(channel.removeprefix(envelope.INBOX_PREFIX), 16)
                return Told("notice", _text(name), client, self._verifier.entry(entry).newness, now)
            case control.Stand(client, name, revision):
                return Told("stand", _text(name), client, revision, now)
            case control.Gone(client, name, _, revision):
                return Told("gone", _text(name), client, revision, now)
            case control.Hello(client, _, name, False, False, revision):
                return Told("hello to publish" if word.publisher else "hello", _text(name), client, revision, now)
        return None


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
