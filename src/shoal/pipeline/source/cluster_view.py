"""The servers of a cluster and their streams, as the reader currently sees them.

Owns the last known ring, and which servers do not answer, since when. What is read from them is decided in
`offset_planner`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from shoal.errors import ConnectError, PipelineError
from shoal.logs import get_log
from shoal.pipeline.source.offsets import StreamInfo
from shoal.pipeline.source.options import SourceOptions
from shoal.pipeline.source.streams import ServerStreams
from shoal.plan.kinds import SERVER, STORE
from shoal.plan.ring import ServerAddress

COORDINATOR: Final = ""
"""Stands for the coordinator in `_silent`."""

_log: Final = get_log(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServerView:
    """The streams of a server that answered."""

    keys: Mapping[str, bytes]
    infos: Mapping[str, StreamInfo]
    ahead_ms: int
    answered_ms: int
    """When it had answered, by the reader's clock."""


@dataclass(frozen=True, slots=True)
class SourceSnapshot:
    """The servers that answered, by id."""

    at_ms: int
    """When the first server was asked, by the reader's clock: every stream holds what was recorded until then."""
    servers: Mapping[str, ServerView]


class ClusterView:
    """Queries servers. Remembers the last ring, the addresses of servers that have left it, and which did not answer.

    It logs one warning for a server that does not answer, until the server answers again. With `complete` it raises an
    error instead.
    """

    def __init__(self, options: SourceOptions, complete: bool) -> None:
        self._options = options
        self._complete = complete
        self._ring: tuple[ServerAddress, ...] = ()
        self._addresses: dict[str, ServerAddress] = {}
        self._queues: dict[str, tuple[str, ...]] = {}
        """The queues of each store."""
        self._silent: dict[str, float] = {}
        """Servers that do not answer, and since when (monotonic)."""

    def ring(self) -> tuple[ServerAddress, ...]:
        """The current servers; the last known ones while the coordinator does not answer."""
        try:
            self._ring = self._hosts()
            self._silent.pop(COORDINATOR, None)
        except ConnectError as error:
            if not self._ring:
                raise
            if COORDINATOR not in self._silent:
                self._silent[COORDINATOR] = time.monotonic()
                _log.warning("coordinator does not answer; using the last known ring", why=str(error))
        self._addresses.update({server.id: server for server in self._ring})
        return self._ring

    def _hosts(self) -> tuple[ServerAddress, ...]:
        """The hosts that have streams of the kind."""
        cluster, hosts = self._options.cluster, self._options.kind.hosts
        servers = cluster.servers() if SERVER in hosts else ()
        stores = cluster.stores() if STORE in hosts else {}
        self._queues = {store.id: queues for store, queues in stores.items()}
        return tuple({host.id: host for host in (*servers, *stores)}.values())

    def address(self, server: str) -> ServerAddress | None:
        """The address of a server, also after it left the ring; None if unknown."""
        return self._addresses.get(server)

    def forget(self, server: str) -> None:
        """Stops querying a server that has left the ring."""
        self._addresses.pop(server, None)
        self._silent.pop(server, None)

    def left(self, among: Iterable[str]) -> set[str]:
        """Those that are not in the ring."""
        return set(among) - {server.id for server in self._ring}

    def silent(self, server: str) -> bool:
        """Whether a server did not answer its last query."""
        return server in self._silent

    def silent_servers(self) -> list[str]:
        """The servers of the ring that did not answer their last query."""
        return [server.id for server in self._ring if server.id in self._silent]

    def wait_s(self) -> float:
        """How much longer to wait for servers of the ring that do not answer; 0: do not wait. A batch that is read only
        once does not wait."""
        since = [self._silent[server] for server in self.silent_servers()]
        if not since or self._complete:
            return 0.0
        return max(0.0, max(since) + self._options.server_wait_s - time.monotonic())

    def refresh(self, more: Iterable[str] = ()) -> SourceSnapshot:
        """Queries all servers of the ring, and those of `more` that have left it. Returns the ones that answer."""
        at_ms = int(time.time() * 1000)
        views: dict[str, ServerView] = {}
        for server in self.ring():
            if (view := self.ask(server.id, self._view)) is not None:
                views[server.id] = view
        for id in sorted(self.left(more) & self._addresses.keys()):
            with suppress(ConnectError), self.open(id) as streams:
                views[id] = self._view(streams)
        if not views and self._ring:
            raise ConnectError(f"no server of {self._options.cluster.name} answers", do="see `shoal status`")
        return SourceSnapshot(at_ms, views)

    def _view(self, streams: ServerStreams) -> ServerView:
        kind = self._options.kind
        keys = self.stream_keys(streams)
        infos = dict(zip(keys, streams.infos([*keys.values()], kind.number), strict=True))
        return ServerView(keys, infos, streams.ahead_ms(), int(time.time() * 1000))

    def stream_keys(self, streams: ServerStreams) -> dict[str, bytes]:
        """The streams of the kind on a server: their names and keys."""
        return self._options.kind.streams(streams.ask, self._queues.get(streams.server.id, ()))

    def open(self, server: str) -> ServerStreams:
        """A connection to a server whose address is known."""
        return ServerStreams(self._addresses[server], self._options.cluster.login)

    def ask(self, server: str, question: Callable[[ServerStreams], T]) -> T | None:
        """The result of a query; None if the server does not answer, which is remembered until it does."""
        asked = time.monotonic()
        try:
            with self.open(server) as streams:
                answer = question(streams)
        except ConnectError as error:
            self.note_silent(server, error, asked)
            return None
        self._silent.pop(server, None)
        return answer

    def note_silent(self, server: str, error: ConnectError, since: float | None = None) -> None:
        """Remembers that a server has not answered since a (monotonic) time; None: now."""
        if self._complete and self._options.fail_on_data_loss:
            raise PipelineError(
                f"{server} does not answer, so its rows would be missing: {error}",
                do="bring it back (`shoal status`), or set failOnDataLoss to false to read the others",
            ) from error
        if server not in self._silent:
            self._silent[server] = time.monotonic() if since is None else since
            _log.warning("server does not answer; it is read when it does", server=server, why=str(error))
