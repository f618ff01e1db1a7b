"""A client's side of the engine, without I/O: its conversation, its filters, and the events that are not taken yet.

Owns what a bus must send again when the engine begins again: every filter, and every event since the last Taken. It
also owns what readers get once: an event is named by emitter and number, and the numbers of an emitter only grow.

    away -> Roll -> opening -> Welcome -> open -> Again, another Roll, or a hole -> opening

If the client gets another exit point, what the new one says after its PathBegin is held until the old one has said
PathEnd: letters of two publishers may overtake each other.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

import msgspec

from shoal.engine import messages
from shoal.engine.messages import (
    Add,
    Again,
    Alive,
    Close,
    Delivery,
    Dropped,
    Event,
    FromClient,
    FromEngine,
    InForce,
    Letter,
    Matched,
    Open,
    PathBegin,
    PathEnd,
    Ready,
    Refused,
    Rejected,
    Remove,
    Resend,
    Roll,
    Taken,
    Welcome,
)
from shoal.errors import FilterError
from shoal.limits import Limits
from shoal.rules import ALL_RULES, Rules, rule

KEEP_UNTIL_TAKEN: Final = rule("keep_until_taken", "An emitter keeps its events until the engine has taken them.")
DEDUPE: Final = rule("dedupe_emitter", "A client delivers the events of an emitter by growing numbers, each once.")
PRESENT_ALL: Final = rule("present_all", "A client presents all its filters to a new instance of the engine.")
SAY_LATE: Final = rule("say_late", "A client that presents its filters too late reports a gap.")

END_FIRST: Final = rule(
    "end_first", "A client waits for the end of the old exit point's path before it hears the new one."
)
ANSWER_IN_TIME: Final = rule("answer_in_time", "An answer of an earlier conversation does not put a filter in force.")

HELLO_DOUBLINGS_MAX: Final = 3
"""A client that gets no answer asks less and less often: the engine may be busy, and each time it gets all filters."""
LATE_EVENTS_MAX: Final = 8192
"""Events that a client remembers after another instance has begun, to see whether a late letter repeats them."""
EMITTERS_MAX: Final = 65_536
"""Emitters whose last number a client remembers."""


class Arrived(msgspec.Struct, frozen=True, gc=False):
    """An event for the readers of some filters. Thousands may wait: the garbage collector need not look at them."""

    delivery: Delivery
    matched: bytes
    """The numbers of these filters, packed: at least one."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the filters."""
        return messages.unpack(self.matched)


class Missed(NamedTuple):
    """Events may be missing here, for all readers."""

    reason: str


class NowInForce(NamedTuple):
    """Filters are in force."""

    numbers: list[int]


class FilterRefused(NamedTuple):
    """The engine refuses a filter."""

    number: int
    reason: str


class NowTaken(NamedTuple):
    """All events up to a number are taken."""

    number: int


class EventRejected(NamedTuple):
    """The engine could not read an event."""

    number: int
    reason: str


class NotAdmitted(NamedTuple):
    """The engine refuses this client."""

    reason: str


class _Path:
    """What an exit point has said that waits for the end of the path before."""

    __slots__ = ("after", "held", "since", "size")

    def __init__(self, after: tuple[int, int], now: float) -> None:
        self.since = now
        self.after = after
        """Instance and configuration of the end for which it waits."""
        self.held: list[FromEngine] = []
        self.size = 0


class _Newly:
    """What an instance has delivered of an emitter, as far as the client remembers it."""

    __slots__ = ("before", "last", "numbers")

    def __init__(self, before: int) -> None:
        self.before = self.last = before
        """The last number that an earlier instance has delivered, and the last one that is remembered."""
        self.numbers: set[int] = set()

    def add(self, number: int) -> None:
        """The next one was delivered."""
        self.numbers.add(number)
        self.last = number

    def has_passed(self, number: int) -> bool:
        """Whether a number was left out. Of what is not remembered this cannot be known."""
        return self.before < number < self.last and number not in self.numbers


Effect: TypeAlias = Arrived | Missed | NowInForce | FilterRefused | NowTaken | EventRejected | NotAdmitted


