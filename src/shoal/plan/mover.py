"""The mover: carries channels from one placement to another, phase by phase.

Owns when a step of a move is due; what the step does to the entry is in `shoal.plan.steps`. A core without I/O: it is
handed what the coordinator holds, and the time, and hands back what to write. `shoal.leader.mover_shell` does the rest.

    prepare   until the agents concerned report the entry; given up after `prepare_timeout_s`
    widen     until no subscriber is behind; after `widen_timeout_s` the servers of those that are get help
    switch    until the agents of the old servers have handed over
    narrow    until nobody is behind, and nobody at the old servers; help is kept in step with who needs it

All that a mover must know is in the entries, so another one can go on at any point. It remembers only since when it has
seen each entry, and a new mover's timeouts begin with its first look. Concerned are the servers of all placements
that have not ended, those that are helped, and the home; one that is not in the ring is not waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol, TypeAlias

import msgspec

from shoal.coordination.interface import Versioned
from shoal.errors import ForgedEntryError, PlanError
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.plan import steps
from shoal.plan.entry import Entry, Phase
from shoal.plan.moving import ChannelReport, MoveRequest, Report, decode_request
from shoal.plan.placement import Mode, Placement
from shoal.plan.ring import Ring
from shoal.plan.signing import Signer, Verifier

_IDLE_SHARE: Final = 0.25
"""The part of `widen_timeout_s` after which a channel of which nothing is heard counts as idle."""
_log: Final = get_log(__name__)


class MoverRules(Protocol):
    """The rules of a move that can be switched off to prove that they matter (`shoal.channels.rules.Rules`)."""

    @property
    def prepare(self) -> bool:
        """A move begins when the agents of all servers concerned know of it."""

    @property
    def widen_before_switch(self) -> bool:
        """Publishers are told of a new placement after subscribers stand by it."""


class _AllRules(msgspec.Struct, frozen=True):
    prepare: bool = True
    widen_before_switch: bool = True


_ALL_RULES: Final = _AllRules()


class MoverView(msgspec.Struct, frozen=True):
    """What the coordinator holds. Entries are signed data, requests are encoded; both by channel, reports by server."""

    ring: Ring | None
    entries: Mapping[bytes, Versioned]
    requests: Mapping[bytes, Versioned]
    reports: Mapping[str, Report]


class PutEntry(msgspec.Struct, frozen=True):
    """An entry to write, if its key still has the version `expect` (0: does not exist). `given_up` says why a move was
    given up by it."""

    channel: bytes
    entry: Entry
    data: bytes
    expect: int
    given_up: str | None = None


class DropRequest(msgspec.Struct, frozen=True):
    """A request to delete, if its key still has the version `expect`. `reason` says why it came to nothing; empty if
    it was carried out."""

    channel: bytes
    expect: int
    reason: str = ""


Write: TypeAlias = PutEntry | DropRequest


class _Seen(msgspec.Struct, frozen=True):
    """An entry as the mover met it: under which version of its key, and since when in this phase."""

    version: int
    entry: Entry | None
    since: float


class _Case(msgspec.Struct, frozen=True):
    """One channel that moves, and what is known of it."""

    entry: Entry
    ring: Ring
    reports: Mapping[str, Report]
    age_s: float

    @property
    def newest(self) -> tuple[str, ...]:
        """Where the channel is going: its home if the new servers have all left the ring."""
        return self.here(self.entry.placement.servers) or (self.ring.home(self.entry.channel),)

    @property
    def concerned(self) -> tuple[str, ...]:
        """The servers whose agents have a part in the move."""
        return self.here((*self.entry.servers, *self.entry.helped, self.ring.home(self.entry.channel)))

    def here(self, servers: tuple[str, ...]) -> tuple[str, ...]:
        """Those of some servers that are in the ring, each once."""
        return tuple(server for server in dict.fromkeys(servers) if server in self.ring.ids)

    def report(self, server: str) -> ChannelReport | None:
        """What a server's agent says of this very entry; None as long as it does not know it."""
        report = self.reports.get(server)
        said = report.channels.get(self.entry.channel) if report else None
        return said if said is not None and said.revision >= self.entry.newness else None

    def unaware(self, servers: tuple[str, ...]) -> tuple[str, ...]:
        """The servers whose agents do not know the entry yet."""
        return tuple(server for server in servers if self.report(server) is None)

    def is_behind(self, server: str) -> bool:
        """Whether subscribers on a server may not stand by the entry."""
        said = self.report(server)
        return said is None or said.behind > 0

    def is_waited_for(self, server: str) -> bool:
        """Whether the end of the move waits for a server: somebody is behind there, or has not left yet."""
        said = self.report(server)
        return said is None or said.behind > 0 or (said.here > 0 and server not in self.newest)

    def reaches_all(self, server: str) -> bool:
        """Whether all that is published by the new placement comes to a server without help."""
        newest = self.newest
        spread = self.entry.placement.mode is Mode.ALL_SUBSCRIBERS and len(newest) > 1
        return server in newest and not spread


