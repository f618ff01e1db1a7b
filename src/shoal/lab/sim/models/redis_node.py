"""A model server on the simulated network: it accepts connections, runs commands and writes replies.

Owns: the processes of one server (each with its own run id) and the flow between links and model. Never touches: what
commands mean (`shoal.lab.sim.models.redis`).

Invariants:
- Commands run in the order of their arrival, and their output is written to the links at the same time.
- A crash loses subscriptions, keys and buffers; after a restart the server has a new run id.
- A client above its output-buffer limit is closed: what the kernel has taken still arrives, the rest is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from shoal.lab.sim.models.redis import Client, ModelRedis, RedisOptions
from shoal.lab.sim.world.link import LinkEnd, directions
from shoal.lab.sim.world.network import Network
from shoal.lab.sim.world.node import Node
from shoal.queues.keyspace.keys import Stream
from shoal.queues.keyspace.resp import CommandReader
from shoal.wire.commands import Command

CRON_S: Final = 1.0
"""How often the server checks the soft limit of its clients."""


class RedisNode:
    """A server on a node of that name. Connect to it with `network.connect(client_node, name, dialer)`."""

    def __init__(
        self, network: Network, name: str, options: RedisOptions | None = None, host: str | None = None
    ) -> None:
        self.network = network
        self.options = options or RedisOptions()
        self.node: Node = network.node(name, host)
        self.node.on_restart = self._start
        self.model: ModelRedis
        self.ends: dict[Client, LinkEnd] = {}
        self._clients: dict[LinkEnd, tuple[Client, CommandReader]] = {}
        self.clock_jump_s = 0.0
        """How far the server's time of day has jumped."""
        self.on_add: Callable[[bytes, tuple[bytes, ...]], bool] | None = None
        """Called with each entry that is added to a stream; returns whether the entry must be removed again."""
        self.around: Callable[[Command, Callable[[], None]], None] = lambda command, execute: execute()
        """Called with each command of a client; it executes the command, and may look at the keys before and after."""
        self.on_cut_off: Callable[[Node], None] = lambda client: None
        """Called for each client that the server disconnects because of its output-buffer limit."""
        self._start()

    def received(self, end: LinkEnd, data: bytes) -> None:
        """Bytes arrived from one client."""
        client, reader = self._clients[end]
        execute, now = self.model.execute, self.node.clock() + self.clock_jump_s
        for command in reader.read(data):
            self.around(command, partial(execute, client, command, now))
            if self.on_add is not None and command[0] == b"XADD":
                self._added(command[1])
        self._flush()

    def lost(self, end: LinkEnd, reason: str) -> None:
        """A client has disconnected."""
        client, _ = self._clients.pop(end)
        del self.ends[client]
        self.model.close(client)

    def add_entry(self, key: bytes, fields: tuple[bytes, ...], model: ModelRedis) -> None:
        """Adds an entry to a stream, unless the server has restarted since `model` was its model."""
        if self.node.up and self.model is model:
            model.keys.execute((b"XADD", key, b"*", *fields), self.node.clock())

    def _added(self, key: bytes) -> None:
        stream = self.model.keys.values.get(key)
        if self.on_add is not None and isinstance(stream, Stream) and self.on_add(key, stream.entries[-1][1]):
            stream.entries.pop()

    def _start(self) -> None:
        rng = self.network.world.rng(f"redis/{self.node.name}")
        self.model = ModelRedis(self.options, f"{rng.getrandbits(160):040x}", rng.getrandbits(32))
        self.ends.clear()
        self._clients.clear()
        self.network.listen(self.node, self._accept)
        self.node.after(CRON_S, self._cron)

    def _accept(self, end: LinkEnd) -> RedisNode:
        client = self.model.open(directions(end)[0])
        self._clients[end] = client, CommandReader()
        self.ends[client] = end
        return self

    def _cron(self) -> None:
        self.model.now = self.node.clock()
        for client, _ in list(self._clients.values()):
            if client.soft_since is not None:
                self.model.check_soft_limit(client)
        self._flush()
        self.node.after(CRON_S, self._cron)

    def _flush(self) -> None:
        """Writes the clients' output buffers, and closes the connections that must be closed."""
        model = self.model
        dirty, model.dirty = model.dirty, {}
        for client in dirty:
            end = self.ends[client]
            if client.output:
                end.send(model.take_output(client))
            if client.closing:
                if client.closing not in ("quit", "killed"):
                    self.on_cut_off(end.peer.node)
                del self.ends[client], self._clients[end]
                model.close(client)
                end.close(flush=client.closing == "quit")
