"""A store in this process: it answers the commands that clients of queues send, on the model of Redis' keys.

Owns connections without sockets, subscriptions of inboxes, and the scripts that were loaded. What the scripts do to
keys is in `shoal.queues.keyspace`. Everything runs on the event loop of the client, in the order of the writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from hiredis import PushNotification, ReplyError

from shoal.queues.keyspace.keys import Keys
from shoal.queues.keyspace.resp import CommandReader, encode_frame
from shoal.queues.keyspace.scripts import ScriptCache
from shoal.queues.message_format import check_queue_name
from shoal.queues.queue_state import STATE_FIELDS, unpack_state
from shoal.queues.script_loader import Scripts

PAUSED_WORD: Final = 11
"""The place in a queue's `conf` of whether it is paused."""
VERSION: Final = b"7.0.15"
"""The version of Redis that the model follows."""


class MemoryStore:
    """One store. `dial` opens connections to it."""

    def __init__(self, clock: Callable[[], float], scripts: Scripts) -> None:
        self.keys = Keys()
        self._clock = clock
        self._working = (scripts.put.sha, scripts.turn.sha)
        self._scripts = ScriptCache()
        self._inboxes: dict[bytes, dict[_Connection, None]] = {}
        self.changed = asyncio.Event()
        """Set after each script of a producer or consumer."""

    async def dial(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> asyncio.Transport:
        """Open a connection."""
        protocol = protocol_factory()
        assert isinstance(protocol, asyncio.BufferedProtocol)
        connection = _Connection(self, protocol)
        protocol.connection_made(connection)
        return connection

    def is_idle(self, queue: str) -> bool:
        """Whether consumers have nothing to do in a queue before the clock advances. Everything is read at one moment:
        a key that fails is held, then due, then ready."""
        prefix = check_queue_name(queue)
        conf, line = (self.keys.execute((b"GET", prefix + name), self._clock()) for name in (b"conf", b"state"))
        if conf is None or line is None:
            return True
        paused = int(conf.split()[PAUSED_WORD])
        state = dict(zip(STATE_FIELDS, unpack_state(line), strict=True))
        if state["owned"] or (state["ready"] and not paused):
            return False
        now_ms = state["now"] + max(int(self._clock() * 1000) - state["wall"], 0)
        words = (b"ZRANGEBYSCORE", prefix + b"due", b"-inf", b"%d" % now_ms, b"LIMIT", b"0", b"1")
        return not self.keys.execute(words, self._clock())

    def execute(self, connection: _Connection, command: list[bytes]) -> None:
        """Run one command and write its reply."""
        name, *words = command
        match name.upper():
            case b"HELLO":
                connection.reply({b"server": b"redis", b"version": VERSION, b"proto": 3, b"id": 1})
            case b"SCRIPT":
                connection.reply(self._scripts.load(words[1]))
            case b"EVALSHA":
                count = int(words[1])
                keys, arguments = tuple(words[2 : 2 + count]), tuple(words[2 + count :])
                connection.reply(self._scripts.run(words[0], keys, arguments, self.keys, self._publish, self._clock()))
                if words[0] in self._working:
                    self.changed.set()
            case b"SUBSCRIBE":
                self._inboxes.setdefault(words[0], {})[connection] = None
                connection.reply(PushNotification([b"subscribe", words[0], 1]))
            case b"UNSUBSCRIBE":
                self._inboxes.get(words[0], {}).pop(connection, None)
                connection.reply(PushNotification([b"unsubscribe", words[0], 0]))
            case _:
                connection.reply(ReplyError(f"ERR unknown command '{name.decode(errors='replace')}'"))

    def closed(self, connection: _Connection) -> None:
        """A connection has ended."""
        for listeners in self._inboxes.values():
            listeners.pop(connection, None)

    def _publish(self, channel: bytes, payload: bytes) -> int:
        listeners = self._inboxes.get(channel, {})
        for connection in listeners:
            connection.reply(PushNotification([b"message", channel, payload]))
        return len(listeners)


class _Connection(asyncio.Transport):
    """Both ends of one connection: the client's transport, and the store's side of it."""

    def __init__(self, store: MemoryStore, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__()
        self._store = store
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._reader = CommandReader()
        self._arriving = bytearray()
        self._reading = True
        self._closing = False

    # The store's side

    def reply(self, frame: Any) -> None:
        """Write a reply or a push to the client."""
        if not self._arriving:
            self._loop.call_soon(self._deliver)
        self._arriving += encode_frame(frame)

    def _received(self, data: bytes) -> None:
        if not self._closing:
            for command in self._reader.read(data):
                self._store.execute(self, command)

    # The client's side

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """There is no socket."""
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The store takes everything at once."""

    def get_write_buffer_size(self) -> int:
        """The store takes everything at once."""
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send to the store, in the next turn of the event loop."""
        self._loop.call_soon(self._received, bytes(data))

    def pause_reading(self) -> None:
        """Hold what arrives."""
        self._reading = False

    def resume_reading(self) -> None:
        """End `pause_reading`."""
        self._reading = True
        self._loop.call_soon(self._deliver)

    def is_closing(self) -> bool:
        """Whether the connection has ended."""
        return self._closing

    def close(self) -> None:
        """End the connection."""
        if not self._closing:
            self._closing = True
            self._store.closed(self)
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        """End the connection."""
        self.close()

    def _deliver(self) -> None:
        while self._arriving and self._reading and not self._closing:
            buffer = memoryview(self._protocol.get_buffer(-1))
            size = min(len(buffer), len(self._arriving))
            buffer[:size] = self._arriving[:size]
            del self._arriving[:size]
            self._protocol.buffer_updated(size)
