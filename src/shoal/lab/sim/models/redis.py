"""A model of one unmodified Redis server, at the level of commands.

Owns: the replies and pushes of Redis 7.0, their order, and when a client is disconnected. Never touches: links and time
(`shoal.lab.sim.models.redis_node` puts it on the network). Commands come in as sequences of byte strings; replies go
out as the bytes that a server writes.

Checked against a real server by the same random operations (`tests/lab/sim/test_model_redis.py`).

Invariants:
- A command runs as a whole; its output for each client is appended to that client's buffer in order.
- A message goes to the channel's subscribers first, then to pattern subscribers, pattern by pattern. The
  order of the patterns is unspecified in Redis (a hash table with a random seed); here the salt of this server
  process decides.
- A connection's own message comes before the reply to its PUBLISH (7.0), or after it (`push_after_reply`,
  since 7.2).

Left out: commands that are not in `shoal.lab.sim.models.redis_acl.COMMANDS`, transactions, EVAL, and the exact size
of blocks in which Redis counts a client's output (here: its bytes beyond the 16 KiB that Redis does not count).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from zlib import crc32

from hiredis import PushNotification

from shoal.lab.sim.models.redis_base import BufferLimit, Client, RedisOptions
from shoal.lab.sim.models.redis_connection import ConnectionCommands
from shoal.queues.keyspace.keys import Keys
from shoal.queues.keyspace.scripts import ScriptCache
from shoal.wire.commands import Command
from shoal.wire.glob import compile_glob

__all__ = ["BufferLimit", "Client", "ModelRedis", "RedisOptions"]


COMMAND_S: Final = 0.000_02
"""CPU time of any command. The model counts bytes in and out, but not work."""

_MESSAGE: Final = b">3\r\n$7\r\nmessage\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n"
_PATTERN_MESSAGE: Final = b">4\r\n$8\r\npmessage\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n"
"""The two pushes of a message. They are nearly all of a server's output, so they are not encoded part by part."""


