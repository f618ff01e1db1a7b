"""The balancer's core: from closed load windows to proposals, and from proposals to moves and servers.

Owns when the policy is asked, and how what it wants is carried out. A core without I/O: it is handed closed windows,
what the coordinator and the provider hold, and the time, and hands back effects. `shoal.leader.balancer_shell` does the
rest.

    window closed, nothing under way --auto, or asked--> policy --> proposal, on record --auto, or asked--> applied
    applied: requests to the mover, marks of servers, servers asked for --> under way until the moves have ended

One plan is under way at a time. What is applied is what was proposed, byte for byte: an ask to apply names a digest,
and a proposal whose plan has changed meanwhile is refused. All that must outlive a balancer is in the coordinator: the
requests, the marks, and `BalancerState`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow.compute as pc
from msgspec.structs import replace

from shoal.balance.change import ChannelMove, Planner, UnitMove
from shoal.balance.channel_requests import ChannelRequests
from shoal.balance.columns import NEVER
from shoal.balance.effects import (
    AddServers,
    Effect,
    ProposalReady,
    PutMark,
    PutState,
    RecordDecision,
    RecordOutcome,
    Reply,
    View,
    WriteMove,
    WriteUnitMove,
)
from shoal.balance.forecast import Forecast
from shoal.balance.homes import Homes
from shoal.balance.joining import History, PoolFacts, join
from shoal.balance.lost import lost_channels, with_lost
from shoal.balance.options import BalancerOptions
from shoal.balance.policies import policy
from shoal.balance.pooling import TAKES, PoolKeeper, Quietness, drain_mark, ended, hurries, keep_mark, promotions
from shoal.balance.proposal import Proposal, decode_proposal, kind_of, make_proposal, why_stale
from shoal.balance.recording import Outcome, make_record
from shoal.balance.records import APPLIED_MAX, REMOVED_MAX, Answer, Ask, BalancerState, why_of
from shoal.balance.rules import ALL_RULES, BalancerRules
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Pool, Situation
from shoal.balance.under_way import UnderWay, request_id
from shoal.errors import ConfigError, PlanError
from shoal.load.kinds import SERVER, Kinds
from shoal.load.window import LoadWindow
from shoal.logs import get_log
from shoal.plan.keys import Mark
from shoal.plan.kinds import CHANNEL
from shoal.plan.ring import Ring

MISSING_WINDOWS_MAX: Final = 5
"""For how many windows a decision waits for a member of the ring of which there is no telemetry."""

QUIET_CHANNELS_MAX: Final = 100_000
"""Channels above which a decision to change nothing goes on record only every `QUIET_INTERVAL_S`: a record of a million
channels has 60 MB."""

QUIET_INTERVAL_S: Final = 60.0

_log: Final = get_log(__name__)


class Balancer:
    """Decides for one cluster. `kinds` are those of load windows. `state` and `moved_at` (when each channel was last
    placed) come from the coordinator, where an earlier leader left them. `planners` plan units of other kinds than
    channels."""

    def __init__(
        self,
        settings: BalanceSettings,
        options: BalancerOptions,
        kinds: Kinds,
        state: BalancerState | None = None,
        moved_at: dict[bytes, float] | None = None,
        rules: BalancerRules = ALL_RULES,
        planners: Iterable[Planner] = (),
    ) -> None:
        self._planners = tuple(planners)
        channels = ChannelRequests()
        self._requests: dict[str, Any] = {channels.kind: channels}
        self._requests.update((planner.kind, planner) for planner in self._planners)
        self._settings = settings
        self._options = options
        self._kinds = kinds
        self._state = self._written = state or BalancerState()
        self._moved_at = {} if moved_at is None else moved_at
        self._rules = rules
        self._pool = PoolKeeper(options.empty_s, options.retry_s, is_confirmed=rules.drained)
        self._quiet = Quietness()
        self._homes = Homes()
        self._past: list[tuple[float, float]] = []
        self._forecast: Forecast | None = None
        self._window: LoadWindow | None = None
        self._judged_s = 0
        self._missing = 0
        self._joined_at: dict[str, float] | None = None
        self._under_way: UnderWay | None = None
        self._taken_over = False
        self._asked_for = 0
        self._asked_at = 0.0
        self._quiet_at = -QUIET_INTERVAL_S
        self._failure = ""
        self._add_refused_at = -options.retry_s

    @property
    def state(self) -> BalancerState:
        """What a balancer that takes over must know."""
        return self._state

    @property
    def waiting(self) -> int:
        """How many moves of the plan under way have not ended."""
        return self._under_way.waiting if self._under_way else 0

    @property
    def _adding(self) -> int:
        """Servers that were asked for and have not joined yet, whether or not the provider has answered."""
        return len(self._state.adding) + self._asked_for

    # -- what the adapter tells ------------------------------------------------------------------------------

    def added(self, servers: Sequence[str], now_s: float) -> None:
        """The provider has begun to start these servers."""
        self._asked_for = 0
        self._state = replace(self._state, adding={**self._state.adding, **dict.fromkeys(servers, now_s)})

    def refused(self, now_s: float) -> None:
        """The provider did not add what it was asked for. It is asked again after a while, if that is still wanted."""
        self._asked_for = 0
        self._add_refused_at = now_s

    def removed(self, server: str) -> None:
        """The provider has removed a server for good."""
        gone = (server, *(other for other in self._state.removed if other != server))
        adding = {other: since for other, since in self._state.adding.items() if other != server}
        self._state = replace(self._state, removed=gone[:REMOVED_MAX], adding=adding)

    def expect(self, forecast: Forecast | None) -> None:
        """This much load is expected from now on; None: nobody knows."""
        self._forecast = forecast

    # -- one look --------------------------------------------------------------------------------------------

    def observe(self, windows: Sequence[LoadWindow], view: View, now_s: float) -> list[Effect]:
        """Takes windows that have closed since the last look, oldest first, and what there is now; returns what to
        do."""
        for window in windows:
            self._learn(window)
        if view.ring is None:
            return []
        self._note_members(view.ring, now_s)
        for server in ended(view, view.ring):
            if server not in self._state.removed:
                self.removed(server)
        effects: list[Effect] = [*self._go_on(view, now_s)]
        steps = [*self._pool.steps(view, view.ring, self._quiet, {*self._state.removed}, now_s)]
        effects += steps
        effects += self._note_joins(view, view.ring, now_s)
        if not steps:
            effects += self._answer(view, view.ring, now_s)
            if self._options.auto and not self._is_busy:
                effects += self._decide_alone(view, view.ring, now_s)
        if self._under_way is None:
            effects += hurries(view)
        if self._state != self._written:
            self._written = self._state
            effects.append(PutState(self._state))
        return effects

    def _learn(self, window: LoadWindow) -> None:
        self._quiet.learn(window)
        self._window = window
        hosts = window.hosts_of(SERVER)
        sent = pc.sum(pc.coalesce(hosts["bandwidth_bytes_per_s"], hosts["bytes_out"])).as_py() or 0.0
        self._past = [*self._past, (float(window.end_s), sent)][-self._settings.past_windows :]

    def _note_members(self, ring: Ring, now_s: float) -> None:
        """Since when each member is known; those of the first look have always been there."""
        known = self._joined_at
        if known is None:
            self._joined_at = dict.fromkeys(ring.ids, NEVER)
        else:
            self._joined_at = {server: known.get(server, now_s) for server in ring.ids}

    def _go_on(self, view: View, now_s: float) -> Iterator[Effect]:
        """Waits for the moves of the plan under way."""
        if not self._taken_over:
            self._taken_over = True
            if self._state.digest:
                self._under_way = UnderWay.taken_over(self._state.digest, now_s, self._requests, view.units)
        if self._under_way is None:
            return
        ended = self._under_way.look(view.units, now_s, self._options.move_timeout_s)
        if ended is None:
            return
        facts: dict[str, str | int | float] = {
            "moved": ended.moved,
            "given_up": ended.given_up,
            "late": ended.late,
            "seconds": round(now_s - self._under_way.began_at, 3),
        }
        yield RecordOutcome(Outcome(now_s, self._under_way.digest, "ended", facts))
        self._under_way = None
        self._state = replace(self._state, digest="")

    def _note_joins(self, view: View, ring: Ring, now_s: float) -> Iterator[Effect]:
        """Servers that were asked for: they have come, or have taken too long and are given up."""
        if now_s - self._asked_at >= self._options.join_timeout_s:
            self._asked_for = 0
        adding = dict(self._state.adding)
        for server, since in self._state.adding.items():
            if server in ring.ids:
                del adding[server]
            elif now_s - since >= self._options.join_timeout_s:
                del adding[server]
                yield PutMark(server, Mark.OUT, f"it did not join within {self._options.join_timeout_s:g} s")
        self._state = replace(self._state, adding=adding)

    # -- asks ------------------------------------------------------------------------------------------------

    def _answer(self, view: View, ring: Ring, now_s: float) -> Iterator[Effect]:
        for id, ask in sorted(view.asks.items()):
            if ask.do == "propose":
                if self._window is None:
                    continue
                yield from self._propose_for(id, ask, view, ring, now_s)
            else:
                yield from self._apply_for(id, ask, view, ring, now_s)

    def _propose_for(self, id: str, ask: Ask, view: View, ring: Ring, now_s: float) -> Iterator[Effect]:
        try:
            situation, lost, proposal = self._propose(ask.policy or self._options.policy, view, ring)
        except ConfigError as error:
            yield Reply(id, Answer(str(error)))
            return
        except Exception as error:
            _log.exception("the policy failed", policy=ask.policy)
            yield Reply(id, Answer(f"the policy failed: {error!r}"))
            return
        data, digest = proposal.encode(), proposal.digest
        yield self._record(situation, lost, proposal, now_s, asked=True)
        yield ProposalReady(digest, data)
        yield Reply(id, Answer("", digest, data, len(proposal.moves)))

    def _apply_for(self, id: str, ask: Ask, view: View, ring: Ring, now_s: float) -> Iterator[Effect]:
        why_not = None
        proposal = None
        try:
            proposal = decode_proposal(view.proposals[ask.digest])
        except KeyError:
            why_not = f"there is no proposal {ask.digest[:12]}: propose again"
        except PlanError as error:
            why_not = str(error)
        if proposal is not None:
            why_not = self._why_not(proposal, view, ring)
        if proposal is None or why_not is not None:
            yield RecordOutcome(Outcome(now_s, ask.digest, "refused", {"why": why_not or ""}))
            yield Reply(id, Answer(why_not or "", ask.digest))
            return
        yield from self._apply(proposal, view, ring, now_s)
        yield Reply(id, Answer("", ask.digest, b"", len(proposal.moves)))

    @property
    def _is_busy(self) -> bool:
        """Whether the next plan has to wait for the one under way."""
        return self._under_way is not None and self._rules.one_at_a_time

    def _why_not(self, proposal: Proposal, view: View, ring: Ring) -> str | None:
        if self._under_way is not None and self._is_busy:
            return f"the plan {self._under_way.digest[:12]} is still under way: wait until its moves have ended"
        if self._rules.once and proposal.digest in self._state.applied:
            return "the plan has changed since: this proposal was applied already"
        if not self._rules.basis:
            return None
        units = view.units
        return why_stale(proposal, ring.version, lambda kind, unit: units[kind].revision(unit))

    # -- deciding --------------------------------------------------------------------------------------------

    def _decide_alone(self, view: View, ring: Ring, now_s: float) -> Iterator[Effect]:
        """Asks the policy once for each window, and does what it wants."""
        window = self._window
        if window is None or window.end_s <= self._judged_s:
            return
        if not self._covers(window, ring):
            return
        self._judged_s = window.end_s
        risen = [*promotions(view, ring, window)]
        if risen:
            yield from risen
            return
        try:
            situation, lost, proposal = self._propose(self._options.policy, view, ring)
        except Exception as error:
            if repr(error) != self._failure:
                self._failure = repr(error)
                _log.exception("the policy failed; everything stays as it is", policy=self._options.policy)
                yield RecordOutcome(Outcome(now_s, "", "failed", {"policy": self._options.policy, "why": repr(error)}))
            return
        self._failure = ""
        if not proposal.is_empty:
            yield self._record(situation, lost, proposal, now_s, asked=False)
            yield from self._apply(proposal, view, ring, now_s)
        elif len(situation.channels) <= QUIET_CHANNELS_MAX or now_s - self._quiet_at >= QUIET_INTERVAL_S:
            self._quiet_at = now_s
            yield self._record(situation, lost, proposal, now_s, asked=False)

    def _covers(self, window: LoadWindow, ring: Ring) -> bool:
        """Whether a window tells of all members of the ring but those that joined too late for it; one that stays
        silent is not waited for much longer."""
        joined_at = self._joined_at or {}
        expected = {server for server in ring.ids if joined_at.get(server, NEVER) <= window.start_s}
        silent = expected - {*window.hosts_of(SERVER)["host"].to_pylist()}
        if not silent:
            self._missing = 0
            return True
        self._judged_s = window.end_s
        self._missing += 1
        return self._missing > MISSING_WINDOWS_MAX

    def _propose(self, name: str, view: View, ring: Ring) -> tuple[Situation, tuple[bytes, ...], Proposal]:
        """What a policy wants now: the situation, the channels whose servers are dead, and the proposal."""
        assert self._window is not None
        decide = policy(name)
        situation = self._situation(self._window, view, ring)
        lost = lost_channels(view.entries, ring)
        decision = with_lost(situation, decide(situation, self._settings), lost)
        proposal = make_proposal(
            situation,
            decision,
            policy=name,
            settings=self._settings,
            ring_version=ring.version,
            revision_of=view.units[CHANNEL].revision,
            others=tuple(self._other_moves(view, situation.at_s)),
        )
        return situation, lost, proposal

    def _other_moves(self, view: View, now_s: float) -> Iterator[UnitMove]:
        """The moves of units of other kinds that their planners want."""
        for planner in self._planners:
            yield from planner.plan(view.units[planner.kind], now_s)

    def _record(
        self, situation: Situation, lost: tuple[bytes, ...], proposal: Proposal, now_s: float, *, asked: bool
    ) -> RecordDecision:
        assert self._window is not None
        record = make_record(situation, proposal, self._settings, self._window, lost, at_s=now_s, asked=asked)
        return RecordDecision(record, proposal.is_empty)

    def _situation(self, window: LoadWindow, view: View, ring: Ring) -> Situation:
        provider = view.provider
        here = len(ring.ids)
        most = provider.servers_max if provider.spare is None else min(provider.servers_max, here + provider.spare)
        facts = PoolFacts(
            pool=Pool(
                servers_min=here if provider.is_fixed else provider.servers_min,
                servers_max=here if provider.is_fixed else max(most, here),
                adding=self._adding,
                new_capacity=provider.new_capacity,
                new_cpu_capacity=provider.new_cpu_capacity,
                new_cost=provider.new_cost,
            ),
            draining=frozenset(server for server, mark in view.marks.items() if mark not in TAKES),
            joined_at=self._joined_at or {},
        )
        planned_at = NEVER if self._state.planned_at is None else self._state.planned_at
        placed = (self._moved_at, planned_at) if self._rules.settle else ({}, NEVER)
        history = History(*placed, self._past, self._forecast)
        return join(window, view, facts, history, self._homes, self._kinds)

    # -- doing -----------------------------------------------------------------------------------------------

    def _apply(self, proposal: Proposal, view: View, ring: Ring, now_s: float) -> Iterator[Effect]:
        digest = proposal.digest
        self._under_way = UnderWay(digest, now_s, self._requests)
        applied = (digest, *self._state.applied)[:APPLIED_MAX]
        self._state = replace(self._state, planned_at=now_s, digest=digest, applied=applied)
        for index, move in enumerate((*proposal.moves, *proposal.others)):
            kind = kind_of(move)
            request = self._requests[kind].request(move, request_id(digest, index))
            self._under_way.ask(kind, request, now_s)
            if isinstance(move, ChannelMove):
                self._moved_at[move.unit] = now_s
                yield WriteMove(request, why_of(move, proposal.policy, digest, proposal.window_end_s, now_s))
            else:
                yield WriteUnitMove(kind, request)
        added = 0
        for change in proposal.servers:
            if change.what == "add":
                added += self._room(change.count, view, ring, now_s)
            elif change.what == "drain":
                yield PutMark(change.server, drain_mark(change.server, view, ring), change.reason)
            elif change.server in view.marks:
                yield PutMark(change.server, keep_mark(view.marks[change.server]), change.reason)
        if added:
            self._asked_for, self._asked_at = added, now_s
            yield AddServers(added)
        yield RecordOutcome(Outcome(now_s, digest, "applied", {"moves": len(proposal.moves), "add": added}))

    def _room(self, count: int, view: View, ring: Ring, now_s: float) -> int:
        """How many of the servers that are wanted can be asked for."""
        if now_s - self._add_refused_at < self._options.retry_s:
            return 0
        provider = view.provider
        room = provider.servers_max - len(ring.ids) - self._adding
        return max(0, min(count, room, count if provider.spare is None else provider.spare))
