"""The access point: conversations with clients, the order of events, and what emitters may forget.

Owns who is present in its lanes and which events are in flight. It keeps no filters and looks at no attributes. An
event is taken into the engine when its number is the next of its emitter, and stays in flight until every delivery of
it is confirmed; then its emitter may forget it. All that it tells matchers, exit points and clients goes into its
*fan*, one sequence of numbered batches.

    conversation   Open -> presenting -> Ready -> present -> Close, or silence for `engine_client_grace_s` -> gone

A new instance of the engine begins with an open *roll*: it takes no events until the clients whose filters were in
force with the instance before it have had time to present them.

When lanes get another access point, the old one hands over their conversations at the mark SWITCH. The new one takes
events of these lanes at once, and says Taken when everything before SWITCH is delivered.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from shoal.engine import messages
from shoal.engine.configuration import Configuration
from shoal.engine.links import (
    Batch,
    Change,
    Changes,
    Events,
    Handed,
    Handover,
    Mark,
    Orders,
    Replies,
    Stage,
    Step,
    number_before_first,
)
from shoal.engine.messages import (
    Add,
    Again,
    Alive,
    Close,
    Dropped,
    Event,
    FromEngine,
    Letter,
    Open,
    PathEnd,
    Ready,
    Remove,
    Resend,
    Taken,
    Welcome,
    lane_of,
)
from shoal.limits import Limits
from shoal.rules import ALL_RULES, Rules, rule

ROLL_FIRST: Final = rule("roll_first", "A new instance takes no events before clients could present their filters.")
SETTLE_LAST: Final = rule("settle_last", "An emitter may forget an event only when its deliveries are confirmed.")
IN_NUMBER: Final = rule("in_number", "An access point takes the events of an emitter without holes.")
TAKEN_LATER: Final = rule(
    "taken_later", "A new access point of a lane says Taken when everything before the change is delivered."
)

HANDED_MAX: Final = 2000
"""Conversations in one message to another access point."""
CHANGE_FILTERS_MAX: Final = 8192
"""Filters that are added together. More would keep a matcher from anything else for too long."""
BATCH_EVENTS_MAX: Final = 256
"""Events that are matched together."""
ROLL_QUIET_S: Final = 0.15
"""A roll is not closed so soon after a client has presented filters: others may be waiting to be heard."""

_EVENT, _CHANGE, _REPLY, _MARK = range(4)


class _Conversation:
    """What the access point knows of a client."""

    __slots__ = (
        *("choked", "filters", "handed", "heard_at", "in_roll", "next", "number", "presented", "ready", "sequence"),
        *("distrusted", "served", "too_late"),
    )

    def __init__(self, number: int, floor: int, in_roll: bool, now: float) -> None:
        self.number = number
        self.in_roll = in_roll
        """Whether the client has come while the roll was open, and has been here since."""
        self.next = floor
        self.heard_at = now
        self.ready = False
        self.served = False
        """Whether the client has presented its filters here, in this conversation or an earlier one."""
        self.too_late = False
        """Whether the client has presented its filters while the roll was open here, but perhaps not elsewhere."""
        self.choked = False
        self.presented: list[list[tuple[int, bytes]]] = []
        self.filters = 0
        """How many filters are presented."""
        self.distrusted = False
        """Whether another client has spoken in the name of this one, so that all that is known here may be wrong."""
        self.sequence = 0
        """The number of the last letter."""
        self.handed = False
        """Whether that letter was read by another access point."""


class AccessPoint:
    """The access point of one instance of an engine. `take_batches` is its output."""

    def __init__(
        self,
        name: str,
        instance: int,
        predecessor: int,
        configuration: Configuration,
        limits: Limits,
        now: float,
        rules: Rules = ALL_RULES,
    ) -> None:
        """`predecessor` is the last instance that has matched events, 0 if there was none. An access point that is not
        in `configuration` comes with the next one."""
        self._name = name
        self._instance = instance
        self._predecessor = predecessor
        self._configuration = configuration
        self._limits = limits
        self._rules = rules
        self._conversations: dict[int, _Conversation] = {}
        self._flight: deque[tuple[int, int, int, int]] = deque()
        """Events in flight, in order: batch, emitter, number and bytes."""
        self._flight_events = 0
        self._flight_bytes = 0
        self._flying: Counter[int] = Counter()
        """Events of each client in flight, or held. A client that takes more than its share has to wait."""
        self._number = number_before_first(configuration)
        self._settled = dict.fromkeys(configuration.exits, self._number)
        """By exit point: the batch up to which it has settled. Nothing was sent, so nothing is awaited."""
        self._leaving: dict[str, int] = {}
        """Exit points that settle only what was before a SWITCH: its batch."""
        starts = name in configuration.access_points
        self.lanes = configuration.lanes_of(name) if starts else frozenset()
        """The lanes whose letters are read now."""
        self._gained: frozenset[int] = frozenset()
        """Lanes whose conversations are still to come."""
        self._early: list[Handover] = []
        self.handovers: list[tuple[str, Handover]] = []
        """What goes to other access points."""
        self._withheld: dict[int, int] = {}
        """Clients that came from another access point, with the last of their events that is taken, once everything
        before the change is delivered."""
        self.prepared = self._switched = configuration.number
        """The newest configurations for which PREPARE and the end of the change are marked."""
        self._roll_said = 0
        """The batch with the last answer to a client in the roll; 0 while others may come."""
        self._called = False
        self._held: deque[tuple[int, Event]] = deque()
        """Events that wait for the end of the roll."""
        self._held_bytes = 0
        self.begin_roll(now)
        self.roll_open = starts
        self.roll_over = False
        """Whether the roll may be closed: the order to serve closes it."""
        self._look_at = now
        """When silent clients are looked for again: there may be many clients, and turns are frequent."""
        self.choked = 0
        """How often an event did not fit."""
        self.events = 0
        """Events that were taken into the engine."""
        self._out: list[tuple[int, Any]] = []
        """What goes into the fan, with the kind of batch that it belongs to."""

    def begin_roll(self, now: float) -> None:
        """Clients have until then to present their filters, and until `engine_roll_s_max` if they have begun."""
        self._roll_until = now + self._limits.engine_roll_s
        self._roll_until_max = now + self._limits.engine_roll_s_max

    def __len__(self) -> int:
        return len(self._conversations)

    @property
    def in_flight(self) -> int:
        """Events that are taken and not settled, and those that wait for the end of the roll."""
        return self._flight_events + len(self._held)

    @property
    def has_news(self) -> bool:
        """Whether there is something to put into the fan."""
        return bool(self._out)

    @property
    def awaits_lanes(self) -> bool:
        """Whether conversations of lanes that are here from now on are still to come."""
        return bool(self._gained)

    @property
    def settled_all(self) -> int:
        """The batch up to which all exit points have settled."""
        return min(self._settled.values())

    @property
    def _has_room(self) -> bool:
        size = self._flight_bytes + self._held_bytes
        return self.in_flight < self._limits.engine_flight_events_max and size < self._limits.engine_flight_bytes_max

    # From clients

    def received(self, client: int, letter: Letter, now: float, sequence: int = 0) -> None:
        """A client has sent items. If their conversation is not open here, they are ignored and the client is told.
        `sequence` is the number of the letter."""
        conversation = self._conversations.get(client)
        if conversation is not None:
            if conversation.handed and sequence > conversation.sequence + 1:
                self.missed(client)  # the access point before has not read all
            conversation.sequence, conversation.handed = sequence, False
        known = conversation is not None and conversation.number == letter.conversation
        if known and conversation is not None:
            conversation.next = max(conversation.next, letter.floor)
        presents = not (known and conversation is not None and conversation.ready)
        for item in letter.items:
            if presents and self.roll_open and type(item) is not Event:
                self._roll_until = max(self._roll_until, now + ROLL_QUIET_S)
            if type(item) is Open:
                if item is not letter.items[0]:
                    return  # each would be answered
                conversation = self._open(client, item, letter.floor, now)
                known = conversation is not None
            elif not known or conversation is None:
                if type(item) is not Close:
                    self._say(client, Again(letter.conversation))
                return
            elif type(item) is Event:
                self._take(client, conversation, item)
            elif type(item) is Close:
                self._leave(client)
                return
            else:
                self._change(client, conversation, item)
        if conversation is not None:
            conversation.heard_at = now

    def missed(self, client: int) -> None:
        """A part of what a client sent is lost: it begins again. Its filters stay in force meanwhile."""
        conversation = self._conversations.get(client)
        if conversation is not None and conversation.number:
            self._say(client, Again(conversation.number))
            conversation.number = 0

    def distrust(self, client: int, now: float) -> None:
        """A letter in the name of a client was false, and may have done anything: the client begins again, and its
        readers are told that events may be missing."""
        conversation = self._conversations.get(client)
        if conversation is None:  # perhaps the letter has closed it
            if len(self._conversations) >= self._limits.engine_clients_max:
                return
            conversation = self._conversations[client] = _Conversation(0, 0, False, now)
            conversation.served = True
        self.missed(client)
        conversation.distrusted = True

    def _open(self, client: int, opened: Open, floor: int, now: float) -> _Conversation | None:
        before = self._conversations.pop(client, None)
        if len(self._conversations) >= self._limits.engine_clients_max:
            reason = f"the engine has engine_clients_max={self._limits.engine_clients_max} clients"
            self._say(client, Welcome(opened.conversation, self._instance, refusal=reason))
            return None
        conversation = self._conversations[client] = _Conversation(opened.conversation, floor, self._admits, now)
        if before is not None:
            conversation.next = floor if before.distrusted else max(before.next, floor)
            conversation.served = before.served
            conversation.in_roll = before.in_roll
        # An instance in between died before it matched an event, so its clients have missed nothing.
        on_time = opened.instance >= self._predecessor and conversation.in_roll
        late = opened.instance not in (0, self._instance) and not on_time
        late = late or (before is not None and (before.distrusted or before.too_late) and opened.instance != 0)
        self._say(client, Welcome(opened.conversation, self._instance, late))
        return conversation

    def _change(self, client: int, conversation: _Conversation, item: messages.FromClient) -> None:
        if isinstance(item, Add):
            filters = item.filters
            if not conversation.ready:
                room = self._limits.engine_client_filters_max - conversation.filters
                filters = filters[: room + 1]  # one too many is refused by the matcher
                conversation.filters += len(filters)
            for first in range(0, len(filters), CHANGE_FILTERS_MAX):
                part = filters[first : first + CHANGE_FILTERS_MAX]
                if conversation.ready:
                    self._out.append((_CHANGE, Change(client, conversation.number, part, [])))
                else:
                    conversation.presented.append(part)
        elif isinstance(item, Remove):
            self._out.append((_CHANGE, Change(client, conversation.number, [], item.numbers)))
        elif isinstance(item, Ready) and not conversation.ready:
            conversation.ready = conversation.served = True
            presented, conversation.presented = conversation.presented or [[]], []
            for part in presented:
                change = Change(client, conversation.number, part, [], presented=True, more=part is not presented[-1])
                self._out.append((_CHANGE, change))
        else:
            assert isinstance(item, Alive | Ready)

    def _leave(self, client: int) -> None:
        """A client goes. Its events in flight are still delivered."""
        if self._conversations.pop(client, None) is not None:
            self._out.append((_CHANGE, Change(client, 0, [], [], presented=True)))

    # Events

    def _take(self, client: int, conversation: _Conversation, event: Event) -> None:
        """Takes an event if it is the next one of its emitter; earlier ones are repetitions."""
        if event.number != conversation.next and (event.number < conversation.next or IN_NUMBER in self._rules):
            return
        own = self._flying[client]
        if not self._has_room or own >= self._limits.engine_untaken_events_max:
            conversation.choked = True
            self.choked += 1
            return
        conversation.next = event.number + 1
        self._flying[client] = own + 1
        if self.roll_open:
            self._held.append((client, event))
            self._held_bytes += _size(event)
        else:
            self._emit(client, event)

    def _emit(self, client: int, event: Event) -> None:
        self.events += 1
        self._flight_events += 1
        self._flight_bytes += _size(event)
        self._out.append((_EVENT, (client, event)))
        if SETTLE_LAST not in self._rules:
            self._say(client, Taken(event.number))

    def settled(self, exit_point: str, batch: int) -> None:
        """Servers have confirmed everything that an exit point had to deliver up to a batch. When all exit points have
        said so, the emitters are told."""
        if exit_point not in self._settled or batch <= self._settled[exit_point]:
            return
        self._settled[exit_point] = batch
        if exit_point in self._leaving and batch >= self._leaving[exit_point]:
            del self._settled[exit_point], self._leaving[exit_point]
        settled_all = self.settled_all
        last: dict[int, int] = {}
        while self._flight and self._flight[0][0] <= settled_all:
            _, emitter, number, size = self._flight.popleft()
            self._flight_events -= 1
            self._flight_bytes -= size
            self._flying[emitter] -= 1
            if not self._flying[emitter]:
                del self._flying[emitter]
            last[emitter] = number
        for emitter, number in last.items():
            if emitter in self._withheld and TAKEN_LATER in self._rules:
                self._withheld[emitter] = number
            elif lane_of(emitter) in self.lanes:
                self._say(emitter, Taken(number))
        if last:
            self._resume()

    def _resume(self) -> None:
        """There is room again: emitters whose events did not fit send them again."""
        limits = self._limits
        if self.in_flight > limits.engine_flight_events_max // 2:
            return
        for client, conversation in self._conversations.items():
            if conversation.choked and self._flying[client] <= limits.engine_untaken_events_max // 2:
                conversation.choked = False
                self._say(client, Resend(conversation.next))

    # Changes of configuration

    def obey(self, orders: Orders, now: float) -> None:
        """Does what the head has ordered: calls the roll, serves, marks the steps of a change in the fan."""
        if orders.stage >= Stage.ROLL and not self._called:
            self._called = True
            self.begin_roll(now)
        if orders.stage == Stage.SERVE and self.roll_open:
            self._serve()
        number = orders.configuration.number
        if number >= self.prepared > self._switched:  # it was given up, perhaps in orders that did not arrive
            self._switched = self.prepared
            stays = msgspec.structs.replace(self._configuration, number=self.prepared)
            self._out.append((_MARK, Mark(Step.GIVE_UP, stays)))
        elif number >= self._switched and (self._withheld or self._leaving):
            self._finish()
        following = orders.next
        if following is None or orders.step is None:
            return
        if self.prepared < following.number and self._name in orders.configuration.access_points:
            self.prepared = following.number
            self._out.append((_MARK, Mark(Step.PREPARE, following)))
        if orders.step == Step.SWITCH and self._switched < following.number:
            self._switch(following)

    def _switch(self, following: Configuration) -> None:
        """Marks SWITCH. What was before belongs to the old configuration."""
        before, self._configuration = self._configuration, following
        self._switched = following.number
        if before.exits != following.exits:
            for client in self._conversations:
                if before.exit_of(client) != following.exit_of(client):
                    self._say(client, PathEnd(self._instance, following.number))
        self._out.append((_MARK, Mark(Step.SWITCH, following)))
        lanes = following.lanes_of(self._name)
        self._gained = lanes - self.lanes
        self._hand_over(self.lanes - lanes, following)
        self.lanes &= lanes
        early, self._early = self._early, []
        for handover in early:
            self.take_over(handover)

    def _hand_over(self, lost: frozenset[int], following: Configuration) -> None:
        """Gives conversations to the new access points of their lanes."""
        by_lane: dict[int, list[Handed]] = {lane: [] for lane in sorted(lost)}
        for client in [client for client in self._conversations if lane_of(client) in lost]:
            one = self._conversations.pop(client)
            flags = one.ready, one.in_roll, one.served, one.choked, one.distrusted
            handed = Handed(client, one.number, one.next, one.sequence, one.filters, *flags)
            by_lane[lane_of(client)].append(handed)
        for lane, rows in by_lane.items():
            receiver = following.access_point_of(lane)
            parts = [rows[first : first + HANDED_MAX] for first in range(0, len(rows), HANDED_MAX)] or [[]]
            for part in parts:
                last = part is parts[-1]
                self.handovers.append((receiver, Handover(self._instance, following.number, lane, last, part)))

    def take_over(self, handover: Handover) -> None:
        """Conversations of a lane that is here from now on."""
        if handover.configuration > self._switched:
            self._early.append(handover)
            return
        if handover.configuration < self._switched or handover.lane not in self._gained:
            return
        for row in handover.rows:
            one = self._conversations[row.client] = _Conversation(
                row.conversation, row.next, row.in_roll, self._look_at
            )
            one.sequence, one.handed, one.filters = row.sequence, True, row.filters
            one.ready, one.served, one.distrusted = row.ready, row.served, row.distrusted
            self._withheld[row.client] = row.next - 1
            if not row.ready:  # it was presenting its filters
                self.missed(row.client)
            elif row.choked:
                self._say(row.client, Resend(row.next))
        if handover.last:
            self._gained -= {handover.lane}
            self.lanes |= {handover.lane}

    def _finish(self) -> None:
        """Everything before SWITCH is delivered. An exit point that has left may have said so to the head only."""
        for name, batch in list(self._leaving.items()):
            self.settled(name, batch)
        withheld, self._withheld = self._withheld, {}
        for client, number in withheld.items():
            if number:
                self._say(client, Taken(number))

    # The fan

    def take_batches(self) -> Iterator[Batch]:
        """All that has to be told since the last call, in order."""
        out, self._out = self._out, []
        begin = size = 0
        for at, (kind, item) in enumerate(out):
            more = _size_of(kind, item)
            full = kind == _MARK or at - begin == BATCH_EVENTS_MAX or size + more > self._limits.engine_letter_bytes_max
            if at > begin and (full or kind != out[begin][0]):
                yield self._batch([one for _, one in out[begin:at]], out[begin][0])
                begin, size = at, 0
            size += more
        if out:
            yield self._batch([one for _, one in out[begin:]], out[begin][0])

    def _batch(self, items: list[Any], kind: int) -> Batch:
        self._number += 1
        number = self._number
        if kind == _EVENT:
            self._flight += [(number, emitter, event.number, _size(event)) for emitter, event in items]
            return Batch(self._instance, self._name, number, Events(items))
        if kind == _CHANGE:
            return Batch(self._instance, self._name, number, Changes(items))
        if kind == _REPLY:
            return Batch(self._instance, self._name, number, Replies(items))
        if items[0].step == Step.SWITCH:
            self._marked(number, items[0].configuration)
        return Batch(self._instance, self._name, number, items[0])

    def _marked(self, number: int, following: Configuration) -> None:
        """SWITCH has a number: exit points that leave settle what is before it, those that come what is after it."""
        for name in sorted(self._settled.keys() - set(following.exits)):
            if self._settled[name] < number:
                self._leaving[name] = number
            else:
                del self._settled[name]
        for name in following.exits:
            self._leaving.pop(name, None)
            self._settled.setdefault(name, number)

    def _say(self, client: int, item: FromEngine) -> None:
        """Tells a client something."""
        self._out.append((_REPLY, (client, item)))

    # Time

    def tick(self, now: float) -> None:
        """Looks whether the roll may be closed, and removes clients that have been silent for too long."""
        self._look_at_roll(now)
        if now < self._look_at:
            return
        grace_s = self._limits.engine_client_grace_s
        self._look_at = now + grace_s / 16
        silent_since = now - grace_s
        for client, one in [each for each in self._conversations.items() if each[1].heard_at < silent_since]:
            self._leave(client)
            self._say(client, Dropped(one.number))

    @property
    def _admits(self) -> bool:
        """Whether a client that comes now has its filters in force before the first event is matched. Other access
        points have fans of their own: they may serve as soon as this one has said that its roll is over."""
        return self.roll_open and not (self.roll_over and self._has_others)

    @property
    def _has_others(self) -> bool:
        return len(self._configuration.access_points) > 1

    def _look_at_roll(self, now: float) -> None:
        is_over = self._called and self.roll_open and self._roll_is_over(now)
        if is_over and not self.roll_over and self._has_others:
            for one in self._conversations.values():
                one.too_late = not one.served
        self.roll_over = is_over or (self.roll_over and self._has_others)

    def _serve(self) -> None:
        """Ends the roll and takes the events that have waited. It is known that this instance serves, so the next one
        can tell which clients have been served without a break. Clients that are still presenting filters are too late,
        and are told so when they begin again."""
        self.roll_open = self.roll_over = False
        for client in [client for client, one in self._conversations.items() if not one.served]:
            late = self._conversations.pop(client)
            self._say(client, Again(late.number))
        for client in [client for client, one in self._conversations.items() if one.too_late]:
            self.missed(client)
        held, self._held, self._held_bytes = self._held, deque(), 0
        for client, event in held:
            self._emit(client, event)
        if not self._flight_events:
            self._resume()

    def _roll_is_over(self, now: float) -> bool:
        """Whether clients have presented their filters, and have been told that these are in force: the next instance
        asks them by which one they were served last."""
        if now >= self._roll_until_max or ROLL_FIRST not in self._rules:
            return True
        if now < self._roll_until or not all(one.served for one in self._conversations.values()):
            self._roll_said = 0
            return False
        self._roll_said = self._roll_said or self._number
        return self.settled_all >= self._roll_said


def _size(event: Event) -> int:
    return len(event.attributes) + len(event.payload) + 64


def _size_of(kind: int, item: Any) -> int:
    if kind == _EVENT:
        return _size(item[1])
    if kind == _CHANGE:
        return 64 + sum(len(wire) + 12 for _, wire in item.added) + 9 * len(item.removed)
    return 64