class EngineClient:
    """The conversation of one client with the engine. `effects` and `take_letters` are its outputs.

    `draw` returns a random number for each conversation, never 0.
    """

    def __init__(self, limits: Limits, draw: Callable[[], int], rules: Rules = ALL_RULES) -> None:
        self._limits = limits
        self._draw = draw
        self._rules = rules
        self._conversation = 0
        self._roll = 0
        """The newest instance that was heard of."""
        self._instance = 0
        """The instance with which the conversation is, once it has answered."""
        self._served_by = 0
        """The instance with which filters were last in force."""
        self._presented = False
        """Whether filters are in force in this conversation."""
        self._late = False
        """Whether readers are to be told that events were matched without their filters."""
        self._opened_at = 0.0
        self._unanswered = 0
        """How often the conversation was opened in a row without an answer."""
        self._said_at = 0.0
        self._filters: dict[int, bytes] = {}
        self._in_force: set[int] = set()
        self._ended_unheard = False
        """Whether filters that were in force have ended in this conversation: events for them may have been missed
        before, and what the engine says now may be old."""
        self._last_filter = 0
        self._untaken: deque[Event] = deque()
        self._untaken_bytes = 0
        self._floor = 1
        self._next = 1
        self._outbox: list[FromClient] = []
        self._delivered: OrderedDict[int, int] = OrderedDict()
        self._ahead: tuple[tuple[int, int], bytes] = ((0, 0), b"")
        """Filters that matched the event that comes next, by emitter and number."""
        self._ended = (0, 0)
        """Instance and configuration of the last end of a path."""
        self._paths: dict[int, _Path] = {}
        """By sender."""
        self.paths_held = 0
        """How often a path had to wait for the end of the one before."""
        self.repeats = 0
        """Events that came again and were dropped."""
        self._welcomed = 0
        """The last instance that has welcomed this client."""
        self._newly: dict[int, _Newly] = {}
        """By emitter."""
        self._newly_left = 0
        """How many more of these are remembered."""
        self._sender = 0
        """The exit point that is heard."""
        self._instances: dict[int, int] = {}
        """The instance of exit points, as they have told since the last Welcome of another instance."""
        self.effects: list[Effect] = []

    # The application

    @property
    def untaken(self) -> int:
        """Events that the engine has not taken."""
        return len(self._untaken)

    @property
    def filters(self) -> int:
        """Filters that this client has."""
        return len(self._filters)

    @property
    def has_room(self) -> bool:
        """Whether another event can be emitted."""
        limits = self._limits
        return (
            len(self._untaken) < limits.engine_untaken_events_max
            and self._untaken_bytes < limits.engine_untaken_bytes_max
        )

    @property
    def is_open(self) -> bool:
        """Whether an instance of the engine has answered."""
        return self._instance != 0

    def add(self, filters: Iterable[bytes]) -> list[int]:
        """Adds filters in their wire form; returns their numbers. `NowInForce` follows. FilterError if there are no
        numbers left for all of them."""
        added = list(enumerate(filters, self._last_filter + 1))
        last = self._last_filter + len(added)
        if last > messages.NUMBER_MAX:
            raise FilterError(
                f"a client can add {messages.NUMBER_MAX:,} filters in its life, and this one has added "
                f"{self._last_filter:,}",
                do="open a new connection",
            )
        self._last_filter = last
        self._filters.update(added)
        if self._conversation:
            self._say_filters(added)
        return [number for number, _ in added]

    def remove(self, numbers: Iterable[int]) -> None:
        """Removes filters. An event that is under way may still arrive; it is not delivered."""
        gone = [number for number in numbers if self._filters.pop(number, None) is not None]
        self._ended_unheard = self._ended_unheard or not self._in_force.isdisjoint(gone)
        self._in_force.difference_update(gone)
        if gone and self._conversation:
            self._outbox.append(Remove(gone))
        if not self._filters:
            self._served_by = 0

    def emit(self, attributes: bytes, payload: bytes, time_us: int) -> int:
        """Emits an event with encoded attributes; returns its number. The caller has asked `has_room`."""
        event = Event(self._next, time_us, attributes, payload)
        self._next += 1
        self._untaken.append(event)
        self._untaken_bytes += _size(event)
        if self._conversation:
            self._outbox.append(event)
        return event.number

    def close(self) -> None:
        """Leaves the engine. The caller has waited until all events are taken, if it wants that."""
        if self._conversation:
            self._outbox.append(Close())

    # From the engine

    def called(self, roll: Roll, now: float) -> None:
        """The engine calls all clients."""
        if roll.instance > self._roll:
            self._roll = roll.instance
            self._open(now)
        elif roll.instance == self._roll and not self._conversation:
            self._open(now)

    def received(self, replies: list[FromEngine], now: float, sender: int = 0) -> None:
        """The engine has told this client something; `sender` is the exit point."""
        self._sender = sender
        path = self._paths.get(sender)
        if path is not None and not any(type(one) is Welcome and one.instance > path.after[0] for one in replies):
            self._hold(path, replies, now)
            return
        for at, item in enumerate(replies):
            if type(item) is Delivery:
                self._deliver(item)
            elif type(item) is Taken:
                self._taken(item.number)
            elif type(item) is PathBegin:
                after = (item.instance, item.configuration)
                self._instances[sender] = item.instance
                if after > self._ended and END_FIRST in self._rules:
                    path = self._paths[sender] = _Path(after, now)
                    self.paths_held += 1
                    self._hold(path, replies[at + 1 :], now)
                    return
            elif type(item) is PathEnd:
                self._ended = max(self._ended, (item.instance, item.configuration))
                self._release(now)
            else:
                self._hear(item, now)

    def _hear(self, item: FromEngine, now: float) -> None:
        if type(item) is Welcome:
            self._welcome(item, now)
        elif type(item) is InForce:
            if item.conversation == self._conversation or ANSWER_IN_TIME not in self._rules:
                self._are_in_force(item.numbers)
        elif type(item) is Refused:
            if self._filters.pop(item.number, None) is not None:
                self._in_force.discard(item.number)
                self.effects.append(FilterRefused(item.number, item.reason))
        elif type(item) is Again:
            if item.conversation == self._conversation:
                self._open(now)
        elif type(item) is Dropped:
            if item.conversation == self._conversation:
                self._open(now)
            self._was_left_out()
        elif type(item) is Resend:
            self._resend(item.number)
        elif type(item) is Matched:
            place = (item.emitter, item.number)
            if self._ahead[0] != place:
                self._ahead = (place, b"")
            self._ahead = (place, self._ahead[1] + item.matched)
        elif type(item) is Rejected:
            self.effects.append(EventRejected(item.number, item.reason))

    # Paths

    def _hold(self, path: _Path, replies: list[FromEngine], now: float) -> None:
        """Keeps what a new exit point has said. Without room, readers are told that events may be missing."""
        path.held += replies
        path.size += sum(len(one.payload) for one in replies if type(one) is Delivery)
        limits = self._limits
        if len(path.held) >= limits.inbox_messages_max or path.size >= limits.inbox_bytes_max:
            self.missed("too much came from a new exit point before the old one had ended", now)

    def _release(self, now: float, all_paths: bool = False) -> None:
        """Goes on with paths whose predecessor has ended."""
        for sender, path in sorted(self._paths.items(), key=lambda one: one[1].after):
            if (all_paths or path.after <= self._ended) and self._paths.get(sender) is path:
                del self._paths[sender]
                self.received(path.held, now, sender)

    def _forget_paths(self) -> None:
        """Another instance serves, so the end of a path may never come. Events that wait for it were not taken, unless
        the end was lost on its way: readers are told."""
        paths, self._paths = self._paths, {}
        if any(type(item) is Delivery for path in paths.values() for item in path.held):
            self.effects.append(Missed("an exit point has died before its path had ended"))

    def missed(self, reason: str, now: float) -> None:
        """A part of what the engine told this client is lost: readers are told, and the conversation begins again."""
        if self._in_force or self._ended_unheard:
            self.effects.append(Missed(reason))
        self._release(now, all_paths=True)
        if self._conversation:
            self._open(now)

    def _welcome(self, welcome: Welcome, now: float) -> None:
        if welcome.conversation != self._conversation:
            return
        if welcome.refusal:
            self._conversation = self._instance = 0
            self.effects.append(NotAdmitted(welcome.refusal))
            return
        if any(path.after[0] < welcome.instance for path in self._paths.values()):
            self._forget_paths()
        if welcome.instance != self._welcomed:
            self._newly, self._newly_left = {}, LATE_EVENTS_MAX if self._welcomed else 0
            self._instances = {}
        self._instance = self._welcomed = self._instances[self._sender] = welcome.instance
        self._unanswered = 0
        self._roll = max(self._roll, welcome.instance)
        if welcome.late:
            self._was_left_out()
        self._ended_unheard = False

    def _are_in_force(self, numbers: list[int]) -> None:
        new = [number for number in numbers if number in self._filters and number not in self._in_force]
        self._served_by = self._instance
        self._presented = True
        self._report_late()
        if new:
            self._in_force.update(new)
            self.effects.append(NowInForce(new))

    def _was_left_out(self) -> None:
        """Events were matched without the filters of this client. Readers are told when they are in force again."""
        if (self._in_force or self._ended_unheard) and SAY_LATE in self._rules:
            self._late = True
            if self._presented:
                self._report_late()

    def _report_late(self) -> None:
        if self._late:
            self._late = False
            self.effects.append(Missed("the engine has matched events without this client, which was away"))

    def _deliver(self, delivery: Delivery) -> None:
        last = self._delivered.get(delivery.emitter, 0)
        if delivery.number <= last and DEDUPE in self._rules:
            self.repeats += 1
            self._report_overtaken(delivery)
            return
        if self._newly_left:
            self._newly_left -= 1
            self._newly.setdefault(delivery.emitter, _Newly(last)).add(delivery.number)
        self._delivered[delivery.emitter] = delivery.number
        self._delivered.move_to_end(delivery.emitter)
        if len(self._delivered) > EMITTERS_MAX:
            self._delivered.popitem(last=False)
        place, ahead = self._ahead
        matched = delivery.matched
        if place == (delivery.emitter, delivery.number):
            self._ahead = ((0, 0), b"")
            matched += ahead
        if len(self._filters) < self._last_filter:  # some have gone
            matched = messages.pack([*filter(self._filters.__contains__, messages.unpack(matched))])
        if matched:
            self.effects.append(Arrived(delivery, matched))

    def _report_overtaken(self, delivery: Delivery) -> None:
        """A letter of an earlier instance may come after letters of this one. If an event in it was not delivered, it
        was taken before and comes in no other letter. It is too late for its place in the order: readers are told,
        once for a letter. A filter that has not been in force was owed nothing.

        A letter of this instance after letters of an earlier one has nothing of this kind: the earlier one had matched
        these events too, and filters that it did not have were not in force when they were emitted."""
        if self._instances.get(self._sender, 0) == self._welcomed:
            return
        newly = self._newly.get(delivery.emitter)
        is_new = newly is not None and newly.has_passed(delivery.number)
        if is_new and any(number in self._in_force for number in messages.unpack(delivery.matched)):
            missed = Missed("a letter of an earlier engine came after letters of this one")
            if missed not in self.effects[-1:]:
                self.effects.append(missed)

    def _taken(self, number: int) -> None:
        if number < self._floor or number >= self._next:
            return
        while self._untaken and self._untaken[0].number <= number:
            self._untaken_bytes -= _size(self._untaken.popleft())
        self._floor = number + 1
        self.effects.append(NowTaken(number))

    # The conversation

    def _open(self, now: float) -> None:
        """Begins a conversation: presents all filters, and sends all events that are not taken."""
        self._conversation = self._draw()
        self._instance = 0
        self._presented = False
        self._opened_at = now
        self._outbox = [Open(self._conversation, self._served_by)]
        if PRESENT_ALL in self._rules:
            self._say_filters(list(self._filters.items()))
        self._outbox.append(Ready())
        if KEEP_UNTIL_TAKEN in self._rules:
            self._outbox += self._untaken

    def _say_filters(self, filters: list[tuple[int, bytes]]) -> None:
        """Adds filters to the outbox, in items that fit a letter."""
        part: list[tuple[int, bytes]] = []
        size = 0
        for number, wire in filters:
            more = len(wire) + 12
            if part and size + more > self._limits.engine_letter_bytes_max // 2:
                self._outbox.append(Add(part))
                part, size = [], 0
            part.append((number, wire))
            size += more
        if part:
            self._outbox.append(Add(part))

    def _resend(self, number: int) -> None:
        """Sends events again from a number on."""
        self._outbox = [item for item in self._outbox if type(item) is not Event]
        self._outbox += [event for event in self._untaken if event.number >= number]

    def tick(self, now: float) -> None:
        """Opens the conversation again if the engine does not answer, and shows that this client lives. A path that has
        waited for longer than any letter is under way waits for an end that is lost."""
        if not self._conversation or not self._wants_engine:
            return
        grace_s = self._limits.engine_client_grace_s
        if any(now - path.since >= grace_s for path in self._paths.values()):
            self.missed("the end of an old exit point's path did not come", now)
        if not self._instance and now - self._opened_at >= self._limits.engine_hello_s * 2**self._unanswered:
            self._unanswered = min(self._unanswered + 1, HELLO_DOUBLINGS_MAX)
            self._open(now)
        elif self._instance and now - self._said_at >= grace_s / 4:
            self._outbox.append(Alive())

    @property
    def _wants_engine(self) -> bool:
        return bool(self._filters or self._untaken)

    def hello(self, now: float) -> None:
        """Opens a conversation without having heard a roll."""
        if not self._conversation:
            self._open(now)

    def take_letters(self, now: float) -> list[bytes]:
        """What is to be sent now, in letters of bounded size."""
        if not self._outbox:
            return []
        items, self._outbox = self._outbox, []
        self._said_at = now
        letters: list[bytes] = []
        part: list[FromClient] = []
        size = 0
        for item in items:
            more = _bytes_of(item)
            if part and (size + more > self._limits.engine_letter_bytes_max or len(part) == messages.ITEMS_MAX):
                letters.append(messages.encode(Letter(self._conversation, self._floor, part)))
                part, size = [], 0
            part.append(item)
            size += more
        letters.append(messages.encode(Letter(self._conversation, self._floor, part)))
        return letters


def _size(event: Event) -> int:
    return len(event.attributes) + len(event.payload) + 64


def _bytes_of(item: FromClient) -> int:
    if type(item) is Event:
        return _size(item)
    if type(item) is Add:
        return sum(len(wire) + 12 for _, wire in item.filters)
    return 32
