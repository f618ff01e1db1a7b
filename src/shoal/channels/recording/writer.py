"""Appends entries to the record of one channel.

Owns the numbers of the entries, the bound on the record, and the entries that its server refused. `record` decides what
is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from shoal.channels.agent_host import AgentHost
from shoal.channels.recording.budget import RecordBudget
from shoal.logs import get_log
from shoal.wire import control
from shoal.wire.record_entry import Fields, RecordedGap, record_key

ENTRIES_MIN: Final = 600
"""Entries that a record keeps whatever their size: enough for another agent to continue from."""

ENTRY_OVERHEAD_BYTES: Final = 32
"""Approximate size of an entry beside its message."""

SIZED_MAX: Final = 100
"""The mean size of entries is that of about this many. The bound of the record follows it as often."""

ENTRY_BYTES_ASSUMED: Final = 1024
"""Size of an entry in a record that this agent has not written to."""

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

    def __init__(
        self, host: RecordingHost, channel: bytes, refused: Callable[[float], None], budget: RecordBudget
    ) -> None:
        self.key = record_key(channel)
        self.number = 0
        """The number of the newest entry."""
        self._host = host
        self._channel = channel
        self._on_refused = refused
        self._budget = budget
        self._entry_bytes = 0.0
        self._sized = 0
        self._written_since = 0
        """Entries since the bound was last set."""
        self._bound = (b"", b"", b"", b"", b"", b"")
        """The command up to the entry's id, with the bound of the record."""
        self._pending: deque[RecordedGap | None] = deque()
        self._unwritten: list[RecordedGap] = []
        self._complained = False

    @property
    def has_unwritten(self) -> bool:
        """Whether the record lacks refused entries."""
        return bool(self._unwritten)

    @property
    def is_writing(self) -> bool:
        """Whether the server has not answered all writes."""
        return bool(self._pending)

    def take_unwritten(self) -> list[RecordedGap]:
        """The gaps for refused entries, to be written."""
        unwritten, self._unwritten = self._unwritten, []
        return unwritten

    def write(self, fields: Callable[[int, Any], Fields], value: Any, missing: RecordedGap | None = _SOMETHING) -> None:
        """Appends an entry; `missing` is the gap if the server refuses it."""
        self.number += 1
        entry = fields(self.number, value)
        size = len(entry[-1]) + ENTRY_OVERHEAD_BYTES
        self._sized = min(self._sized + 1, SIZED_MAX)
        self._entry_bytes += (size - self._entry_bytes) / self._sized
        self._written_since += 1
        if self._sized < SIZED_MAX or self._written_since >= SIZED_MAX:
            self._set_bound()
        self._pending.append(missing)
        self._host.ask(self._bound + entry, self._written)

    def _set_bound(self) -> None:
        self._written_since = 0
        self._bound = (b"XADD", self.key, b"MAXLEN", b"~", b"%d" % self._entries_max, b"*")

    @property
    def _entries_max(self) -> int:
        """How many entries the record keeps, by their mean size."""
        fit = max(int(self._budget.share_bytes / self._entry_bytes), ENTRIES_MIN)
        return min(self._host.limits.recorded_entries_max, fit)

    def trim(self) -> None:
        """Drops the oldest entries that do not fit any more, although none is added."""
        if self._entry_bytes:
            self._set_bound()
            self._host.ask((b"XTRIM", self.key, b"MAXLEN", b"~", b"%d" % self._entries_max))

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


def trim_unknown(host: RecordingHost, channel: bytes, budget: RecordBudget) -> None:
    """Drops the oldest entries of a record that nothing is written to, by an assumed size of its entries."""
    entries_max = max(budget.share_bytes // ENTRY_BYTES_ASSUMED, ENTRIES_MIN)
    host.ask((b"XTRIM", record_key(channel), b"MAXLEN", b"~", b"%d" % entries_max))


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
