"""The steps of a channel's move: when each is due, and the entry that follows.

Owns the table of phases and events, the change of the entry at each step, and the condition that ends each phase. The
conductor (`shoal.plan.conductor`) uses it for channels.

    prepare   until the agents involved report the entry; given up after `prepare_timeout_s`
    widen     until no subscriber is behind; after `widen_timeout_s` the servers of those subscribers are helped
    switch    until the agents of the old servers have handed over
    narrow    until no subscriber is behind or left at the old servers; meanwhile the helped servers are kept up to date

Involved are the servers of all placements in use, the helped servers, and the home. A server that is not in the ring is
not waited for. A helped server has subscribers that did not follow: agents forward messages to it.

Publishers cannot use a placement without a server in the ring. A new list of placements leaves it out, and a channel
without another placement lives at its home. Its servers are helped from then on: if one comes back before the move
ends, it may have subscribers that know of no other server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from msgspec.structs import replace

from shoal.limits import Limits
from shoal.plan.conductor import Around, Case, Step
from shoal.plan.entry import Entry, Phase
from shoal.plan.kinds import CHANNEL
from shoal.plan.move_request import ChannelReport, MoveReport, MoveRequest, decode_report, decode_request
from shoal.plan.placement import BY_THE_RING, Mode, Placement, at_home
from shoal.plan.ring import Ring
from shoal.rules import ALL_RULES, Rules, rule

PREPARE: Final = rule("prepare", "A move begins when the agents of all its servers know of it.")
WIDEN_BEFORE_SWITCH: Final = rule(
    "widen_before_switch", "Publishers learn of a new placement after subscribers are subscribed there."
)


MOVE: Final[Mapping[tuple[Phase, str], Phase]] = {
    (Phase.END, "asked"): Phase.PREPARE,
    (Phase.PREPARE, "asked"): Phase.PREPARE,
    (Phase.PREPARE, "old servers gone"): Phase.PREPARE,
    (Phase.PREPARE, "agents know"): Phase.WIDEN,
    (Phase.PREPARE, "given up"): Phase.END,
    (Phase.PREPARE, "given up, some are helped"): Phase.NARROW,
    (Phase.PREPARE, "given up at home, some are helped"): Phase.WIDEN,
    (Phase.PREPARE, "given up, publishers to follow"): Phase.WIDEN,
    (Phase.PREPARE, "given up, publishers followed"): Phase.SWITCH,
    (Phase.WIDEN, "asked"): Phase.PREPARE,
    (Phase.WIDEN, "subscribers ready"): Phase.SWITCH,
    (Phase.WIDEN, "timeout"): Phase.SWITCH,
    (Phase.WIDEN, "given up"): Phase.END,
    (Phase.WIDEN, "given up, some are helped"): Phase.NARROW,
    (Phase.WIDEN, "given up at home, some are helped"): Phase.WIDEN,
    (Phase.WIDEN, "given up, publishers to follow"): Phase.WIDEN,
    (Phase.WIDEN, "given up, publishers followed"): Phase.SWITCH,
    (Phase.SWITCH, "asked"): Phase.PREPARE,
    (Phase.SWITCH, "handed over"): Phase.NARROW,
    (Phase.SWITCH, "given up"): Phase.END,
    (Phase.SWITCH, "given up, some are helped"): Phase.NARROW,
    (Phase.SWITCH, "given up at home, some are helped"): Phase.WIDEN,
    (Phase.SWITCH, "given up, publishers followed"): Phase.SWITCH,
    (Phase.NARROW, "asked"): Phase.PREPARE,
    (Phase.NARROW, "others are helped"): Phase.NARROW,
    (Phase.NARROW, "all left"): Phase.END,
}
"""The next phase by phase and event. A move is given up if the agents do not learn of it in time (prepare), or if none
of its new servers is in the ring any more. `hurry`, which makes a move eager, is possible in every phase but the last
and does not change the phase.
"""
_IDLE_SHARE: Final = 0.25
"""The part of `widen_timeout_s` after which a channel without messages counts as idle."""


def step(phase: Phase, event: str) -> Phase:
    """The next phase. An event that is not in the table is a bug."""
    try:
        return MOVE[phase, event]
    except KeyError:
        raise AssertionError(f"a move in phase {phase.value} cannot take {event!r}") from None


def next_revision(ring: Ring, entry: Entry | None) -> int:
    """A revision newer than all known revisions of the channel."""
    return max(ring.version, entry.newness if entry else 0) + 1


def is_alive(placement: Placement, ring: Ring) -> bool:
    """Whether any server of a placement is in the ring."""
    return any(server in ring.ids for server in placement.servers)


def unended(channel: bytes, entry: Entry | None, ring: Ring) -> tuple[tuple[Placement, ...], Placement]:
    """The placements with subscribers, oldest first, and the one that publishers use."""
    subscribed = tuple(placement for placement in entry.subscribed if is_alive(placement, ring)) if entry else ()
    if entry is None or not subscribed:
        home = at_home(ring.version, ring.home(channel))
        return (home,), home
    return subscribed, entry.publishing if entry.publishing in subscribed else subscribed[-1]


def _left_out(entry: Entry, ring: Ring) -> set[str]:
    """The servers of placements with subscribers, and without a server in the ring."""
    return {s for placement in entry.subscribed if not is_alive(placement, ring) for s in placement.servers}


def begin(entry: Entry | None, ring: Ring, request: MoveRequest, helped: Iterable[str] = ()) -> Entry:
    """The first entry of a move, from any phase of the channel."""
    phase = step(entry.phase if entry else Phase.END, "asked")
    revision = next_revision(ring, entry)
    earlier, publishing = unended(request.unit, entry, ring)
    newest = Placement(revision, request.mode, request.servers)
    helped = _sorted((*helped, *(_left_out(entry, ring) if entry else ())))
    return Entry(request.unit, newest, phase, earlier, publishing.version, revision, request.eager, helped, revision)


def begin_again(entry: Entry, ring: Ring, *, event: str = "asked", eager: bool | None = None) -> Entry:
    """The same move again, from the current placements of the channel."""
    revision = next_revision(ring, entry)
    earlier, publishing = unended(entry.unit, entry, ring)
    return replace(
        entry,
        placement=replace(entry.placement, version=revision),
        phase=step(entry.phase, event),
        earlier=earlier,
        publish=publishing.version,
        revision=revision,
        eager=entry.eager if eager is None else eager,
        helped=_sorted((*entry.helped, *_left_out(entry, ring))),
        since=revision,
    )


def widen(entry: Entry, ring: Ring) -> Entry:
    """All agents involved know of the move."""
    return _next(entry, ring, step(entry.phase, "agents know"))


def switch(entry: Entry, ring: Ring, event: str, helped: Iterable[str] = ()) -> Entry:
    """All subscribers are at the new placement, except those on the helped servers."""
    return replace(_next(entry, ring, step(entry.phase, event)), publish=0, helped=_sorted(helped))


def switch_unwidened(entry: Entry, ring: Ring) -> Entry:
    """Publishers use the new placement before any subscriber is there. This breaks the rule `widen_before_switch`."""
    return replace(_next(entry, ring, Phase.SWITCH), publish=0, helped=())


def narrow(entry: Entry, ring: Ring) -> Entry:
    """The new servers know the streams of the old ones."""
    return _next(entry, ring, step(entry.phase, "handed over"))


def help_others(entry: Entry, ring: Ring, helped: Iterable[str]) -> Entry:
    """While subscribers leave, the set of servers that need help has changed. The phase stays the same."""
    phase = step(entry.phase, "others are helped")
    return replace(entry, phase=phase, helped=_sorted(helped), revision=next_revision(ring, entry))


def end(entry: Entry, ring: Ring) -> Entry:
    """No subscriber is left at the old servers."""
    ended = _next(entry, ring, step(entry.phase, "all left"))
    return replace(ended, earlier=(), publish=0, eager=False, helped=())


def hurry(entry: Entry, ring: Ring) -> Entry:
    """Clients that are behind are notified immediately from now on.

    A move in prepare begins again, because the revision after that of a placement is always the one that widens.
    """
    if entry.phase is Phase.PREPARE:
        return begin_again(entry, ring, eager=True)
    return replace(entry, eager=True, revision=next_revision(ring, entry))


def give_up(entry: Entry, ring: Ring) -> Entry:
    """The state before the move: its placements, with publishers where they are.

    If one placement remains, the move has ended. If subscribers elsewhere are still helped, the placement is renewed
    instead, so that the help continues until they have moved. One that was derived from the ring is renewed by a move:
    its subscribers follow the ring and may be elsewhere when that changes, so they widen first.
    """
    left = tuple(placement for placement in entry.earlier if is_alive(placement, ring)) or entry.earlier[-1:]
    newest = left[-1]
    others = {s for placement in entry.earlier if placement not in left for s in placement.servers}
    entry = replace(entry, helped=_sorted((*entry.helped, *others)))
    if len(left) == 1 and not entry.helped:
        ended = _next(entry, ring, step(entry.phase, "given up"))
        return replace(ended, placement=newest, earlier=(), publish=0, eager=False)
    if len(left) == 1 and newest.version & BY_THE_RING:
        return _move_home(entry, ring, newest)
    if len(left) == 1:
        narrowed = _next(entry, ring, step(entry.phase, "given up, some are helped"))
        renewed = replace(newest, version=narrowed.revision)
        return replace(narrowed, placement=renewed, earlier=left, publish=0)
    publishing = entry.publishing if entry.publishing in left else newest
    followed = publishing is newest
    event = f"given up, publishers {'followed' if followed else 'to follow'}"
    before = _next(entry, ring, step(entry.phase, event))
    publish = 0 if followed else publishing.version
    return replace(before, placement=newest, earlier=left[:-1], publish=publish)


def _move_home(entry: Entry, ring: Ring, home: Placement) -> Entry:
    """A move from the channel's home to an entry with the same server. It needs no `prepare`: publishers do not switch
    before the agent of that server knows of it."""
    if not is_alive(home, ring):
        home = at_home(ring.version, ring.home(entry.unit))
    version = next_revision(ring, entry)
    return replace(
        entry,
        placement=replace(home, version=version),
        phase=step(entry.phase, "given up at home, some are helped"),
        earlier=(home,),
        publish=home.version,
        revision=version + 1,
        since=version + 1,
    )


def _next(entry: Entry, ring: Ring, phase: Phase) -> Entry:
    """An entry in a new phase."""
    revision = next_revision(ring, entry)
    return replace(entry, phase=phase, revision=revision, since=revision)


def _sorted(servers: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({*servers}))


# When each step is due

_Case: TypeAlias = Case[Entry, Ring, MoveReport]


class _Move:
    """One channel with an entry, and the known facts."""

    def __init__(self, case: _Case) -> None:
        self.entry = case.entry
        self.ring = case.hosts
        self.is_over = case.over
        self._reports = case.reports

    @property
    def newest(self) -> tuple[str, ...]:
        """The target servers; the home if none of them is in the ring."""
        return self.here(self.entry.placement.servers) or (self.ring.home(self.entry.unit),)

    @property
    def concerned(self) -> tuple[str, ...]:
        """The servers whose agents take part in the move."""
        return self.here((*self.entry.servers, *self.entry.helped, self.ring.home(self.entry.unit)))

    def here(self, servers: tuple[str, ...]) -> tuple[str, ...]:
        """The servers that are in the ring, without repetition."""
        return tuple(server for server in dict.fromkeys(servers) if server in self.ring.ids)

    def report(self, server: str) -> ChannelReport | None:
        """The report of a server's agent about this entry; None if the agent does not know the entry yet."""
        report = self._reports.get(server)
        said = report.channels.get(self.entry.unit) if report else None
        return said if said is not None and said.revision >= self.entry.newness else None

    def unaware(self, servers: tuple[str, ...]) -> tuple[str, ...]:
        """The servers whose agents do not know the entry yet."""
        return tuple(server for server in servers if self.report(server) is None)

    def is_behind(self, server: str) -> bool:
        """Whether a server may have subscribers that have not followed the entry."""
        said = self.report(server)
        return said is None or said.behind > 0

    def is_waited_for(self, server: str) -> bool:
        """Whether the end of the move waits for a server: one of its subscribers is behind, or has not left yet."""
        said = self.report(server)
        return said is None or said.behind > 0 or (said.here > 0 and server not in self.newest)

    def reaches_all(self, server: str) -> bool:
        """Whether all messages published by the new placement reach a server without help."""
        newest = self.newest
        spread = self.entry.placement.mode is Mode.ALL_SUBSCRIBERS and len(newest) > 1
        return server in newest and not spread

    def in_need(self) -> tuple[str, ...]:
        """The servers with subscribers that may miss messages published by the new placement. A server that has not
        reported yet counts if it was helped before, or if publishers are about to switch."""
        narrows = self.entry.phase is Phase.NARROW

        def in_need(server: str) -> bool:
            if narrows and self.report(server) is None:
                return server in self.entry.helped
            return self.is_waited_for(server) if narrows else self.is_behind(server)

        return tuple(sorted(server for server in self.concerned if in_need(server) and not self.reaches_all(server)))

    def still_helped(self) -> set[str]:
        """The servers that need help when a new move begins: those before, and those that subscribers were leaving."""
        helped = {*self.here(self.entry.helped)}
        return helped | {*self.in_need()} if self.entry.phase is Phase.NARROW else helped


