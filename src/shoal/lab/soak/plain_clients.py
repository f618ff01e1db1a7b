"""Clients without Shoal: plain Redis publishers and subscribers, which stay on one server when their channel moves, and
watchers, which record the control messages between clients and agents on each server.

Takes no part in the protocol: these are Redis clients (redis-py) that log everything that servers send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Final, TypeAlias

from redis.asyncio import Redis
from redis.exceptions import RedisError

from shoal.coordination.link import parse_address
from shoal.errors import PlanError, ProtocolError
from shoal.lab.plain_tls import redis_py_tls
from shoal.lab.sim.scenarios.channel_run_history import number_of
from shoal.lab.soak.load_context import LoadContext, OrderState
from shoal.lab.soak.round_log import (
    ControlSeen,
    CornerMet,
    PlainPublished,
    PlainReceived,
    PlainSubscribed,
    foreign_payload,
)
from shoal.message import Message
from shoal.plan.ring import ServerAddress
from shoal.plan.signature import Verifier
from shoal.wire import control, envelope

RETRY_S: Final = 0.2
POLL_S: Final = 1.0
PUBLISH_S: Final = 0.25
INTERNAL: Final = (envelope.INBOX_PREFIX + b"*", envelope.AGENT_CHANNEL + b"*")
"""Patterns, even for the single channel of the agents, so that watchers do not count as its subscribers."""

Take: TypeAlias = Callable[[bytes, bytes], None]
"""Takes a message: its channel and its data."""


class PlainClients:
    """All plain clients of a round. They have always settled."""

    def __init__(self, context: LoadContext) -> None:
        assert context.places is not None, "the order for plain clients has places"
        self.settled = True
        self._log = context.log
        self._login = parse_address(context.url, None, None)
        self._places = context.places
        self._verifier = Verifier(self._places.key)
        self._numbers = 0
        self._awaited = len(self._places.servers) + len(self._places.subscribers)

    @property
    def ready(self) -> bool:
        """Whether all have subscribed."""
        return self._awaited <= 0

    async def run(self, orders: OrderState) -> None:
        """Listens until `end`."""
        servers = {server.id: server for server in self._places.servers}
        async with asyncio.TaskGroup() as group:
            for server in servers.values():
                group.create_task(self._listen(server, INTERNAL, self._subscribed, self._watch, orders))
            for number, (channel, name) in enumerate(self._places.subscribers):
                subscribed = partial(self._plain_subscribed, number, channel, name)
                take = partial(self._plain_received, number)
                group.create_task(self._listen(servers[name], (channel.encode(),), subscribed, take, orders))
                group.create_task(self._publish(servers[name], channel, orders))

    async def _listen(
        self,
        server: ServerAddress,
        names: tuple[bytes, ...],
        subscribed: Callable[[], None],
        take: Take,
        orders: OrderState,
    ) -> None:
        """Listens on one server, and reconnects when the connection is lost."""
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
                            subscribed()
            except (RedisError, OSError):
                self._log.write(CornerMet("plain connection lost", 1))
                await asyncio.sleep(RETRY_S)

    def _client(self, server: ServerAddress) -> Redis:
        login = self._login
        return Redis(
            host=server.host,
            port=server.port,
            username=login.username,
            password=login.password,
            **redis_py_tls(login.tls),
        )

    # Plain publishers and subscribers

    async def _publish(self, server: ServerAddress, channel: str, orders: OrderState) -> None:
        """Publishes on one server, wherever the channel lives, until `stop`."""
        async with self._client(server) as client:
            while not orders.stop.is_set():
                self._numbers += 1
                number, at = self._numbers, monotonic()
                try:
                    await client.publish(channel, foreign_payload(number))
                except (RedisError, OSError):
                    self._log.write(CornerMet("plain connection lost", 1))
                else:
                    self._log.write(PlainPublished(number, channel, at))
                    self._log.write(CornerMet("plain publication", 1))
                await orders.pause(PUBLISH_S)

    def _plain_subscribed(self, number: int, channel: str, server: str) -> None:
        self._subscribed()
        self._log.write(PlainSubscribed(number, channel, server, monotonic()))

    def _plain_received(self, number: int, channel: bytes, blob: bytes) -> None:
        """Removes the envelope, as a plain subscriber must to get the payload."""
        if not envelope.is_envelope(blob) or blob[2] & envelope.FOREIGN:
            self._log.write(CornerMet("plain message of a plain publisher", 1))
            return
        if blob[2] & envelope.BEACON:
            self._log.write(CornerMet("plain beacon", 1))
            return
        with_attributes = blob[2] & envelope.ATTRIBUTES
        at = envelope.body_at(blob)
        payload = envelope.split_attributes(blob, at)[1] if with_attributes else blob[at:]
        forwarded = bool(blob[2] & envelope.FORWARDED)
        found = number_of(Message(channel.decode(), payload, 0, 0))
        self._log.write(PlainReceived(number, found, forwarded, monotonic()))
        self._log.write(CornerMet("plain message", 1))

    # Watchers

    def _subscribed(self) -> None:
        self._awaited -= 1

    def _watch(self, _channel: bytes, data: bytes) -> None:
        try:
            seen = self._seen(control.decode(data))
        except (ProtocolError, PlanError):
            self._log.write(CornerMet("control message that cannot be read", 1))
            return
        if seen is not None:
            self._log.write(seen)

    def _seen(self, received: control.Received) -> ControlSeen | None:
        """The log line for a control message; None if it is not about a move."""
        now = monotonic()
        client, _, message = received
        match message:
            case control.Notice(_, name, entry):
                return ControlSeen("notice", _text(name), client, self._verifier.entry(entry).newness, now)
            case control.Subscribed(name, revision):
                return ControlSeen("subscribed", _text(name), client, revision, now)
            case control.Left(name, _, revision):
                return ControlSeen("left", _text(name), client, revision, now)
            case control.Hello(_, name, False, False, revision):
                seen = "hello to publish" if message.publisher else "hello"
                return ControlSeen(seen, _text(name), client, revision, now)
        return None


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
