"""The recorder: which channels are recorded on an agent's server, and the records of those.

Owns the marks and opens and closes each record. A core without I/O beside `AgentCore`, whose connection it shares.
`record` decides what a record contains.

A mark is a pattern as in Redis, so `orders.*` marks many channels. Without marks this costs nothing: the scanner
returns a message only if its channel is watched. A record is opened with the first message of its channel, and when the
agent connects to a server that has one already, or had one at the last connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from shoal.channels import states
from shoal.channels.recording.budget import RecordBudget
from shoal.channels.recording.pace import Turns
from shoal.channels.recording.record import ChannelRecord
from shoal.channels.recording.writer import RecordingHost, trim_unknown
from shoal.errors import ProtocolError
from shoal.logs import get_log
from shoal.rules import ALL_RULES, Rules, rule
from shoal.wire import control
from shoal.wire.envelope import peer_channel
from shoal.wire.glob import glob_match
from shoal.wire.record_entry import INDEX_KEY, MARKS_KEY, WRITER_KEY, encode_marks

RECORD_LOSS: Final = rule("record_loss", "A recorder writes a gap at once when its server has lost a record.")
RECORD_ALONE: Final = rule("record_alone", "A recorder ends the connection that wrote the records before it.")


OPENING_MAX: Final = 4
"""Records whose ends are read at the same time. Messages on the channels of the others wait."""

NAMES_MAX: Final = 100_000
"""Channels for which it is cached whether they are recorded; when there are more, the cache starts over."""

_log: Final = get_log(__name__)


class Recorder:
    """The recorder of one agent."""

    def __init__(self, host: RecordingHost, rules: Rules = ALL_RULES) -> None:
        self._host = host
        self._rules = rules
        self._marks: set[bytes] = set()
        self._names: dict[bytes, bool] = {}
        self._records: dict[bytes, ChannelRecord] = {}
        self._written: set[bytes] = set()
        self._queue: deque[ChannelRecord] = deque()
        self._turns = Turns()
        self.budget = RecordBudget(host.limits)
        self._opening = 0
        self._connected = False
        self._number = 0
        """The number of this connection on its server."""
        self._alone = False
        """Whether no earlier connection can write anymore. Before that the end of a record may change."""

    @property
    def active(self) -> bool:
        """Whether anything is recorded."""
        return bool(self._marks)

    @property
    def records_open(self) -> int:
        """The number of records that are being written."""
        return sum(record.state is states.RecordState.WRITING for record in self._records.values())

    @property
    def settled(self) -> bool:
        """Whether no record waits for anything."""
        return not self._queue and all(record.settled for record in self._records.values())

    def marked(self, channel: bytes) -> bool:
        """Whether a channel is recorded."""
        if not self._marks:
            return False
        known = self._names.get(channel)
        if known is None:
            if len(self._names) >= NAMES_MAX:
                self._names.clear()
            known = self._names[channel] = any(glob_match(mark, channel) for mark in self._marks)
        return known

    def mark(self, pattern: bytes, on: bool) -> bool:
        """Marks channels as recorded, or no longer; returns whether that is a change."""
        if (pattern in self._marks) == on:
            return False
        (self._marks.add if on else self._marks.discard)(pattern)
        self._names.clear()
        for channel in [channel for channel in self._records if not self.marked(channel)]:
            record = self._records.pop(channel)
            self._opening -= record.is_opening
            record.close()
        if self._connected:
            self._open_next()
            self._tell()
            if on:
                self._begin(len(self._marks) == 1)
        return True

    def _tell(self) -> None:
        """Writes the marks to the server, so that clients can see when a mark is in force."""
        self._host.ask((b"SET", MARKS_KEY, encode_marks(self._marks)))

    # Connections

    def opened(self) -> None:
        """There is a new connection to the server: commands on the one before may be lost."""
        self._connected = True
        self._written.update(self._records)
        for record in self._records.values():
            record.close()
        self._records.clear()
        self._queue.clear()
        self._turns.clear()
        self.budget.reset()
        self._opening = 0
        self._alone = False
        if self._marks:
            self._tell()
            self._begin(True)

    def lost(self) -> None:
        """The connection is lost."""
        self._connected = False

    def _begin(self, first: bool) -> None:
        """Subscribes to resends, then looks for records that the server already has. Its commands on an earlier
        connection may still be on their way to a slow server; so that connection is ended first."""
        if first:
            self._host.listen(peer_channel(self._host.client))
            self._host.ask((b"CLIENT", b"ID"), self._take_number)
            self._host.ask((b"GET", WRITER_KEY), self._end_writer)
        self._host.ask((b"SMEMBERS", INDEX_KEY), self._index)

    def _take_number(self, reply: Any, now: float) -> None:
        self._number = reply if isinstance(reply, int) else 0

    def _end_writer(self, reply: Any, now: float) -> None:
        """Ends the connection that wrote before, of this agent or an earlier one. Its number may be that of another
        client, if the server has restarted since: that client connects again."""
        if isinstance(reply, bytes) and RECORD_ALONE in self._rules:
            kill = (b"CLIENT", b"KILL", b"ID", reply, b"TYPE", b"pubsub", b"SKIPME", b"yes")
            self._host.ask(kill, self._ended)
        self._host.ask((b"SET", WRITER_KEY, b"%d" % self._number))
        self._alone = True
        self._open_next()

    def _ended(self, reply: Any, now: float) -> None:
        if not isinstance(reply, int):
            _log.warning("earlier writer of records not disconnected", server=self._host.server, why=str(reply))

    def _index(self, reply: Any, now: float) -> None:
        """Opens the records that the server has, and those that it has lost although they were written here: their loss
        must be recorded even without another message."""
        channels = reply if isinstance(reply, list | set) else ()
        self._count(channels)
        for channel in sorted({*channels, *self._written} if RECORD_LOSS in self._rules else channels):
            if channel not in self._records and self.marked(channel):
                self._open(channel)

    def _open_next(self) -> None:
        while self._alone and self._queue and self._opening < OPENING_MAX:
            record = self._queue.popleft()
            if record.state is states.RecordState.READING:
                self._opening += 1
                record.open()

    def _open(self, channel: bytes) -> ChannelRecord:
        lost = channel in self._written
        self._count((channel,))
        record = ChannelRecord(self._host, channel, self._is_open, lost, self._turns, self.budget, self._rules)
        self._records[channel] = record
        self._queue.append(record)
        self._open_next()
        return record

    def _count(self, channels: Iterable[bytes]) -> None:
        """The server has these records too; all are trimmed when their shares become smaller."""
        if self.budget.add(channels):
            self._host.counters.record_trims += 1
            for record in self._records.values():
                record.trim()
            for channel in self.budget.others(self._records):
                trim_unknown(self._host, channel, self.budget)

    def _is_open(self) -> None:
        self._opening -= 1
        self._open_next()

    # Messages

    def heard(self, channel: bytes, blob: bytes, fresh: bool, now: float) -> None:
        """A message on a channel that is watched, or new. If it is not `fresh`, its payload may be false."""
        if self.marked(channel):
            (self._records.get(channel) or self._open(channel)).hear(blob, fresh, now)

    def evidence(self, channel: bytes, stream: int, last: int, present: bool, now: float) -> None:
        """A publisher says how far its stream has come."""
        if self.marked(channel):
            (self._records.get(channel) or self._open(channel)).evidence(stream, last, present, now)

    def told(self, data: bytes, now: float) -> None:
        """A message on the agent's own peer channel: an answer of a publisher."""
        try:
            _, _, message = control.decode(data)
        except ProtocolError:
            self._host.counters.garbage += 1
            return
        if isinstance(message, control.Resend) and (record := self._records.get(message.channel)):
            record.resent(message.blob, now)
        elif isinstance(message, control.Healed) and (record := self._records.get(message.channel)):
            record.healed(message, now)
