"""The matcher: it applies changes of filters, matches events, and gives filters to other matchers when they come or go.

Owns what one matcher does with the fan. It holds the filters that the configuration gives to it, and while the
configuration changes also those that the next one gives to it:

    serving --PREPARE--> sends the others their filters, gets its own --SWITCH--> serving, drops what is not its own
                                                                      --GIVE_UP--> as before

Nothing stops meanwhile. Two matchers may hold a filter for a moment; the one to which the configuration gives it speaks
of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from shoal.engine.configuration import Configuration, checksum
from shoal.engine.links import Batch, Change, Changes, Events, Found, Mark, Part, State, StateAck, Step, ToMember
from shoal.engine.messages import FromEngine, InForce, Rejected
from shoal.engine.subscription_table import NoRoom, Owner, SubscriptionTable, owners
from shoal.filters.index.background import THREADS, Background
from shoal.limits import Limits
from shoal.rules import ALL_RULES, Rules, rule

ONE_COPY: Final = rule("one_copy", "A filter that two matchers hold for a moment is matched once.")
CHANGE_TO_BOTH: Final = rule("change_to_both", "While the configuration changes, a filter goes to both its matchers.")
OLD_STATE_LAST: Final = rule("old_state_last", "State that arrives late does not bring back a filter that has ended.")

FOUND_BYTES: Final = 16
NUMBERS_MAX: Final = 4096
"""Filters that are named in one answer."""
WINDOW: Final = 8
"""Chunks of state that may be under way to one matcher."""
TOGETHER: Final = 8192
"""Filters that are inserted together, of those that come in many messages. Together they take less, and more at once
would keep the process from anything else for too long."""


class _Presentation:
    """What a client has presented so far."""

    __slots__ = ("filters", "numbers", "refused")

    def __init__(self) -> None:
        self.numbers: list[int] = []
        """Of all filters of this matcher."""
        self.filters: list[tuple[int, bytes]] = []
        """Those that are not inserted yet."""
        self.refused: list[tuple[int, bytes]] = []
        """Those that did not fit beside the filters that will end when all are presented."""


class Matcher:
    """One matcher of one instance. `out` has what it tells other members; `failed` why it cannot go on."""

    def __init__(
        self,
        name: str,
        instance: int,
        configuration: Configuration,
        limits: Limits,
        rules: Rules = ALL_RULES,
        background: Background = THREADS,
    ) -> None:
        self._name = name
        self._instance = instance
        self._configuration = configuration
        self._limits = limits
        self._rules = rules
        self.table = SubscriptionTable(limits, background)
        self._presenting: dict[int, _Presentation] = {}
        """By client."""
        self._next: Configuration | None = None
        self._sending: StateSender | None = None
        self._receiving: set[str] = set()
        """The matchers whose state is not here yet."""
        self._ended: set[tuple[int, int]] = set()
        self._renewed: set[int] = set()
        """Filters that ended, and clients that presented all their filters, while state is under way."""
        self._states: list[State] = []
        """State that is not inserted yet; some may have come before the mark."""
        self._is_settling = False
        """Whether all state is here, and the index is being merged."""
        self._trimming: int | None = None
        """The first filter that has not been looked at, while those of other matchers are dropped."""
        self.ready = configuration.number
        """The newest configuration whose filters are here."""
        self.failed = ""
        self.out: list[tuple[str, ToMember]] = []

    def __len__(self) -> int:
        return len(self.table)

    @property
    def remembered(self) -> int:
        """Filters and clients that are remembered although they are gone: only while state is under way."""
        return len(self._ended) + len(self._renewed)

    @property
    def is_busy(self) -> bool:
        """Whether there is more to do than to wait for messages."""
        return (
            self._trimming is not None
            or (self._sending is not None and self._sending.is_busy)
            or self._states_are_due
            or self._may_pack
        )

    @property
    def _may_pack(self) -> bool:
        """Whether the table is to be packed. Not during a change: filters are sent to other matchers by id."""
        return self._next is None and self.table.is_sparse

    @property
    def is_waiting(self) -> bool:
        """Whether `work` must be called again soon, although nothing may happen before."""
        return self._is_settling

    @property
    def _speaks(self) -> bool:
        """Whether exit points wait for this matcher."""
        return self._name in self._configuration.matchers

    # The fan

    def heard(self, batch: Batch) -> None:
        """The next batch of the fan."""
        body = batch.body
        if type(body) is Events:
            if self._speaks:
                self._match(batch, body)
        elif type(body) is Changes:
            self._change_all(batch, body)

    def _match(self, batch: Batch, body: Events) -> None:
        matched = self.table.match([event for _, event in body.events], self._only)
        said: list[tuple[int, FromEngine]] = []
        for at, why in matched.rejected.items():
            emitter, event = body.events[at]
            said.append((emitter, Rejected(event.number, why)))
        self._speak(batch, matched.found, said)

    @property
    def _only(self) -> Owner | None:
        """The filters of which this matcher speaks; None if that is all it holds."""
        if (self._next is None and self._trimming is None) or ONE_COPY not in self._rules:
            return None
        return Owner(self._configuration, self._configuration.matchers.index(self._name))

    def _speak(self, batch: Batch, found: list[Found], said: list[tuple[int, FromEngine]]) -> None:
        """Gives each exit point what belongs to its clients."""
        exits, exit_of = self._configuration.exits, self._configuration.exit_of
        for name in exits:
            own, told = found, said
            if len(exits) > 1:
                own = [one for one in found if exit_of(one[1]) == name]
                told = [one for one in said if exit_of(one[0]) == name]
            if name != self._name:
                for piece in self._pieces(own):
                    self.out.append((name, self._part(batch, piece, [], more=True)))
                own = []
            self.out.append((name, self._part(batch, own, told)))

    def _part(self, batch: Batch, found: list[Found], said: list[tuple[int, FromEngine]], more: bool = False) -> Part:
        return Part(self._instance, batch.source, batch.number, self._name, found, said, more)

    def _pieces(self, found: list[Found]) -> Iterator[list[Found]]:
        """What was found, in pieces that fit a message."""
        piece: list[Found] = []
        size = 0
        for one in found:
            more = FOUND_BYTES + len(one[2])
            if piece and size + more > self._limits.engine_letter_bytes_max:
                yield piece
                piece, size = [], 0
            piece.append(one)
            size += more
        if piece:
            yield piece

    # Changes

    def _change_all(self, batch: Batch, body: Changes) -> None:
        said: list[tuple[int, FromEngine]] = []
        together: dict[int, Change] = {}
        for change in body.changes:
            if change.client in together:
                said += self._apply(together)
                together = {}
            together[change.client] = change
        said += self._apply(together)
        if self._speaks:
            self._speak(batch, [], said)
        elif any(isinstance(item, NoRoom) for _, item in said):  # its present matcher refuses invalid filters
            self.failed = "a filter that the next configuration gives to this matcher does not fit"

    def _apply(self, changes: dict[int, Change]) -> list[tuple[int, FromEngine]]:
        """Applies a change of each of some clients; returns what they are told."""
        added: dict[int, list[tuple[int, bytes]]] = {}
        numbers: dict[int, list[int]] = {}
        for client, change in changes.items():
            mine = self._mine_of(change.added)
            numbers[client] = [number for number, _ in mine]
            removed = change.removed
            if change.presented:
                so_far = self._presenting.setdefault(client, _Presentation())
                so_far.numbers += numbers[client]
                so_far.filters += mine
                if change.more:
                    if len(so_far.filters) >= TOGETHER:
                        added[client], so_far.filters = so_far.filters, []
                    continue
                del self._presenting[client]
                mine, numbers[client] = so_far.refused + so_far.filters, so_far.numbers
                listed = set(so_far.numbers)
                removed = [number for number in self.table.numbers(client) if number not in listed]
            if self._receiving:
                self._ended.update((client, number) for number in removed)
                if change.presented:
                    self._renewed.add(client)
            self.table.remove(client, removed)
            added[client] = mine
        refused = self.table.insert_many(added)
        said: list[tuple[int, FromEngine]] = []
        for client, change in changes.items():
            if change.more:
                names = {one.number for one in refused.get(client, ())}
                self._presenting[client].refused += [one for one in added.get(client, ()) if one[0] in names]
                continue
            here = self.table.present(client, numbers[client])
            parts = (here[first : first + NUMBERS_MAX] for first in range(0, len(here), NUMBERS_MAX))
            said += [(client, InForce(change.conversation, part)) for part in parts]
            said += [(client, one) for one in refused.get(client, ())]
        return said

    def _mine_of(self, filters: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Those of some filters that this matcher has now, or with the next configuration."""
        following = self._next if CHANGE_TO_BOTH in self._rules else None
        if self._configuration.matchers == (self._name,):
            return filters
        mine = self._is_mine(np.fromiter((checksum(wire) for _, wire in filters), np.uint64, len(filters)), following)
        return [filters[at] for at in np.flatnonzero(mine).tolist()]

    def _is_mine(self, checksums: npt.NDArray[np.uint64], following: Configuration | None) -> npt.NDArray[np.bool_]:
        """Which filters the present configuration, or the following one, gives to this matcher."""
        mine = np.zeros(len(checksums), bool)
        for configuration in (self._configuration, following):
            if configuration is not None and self._name in configuration.matchers:
                mine |= owners(configuration, checksums) == configuration.matchers.index(self._name)
        return mine

    # A change of configuration

    def marked(self, mark: Mark) -> None:
        """A step of a change: all access points have marked it."""
        if mark.step == Step.PREPARE:
            self._next = mark.configuration
            self._ended, self._renewed = set(), set()
            if self._configuration.matchers == self._next.matchers:
                self.ready = self._next.number
                return
            self._receiving = set(self._configuration.matchers) - {self._name}
            if self._speaks:
                self._sending = StateSender(
                    *(self._name, self._instance, self.table, self._configuration, self._next),
                    self._limits.engine_slice_filters_max,
                )
            self._look_whether_ready()
        elif self._next is not None:
            if self._configuration.matchers != self._next.matchers:
                self._trimming = 0
            self._configuration = mark.configuration
            self._next = self._sending = None
            self._receiving, self._is_settling = set(), False
            self._states = [one for one in self._states if one.configuration > self._configuration.number]
            self._ended, self._renewed = set(), set()

    def received(self, message: State | StateAck) -> None:
        """Another matcher has sent state, or has got some."""
        if isinstance(message, StateAck):
            if self._sending is not None and message.configuration == self._sending.number:
                self._sending.acknowledged(message.receiver, message.chunk)
        elif message.configuration > self._configuration.number:
            self._states.append(message)
            ack = StateAck(self._instance, message.configuration, self._name, message.chunk)
            self.out.append((message.sender, ack))

    @property
    def _states_are_due(self) -> bool:
        """Whether there is enough state of the next configuration to insert, or all that was awaited."""
        if not self._states or self._next is None:
            return False
        states = [state for state in self._states if state.configuration == self._next.number]
        is_last = self._receiving <= {state.sender for state in states if state.last}
        return bool(states) and (is_last or sum(len(state.rows) for state in states) >= TOGETHER)

    def _insert_states(self, number: int) -> None:
        states = [state for state in self._states if state.configuration == number]
        self._states = [state for state in self._states if state.configuration > number]
        by_client: dict[int, list[tuple[int, bytes]]] = {}
        for state in states:
            for client, number, wire in state.rows:
                ended = client in self._renewed or (client, number) in self._ended
                if not ended or OLD_STATE_LAST not in self._rules:
                    by_client.setdefault(client, []).append((number, wire))
            if state.last:
                self._receiving.discard(state.sender)
        if any(self.table.insert_many(by_client).values()):
            self.failed = "a filter that the next configuration gives to this matcher does not fit"
        self._look_whether_ready()

    def _look_whether_ready(self) -> None:
        if self._next is not None and not self._receiving:
            # One that matches events must not pause, and needs not be settled.
            self._is_settling = not self._speaks and not self.table.settle_soon()
            if not self._is_settling:
                self.ready = self._next.number
                self._ended, self._renewed = set(), set()

    def work(self) -> None:
        """Does a slice of what takes long: sends and inserts state, drops filters that other matchers have now, and
        packs the table."""
        if self._trimming is not None:
            self._trim(self._trimming)
        elif self._may_pack:
            self.table.pack()
        elif self._next is not None and self._states_are_due:
            self._insert_states(self._next.number)
        elif self._is_settling:
            self._look_whether_ready()
        elif self._sending is not None:
            self.out += self._sending.send()

    def _trim(self, first: int) -> None:
        last = first + self._limits.engine_slice_filters_max
        self._trimming = last if last < self.table.size else None
        rows = self.table.rows(first, last)
        mine = self._is_mine(rows.checksums, self._next)
        foreign: dict[int, list[int]] = {}
        for at in np.flatnonzero(~mine).tolist():
            foreign.setdefault(rows.clients[at], []).append(rows.numbers[at])
        for client, numbers in foreign.items():
            self.table.remove(client, numbers)


