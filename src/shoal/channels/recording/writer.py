"""Appends entries to the record of one channel.

Owns the numbers of the entries, the bound on the record, and the entries that its server refused. `record` decides what
is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from shoal.channels.agent_host import AgentHost
from shoal.logs import get_log
from shoal.wire import control
from shoal.wire.record_entry import Fields, RecordedGap, record_key

ENTRIES_MIN: Final = 600
"""Entries that a record keeps whatever their size: enough for another agent to continue from."""

ENTRY_OVERHEAD_BYTES: Final = 32
"""Approximate size of an entry beside its message."""

UNWRITTEN_MAX: Final = 1000
"""Refused ranges that are remembered one by one. Beyond it the record only says that some messages are missing."""

_REFUSED: Final = "the server refused to record them"
_SOMETHING: Final = RecordedGap(0, 0, 0, _REFUSED)
_log: Final = get_log(__name__)


class RecordingHost(AgentHost, Protocol):
    """The agent that writes records."""

    @property
    def client(self) -> int:
        """The client id under which the agent asks publishers."""

    def listen(self, channel: bytes) -> None:
        """Subscribes to a channel of the agent's own server."""

    def tell_peer(self, client: int, message: control.ToPeer) -> None:
        """Asks a publisher on the agent's own server for messages."""


class RecordWriter:
    """Writes one record. `refused` is called with the time when the server has refused an entry."""

    def __init__(self, host: RecordingHost, channel: bytes, refused: Callable[[float], None]) -> None:
        self.key = record_key(channel)
        self.number = 0
        """The number of the newest entry."""
        self._host = host
        self._channel = channel
        self._on_refused = refused
        self._entry_bytes = 0.0
        self._pending: deque[RecordedGap | None] = deque()
        self._unwritten: list[RecordedGap] = []
        self._complained = False

    @property
    def has_unwritten(self) -> bool:
        """Whether the record lacks refused entries."""
        return bool(self._unwritten)

    def take_unwritten(self) -> list[RecordedGap]:
        """The gaps for refused entries, to be written."""
        unwritten, self._unwritten = self._unwritten, []
        return unwritten

    def write(self, fields: Callable[[int, Any], Fields], value: Any, missing: RecordedGap | None = _SOMETHING) -> None:
        """Appends an entry; `missing` is the gap if the server refuses it."""
        self.number += 1
        entry = fields(self.number, value)
        size = len(entry[-1]) + ENTRY_OVERHEAD_BYTES
        self._entry_bytes = size if not self._entry_bytes else 0.99 * self._entry_bytes + 0.01 * size
        limits = self._host.limits
        fit = max(int(limits.recorded_bytes_max / self._entry_bytes), ENTRIES_MIN)
        entries_max = min(limits.recorded_entries_max, fit)
        self._pending.append(missing)
        self._host.ask((b"XADD", self.key, b"MAXLEN", b"~", b"%d" % entries_max, b"*", *entry), self._written)

    def _written(self, reply: Any, now: float) -> None:
        missing = self._pending.popleft()
        if isinstance(reply, bytes):
            return
        self.complain(reply)
        if len(self._unwritten) >= UNWRITTEN_MAX:
            self._unwritten = [_SOMETHING]
        elif missing is not None:
            _append(self._unwritten, missing)
        self._on_refused(now)

    def complain(self, reply: Any) -> None:
        """Counts a refusal by the server, and logs the first one."""
        self._host.counters.record_refused += 1
        if not self._complained:
            self._complained = True
            channel = self._channel.decode("utf-8", "backslashreplace")
            _log.error("record not written", server=self._host.server, channel=channel, why=str(reply))


def refused_message(stream: int, sequence: int) -> RecordedGap:
    """The gap for a refused message."""
    return RecordedGap(stream, sequence, sequence, _REFUSED)


def _append(gaps: list[RecordedGap], gap: RecordedGap) -> None:
    """Adds a gap to a list, merged with the last one if it continues it."""
    last = gaps[-1] if gaps else None
    if last is not None and gap.stream and last.stream == gap.stream and last.last and last.last + 1 == gap.first:
        gaps[-1] = RecordedGap(gap.stream, last.first, gap.last, gap.reason)
    elif gap != last:
        gaps.append(gap)
