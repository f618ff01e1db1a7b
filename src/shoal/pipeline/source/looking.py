"""Which servers there are, who of them answers, and what streams they have.

Owns the ring as it was last read, and the silence of servers and coordinator. What is read of them is decided in
`planning`.
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
"""Stands for the coordinator among those who do not answer."""

_log: Final = get_log(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Seen:
    """The streams of a server that answered."""

    keys: Mapping[str, bytes]
    infos: Mapping[str, StreamInfo]
    ahead_ms: int


class Looking:
    """Asks servers. Remembers the last ring, the addresses of servers that have left it since, and who did not answer.

    One that does not answer is warned of, once until it answers again. If `complete`, it is an error.
    """

    def __init__(self, options: SourceOptions, complete: bool) -> None:
        self._options = options
        self._complete = complete
        self._ring: tuple[ServerAddress, ...] = ()
        self._addresses: dict[str, ServerAddress] = {}
        self._silent: set[str] = set()

    def ring(self) -> tuple[ServerAddress, ...]:
        """The servers there are; those of the last time while the coordinator does not answer."""
        try:
            self._ring = self._options.cluster.servers()
            self._silent.discard(COORDINATOR)
        except ConnectError as error:
            if not self._ring:
                raise
            if COORDINATOR not in self._silent:
                self._silent.add(COORDINATOR)
                _log.warning("the coordinator does not answer; the last ring is used", why=str(error))
        self._addresses.update({server.id: server for server in self._ring})
        return self._ring

    def address(self, server: str) -> ServerAddress | None:
        """Where a server is, or was when it left the ring; None: nobody knows."""
        return self._addresses.get(server)

    def forget(self, server: str) -> None:
        """A server that has left the ring is not asked any more."""
        self._addresses.pop(server, None)
        self._silent.discard(server)

    def left(self, among: Iterable[str]) -> set[str]:
        """Those that are not in the ring."""
        return set(among) - {server.id for server in self._ring}

    def silent(self, server: str) -> bool:
        """Whether a server did not answer when it was last asked."""
        return server in self._silent

    def silent_ones(self) -> list[str]:
        """The servers of the ring that did not answer when they were last asked."""
        return [server.id for server in self._ring if server.id in self._silent]

    def around(self, more: Iterable[str] = ()) -> dict[str, Seen]:
        """The streams of all servers of the ring that answer, and of `more` that have left it and still answer."""
        seen: dict[str, Seen] = {}
        for server in self.ring():
            if (found := self.ask(server.id, self._look)) is not None:
                seen[server.id] = found
        for id in sorted(self.left(more) & self._addresses.keys()):
            with suppress(ConnectError), self.open(id) as streams:
                seen[id] = self._look(streams)
        if not seen:
            raise ConnectError(f"no server of {self._options.cluster.name} answers", do="see `shoal status`")
        return seen

    def _look(self, streams: ServerStreams) -> Seen:
        keys = self._options.kind.streams(streams.ask)
        return Seen(keys, {name: streams.info(key) for name, key in keys.items()}, streams.ahead_ms())

    def open(self, server: str) -> ServerStreams:
        """A connection to a server whose address is known."""
        return ServerStreams(self._addresses[server], self._options.cluster.login)

    def ask(self, server: str, question: Callable[[ServerStreams], T]) -> T | None:
        """What a server answers; None if it does not: it is silent from then on, until it answers again."""
        try:
            with self.open(server) as streams:
                answer = question(streams)
        except ConnectError as error:
            self._warn(server, error)
            return None
        self._silent.discard(server)
        return answer

    def _warn(self, server: str, error: ConnectError) -> None:
        if self._complete and self._options.fail_on_data_loss:
            raise PipelineError(
                f"{server} does not answer, so what it holds would be missing: {error}",
                do="bring it back (`shoal status`), or set failOnDataLoss to false to read the others",
            ) from error
        if server not in self._silent:
            self._silent.add(server)
            _log.warning("a server is not read until it answers", server=server, why=str(error))