class ChannelSteps:
    """The migration protocol of channels (`shoal.plan.conductor.Steps`)."""

    kind: Final = CHANNEL
    entry_type: Final = Entry

    def __init__(self, limits: Limits, rules: Rules = ALL_RULES) -> None:
        self._prepare_timeout_s = limits.prepare_timeout_s
        self._widen_timeout_s = limits.widen_timeout_s
        self._rules = rules
        self._due: Mapping[Phase, Callable[[_Move], Step[Entry]]] = {
            Phase.PREPARE: self._prepare,
            Phase.WIDEN: self._widen,
            Phase.SWITCH: self._switch,
            Phase.NARROW: self._narrow,
        }

    def read_request(self, data: bytes) -> MoveRequest:
        """The request in `data`; PlanError if it is invalid."""
        return decode_request(data)

    def read_report(self, data: bytes) -> MoveReport:
        """The report in `data`; ProtocolError if it is invalid."""
        return decode_report(data)

    def facts(self, entry: Entry) -> Mapping[str, object]:
        """The fields that the log shows for an entry."""
        return {
            "channel": entry.unit,
            "phase": entry.phase.value,
            "servers": ",".join(entry.placement.servers),
            "revision": entry.newness,
        }

    def answer(self, request: MoveRequest, case: _Case | None, around: Around[Entry, Ring]) -> Step[Entry]:
        """The first entry for a request, or why the request ends."""
        ring, entry = around.hosts, case.entry if case else None
        if entry is not None and _is_target(entry.placement, request):
            if entry.phase is Phase.END:
                return Step(dropped="")
            return Step(hurry(entry, ring) if request.eager and not entry.eager else None)
        if request.goes_there:
            return Step(dropped="the channel is not moving there")
        if strangers := [server for server in request.servers if server not in ring.ids]:
            return Step(dropped=f"the ring has no server {', '.join(strangers)}")
        placements, _ = unended(request.unit, entry, ring)
        here = {server for placement in placements for server in placement.servers}
        if closed := [server for server in request.servers if server in around.leaving and server not in here]:
            return Step(dropped=f"nothing new is placed on {', '.join(closed)}, which is being removed")
        dead = entry is not None and not any(is_alive(placement, ring) for placement in entry.subscribed)
        needs_entry = request.lasting and entry is None
        if len(placements) == 1 and _is_target(placements[0], request) and not dead and not needs_entry:
            gone_back = entry is not None and entry.phase is Phase.PREPARE
            return Step(give_up(entry, ring) if entry and gone_back else None, "the channel lives there already")
        return Step(begin(entry, ring, request, _Move(case).still_helped() if case else ()))

    def go_on(self, case: _Case) -> Step[Entry]:
        """The next entry of a move if it is due, and the reason if the move is given up."""
        entry, ring = case.entry, case.hosts
        if entry.phase is not Phase.NARROW and not is_alive(entry.placement, ring):
            return Step(give_up(entry, ring), given_up="none of its servers is in the ring any more")
        return self._due[entry.phase](_Move(case))

    def is_settled(self, case: _Case) -> bool:
        """Whether only idle and plain clients remain, so that the request can end."""
        if case.entry.phase is not Phase.NARROW:
            return False
        move = _Move(case)
        waited_for = [move.report(server) for server in move.concerned if move.is_waited_for(server)]
        idle = not case.entry.eager and all(report is not None and not report.spoken for report in waited_for)
        return case.over(self._widen_timeout_s * (_IDLE_SHARE if idle else 1.0))

    def _prepare(self, move: _Move) -> Step[Entry]:
        entry, ring = move.entry, move.ring
        if not any(is_alive(placement, ring) for placement in entry.earlier):
            return Step(begin_again(entry, ring, event="old servers gone"))
        unaware = move.unaware(move.concerned)
        if not unaware or PREPARE not in self._rules:
            unwidened = WIDEN_BEFORE_SWITCH not in self._rules
            return Step(switch_unwidened(entry, ring) if unwidened else widen(entry, ring))
        if move.is_over(self._prepare_timeout_s):
            why = f"the agents of {', '.join(unaware)} did not learn of it within {self._prepare_timeout_s:g} s"
            return Step(give_up(entry, ring), given_up=why)
        return Step()

    def _widen(self, move: _Move) -> Step[Entry]:
        """Publishers switch only to servers whose agents know of the move; other agents would not answer them."""
        unaware = move.unaware(move.concerned) if PREPARE in self._rules else ()
        aware = [server for server in move.concerned if move.report(server) is not None]
        if not unaware and not any(map(move.is_behind, aware)):
            return Step(switch(move.entry, move.ring, "subscribers ready"))
        if move.is_over(self._widen_timeout_s) and not {*unaware} & {*move.newest}:
            return Step(switch(move.entry, move.ring, "timeout", move.in_need()))
        return Step()

    def _switch(self, move: _Move) -> Step[Entry]:
        old = move.here(tuple(server for placement in move.entry.earlier for server in placement.servers))
        said = map(move.report, old)
        if all(report is not None and report.handed >= move.entry.newness for report in said):
            return Step(narrow(move.entry, move.ring))
        return Step()

    def _narrow(self, move: _Move) -> Step[Entry]:
        """A subscriber that followed in `widen` needs no help to leave, so the helped servers are checked only after a
        while."""
        if not any(map(move.is_waited_for, move.concerned)):
            return Step(end(move.entry, move.ring))
        if move.is_over(self._widen_timeout_s):
            in_need = move.in_need()
            if in_need != move.entry.helped:
                return Step(help_others(move.entry, move.ring, in_need))
        return Step()


def _is_target(placement: Placement, request: MoveRequest) -> bool:
    return placement.mode is request.mode and {*placement.servers} == {*request.servers}