class Mover:
    """Decides the next entries of all channels that move, or should."""

    def __init__(self, signer: Signer, limits: Limits, rules: MoverRules = _ALL_RULES) -> None:
        self._signer = signer
        self._verifier = Verifier(signer.public)
        self._prepare_timeout_s = limits.prepare_timeout_s
        self._widen_timeout_s = limits.widen_timeout_s
        self._rules = rules
        self._seen: dict[bytes, _Seen] = {}
        self._signed: dict[bytes, PutEntry] = {}
        self._moving: set[bytes] = set()
        self._wait_s: float | None = None

    @property
    def next_check_s(self) -> float | None:
        """After how long a new look may decide something that the last one could not; None if only news can."""
        return self._wait_s

    @property
    def moving(self) -> int:
        """How many channels are on their way, by the last look."""
        return len(self._moving)

    def observe(self, view: MoverView, now: float) -> list[Write]:
        """Takes what the coordinator holds now; returns what to write."""
        self._wait_s = None
        self._learn(view.entries, now)
        if view.ring is None:
            return []
        writes: list[Write] = []
        for channel in sorted(self._moving | view.requests.keys()):
            self._judge(channel, view, view.ring, now, writes)
        return writes

    def _learn(self, entries: Mapping[bytes, Versioned], now: float) -> None:
        """Takes in the entries that are new since the last look."""
        for channel in [channel for channel in self._seen if channel not in entries]:
            del self._seen[channel]
            self._moving.discard(channel)
        for channel, stored in entries.items():
            known = self._seen.get(channel)
            if known is not None and known.version == stored.version:
                continue
            entry = self._open(channel, stored.value)
            goes_on = known is not None and _phase_of(known.entry) == _phase_of(entry)
            self._seen[channel] = _Seen(stored.version, entry, known.since if known and goes_on else now)
            if entry is not None and entry.phase is not Phase.END:
                self._moving.add(channel)
            else:
                self._moving.discard(channel)

    def _open(self, channel: bytes, data: bytes) -> Entry | None:
        """The entry in `data`; None, with a report, if nobody would believe it: then the channel has none. What this
        mover has signed itself is not checked again, for that is most of its work."""
        put = self._signed.pop(channel, None)
        if put is not None and put.data == data:
            return put.entry
        try:
            entry = self._verifier.entry(data)
        except ForgedEntryError as error:
            _log.warning("an entry is not believed", channel=channel, why=str(error))
            return None
        if entry.channel != channel:
            _log.warning("an entry lies under the name of another channel", channel=channel, names=entry.channel)
            return None
        return entry

    def _judge(self, channel: bytes, view: MoverView, ring: Ring, now: float, writes: list[Write]) -> None:
        """Adds what is to be written for one channel: an entry at most, and the end of a request."""
        seen = self._seen.get(channel) or _Seen(0, None, now)
        asked = view.requests.get(channel)
        entry, reason, given_up = None, None, None
        case = _Case(seen.entry, ring, view.reports, now - seen.since) if seen.entry else None
        if asked is not None:
            entry, reason = self._answer(channel, case, ring, asked.value)
        if entry is None and case is not None and case.entry.phase is not Phase.END:
            entry, given_up = self._go_on(case)
            reason = given_up if reason is None else reason
            if asked is not None and entry is None and reason is None and self._is_settled(case):
                reason = ""
        if entry is not None:
            put = PutEntry(channel, entry, self._signer.line(entry), seen.version, given_up)
            self._signed[channel] = put
            writes.append(put)
        if asked is not None and reason is not None:
            writes.append(DropRequest(channel, asked.version, reason))

    # -- requests --------------------------------------------------------------------------------------------

    def _answer(self, channel: bytes, case: _Case | None, ring: Ring, data: bytes) -> tuple[Entry | None, str | None]:
        """The entry with which a request begins, and why the request ends: None as long as it stands."""
        try:
            request = decode_request(data)
        except PlanError as error:
            return None, str(error)
        if request.channel != channel:
            return None, "it names another channel"
        entry = case.entry if case else None
        if entry is not None and _is_target(entry.placement, request):
            if entry.phase is Phase.END:
                return None, ""
            return (steps.hurry(entry, ring) if request.eager and not entry.eager else None), None
        if request.goes_there:
            return None, "the channel goes elsewhere, or nowhere"
        if strangers := [server for server in request.servers if server not in ring.ids]:
            return None, f"the ring has no server {', '.join(strangers)}"
        placements, _ = steps.unended(channel, entry, ring)
        dead = entry is not None and not any(steps.is_alive(placement, ring) for placement in entry.standing)
        if len(placements) == 1 and _is_target(placements[0], request) and not dead:
            gone_back = entry is not None and entry.phase is Phase.PREPARE
            return (steps.give_up(entry, ring) if entry and gone_back else None), "the channel lives there already"
        return steps.begin(entry, ring, request, self._still_helped(case) if case else ()), None

    def _still_helped(self, case: _Case) -> set[str]:
        """Who needs help when a new move begins: as before, and whoever is on servers that were being left."""
        helped = {*case.here(case.entry.helped)}
        if case.entry.phase is Phase.NARROW:
            helped |= {*self._in_need(case)}
        return helped

    # -- phases ----------------------------------------------------------------------------------------------

    def _go_on(self, case: _Case) -> tuple[Entry | None, str | None]:
        """The next entry of a move if it is due, and the reason if the move is given up."""
        phase = case.entry.phase
        if phase is not Phase.NARROW and not steps.is_alive(case.entry.placement, case.ring):
            return steps.give_up(case.entry, case.ring), "none of its servers is in the ring any more"
        if phase is Phase.PREPARE:
            return self._prepare(case)
        if phase is Phase.WIDEN:
            return self._widen(case), None
        if phase is Phase.SWITCH:
            return self._switch(case), None
        return self._narrow(case), None

    def _prepare(self, case: _Case) -> tuple[Entry | None, str | None]:
        entry, ring = case.entry, case.ring
        if not any(steps.is_alive(placement, ring) for placement in entry.earlier):
            return steps.begin_again(entry, ring, event="old servers gone"), None
        unaware = case.unaware(case.concerned)
        if not unaware or not self._rules.prepare:
            unwidened = not self._rules.widen_before_switch
            return steps.switch_unwidened(entry, ring) if unwidened else steps.widen(entry, ring), None
        if self._is_over(case, self._prepare_timeout_s):
            return steps.give_up(entry, ring), (
                f"the agents of {', '.join(unaware)} did not learn of it within {self._prepare_timeout_s:g} s"
            )
        return None, None

    def _widen(self, case: _Case) -> Entry | None:
        """Publishers switch to servers whose agents know of it only: others would not answer them."""
        unaware = case.unaware(case.concerned) if self._rules.prepare else ()
        aware = [server for server in case.concerned if case.report(server) is not None]
        if not unaware and not any(map(case.is_behind, aware)):
            return steps.switch(case.entry, case.ring, "subscribers stand")
        if self._is_over(case, self._widen_timeout_s) and not {*unaware} & {*case.newest}:
            return steps.switch(case.entry, case.ring, "time over", self._in_need(case))
        return None

    def _switch(self, case: _Case) -> Entry | None:
        old = case.here(tuple(server for placement in case.entry.earlier for server in placement.servers))
        said = map(case.report, old)
        if all(report is not None and report.handed >= case.entry.newness for report in said):
            return steps.narrow(case.entry, case.ring)
        return None

    def _narrow(self, case: _Case) -> Entry | None:
        """Whoever stood by the placement while it widened needs no help to leave, so who does is asked after a while
        only."""
        if not any(map(case.is_waited_for, case.concerned)):
            return steps.end(case.entry, case.ring)
        if self._is_over(case, self._widen_timeout_s):
            in_need = self._in_need(case)
            if in_need != case.entry.helped:
                return steps.help_others(case.entry, case.ring, in_need)
        return None

    def _in_need(self, case: _Case) -> tuple[str, ...]:
        """The servers with subscribers that may miss what is published by the new placement. One that has not reported
        yet is in need if it was before, or if publishers are about to switch."""
        narrows = case.entry.phase is Phase.NARROW

        def in_need(server: str) -> bool:
            if narrows and case.report(server) is None:
                return server in case.entry.helped
            return case.is_waited_for(server) if narrows else case.is_behind(server)

        return tuple(sorted(server for server in case.concerned if in_need(server) and not case.reaches_all(server)))

    def _is_settled(self, case: _Case) -> bool:
        """Whether nobody has to wait for what remains of a move: only the idle and strangers are at old servers."""
        if case.entry.phase is not Phase.NARROW:
            return False
        waited_for = [case.report(server) for server in case.concerned if case.is_waited_for(server)]
        idle = not case.entry.eager and all(report is not None and not report.spoken for report in waited_for)
        return self._is_over(case, self._widen_timeout_s * (_IDLE_SHARE if idle else 1.0))

    def _is_over(self, case: _Case, timeout_s: float) -> bool:
        """Whether a phase has lasted for so long; if not, when to look again."""
        left_s = timeout_s - case.age_s
        if left_s > 0:
            self._wait_s = left_s if self._wait_s is None else min(self._wait_s, left_s)
        return left_s <= 0


def _is_target(placement: Placement, request: MoveRequest) -> bool:
    return placement.mode is request.mode and {*placement.servers} == {*request.servers}


def _phase_of(entry: Entry | None) -> tuple[Phase, int] | None:
    return (entry.phase, entry.since) if entry else None
