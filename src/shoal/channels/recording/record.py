"""The record of one channel on one server, as its agent writes it.

Owns what is written, in which order, and which messages publishers are asked for. A core without I/O: commands go to
the host, which returns the replies. `recorder` decides which channels are recorded.

    reading --the end of the record is known--> writing

The previous recorder, this process or an earlier one, may have been away for a while: the record itself tells what it
holds. Publishers are asked for the messages that they sent meanwhile. What they no longer have is recorded as a gap.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from shoal.channels import states
from shoal.channels.recording.budget import RecordBudget
from shoal.channels.recording.pace import RecordTail, Turns
from shoal.channels.recording.recorded_stream import RecordedStream
from shoal.channels.recording.writer import RecordingHost, RecordWriter, refused_message
from shoal.errors import ProtocolError
from shoal.rules import Rules, rule
from shoal.wire import control
from shoal.wire.envelope import (
    BEACON,
    ENDED,
    FINAL,
    FOREIGN,
    FORWARDED,
    HEADER,
    UNKNOWN_FLAGS,
    client_of,
    is_envelope,
)
from shoal.wire.record_entry import (
    INDEX_KEY,
    Fields,
    RecordedGap,
    RecordedMessage,
    foreign_blob,
    gap_fields,
    message_fields,
    read_entry,
    streams_fields,
)

RECORD_ONCE: Final = rule("record_once", "A copy of a message is recorded once on a server.")
RECORD_ABSENCE: Final = rule(
    "record_absence", "A recorder that was away asks publishers for the messages it missed, and records the gaps."
)


STREAMS_EVERY: Final = 250
"""Entries between two entries with the position of each stream."""

PAGE_MESSAGES: Final = 64
"""Messages that a publisher is asked for in one request."""

HELD_MAX: Final = 20_000
"""Messages that wait while the end of the record is read. Further ones are not recorded, and a gap reports them."""

RETRY_S: Final = 1.0
"""Delay before a command that a server refused is repeated."""

_AWAY: Final = "recording was interrupted; publishers that began and ended meanwhile are unknown"
_LOST: Final = "the server has lost its record up to here"
_FLOOD: Final = "too many messages arrived before the end of the record was read"
_EARLIER: Final = "recording was interrupted, and its publisher had begun before"
_SILENT: Final = "recording was interrupted, and its publisher does not answer"
_FORGOTTEN: Final = "recording was interrupted, and its publisher no longer has them"


class ChannelRecord:
    """One record in one incarnation of the agent. `lost` says that an earlier incarnation of this process wrote one."""

    def __init__(
        self,
        host: RecordingHost,
        channel: bytes,
        opened: Callable[[], None],
        lost: bool,
        turns: Turns,
        budget: RecordBudget,
        rules: Rules,
    ) -> None:
        self.channel = channel
        self.state = states.RecordState.READING
        self._host = host
        self._writer = RecordWriter(host, channel, self._was_refused, budget)
        self._opened = opened
        self._lost = lost
        self._turns = turns
        self._rules = rules
        self._broken = False
        self._streams: dict[int, RecordedStream] = {}
        self._held: list[Callable[[float], None]] = []
        self._flooded = False
        self._before = dict(host.streams(channel))
        """The positions of the streams of this incarnation before the record was begun here."""
        self._tail = RecordTail()
        self._since_streams = 0
        self._doubt_until: float | None = None
        self._asks = False
        self._asked = False
        self._listed = False
        self._begun = False
        """Whether the channel was listed before. A recorder that listed it and died before writing had heard a
        message."""
        self._tail_due = False

    # The end of the record

    @property
    def is_opening(self) -> bool:
        """Whether its end is being read."""
        return self._asked and self.state is states.RecordState.READING

    def open(self) -> None:
        """Reads the end of the record page by page, so that replies do not flood the connection that hears
        everything."""
        self._asked = True
        self._list()
        self._tail = RecordTail()
        self._ask_tail()

    def _list(self) -> None:
        """Adds the channel to the index of records, where readers look."""
        self._host.ask((b"SADD", INDEX_KEY, self.channel), self._take_listed)

    def _take_listed(self, reply: Any, now: float) -> None:
        self._listed = isinstance(reply, int)
        self._begun = self._begun or reply == 0
        if not self._listed and self.state is not states.RecordState.CLOSED:
            self._writer.complain(reply)
            self._host.timers.set_if_absent(self.look, now + RETRY_S)

    def _ask_tail(self) -> None:
        self._host.ask(self._tail.question(self._writer.key), self._take_tail)

    def _take_tail(self, reply: Any, now: float) -> None:
        if self.state is states.RecordState.CLOSED:
            return
        if not isinstance(reply, list):
            self._writer.complain(reply)
            self._tail, self._tail_due = RecordTail(), True
            self._host.timers.set(self.look, now + RETRY_S)
        elif self._tail.takes_more(reply):
            self._ask_tail()
        else:
            self._go_on(now)

    def _go_on(self, now: float) -> None:
        """The end of the record is known: takes the held messages."""
        newest_ms = self._learn(self._tail.entries, now)
        self.step("end read")
        if not self._tail.entries and (self._lost or not self._begun):
            self._begin()
        elif RECORD_ABSENCE in self._rules:
            self._broken = True
            self._doubt_until = now + self._host.limits.gap_timeout_s
            self._doubt()
            self._write_gap(RecordedGap(0, 0, 0, _AWAY, newest_ms))
        self._write_streams()
        held, self._held = self._held, []
        for take in held:
            take(now)
        if self._broken:
            for number, last in self._before.items():
                self._judge(number, last, True, now)
        if self._flooded:
            self._flooded = False
            self._write_gap(RecordedGap(0, 0, 0, _FLOOD))
        self._wait(now)
        self._opened()

    def _doubt(self) -> None:
        """There was an absence."""
        for stream in self._streams.values():
            stream.doubted = not stream.ended

    def _learn(self, entries: list[Any], now: float) -> int:
        """Takes the content of the last entries; returns when the newest was written. After an absence the recorder
        before may have died too before it had all that it owed: that is still owed."""
        newest_ms = 0
        away = False
        for entry in reversed(entries):
            try:
                number, said = read_entry(entry[1])
                newest_ms = int(bytes(entry[0]).partition(b"-")[0])
            except (ProtocolError, TypeError, ValueError, IndexError):
                self._host.counters.garbage += 1
                continue
            self._writer.number = max(self._writer.number, number)
            if isinstance(said, RecordedMessage):
                self._learn_message(said, now)
            elif isinstance(said, list):
                for stream, last in said:
                    known = self._streams.get(stream)
                    if known is None:
                        known = self._streams[stream] = RecordedStream(last & ~ENDED)
                        known.doubted = away and not last & ENDED
                    known.ended = bool(last & ENDED)
            elif said.stream in self._streams:
                self._learn_gap(self._streams[said.stream], said)
            elif said.reason == _AWAY and RECORD_ABSENCE in self._rules:
                away = True
                self._doubt()
        return newest_ms

    def _learn_message(self, said: RecordedMessage, now: float) -> None:
        if said.stream:
            stream = self._streams.setdefault(said.stream, RecordedStream(said.sequence - 1))
            if said.is_end:
                stream.ended = True
                return
            if stream.doubted:
                stream.owe(stream.last + 1, said.sequence - 1, now)
            stream.hear(said.sequence)
            stream.pay(said.sequence)

    @staticmethod
    def _learn_gap(stream: RecordedStream, said: RecordedGap) -> None:
        stream.doubted = False
        stream.last = max(stream.last, said.last)
        if said.first <= stream.owed:
            stream.give_up(said.last)

    def _begin(self) -> None:
        """There is no record yet: earlier messages are not in it, and not missing from it."""
        if self._lost:
            self._write_gap(RecordedGap(0, 0, 0, _LOST))
        for stream, last in self._before.items():
            self._streams[stream] = RecordedStream(last & ~ENDED)
            self._streams[stream].ended = bool(last & ENDED)

    @property
    def settled(self) -> bool:
        """Whether the record waits for nothing."""
        waits = self._doubt_until is not None or any(stream.owes for stream in self._streams.values())
        waits = waits or self._writer.is_writing or self._writer.has_unwritten
        return self.state is states.RecordState.WRITING and not waits

    def trim(self) -> None:
        """Drops the oldest entries, because the share of the record has become smaller."""
        self._writer.trim()

    # Messages

    def hear(self, blob: bytes, fresh: bool, now: float) -> None:
        """A message was published on the channel. Of those that are not `fresh` the agent has heard the true one
        before, or its publisher will be asked for it."""
        if not fresh and RECORD_ONCE in self._rules:
            self._host.counters.record_duplicates += 1
        elif self.state is states.RecordState.READING:
            self._hold(partial(self._take, blob))
            if is_envelope(blob):
                _, flags, _, stream, sequence, _ = HEADER.unpack_from(blob)
                if stream in self._before and not flags & (BEACON | UNKNOWN_FLAGS):
                    self._before[stream] = min(self._before[stream] & ~ENDED, sequence - 1)
        else:
            self._take(blob, now)

    def evidence(self, stream: int, last: int, present: bool, now: float) -> None:
        """A publisher says how far its stream has come on this server (`present`, in a resync), or elsewhere."""
        if self.state is states.RecordState.READING:
            self._hold(partial(self._judge, stream, last, present))
        else:
            self._judge(stream, last, present, now)

    def _hold(self, take: Callable[[float], None]) -> None:
        if len(self._held) < HELD_MAX:
            self._held.append(take)
        else:
            self._flooded = True

    def _take(self, blob: bytes, now: float) -> None:
        if not is_envelope(blob):
            self._write(message_fields, foreign_blob(blob))
            return
        _, flags, _, number, sequence, _ = HEADER.unpack_from(blob)
        if flags & UNKNOWN_FLAGS:  # not counted as received, as by subscribers
            return
        if flags & FOREIGN:
            if not flags & FORWARDED:  # the server where it was published has recorded it
                self._write(message_fields, blob)
            return
        if not client_of(number) or not sequence:
            return
        stream = self._streams.get(number)
        if flags & BEACON:
            if stream is not None:
                self._judge(number, sequence, False, now)
                if flags & FINAL and not stream.ended:
                    stream.ended = True
                    self._write(message_fields, blob)
            return
        if stream is None:
            stream = self._streams[number] = RecordedStream(sequence - 1, fresh=self._broken)
            self._bound()
            self._claim(number, sequence - 1)
        elif stream.doubted and sequence > stream.last:  # a lower number may be repeated by another client
            stream.owe(stream.last + 1, sequence - 1, now)
            self._wait(now)
        if stream.hear(sequence) or RECORD_ONCE not in self._rules:
            self._host.counters.recorded += 1
            self._writer.write(message_fields, blob, refused_message(number, sequence))
            self._count()
        else:
            self._host.counters.record_duplicates += 1

    def _judge(self, number: int, last: int, present: bool, now: float) -> None:
        last &= ~ENDED
        stream = self._streams.get(number)
        if stream is None:
            if not self._broken:
                return
            stream = self._streams[number] = RecordedStream(0 if present else last)
            self._bound()
            self._claim(number, last)
            stream.owe(1, last if present else 0, now)
        elif stream.fresh and present:
            stream.fresh = False
            stream.owe(1, stream.met - 1, now)
        elif stream.doubted and (present or last > stream.last):
            stream.owe(stream.last + 1, last, now)
        self._wait(now)

    def _claim(self, number: int, last: int) -> None:
        """A stream that is new here after an absence has earlier messages. A gap for them is written at once, because a
        later recorder would not know of them. Readers do not count messages as missing that are healed later or are in
        another record."""
        if self._doubt_until is not None and last > 0:
            self._write_gap(RecordedGap(number, 1, last, _EARLIER))

    def _bound(self) -> None:
        """Forgets the oldest stream beyond the limit."""
        if len(self._streams) > self._host.limits.streams_per_channel_max:
            del self._streams[next(iter(self._streams))]

    # Asking publishers

    def _wait(self, now: float) -> None:
        """Sets the timer if anything is owed or in doubt."""
        if any(stream.owes for stream in self._streams.values()):
            if not self._asks:
                self._asks = True
                self._host.timers.set(self.look, now + self._host.limits.heal_delay_s)
        elif self._doubt_until is not None or self._writer.has_unwritten:
            self._host.timers.set_if_absent(self.look, now + RETRY_S)

    def look(self, now: float) -> None:
        """Asks publishers for owed messages, and records gaps for those that are not available."""
        if self.state is states.RecordState.CLOSED:
            return
        if not self._listed:
            self._list()
        if self.state is states.RecordState.READING:
            if self._tail_due:
                self._tail_due = False
                self._ask_tail()
            return
        self._asks = False
        for gap in self._writer.take_unwritten():
            self._write_gap(gap)
        owing = [(number, stream) for number, stream in self._streams.items() if stream.owes]
        for number, stream in owing:
            if now - stream.owed_since >= self._host.limits.gap_timeout_s:
                self._give_up(number, stream, stream.owed_last, _SILENT)
            else:
                self._ask(number, stream, now)
        if self._doubt_until is not None and now >= self._doubt_until:
            self._doubt_until = None
            for number, stream in self._streams.items():
                stream.fresh = False
                if stream.doubted:
                    stream.doubted = False
                    self._write_gap(RecordedGap(number, stream.last + 1, 0, _SILENT))
        if owing or self._doubt_until is not None or self._writer.has_unwritten:
            self._host.timers.set_if_absent(self.look, now + self._host.limits.heal_retry_s)

    def _ask(self, number: int, stream: RecordedStream, now: float) -> None:
        """Asks a publisher, if a turn is free: answers come by the connection that hears everything."""
        key = self.channel, number
        if not self._turns.take(key):
            stream.owed_since = now
            return
        last = min(stream.owed_last, stream.owed + min(self._host.limits.heal_page_messages, PAGE_MESSAGES) - 1)
        self._host.tell_peer(client_of(number), control.Heal(self.channel, number, stream.owed, last))

    def resent(self, blob: bytes, now: float) -> None:
        """A publisher has sent a message again; only those that were asked for are taken."""
        if self.state is not states.RecordState.WRITING or not is_envelope(blob):
            return
        _, flags, _, number, sequence, _ = HEADER.unpack_from(blob)
        stream = self._streams.get(number)
        if stream is None or flags & (BEACON | UNKNOWN_FLAGS) or not stream.owed <= sequence <= stream.owed_last:
            return
        stream.owed_since = now
        self._host.counters.record_healed += 1
        self._take(blob, now)
        stream.pay(sequence)
        self._end_turn(number, stream)

    def healed(self, message: control.Healed, now: float) -> None:
        """The end of a page of resends; messages below the floor are not available."""
        stream = self._streams.get(message.stream)
        if self.state is not states.RecordState.WRITING or stream is None or not stream.owes:
            return
        self._give_up(message.stream, stream, message.floor - 1, _FORGOTTEN)
        if message.first < stream.owed:
            self._ask(message.stream, stream, now)

    def _give_up(self, number: int, stream: RecordedStream, last: int, reason: str) -> None:
        missing = stream.give_up(last)
        if missing is not None:
            self._write_gap(RecordedGap(number, *missing, reason))
        self._end_turn(number, stream)

    def _end_turn(self, number: int, stream: RecordedStream) -> None:
        if not stream.owes:
            self._turns.give((self.channel, number))

    # Writing

    def _write_gap(self, gap: RecordedGap) -> None:
        self._host.counters.record_gaps += 1
        self._writer.write(gap_fields, gap, gap)

    def _write_streams(self) -> None:
        self._since_streams = 0
        ends = [
            (number, stream.complete | ENDED if stream.ended else stream.complete)
            for number, stream in self._streams.items()
        ]
        self._writer.write(streams_fields, ends, None)

    def _write(self, fields: Callable[[int, Any], Fields], value: Any) -> None:
        self._writer.write(fields, value)
        self._count()

    def _count(self) -> None:
        self._since_streams += 1
        if self._since_streams >= STREAMS_EVERY:
            self._write_streams()

    def _was_refused(self, now: float) -> None:
        self._host.timers.set_if_absent(self.look, now + RETRY_S)

    def close(self) -> None:
        """Ends the record in this incarnation."""
        self.step("closed")
        self._host.timers.cancel(self.look)
        for number in self._streams:
            self._turns.give((self.channel, number))

    def step(self, event: str) -> None:
        """Takes the transition that `states.RECORD` gives for the event."""
        self.state = states.step(states.RECORD, self.state, event)
