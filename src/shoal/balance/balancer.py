"""The balancer's core: from closed load windows to proposals, and from proposals to moves and servers.

Owns when the policy is called, and how its decisions are carried out. A core without I/O: its inputs are closed
windows, the state of the coordinator and the provider, and the time; its results are effects, which
`shoal.leader.balancer_shell` carries out.

    window closed, no plan under way --auto or requested--> policy --> recorded proposal --auto or requested--> applied
    applied: requests to the conductor, marks of servers, servers requested --> under way until the moves have ended

One plan is under way at a time. A proposal is applied byte for byte: a request to apply names its digest, and a
proposal whose plan has changed meanwhile is refused. Everything that the next leader needs is in the coordinator:
requests, marks and `BalancerState`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow.compute as pc
from msgspec.structs import replace

from shoal.balance.balancer_keys import APPLIED_MAX, REMOVED_MAX, Ask, AskOutcome, BalancerState, why_of
from shoal.balance.balancer_options import BalancerOptions
from shoal.balance.change import ChannelMove, PlannerInput
from shoal.balance.channel_requests import ChannelRequests
from shoal.balance.columns import NEVER
from shoal.balance.decision_record import Outcome, make_record
from shoal.balance.effects import (
    AddHosts,
    BalancerView,
    Effect,
    ProposalReady,
    PutMark,
    PutState,
    RecordDecision,
    RecordOutcome,
    Reply,
    WriteMove,
    WriteUnitMove,
)
from shoal.balance.forecast import Forecast
from shoal.balance.homes import Homes
from shoal.balance.lost_servers import lost_channels, with_lost
from shoal.balance.plan_in_progress import PlanInProgress, request_id
from shoal.balance.policies import policy
from shoal.balance.pool_keeper import (
    PoolKeeper,
    Quietness,
    drain_mark,
    ended,
    hurries,
    keep_mark,
    pinned_servers,
    promotions,
    returns,
)
from shoal.balance.proposal import Proposal, decode_proposal, kind_of, make_proposal, why_stale
from shoal.balance.registry import Registry
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Pool, Situation
from shoal.balance.situation_builder import PlacementHistory, PoolFacts, join
from shoal.errors import ConfigError, PlanError
from shoal.load.kinds import SERVER
from shoal.load.window import LoadWindow
from shoal.logs import get_log
from shoal.plan.keys import TAKES, Mark
from shoal.plan.kinds import CHANNEL
from shoal.plan.ring import Ring
from shoal.rules import ALL_RULES, Rules, rule

DRAINED: Final = rule("drained", "A server leaves when it has been unused for a while and no entry names it.")
ONE_AT_A_TIME: Final = rule("one_at_a_time", "A plan is made when the moves of the last one have ended.")
BASIS: Final = rule("basis", "A proposal is applied only to the plan that it was made from.")
ONCE: Final = rule("once", "A proposal is applied once.")
PINNED: Final = rule("pinned", "A pinned channel moves only by hand, or from a server that has died.")
SETTLE: Final = rule("settle", "The times of plans and placements are kept, so that a policy leaves recent ones alone.")


MISSING_WINDOWS_MAX: Final = 5
"""For how many windows a decision waits for a ring member without telemetry."""

QUIET_CHANNELS_MAX: Final = 100_000
"""Number of channels above which decisions that change nothing are recorded only every `QUIET_INTERVAL_S`: the record
of a million channels takes 60 MB."""

QUIET_INTERVAL_S: Final = 60.0

_log: Final = get_log(__name__)


class _Decided(NamedTuple):
    """A proposal and its inputs; `given` is the input of each planner, by kind."""

    situation: Situation
    lost: tuple[bytes, ...]
    given: dict[str, PlannerInput]
    proposal: Proposal


class Balancer:
    """Decides for one cluster. `registry` has the kinds in load windows, and the planners of units other than channels.
    `state` and `moved_at` (when each channel was last placed) are what an earlier leader left in the coordinator."""

    def __init__(
        self,
        settings: BalanceSettings,
        options: BalancerOptions,
        registry: Registry,
        state: BalancerState | None = None,
        moved_at: dict[bytes, float] | None = None,
        rules: Rules = ALL_RULES,
    ) -> None:
        self._planners = registry.planners
        channels = ChannelRequests()
        self._requests: dict[str, Any] = {channels.kind: channels}
        self._requests.update((planner.kind, planner) for planner in self._planners)
        self._settings = settings
        self._options = options
        self._kinds = registry.load
        self._state = self._written = state or BalancerState()
        self._moved_at = {} if moved_at is None else moved_at
        self._rules = rules
        self._pool = PoolKeeper(options.empty_s, options.retry_s, is_confirmed=DRAINED in rules)
        self._quiet = Quietness()
        self._homes = Homes()
        self._past: list[tuple[float, float]] = []
        self._forecast: Forecast | None = None
        self._window: LoadWindow | None = None
        self._judged_s = 0
        self._missing = 0
        self._joined_at: dict[str, float] | None = None
        self._in_progress: PlanInProgress | None = None
        self._taken_over = False
        self._asked: dict[str, tuple[int, float]] = {}
        """By kind: how many hosts were requested without an answer from the provider yet, and when."""
        self._refused_at: dict[str, float] = {}
        """By kind: when the provider last refused hosts."""
        self._quiet_at = -QUIET_INTERVAL_S
        self._failure = ""

    @property
    def state(self) -> BalancerState:
        """The state that the next leader needs."""
        return self._state

    @property
    def waiting(self) -> int:
        """Number of moves of the plan under way that have not ended."""
        return self._in_progress.waiting if self._in_progress else 0

    def _adding(self, kind: str) -> int:
        """Number of requested hosts of a kind that have not joined, whether or not the provider has answered."""
        state = self._state
        begun = len(state.adding) if kind == SERVER else sum(of == kind for of, _ in state.adding_hosts.values())
        return begun + self._asked.get(kind, (0, 0.0))[0]

    # -- news from the shell ---------------------------------------------------------------------------------

    def added(self, kind: str, hosts: Sequence[str], now_s: float) -> None:
        """The provider is starting these hosts."""
        self._asked.pop(kind, None)
        if kind == SERVER:
            self._state = replace(self._state, adding={**self._state.adding, **dict.fromkeys(hosts, now_s)})
        else:
            begun = {**self._state.adding_hosts, **dict.fromkeys(hosts, (kind, now_s))}
            self._state = replace(self._state, adding_hosts=begun)

    def refused(self, kind: str, now_s: float) -> None:
        """The provider refused a request for hosts. The request may be repeated after `retry_s`."""
        self._asked.pop(kind, None)
        self._refused_at[kind] = now_s

    def removed(self, server: str) -> None:
        """The provider has removed a server permanently."""
        removed = (server, *(other for other in self._state.removed if other != server))
        adding = {other: since for other, since in self._state.adding.items() if other != server}
        self._state = replace(self._state, removed=removed[:REMOVED_MAX], adding=adding)

    def expect(self, forecast: Forecast | None) -> None:
        """Sets the forecast of the load; None if there is none."""
        self._forecast = forecast

    # -- one round -------------------------------------------------------------------------------------------

    def observe(self, windows: Sequence[LoadWindow], view: BalancerView, now_s: float) -> list[Effect]:
        """Takes the windows that have closed since the last call, oldest first, and the current state; returns the
        effects."""
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
            if not self._is_busy:
                effects += self._decide_alone(view, view.ring, now_s)
        if self._in_progress is None:
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
        """Notes when each member joined; the members at the first call get `NEVER`."""
        known = self._joined_at
        if known is None:
            self._joined_at = dict.fromkeys(ring.ids, NEVER)
        else:
            self._joined_at = {server: known.get(server, now_s) for server in ring.ids}

    def _go_on(self, view: BalancerView, now_s: float) -> Iterator[Effect]:
        """Checks whether the plan under way has ended."""
        if not self._taken_over:
            self._taken_over = True
            if self._state.digest:
                self._in_progress = PlanInProgress.taken_over(self._state.digest, now_s, self._requests, view.units)
        if self._in_progress is None:
            return
        ended = self._in_progress.look(view.units, now_s, self._options.move_timeout_s)
        if ended is None:
            return
        facts: dict[str, str | int | float] = {
            "moved": ended.moved,
            "given_up": ended.given_up,
            "late": ended.late,
            "seconds": round(now_s - self._in_progress.began_at, 3),
        }
        yield RecordOutcome(Outcome(now_s, self._in_progress.digest, "ended", facts))
        self._in_progress = None
        self._state = replace(self._state, digest="")

    def _note_joins(self, view: BalancerView, ring: Ring, now_s: float) -> Iterator[Effect]:
        """Drops requested hosts that have joined, or have not joined in time."""
        timeout_s = self._options.join_timeout_s
        self._asked = {kind: asked for kind, asked in self._asked.items() if now_s - asked[1] < timeout_s}
        if self._state.adding_hosts:
            there = set(self._window.hosts["host"].to_pylist()) if self._window else set()
            there.update(*(units.hosts for units in view.others.values()))
            self._state = replace(
                self._state,
                adding_hosts={
                    host: (kind, since)
                    for host, (kind, since) in self._state.adding_hosts.items()
                    if host not in there and now_s - since < timeout_s
                },
            )
        adding = dict(self._state.adding)
        for server, since in self._state.adding.items():
            if server in ring.ids:
                del adding[server]
            elif now_s - since >= timeout_s:
                del adding[server]
                yield PutMark(server, Mark.OUT, f"it did not join within {timeout_s:g} s")
        self._state = replace(self._state, adding=adding)

    # -- requests of commands --------------------------------------------------------------------------------

    def _answer(self, view: BalancerView, ring: Ring, now_s: float) -> Iterator[Effect]:
        for id, ask in sorted(view.asks.items()):
            if ask.do == "propose":
                if self._window is None:
                    continue
                yield from self._propose_for(id, ask, view, ring, now_s)
            else:
                yield from self._apply_for(id, ask, view, ring, now_s)

    def _propose_for(self, id: str, ask: Ask, view: BalancerView, ring: Ring, now_s: float) -> Iterator[Effect]:
        try:
            decided = self._propose(ask.policy or self._options.policy, view, ring, now_s)
        except ConfigError as error:
            yield Reply(id, AskOutcome(str(error)))
            return
        except Exception as error:
            _log.exception("policy failed", policy=ask.policy)
            yield Reply(id, AskOutcome(f"the policy failed: {error!r}"))
            return
        proposal = decided.proposal
        data, digest = proposal.encode(), proposal.digest
        yield self._record(decided, now_s, asked=True)
        yield ProposalReady(digest, data)
        yield Reply(id, AskOutcome("", digest, data, proposal.moves_count))

    def _apply_for(self, id: str, ask: Ask, view: BalancerView, ring: Ring, now_s: float) -> Iterator[Effect]:
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
            yield Reply(id, AskOutcome(why_not or "", ask.digest))
            return
        yield from self._apply(proposal, view, ring, now_s)
        yield Reply(id, AskOutcome("", ask.digest, b"", proposal.moves_count))

    @property
    def _is_busy(self) -> bool:
        """Whether a new plan must wait for the one under way."""
        return self._in_progress is not None and ONE_AT_A_TIME in self._rules

    def _why_not(self, proposal: Proposal, view: BalancerView, ring: Ring) -> str | None:
        if self._in_progress is not None and self._is_busy:
            return f"the plan {self._in_progress.digest[:12]} is still under way: wait until its moves have ended"
        if ONCE in self._rules and proposal.digest in self._state.applied:
            return "the plan has changed since: this proposal was applied already"
        if BASIS not in self._rules:
            return None
        pinned = self._pinned(view, ring)
        if held := [move.unit for move in proposal.moves if move.unit in pinned]:
            return f"the plan has changed since: {held[0].decode('utf-8', 'backslashreplace')} was pinned"
        units = view.units
        return why_stale(proposal, ring.version, lambda kind, unit: units[kind].revision(unit))

    # -- deciding --------------------------------------------------------------------------------------------

    def _decide_alone(self, view: BalancerView, ring: Ring, now_s: float) -> Iterator[Effect]:
        """Takes servers back as homes and, with `auto`, calls the policy and applies its decision: once for each
        window."""
        window = self._window
        if window is None or window.end_s <= self._judged_s:
            return
        if not self._covers(window, ring):
            return
        self._judged_s = window.end_s
        risen = [*returns(view, ring, window, self._settings.safe_ratio)]
        if not risen and self._options.auto:
            risen = [*promotions(view, ring, window)]
        if risen or not self._options.auto:
            yield from risen
            return
        try:
            decided = self._propose(self._options.policy, view, ring, now_s)
        except Exception as error:
            if repr(error) != self._failure:
                self._failure = repr(error)
                _log.exception("policy failed, no change made", policy=self._options.policy)
                yield RecordOutcome(Outcome(now_s, "", "failed", {"policy": self._options.policy, "why": repr(error)}))
            return
        self._failure = ""
        if not decided.proposal.is_empty:
            yield self._record(decided, now_s, asked=False)
            yield from self._apply(decided.proposal, view, ring, now_s)
        elif len(decided.situation.channels) <= QUIET_CHANNELS_MAX or now_s - self._quiet_at >= QUIET_INTERVAL_S:
            self._quiet_at = now_s
            yield self._record(decided, now_s, asked=False)

    def _covers(self, window: LoadWindow, ring: Ring) -> bool:
        """Whether a window has telemetry of all ring members, except those that joined after it began. After
        `MISSING_WINDOWS_MAX` incomplete windows the missing members are ignored."""
        joined_at = self._joined_at or {}
        expected = {server for server in ring.ids if joined_at.get(server, NEVER) <= window.start_s}
        silent = expected - {*window.hosts_of(SERVER)["host"].to_pylist()}
        if not silent:
            self._missing = 0
            return True
        self._judged_s = window.end_s
        self._missing += 1
        return self._missing > MISSING_WINDOWS_MAX

    def _propose(self, name: str, view: BalancerView, ring: Ring, now_s: float) -> _Decided:
        """The proposal of a policy and of the planners of other kinds. For planners, hosts that the provider has just
        refused count as requested: otherwise every window would make the same plan in vain."""
        assert self._window is not None
        decide = policy(name)
        situation = self._situation(self._window, view, ring)
        lost = lost_channels(view.entries, ring)
        decision = with_lost(situation, decide(situation, self._settings), lost)
        hosts = {kind for kind, _ in self._state.adding_hosts.values()} | self._asked.keys() - {SERVER}
        adding = {kind: self._adding(kind) for kind in sorted(hosts)}
        adding.update({kind: 1 for kind in self._refused_at if kind != SERVER and not self._may_ask(kind, now_s)})
        given = {
            planner.kind: PlannerInput(self._window, view.units[planner.kind], adding, self._settings)
            for planner in self._planners
        }
        proposal = make_proposal(
            situation,
            decision,
            policy=name,
            settings=self._settings,
            ring_version=ring.version,
            revision_of=view.units[CHANNEL].revision,
            others=[change for planner in self._planners for change in planner.plan(given[planner.kind])],
        )
        return _Decided(situation, lost, given, proposal)

    def _record(self, decided: _Decided, now_s: float, *, asked: bool) -> RecordDecision:
        assert self._window is not None
        situation, lost, given, proposal = decided
        record = make_record(situation, proposal, self._settings, self._window, lost, given, at_s=now_s, asked=asked)
        return RecordDecision(record, proposal.is_empty)

    def _situation(self, window: LoadWindow, view: BalancerView, ring: Ring) -> Situation:
        provider = view.provider
        here = len(ring.ids)
        most = provider.servers_max if provider.spare is None else min(provider.servers_max, here + provider.spare)
        facts = PoolFacts(
            pool=Pool(
                servers_min=here if provider.is_fixed else provider.servers_min,
                servers_max=here if provider.is_fixed else max(most, here),
                adding=self._adding(SERVER),
                new_capacity=provider.new_capacity,
                new_cpu_capacity=provider.new_cpu_capacity,
                new_cost=provider.new_cost,
            ),
            draining=frozenset(server for server, mark in view.marks.items() if mark not in TAKES),
            joined_at=self._joined_at or {},
            pinned=self._pinned(view, ring),
        )
        planned_at = NEVER if self._state.planned_at is None else self._state.planned_at
        placed = (self._moved_at, planned_at) if SETTLE in self._rules else ({}, NEVER)
        history = PlacementHistory(*placed, self._past, self._forecast)
        return join(window, view, facts, history, self._homes, self._kinds)

    def _pinned(self, view: BalancerView, ring: Ring) -> dict[bytes, tuple[str, ...]]:
        """The channels that policies leave alone, and their servers. A channel with a dead server is not one of them:
        it is placed again, and then stays there."""
        if PINNED not in self._rules or not view.pins:
            return {}
        return pinned_servers(view.pins, view.entries, ring)

    # -- applying --------------------------------------------------------------------------------------------

    def _apply(self, proposal: Proposal, view: BalancerView, ring: Ring, now_s: float) -> Iterator[Effect]:
        digest = proposal.digest
        self._in_progress = PlanInProgress(digest, now_s, self._requests)
        applied = (digest, *self._state.applied)[:APPLIED_MAX]
        places = proposal.moves or proposal.servers  # hosts of other kinds do not change the load of servers
        planned_at = now_s if places else self._state.planned_at
        self._state = replace(self._state, planned_at=planned_at, digest=digest, applied=applied)
        for index, move in enumerate((*proposal.moves, *proposal.others)):
            kind = kind_of(move)
            request = self._requests[kind].request(move, request_id(digest, index))
            self._in_progress.ask(kind, request, now_s)
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
            yield self._ask_for(AddHosts(SERVER, added), now_s)
        for wanted in proposal.hosts:
            if self._may_ask(wanted.kind, now_s):
                added += wanted.count
                yield self._ask_for(AddHosts(wanted.kind, wanted.count, wanted.site), now_s)
        yield RecordOutcome(Outcome(now_s, digest, "applied", {"moves": proposal.moves_count, "add": added}))

    def _ask_for(self, hosts: AddHosts, now_s: float) -> AddHosts:
        before, _ = self._asked.get(hosts.kind, (0, now_s))
        self._asked[hosts.kind] = before + hosts.count, now_s
        return hosts

    def _may_ask(self, kind: str, now_s: float) -> bool:
        """Whether enough time has passed since the provider last refused hosts of this kind."""
        return now_s - self._refused_at.get(kind, NEVER) >= self._options.retry_s

    def _room(self, count: int, view: BalancerView, ring: Ring, now_s: float) -> int:
        """How many of the wanted servers can be requested."""
        if not self._may_ask(SERVER, now_s):
            return 0
        provider = view.provider
        room = provider.servers_max - len(ring.ids) - self._adding(SERVER)
        return max(0, min(count, room, count if provider.spare is None else provider.spare))