class ModelRedis(ConnectionCommands):
    """One server process. After a crash there is a new object."""

    def __init__(self, options: RedisOptions, run_id: str, salt: int = 0) -> None:
        super().__init__(options)
        self.run_id = run_id
        self.keys = Keys()
        self.scripts = ScriptCache()
        self.published = 0
        self._salt = salt
        self._channels: dict[bytes, dict[Client, None]] = {}
        self._patterns: dict[bytes, dict[Client, None]] = {}
        self._late: list[bytes] = []  # own pushes that must wait for the reply

    def close(self, client: Client) -> None:
        """A connection has ended."""
        for channel in list(client.channels):
            self._leave(self._channels, channel, client)
        for pattern in list(client.patterns):
            self._leave(self._patterns, pattern, client)
        client.channels.clear()
        client.patterns.clear()
        self.clients.pop(client.id, None)
        self.dirty.pop(client, None)

    def execute(self, client: Client, command: Command, now: float) -> None:
        """Run one command of a client at the server's time `now`."""
        if client.closing:
            return
        self.now = now
        self.commands += 1
        self.bytes_in += sum(map(len, command))
        if not self._refused(client, command):
            name = command[0]
            if name == b"PUBLISH":
                self._publish(client, command)
            else:
                _HANDLERS[name.lower()](self, client, command)
        if self._late:
            late, self._late = self._late, []
            for data in late:
                self._write(client, data)

    def channels_in_use(self) -> list[bytes]:
        """The channels that have subscribers by name."""
        return list(self._channels)

    def publish(self, channel: bytes, payload: bytes, source: Client | None = None) -> int:
        """Delivers a message to all subscribers; returns the number of deliveries."""
        self.published += 1
        receivers = 0
        subscribers = self._channels.get(channel)
        if subscribers is not None:
            receivers += len(subscribers)
            self._deliver(subscribers, _MESSAGE % (len(channel), channel, len(payload), payload), source)
        for pattern, matching in self._patterns.items():
            if pattern == b"*" or compile_glob(pattern).match(channel) is not None:
                receivers += len(matching)
                parts = (len(pattern), pattern, len(channel), channel, len(payload), payload)
                self._deliver(matching, _PATTERN_MESSAGE % parts, source)
        return receivers

    def _deliver(self, subscribers: dict[Client, None], push: bytes, source: Client | None) -> None:
        write, wait = self._write, source if self.options.push_after_reply else None
        for client in subscribers:
            if client.protocol == 2:
                write(client, b"*" + push[1:])
            elif client is wait:
                self._late.append(push)
            else:
                write(client, push)

    def _publish(self, client: Client, command: Command) -> None:
        self._write(client, b":%d\r\n" % self.publish(command[1], command[2], client))

    def _subscribe(self, client: Client, command: Command) -> None:
        self._join(client, command[1:], b"subscribe", client.channels, self._channels)

    def _psubscribe(self, client: Client, command: Command) -> None:
        self._join(client, command[1:], b"psubscribe", client.patterns, self._patterns)

    def _unsubscribe(self, client: Client, command: Command) -> None:
        self._part(client, command[1:], b"unsubscribe", client.channels, self._channels)

    def _punsubscribe(self, client: Client, command: Command) -> None:
        self._part(client, command[1:], b"punsubscribe", client.patterns, self._patterns)

    def _join(
        self,
        client: Client,
        names: Command,
        word: bytes,
        own: dict[bytes, None],
        table: dict[bytes, dict[Client, None]],
    ) -> None:
        for name in names:
            if name not in own:
                own[name] = None
                if name not in table:
                    table[name] = {}
                    if table is self._patterns:
                        self._patterns = table = self._shuffled(table)
                table[name][client] = None
            self._push(client, word, name)

    def _part(
        self,
        client: Client,
        names: Command,
        word: bytes,
        own: dict[bytes, None],
        table: dict[bytes, dict[Client, None]],
    ) -> None:
        if not names and not own:
            self._push(client, word, None)
        for name in names or sorted(own, key=self._rank):
            if name in own:
                del own[name]
                self._leave(table, name, client)
            self._push(client, word, name)

    def _push(self, client: Client, word: bytes, name: bytes | None) -> None:
        """The confirmation of a (un)subscription."""
        parts = [word, name, client.subscriptions]
        self._reply(client, parts if client.protocol == 2 else PushNotification(parts))

    def _leave(self, table: dict[bytes, dict[Client, None]], name: bytes, client: Client) -> None:
        subscribers = table.get(name)
        if subscribers is not None:
            subscribers.pop(client, None)
            if not subscribers:
                del table[name]

    def _rank(self, name: bytes) -> int:
        return crc32(name, self._salt)

    def _shuffled(self, table: dict[bytes, dict[Client, None]]) -> dict[bytes, dict[Client, None]]:
        return {name: table[name] for name in sorted(table, key=self._rank)}

    def _pubsub(self, client: Client, command: Command) -> None:
        word = command[1].lower()
        if word == b"numpat":
            self._reply(client, len(self._patterns))
        elif word == b"numsub":
            counts: list[bytes | int] = []
            for channel in command[2:]:
                counts += (channel, len(self._channels.get(channel, ())))
            self._reply(client, counts)
        elif len(command) > 3:
            self._error(client, "ERR unknown subcommand or wrong number of arguments for 'CHANNELS'. Try PUBSUB HELP.")
        else:
            matches = compile_glob(command[2]).match if len(command) == 3 else None
            names = sorted(self._channels, key=self._rank)
            self._reply(client, [name for name in names if matches is None or matches(name) is not None])

    def _info(self, client: Client, command: Command) -> None:
        text = (
            f"# Server\r\nredis_version:7.0.15\r\nrun_id:{self.run_id}\r\n\r\n"
            f"# Clients\r\nconnected_clients:{len(self.clients)}\r\n\r\n"
            f"# Stats\r\npubsub_channels:{len(self._channels)}\r\npubsub_patterns:{len(self._patterns)}\r\n"
            f"client_output_buffer_limit_disconnections:{self.cut_off}\r\n"
            f"total_net_input_bytes:{self.bytes_in}\r\ntotal_net_output_bytes:{self.bytes_out}\r\n\r\n"
            f"# CPU\r\nused_cpu_sys:0.0\r\nused_cpu_user:{self.commands * COMMAND_S:.6f}\r\n\r\n"
            f"# Memory\r\nused_memory:1000000\r\n"
        )
        self._reply(client, text.encode())

    def _script(self, client: Client, command: Command) -> None:
        """SCRIPT LOAD text"""
        self._reply(client, self.scripts.load(command[2]))

    def _evalsha(self, client: Client, command: Command) -> None:
        if not command[2].isdigit():
            self._error(client, "ERR value is not an integer or out of range")
            return
        count = int(command[2])
        if count > len(command) - 3:
            self._error(client, "ERR Number of keys can't be greater than number of args")
            return
        keys, arguments = command[3 : 3 + count], command[3 + count :]

        def publish(channel: bytes, payload: bytes) -> int:
            return self.publish(channel, payload, client)

        self._reply(client, self.scripts.run(command[1], keys, arguments, self.keys, publish, self.now))

    def _key_command(self, client: Client, command: Command) -> None:
        self._reply(client, self.keys.execute(command, self.now))


_HANDLERS: Final[dict[bytes, Callable[[ModelRedis, Client, Command], None]]] = {
    b"publish": ModelRedis._publish,
    b"subscribe": ModelRedis._subscribe,
    b"psubscribe": ModelRedis._psubscribe,
    b"unsubscribe": ModelRedis._unsubscribe,
    b"punsubscribe": ModelRedis._punsubscribe,
    b"pubsub": ModelRedis._pubsub,
    b"ping": ModelRedis._ping,
    b"echo": ModelRedis._echo,
    b"quit": ModelRedis._quit,
    b"auth": ModelRedis._auth,
    b"hello": ModelRedis._hello,
    b"client": ModelRedis._client,
    b"info": ModelRedis._info,
    b"script": ModelRedis._script,
    b"evalsha": ModelRedis._evalsha,
    b"set": ModelRedis._key_command,
    b"get": ModelRedis._key_command,
    b"del": ModelRedis._key_command,
    b"sadd": ModelRedis._key_command,
    b"smembers": ModelRedis._key_command,
    b"scard": ModelRedis._key_command,
    b"zcard": ModelRedis._key_command,
    b"unlink": ModelRedis._key_command,
    b"xadd": ModelRedis._key_command,
    b"xinfo": ModelRedis._key_command,
    b"xread": ModelRedis._key_command,
    b"xrevrange": ModelRedis._key_command,
    b"xlen": ModelRedis._key_command,
}
