"""The servers of a cluster and their streams, as the reader currently sees them.

Owns the last known ring, and the lists of servers that do not answer. What is read from them is decided in
`offset_planner`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from shoal.errors import ConnectError, PipelineError
from shoal.logs import get_log
from shoal.pipeline.source.offsets import StreamInfo
from shoal.pipeline.source.options import SourceOptions
from shoal.pipeline.source.streams import ServerStreams
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
        self._silent: set[str] = set()

    def ring(self) -> tuple[ServerAddress, ...]:
        """The current servers; the last known ones while the coordinator does not answer."""
        try:
            self._ring = self._options.cluster.servers()
            self._silent.discard(COORDINATOR)
        except ConnectError as error:
            if not self._ring:
                raise
            if COORDINATOR not in self._silent:
                self._silent.add(COORDINATOR)
                _log.warning("coordinator does not answer; using the last known ring", why=str(error))
        self._addresses.update({server.id: server for server in self._ring})
        return self._ring

    def address(self, server: str) -> ServerAddress | None:
        """The address of a server, also after it left the ring; None if unknown."""
        return self._addresses.get(server)

    def forget(self, server: str) -> None:
        """Stops querying a server that has left the ring."""
        self._addresses.pop(server, None)
        self._silent.discard(server)

    def left(self, among: Iterable[str]) -> set[str]:
        """Those that are not in the ring."""
        return set(among) - {server.id for server in self._ring}

    def silent(self, server: str) -> bool:
        """Whether a server did not answer its last query."""
        return server in self._silent

    def silent_servers(self) -> list[str]:
        """The servers of the ring that did not answer their last query."""
        return [server.id for server in self._ring if server.id in self._silent]

    def refresh(self, more: Iterable[str] = ()) -> dict[str, ServerView]:
        """Queries all servers of the ring, and those of `more` that have left it. Returns the ones that answer."""
        views: dict[str, ServerView] = {}
        for server in self.ring():
            if (view := self.ask(server.id, self._view)) is not None:
                views[server.id] = view
        for id in sorted(self.left(more) & self._addresses.keys()):
            with suppress(ConnectError), self.open(id) as streams:
                views[id] = self._view(streams)
        if not views:
            raise ConnectError(f"no server of {self._options.cluster.name} answers", do="see `shoal status`")
        return views

    def _view(self, streams: ServerStreams) -> ServerView:
        keys = self._options.kind.streams(streams.ask)
        return ServerView(keys, {name: streams.info(key) for name, key in keys.items()}, streams.ahead_ms())

    def open(self, server: str) -> ServerStreams:
        """A connection to a server whose address is known."""
        return ServerStreams(self._addresses[server], self._options.cluster.login)

    def ask(self, server: str, question: Callable[[ServerStreams], T]) -> T | None:
        """The result of a query; None if the server does not answer, which is remembered until it does."""
        try:
            with self.open(server) as streams:
                answer = question(streams)
        except ConnectError as error:
            self._note_silent(server, error)
            return None
        self._silent.discard(server)
        return answer

    def _note_silent(self, server: str, error: ConnectError) -> None:
        if self._complete and self._options.fail_on_data_loss:
            raise PipelineError(
                f"{server} does not answer, so its rows would be missing: {error}",
                do="bring it back (`shoal status`), or set failOnDataLoss to false to read the others",
            ) from error
        if server not in self._silent:
            self._silent.add(server)
            _log.warning("server does not answer; it is read when it does", server=server, why=str(error))
