"""The cluster that the Spark source reads: its servers, and the login.

Owns the options that name a cluster, and reads the ring from the coordinator. Accepts only a ring with the cluster's
signature.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shoal.coordination.layout import GarbageError, decode_value, index_key, redis_key
from shoal.coordination.link import Address, parse_address
from shoal.errors import ClusterNotFoundError, ConfigError, CoordinatorError, ForgedEntryError
from shoal.history.server_reader import Login
from shoal.plan.format import check_format
from shoal.plan.keys import FORMAT_KEY, PUBLIC_KEY, RING_KEY, entries_prefix
from shoal.plan.kinds import QUEUE
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.ring import ServerAddress
from shoal.plan.signature import Verifier
from shoal.runtime import PRODUCTION
from shoal.wire.blocking_connection import BlockingConnection

ROLE: Final = "reader"
"""The source's user at a local cluster. It may only read."""


@dataclass(frozen=True, slots=True)
class SourceAddress:
    """A coordinator that knows the servers, or a fixed list of servers."""

    login: Login
    coordinator: Address | None
    listed: tuple[ServerAddress, ...] = ()

    @property
    def name(self) -> str:
        """For error messages."""
        return str(self.coordinator) if self.coordinator else ", ".join(server.id for server in self.listed)

    def servers(self) -> tuple[ServerAddress, ...]:
        """The current servers."""
        if self.coordinator is None:
            return self.listed
        where = self.coordinator
        with self._connection(where) as coordinator:
            paths = (FORMAT_KEY, PUBLIC_KEY, RING_KEY)
            format, key, ring = (coordinator.ask("GET", redis_key(path)) for path in paths)
        if key is None or ring is None:
            raise ClusterNotFoundError(
                f"the coordinator at {where} has no ring: no cluster has started there yet",
                do="run `shoal status`, and start the cluster if it is not running",
            )
        try:
            check_format(None if format is None else decode_value(format).value)
            return Verifier(decode_value(key).value).ring(decode_value(ring).value).servers
        except (GarbageError, ValueError) as error:
            raise CoordinatorError(f"the ring at {where} cannot be read: {error}") from error

    def stores(self) -> dict[ServerAddress, tuple[str, ...]]:
        """The stores that have queues, and the names of these, by the signed entries of queues. The queues on listed
        stores are unknown."""
        if self.coordinator is None:
            return dict.fromkeys(self.listed, ())
        where, prefix = self.coordinator, entries_prefix(QUEUE)
        with self._connection(where) as coordinator:
            low, high = b"[" + prefix.encode(), b"(" + prefix.encode() + b"\xff"
            names = coordinator.ask("ZRANGEBYLEX", index_key(prefix), low, high)
            key = coordinator.ask("GET", redis_key(PUBLIC_KEY))
            lines = [coordinator.ask("GET", redis_key(name.decode())) for name in names]
        found: dict[ServerAddress, tuple[str, ...]] = {}
        if key is None:
            return found
        try:
            for line in filter(None, lines):
                entry = Verifier(decode_value(key).value).line(decode_value(line).value, QueueEntry)
                for store in entry.stores:
                    found[store] = (*found.get(store, ()), entry.unit.decode())
        except (GarbageError, ValueError, ForgedEntryError) as error:
            raise CoordinatorError(f"the queues at {where} cannot be read: {error}") from error
        return found

    def _connection(self, where: Address) -> BlockingConnection:
        dial = PRODUCTION.with_tls(where.tls).coordinator_dial
        return BlockingConnection(where.host, where.port, where.username, where.password, dial=dial)


def read_cluster_address(options: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> SourceAddress:
    """The cluster that the options name: by `coordinator`, or by `servers` with `user` and `password`, else the local
    cluster in `statedir`."""
    user, password = options.get("user"), options.get("password")
    if "servers" in options:
        if "coordinator" in options:
            raise ConfigError("both servers and coordinator are given", do="give one of them")
        return SourceAddress(Login(user, password), None, listed_servers(options["servers"]))
    url = options.get("coordinator") or _local_url(options.get("statedir"), environ)
    address = parse_address(url, user, password)
    return SourceAddress(Login(address.username, address.password, address.tls), address)


def _local_url(state_dir: str | None, environ: Mapping[str, str]) -> str:
    from shoal.bus.location import find_url  # also loads the whole client, which workers need not wait for

    return find_url(state_dir, environ, ROLE)


def listed_servers(text: str) -> tuple[ServerAddress, ...]:
    """The servers in `s1=host:port,host:port`. The id of one without an id is its address."""
    servers = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        id, equals, address = word.rpartition("=")
        host, colon, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigError(
                f"the server {word!r} has no host or no port", do="write it as id=host:port, or host:port"
            )
        servers.append(ServerAddress(id if equals else address, host, int(port)))
    if not servers or len({server.id for server in servers}) < len(servers):
        raise ConfigError(
            f"the option servers, {text!r}, names no server, or one of them twice",
            do="write it as s1=host:port,s2=host:port",
        )
    return tuple(servers)
