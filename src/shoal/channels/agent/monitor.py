"""The monitor: asks the server for its own figures every second, closes the second and writes its telemetry record.

Owns the questions of every second and the record. A core without I/O beside `AgentCore`, whose connection it shares.
`analyzer` derives the figures.

    second over -> PUBSUB NUMSUB (pages), PUBSUB NUMPAT, sometimes CLIENT LIST, INFO -> second closed -> XADD

Replies arrive in the order of the questions and among the messages, so a second is closed at the point in the server's
order at which INFO was answered. If a round is not over when the next second ends, because the connection is behind, it
continues, and its record covers both seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any, Final

import msgspec

from shoal.channels import states
from shoal.channels.agent.core import AgentCore
from shoal.channels.telemetry.analyzer import Analyzer, Second, ServerSample
from shoal.channels.telemetry.channel_kind import SERVER
from shoal.channels.telemetry.scanner import ACTIVE_CHANNELS_MAX
from shoal.errors import ProtocolError
from shoal.load.record import RecordId, TelemetryRecord, xadd
from shoal.logs import get_log

NUMSUB_PAGE_CHANNELS: Final = 500
"""Channels in one NUMSUB: the server does nothing else while it answers."""

NUMSUB_CHANNELS_MAX: Final = ACTIVE_CHANNELS_MAX
"""Channels asked about in one second, active ones first. The others get the count of the register."""

CLIENT_LIST_INTERVAL_S: Final = 5
"""How often clients that have disconnected are looked for."""

FORGET_INTERVAL_S: Final = 30
"""How often streams that were silent for `publisher_idle_s` are dropped."""

TELEMETRY_RECORDS_MAX: Final = 600
"""Records that a server keeps: ten minutes. Older ones are dropped."""

TELEMETRY_BYTES_MAX: Final = 32 * 1024 * 1024
"""The size of all records together; large records are kept for a shorter time."""

TELEMETRY_RECORDS_MIN: Final = 10
"""Records that are kept whatever their size."""

_CLIENT_NAME: Final = re.compile(rb" name=shoal:([0-9a-f]{12}) ")
_log: Final = get_log(__name__)


class MonitorCounters(msgspec.Struct):
    """What a monitor has done since its start."""

    seconds: int = 0
    late: int = 0
    """Seconds that ended before the round of the one before was over."""
    refused: int = 0
    """Questions that the server refused."""
    clients_left: int = 0
    streams_forgotten: int = 0


class Monitor:
    """Watches one server, which may send `max_out_bytes_per_s`.

    `own_patterns` are the patterns of agents; `site` is the site of the server, for its telemetry.
    """

    def __init__(
        self,
        core: AgentCore,
        analyzer: Analyzer,
        max_out_bytes_per_s: float,
        own_patterns: frozenset[bytes],
        site: str,
    ) -> None:
        self.counters = MonitorCounters()
        self.foreign_patterns = 0
        """Patterns on the server that no registered client uses. Their subscribers are not known."""
        self.closed: Callable[[Second], None] | None = None
        """Called with each closed second."""
        self._core = core
        self._analyzer = analyzer
        self._max_out_bytes_per_s = max_out_bytes_per_s
        self._own_patterns = own_patterns
        self._site = site
        self._open_second: int | None = None
        self._numsub: dict[bytes, int] = {}
        self._sequence = 0
        self._records_max = TELEMETRY_RECORDS_MAX
        self._listed_at = 0
        self._forgot_at = 0
        self._complained = False

    def opened(self) -> None:
        """There is a new connection to the server: questions on the one before get no answer."""
        self._open_second = None

    def second_over(self, second: int, now: float) -> None:
        """The second with this number (of the wall clock) has ended: asks the server for its figures."""
        if self._core.state is states.AgentState.AWAY:
            return
        if self._open_second is not None:
            self.counters.late += 1
            return
        self._open_second = second
        self._numsub = {}
        for page in self._pages():
            self._ask((b"PUBSUB", b"NUMSUB", *page), list, self._take_numsub)
        self._ask((b"PUBSUB", b"NUMPAT"), int, self._take_numpat)
        if not 0 <= second - self._listed_at < CLIENT_LIST_INTERVAL_S:
            self._listed_at = second
            self._ask((b"CLIENT", b"LIST", b"TYPE", b"pubsub"), bytes, self._take_clients)
        self._core.ask((b"INFO",), self._take_info)

    def _ask(self, command: tuple[bytes, ...], kind: type, take: Callable[[Any], None]) -> None:
        """Asks the server. A reply of another type than `kind` is a refusal, and its figures are missing."""

        def answered(reply: Any, now: float) -> None:
            if isinstance(reply, kind):
                take(reply)
            else:
                self._refused(command, reply)

        self._core.ask(command, answered)

    def _refused(self, command: tuple[bytes, ...], reply: Any) -> None:
        self.counters.refused += 1
        if not self._complained:
            self._complained = True
            _log.error(
                "telemetry incomplete: the server refuses a command of its agent",
                server=self._core.server,
                command=b" ".join(command[:2]),
                reply=str(reply)[:200],
            )

    def _pages(self) -> Iterator[tuple[bytes, ...]]:
        """The channels to ask about: active ones first, then others with registered subscribers."""
        active = self._core.scanner.active_channels()
        known = set(active)
        registered = (name for name in self._core.register.channels if name not in known)
        names = islice(chain(active, registered), NUMSUB_CHANNELS_MAX)
        while page := tuple(islice(names, NUMSUB_PAGE_CHANNELS)):
            yield page

    def _take_numsub(self, reply: list[Any]) -> None:
        self._numsub.update(zip(reply[::2], reply[1::2], strict=True))

    def _take_numpat(self, patterns: int) -> None:
        known = len(self._own_patterns.union(self._core.register.patterns))
        self.foreign_patterns = max(patterns - known, 0)

    def _take_clients(self, reply: bytes) -> None:
        """Removes registered clients that have no connection any more. Clients that connected before this reply are in
        it."""
        there = {int(digits, 16) for digits in _CLIENT_NAME.findall(reply)}
        for client in [client for client in self._core.register.clients if client not in there]:
            self.counters.clients_left += 1
            self._core.register.remove_client(client)

    def _take_info(self, reply: Any, now: float) -> None:
        """The last reply of a round closes the second."""
        second, self._open_second = self._open_second, None
        assert second is not None
        try:
            sample = ServerSample.from_info(bytes(reply), now, self._max_out_bytes_per_s)
        except (ProtocolError, TypeError):
            self._refused((b"INFO",), reply)
            return
        register = self._core.register
        closed = self._analyzer.close_second(
            second,
            register.channels,
            self._numsub,
            sample,
            {pattern: len(clients) for pattern, clients in register.patterns.items()},
        )
        self._numsub = {}
        self.counters.seconds += 1
        self._report(closed)
        if self.closed is not None:
            self.closed(closed)
        self._forget_idle(second)

    def _report(self, closed: Second) -> None:
        self._sequence += 1
        record_id = RecordId(self._core.server, f"{self._core.instance:016x}", closed.second, self._sequence)
        record = TelemetryRecord(
            record_id, SERVER, closed.server, {closed.channels.kind.name: closed.channels}, self._site
        )
        command = xadd(record, self._records_max)
        fit = TELEMETRY_BYTES_MAX // len(command[-1])
        self._records_max = min(max(fit, TELEMETRY_RECORDS_MIN), TELEMETRY_RECORDS_MAX)
        self._ask(command, bytes, lambda _: None)

    def _forget_idle(self, second: int) -> None:
        if 0 <= second - self._forgot_at < FORGET_INTERVAL_S:
            return
        self._forgot_at = second
        self.counters.streams_forgotten += self._core.forget_idle()