class StateSender:
    """Sends other matchers the filters that the next configuration gives to them, with at most `WINDOW` chunks under
    way to each."""

    def __init__(
        self,
        name: str,
        instance: int,
        table: SubscriptionTable,
        current: Configuration,
        following: Configuration,
        slice_filters: int,
    ) -> None:
        self._name = name
        self._instance = instance
        self._table = table
        self._current = current
        self._following = following
        self._slice = slice_filters
        self._next = 0
        self._looked_at_all = False
        self._rows: dict[str, list[tuple[int, int, bytes]]] = {
            other: [] for other in following.matchers if other != name
        }
        self._sent = dict.fromkeys(self._rows, 0)
        self._acknowledged = dict.fromkeys(self._rows, 0)
        self._finished: set[str] = set()

    @property
    def number(self) -> int:
        """The number of the next configuration."""
        return self._following.number

    @property
    def is_busy(self) -> bool:
        """Whether there is something to send now."""
        return len(self._finished) < len(self._rows) and self._has_room

    @property
    def _has_room(self) -> bool:
        return all(self._sent[other] - self._acknowledged[other] < WINDOW for other in self._rows)

    def acknowledged(self, receiver: str, chunk: int) -> None:
        """A matcher has inserted a chunk."""
        if receiver in self._acknowledged:
            self._acknowledged[receiver] = max(self._acknowledged[receiver], chunk)

    def send(self) -> list[tuple[str, ToMember]]:
        """The next chunks."""
        if not self.is_busy:
            return []
        self._look()
        chunks: list[tuple[str, ToMember]] = []
        for other, rows in self._rows.items():
            last = self._looked_at_all
            if other in self._finished or not (rows or last):
                continue
            self._sent[other] += 1
            state = State(self._instance, self.number, self._name, self._sent[other], last, rows)
            chunks.append((other, state))
            self._rows[other] = []
            if last:
                self._finished.add(other)
        return chunks

    def _look(self) -> None:
        """Looks at the next filters. One that came after the mark has been told to both matchers, and does no harm."""
        rows = self._table.rows(self._next, self._next + self._slice)
        self._next += self._slice
        self._looked_at_all = self._next >= self._table.size
        current, following = self._current, self._following
        mine = owners(current, rows.checksums) == current.matchers.index(self._name)
        new = owners(following, rows.checksums)
        for place, other in enumerate(following.matchers):
            if other != self._name:
                for at in np.flatnonzero(mine & (new == place)).tolist():
                    self._rows[other].append((rows.clients[at], rows.numbers[at], rows.wires[at]))
