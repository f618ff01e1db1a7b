"""The receiving side of one publisher's stream: duplicates, order, holes, and where each number came from.

Owns the window over sequence numbers. All numbers below `next` have been delivered or reported, except those that were
`recalled`; `held` has the messages behind a hole; `last` is the highest number known to exist. There is a hole while
`next <= last`, or while a number is recalled.

A subscriber cannot check the tags of messages, so what they claim may be false. For what an agent may refute later the
stream remembers the *origin* of a copy, its header and its server:

    sure      the highest number that agents or the publisher itself have told
    claims    higher numbers, each with the origins of the messages and beacons that claim it
    tags      tag and time of each of the numbers delivered last, from `lane` and with the first word `word` in their
              headers, up to `next` - 1
    older     origins of numbers delivered before, and from other servers
    birth     the claim by which `first` was chosen, if it was: the stream was unknown before
    exempt    by server: the last number that its agent may not have heard, because its incarnation began later
    levels    how far it had come at the last three sweeps, the oldest first: agents may have forgotten what came before
    barred    by server: the last number that was published there while the subscription was away or had no room. A
              copy of it that comes later may have another payload, so it is taken only if its publisher sends it again.
              Where the agent had no room to list the stream, that number is unknown until the publisher tells it
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from shoal.message import Message
from shoal.wire.envelope import HEADER_BYTES, WORDS, client_of, is_plain
from shoal.wire.lane_tag import covered_end, mark_of

LAPSED_MAX: Final = 1000
"""Given-up streams of a channel that are remembered."""

TAGS_MAX: Final = 256
"""Numbers of a stream whose origins are remembered, at least; at most twice as many."""

CLAIMS_MAX: Final = 256
"""Claims of a stream that are remembered. Of more, those in the middle are dropped: the lowest tell where the stream
begins if it was met by a false message, the highest how far it has come."""


KEPT_MAX: Final = 2 * 2 * TAGS_MAX
"""Words in `tags` at which the older half is dropped."""


class Origin(NamedTuple):
    """Which copy of a message it was: the server from which it came, and the fields of its header beside stream and
    number. Messages that their publisher sent again on request have no server: no agent refutes them."""

    server: str
    word: int
    time_us: int
    tag: int
    extra: bytes = b""
    """What its tag covers behind the header: the extension, and the body of a beacon."""

    @classmethod
    def of(cls, blob: bytes, server: str) -> Origin:
        """The origin of an envelope."""
        word, _, _, time_us, tag = WORDS.unpack_from(blob)
        return cls(server, word, time_us, tag, b"" if is_plain(word) else blob[HEADER_BYTES : covered_end(blob)])

    def mark(self, stream: int, number: int) -> int:
        """The mark by which an agent would name this copy."""
        return mark_of(WORDS.pack(self.word, stream, number, self.time_us, self.tag) + self.extra)


RESENT: Final = Origin("", 0, 0, 0)

Held = tuple[Message, Origin]


class Request(NamedTuple):
    """A request to a publisher: its stream, and the known state of the stream at that time."""

    stream: int
    known: int
    """The highest number known to exist."""
    sure: int
    """The highest number of which an agent or the publisher had told."""
    numbers: tuple[int, ...]
    """The numbers held behind a hole, and those that messages and beacons claimed."""
    sent_at: float
    """When it was asked."""


class StreamIn:
    """One stream on one channel, as one subscription sees it.

    `asked` is the first number of the question to its publisher whose answer is awaited, 0 if none is. `lane` is the
    server whose next message needs no closer look if its header begins with `word`. `ended_by` is the origin of the
    beacon that ended the stream. `reviewed_at` is the begin of the last hole about which agents were asked.
    """

    __slots__ = (
        "asked",
        "attempts",
        "barred",
        "birth",
        "claims",
        "contested",
        "doubted_at",
        "end",
        "ended_by",
        "exempt",
        "final",
        "first",
        "held",
        "hole_since",
        "lane",
        "last",
        "levels",
        "marked",
        "met",
        "next",
        "older",
        "past_by",
        "publisher",
        "recalled",
        "reviewed_at",
        "server",
        "stream",
        "sure",
        "tags",
        "told",
        "touched",
        "word",
    )

    def __init__(self, stream: int, next_sequence: int, server: str, now: float) -> None:
        self.stream = stream
        self.publisher = client_of(stream)
        self.first = self.next = next_sequence
        self.last = self.sure = next_sequence - 1
        self.told = 0
        """The highest number that an agent or the publisher has told since the stream was met; 0 if none has."""
        self.held: dict[int, Held] = {}
        self.claims: dict[int, set[Origin]] = {}
        self.recalled: set[int] = set()
        self.tags = array("Q")
        self.older: dict[int, tuple[Origin, bool]] = {}
        """Origins by number, each with whether the message was handed to the application."""
        self.birth: tuple[int, Origin] | None = None
        self.contested = 0
        """The lowest number below `first` that came although the stream was met at `first`; 0 if none did."""
        self.past_by: tuple[int, Origin | None] | None = None
        """The number that a beacon has named which was older than the subscription, and the beacon."""
        self.exempt: dict[str, int] = {}
        self.levels = (0, 0, 0)
        self.barred: dict[str, int] = {}
        self.ended_by: Origin | None = None
        self.lane = ""
        self.word = 0
        self.server = server
        self.hole_since: float | None = None
        self.asked = 0
        self.reviewed_at = 0
        self.met = False
        self.attempts = 0
        self.doubted_at: int | None = None
        self.final = False
        self.end = 0
        """The last number, if `final`: beacons that do not go beyond it are older than the end."""
        self.touched = now
        self.marked = next_sequence

    def has_hole(self) -> bool:
        """Whether a number is known to exist that has not arrived."""
        return self.next <= self.last or bool(self.recalled)

    def hole_begin(self) -> int:
        """The first missing number, or the next one."""
        return min(self.recalled) if self.recalled else self.next

    def hole_end(self) -> int:
        """The last missing number of the first hole. Call only while there is one."""
        if self.recalled:
            number = min(self.recalled)
            while number + 1 in self.recalled:
                number += 1
            return number
        return min(self.held) - 1 if self.held else self.last

    def skip_to(self, sequence: int) -> None:
        """Moves past a hole that was reported, or is not owed."""
        if self.recalled and sequence <= self.hole_end() + 1:
            self.recalled = {number for number in self.recalled if number >= sequence}
            return
        for number in [number for number in self.held if number < sequence]:
            del self.held[number]
        if sequence > self.next:
            self.set_aside()
            self.next = sequence
        self.last = max(self.last, self.next - 1)

    # How far the stream has come

    def knows(self, last: int) -> None:
        """Takes evidence of an agent or the publisher that the stream has reached `last`."""
        self.sure = max(self.sure, last)
        self.told = max(self.told, last)
        self.last = max(self.last, last)

    def claim(self, last: int, origin: Origin | None) -> None:
        """Takes the claim of a message or a beacon that the stream has reached `last`. Without an origin it is
        believed."""
        if origin is None or origin is RESENT:
            self.knows(last)
        elif last >= self.next:
            self.claims.setdefault(last, set()).add(origin)
            self.last = max(self.last, last)
            if len(self.claims) > CLAIMS_MAX:
                del self.claims[sorted(self.claims)[CLAIMS_MAX // 2]]

    def born(self, number: int, origin: Origin | None, beacon: bool = False) -> None:
        """A message or beacon has introduced the stream. If `first` follows from it, or nothing else shows that there
        is such a stream, it must not be false."""
        if origin is not None and origin is not RESENT:
            self.met = True
            if self.first != 1 or beacon:
                self.birth = number, origin

    def confirm_birth(self, origin: Origin | None) -> None:
        """Another beacon names the stream: it exists even if the one that introduced it without a message is false."""
        if self.birth is not None and not self.birth[0] and self.birth[1] != origin:
            self.birth = None

    def has_ended(self) -> bool:
        """Whether nothing follows. While it is open by which claim the stream was met, its end is open too: one false
        beacon may have told both."""
        return self.final and not self.contested

    def is_birth_unheard(self) -> bool:
        """Whether the claim that introduced the stream may be false without an agent that knows: it came before the
        agent of its server began to listen."""
        return self.birth is not None and self.birth[0] <= self.exempt.get(self.birth[1].server, 0)

    def is_baseless(self) -> bool:
        """Whether nothing is left of a stream that was met by false messages."""
        untouched = self.next == self.first and self.sure < self.first
        return self.met and untouched and not (self.held or self.claims or self.recalled)

    def is_past(self, last: int) -> bool:
        """Whether a beacon has told that all missing messages up to `last` are older than the subscription."""
        return self.past_by is not None and last <= self.past_by[0] and not self.recalled

    def disclaim_past(self) -> None:
        """No process can send the messages again of which a beacon has told that they are not owed. Where only claims
        say that they exist, these are dropped: they may be false, and lower numbers may still be published."""
        if not self.held:
            self.claims.clear()
            self.recount()

    def deny(self, last: int, request: Request) -> None:
        """The publisher had reached `last`: higher numbers that were known when it was asked are false. Later ones may
        be true."""
        for number in request.numbers:
            if number > last:
                self.claims.pop(number, None)
                self.held.pop(number, None)
        if self.sure == request.sure:
            self.sure = min(self.sure, max(last, self.next - 1))
            self.told = min(self.told, last)
        self.recount()

    def is_copy(self, number: int, origin: Origin, unlisted: bool) -> bool:
        """Whether a message that is missing or held has come before, or was published on its server before, or may have
        been: the agent there did not list all streams, and the publisher has not told yet how far it had come. Of equal
        headers only the first is taken: if there was no room for it, or it is held, a later one may be altered. That a
        false message is held in its place changes nothing."""
        barred = self.barred.get(origin.server)
        if unlisted if barred is None else number <= barred:
            return True
        return self.is_claimed(number, origin)

    def is_claimed(self, number: int, origin: Origin) -> bool:
        """Whether a copy has claimed a number that had not been delivered then."""
        return origin in self.claims.get(number, ())

    def drop(self, number: int, origin: Origin | None) -> None:
        """There is no room for a message: it is known to exist, and its publisher will be asked for it. A run of such
        messages is barred as a whole, because there may be more than claims. Copies of it need a closer look."""
        self.take_lane("", 0)
        if origin is not None and number == max(self.next, self.barred.get(origin.server, 0) + 1):
            self.barred[origin.server] = number
        self.claim(number, origin)

    def settle(self) -> None:
        """There is no hole: claims have come true, except where another copy than the claimed one was delivered. If
        that copy is refuted, the number is still known to exist."""
        self.hole_since = None
        if self.claims:
            self.claims = {number: origins for number, origins in self.claims.items() if self._is_rival(number)}

    def _is_rival(self, number: int) -> bool:
        """Whether a number was delivered as a copy that may be false, and others have claimed it."""
        seen = self.origin_of(number)
        return seen is not None and seen[0] is not RESENT and self.claims[number] != {seen[0]}

    def disclaim(self, number: int, origin: Origin) -> None:
        """A claim is false."""
        origins = self.claims.get(number)
        if origins is not None:
            origins.discard(origin)
            if not origins:
                del self.claims[number]
        self.recount()

    def recount(self) -> None:
        """Finds the highest number that is still known to exist."""
        self.last = max(self.sure, self.next - 1, max(self.claims, default=0))

    # Origins

    def note(self, number: int, origin: Origin | None, handed: bool = True) -> None:
        """Remembers the origin of the message that moved `next` behind `number`."""
        if origin is None:
            return
        if origin.server == self.lane and origin.word == self.word and handed:
            self.tags.append(origin.tag)
            self.tags.append(origin.time_us)
            if len(self.tags) >= KEPT_MAX:
                del self.tags[: KEPT_MAX // 2]
        else:
            self.next -= 1
            self.set_aside()
            self.next += 1
            self.older[number] = origin, handed

    def take_lane(self, server: str, word: int) -> None:
        """Takes plain messages of a server that begin with `word` from now on without a closer look."""
        if server != self.lane or word != self.word:
            self.set_aside()
            self.lane = server
            self.word = word

    def set_aside(self) -> None:
        """Moves the remembered tags to `older`. Call before `next` changes other than by the next message."""
        if self.tags:
            first = self.next - len(self.tags) // 2
            for index in range(len(self.tags) // 2):
                self.older[first + index] = self._remembered(index), True
            del self.tags[:]
        if len(self.older) > 2 * TAGS_MAX:
            for number in sorted(self.older)[:-TAGS_MAX]:
                del self.older[number]

    def origin_of(self, number: int) -> tuple[Origin, bool] | None:
        """The origin of a number that was delivered, and whether it was handed to the application."""
        index = number - self.next + len(self.tags) // 2
        if 0 <= index < len(self.tags) // 2:
            return self._remembered(index), True
        return self.older.get(number)

    def origins(self, number: int) -> set[Origin]:
        """All copies of a number that are remembered, and beacons that name it."""
        found = set(self.claims.get(number, ()))
        seen, held = self.origin_of(number), self.held.get(number)
        found.update(origin for origin in (seen and seen[0], held and held[1]) if origin is not None)
        if self.ended_by is not None:
            found.add(self.ended_by)
        found.update(told[1] for told in (self.birth, self.past_by) if told is not None and told[1] is not None)
        return found

    def _remembered(self, index: int) -> Origin:
        return Origin(self.lane, self.word, self.tags[2 * index + 1], self.tags[2 * index])

    def recall(self, number: int) -> None:
        """A delivered number counts as not received."""
        self.set_aside()
        self.older.pop(number, None)
        self.recalled.add(number)
        while self.next - 1 in self.recalled:
            self.next -= 1
            self.recalled.discard(self.next)


class ChannelIn:
    """The streams of one channel within one subscription.

    `lapsed` are streams that were given up with an open gap, each with its first number that was not delivered: if one
    publishes again, it continues from there, because the gap covers only what was published before it was reported.
    `forgets` says that there have been too many streams to remember: an unknown stream may have been heard before.
    """

    __slots__ = ("forgets", "lapsed", "name", "streams", "text")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.text = name.decode("utf-8", "surrogateescape")
        self.streams: dict[int, StreamIn] = {}
        self.lapsed: dict[int, int] = {}
        self.forgets = False

    def lapse(self, stream: StreamIn) -> None:
        """Gives a stream up; a bounded number of these is remembered."""
        del self.streams[stream.stream]
        self.lapsed[stream.stream] = stream.next
        if len(self.lapsed) > LAPSED_MAX:
            del self.lapsed[next(iter(self.lapsed))]

    def begins(self, stream: int, owed: int, heard: int) -> int:
        """The first owed number of an unknown stream: `owed`; or if it was given up before, its first undelivered
        number; or if it may have been forgotten, `heard`, its number now."""
        undelivered = self.lapsed.pop(stream, None)
        if undelivered is not None:
            return undelivered
        return heard if self.forgets else owed

    def bound(self, streams_max: int) -> None:
        """Forgets the longest idle streams beyond a limit, but none with a hole or in doubt."""
        excess = len(self.streams) - streams_max
        if excess > 0:
            self.forgets = True
            settled = [
                stream for stream in self.streams.values() if not stream.has_hole() and stream.doubted_at is None
            ]
            for stream in sorted(settled, key=lambda stream: stream.touched)[:excess]:
                del self.streams[stream.stream]
