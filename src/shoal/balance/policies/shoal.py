"""The policy `shoal`: few worthwhile moves, made before a server is overloaded, and no more servers than necessary.

Owns when to act, and how far. The other modules provide the parts: `estimate` the loads of servers, `trend` their
growth, `pool_size` the number of servers, `degrees` and `replication` the number of servers per channel, `draft` and
`share_loops` the placement, `explanation` the figures behind it.

The objective, in the unit of `server_hour_price`:

    an hour of the servers + the cost of overload (both in `pool_size`)
    + the part of an hour of the servers that an uneven load wastes, for as long as a balance lasts
    + `move_price` for each server that a channel comes to, and `REPLICA_MOVES` times that for each additional server

The waste: servers are added for the busiest one. If the busiest server is at ratio `r` where `b` were possible, the
pool pays for `(r - b) / safe_ratio` of itself too much. Servers are brought to the level at which waste and moves
together cost least. Below `low_ratio` nothing is wasted, and nothing moves for a gain below `SPREAD_MIN`.

Triggers of a plan:

- A server above `high_ratio` at the load of the horizon. It is brought to `safe_ratio` or below. If the total load,
  divided perfectly, exceeds that (`bound`), servers are brought close to the bound instead, and large channels are
  spread over more servers if necessary.
- A channel whose share on one server would exceed `safe_ratio`: it gets more servers.
- An uneven load that is worth a plan by the objective, for example after servers have joined.
- Servers to be emptied; and in calm times, channels that have more servers than they need.

With a forecast, servers are added before the predicted rise, spreading is valued at the coming load, and no server is
freed shortly before or after.

After a jump, the policy waits for one more window: the window of the rise contains only a part of it, and a plan for
that part would obstruct the next one. Servers above `BEYOND_HELP` are relieved immediately.

A plan must not cause an overload itself: it brings to no server more than `moved_share` of its remaining capacity. The
rest waits for the next plan, and shares that are too large for that are divided. Exceptions: dead servers, a channel on
a drained server that fits nowhere, and a server that would otherwise soon fail.

The policy settles: a relieving plan must lower the sum of the excess above the goal by a margin, or the highest ratio
without raising that sum; a spreading plan must lower the highest ratio by more. Under steady load there can only be a
few such plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np

from shoal.balance.columns import NEVER, Bools, Floats
from shoal.balance.decision import Decision
from shoal.balance.policies import explanation, replication, share_loops
from shoal.balance.policies.draft import MARGIN, Draft
from shoal.balance.policies.estimate import Estimate, estimate, since_moves_s
from shoal.balance.policies.pool_size import OVERLOAD_HOUR_PRICE, Sizing, grown, shrunk
from shoal.balance.policies.trend import jumped
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Situation

FRESH_WINDOWS: Final = 2
"""Windows between two plans: one of them then contains only the new placements."""
SHARE_OF_SAFE: Final = 0.3
"""Largest share of a replicated channel, as a part of the safe ratio: leaves room to grow, and small enough for a plan
to move.
"""
SHARES: Final = (0.2, 0.1, 0.05)
"""Smaller shares that are tried, as load ratios: they find room where large ones displace others."""
SHARE_ABOVE: Final = 1.5
"""Factor by which a share must exceed that size before it is made smaller."""
SHARE_WHEN_FULL: Final = 0.05
"""The same when servers are full and no more can be added: short-term fluctuations of channels then matter, and even
out over many small shares.
"""
NEAR_BOUND: Final = 1.02
"""How close to the bound servers are brought at most."""
OFF_BOUND: Final = 1 / 3
"""Position between the bound and the fail ratio at which a server is relieved although all are above the high ratio. It
is brought close to the bound, and left alone until it has come as far again.
"""
FAR_OFF_BOUND: Final = 2 / 3
"""The same, soon after a plan."""
SPREAD_MIN: Final = 0.15
"""Smallest reduction of the highest load ratio by a plan that only spreads."""
BALANCE_LASTS_H: Final = 1 / 12
"""How long a balance is assumed to last, in hours, before the load changes."""
REPLICA_MOVES: Final = 10
"""Cost of an additional server of a channel, in moves: clients hold more connections."""
BEYOND_HELP: Final = 1.0
"""Load ratio of a server above which channels move again although they were placed within `settle_s`."""
LEVELS: Final = 24
"""Number of levels compared below the safe ratio, and above it."""

_Grouped: TypeAlias = tuple[share_loops.ServerShares, Floats]
"""The shares of each server, largest first, and the size of each share."""


def decide(situation: Situation, settings: BalanceSettings) -> Decision:
    """Return the decision of the policy."""
    since_s = situation.at_s - situation.planned_at
    load = estimate(situation, settings)
    lost = load.dead[situation.placements.servers].any()
    fresh = since_s < FRESH_WINDOWS * settings.window_s
    unsure = jumped(situation.past_bytes_out) and load.ratio.max(initial=0.0) / load.growth < BEYOND_HELP
    if (fresh or unsure) and not lost:
        return Decision.nothing()
    joined_at = situation.hosts.joined_at[situation.hosts.takes].max(initial=NEVER)
    waiting = since_moves_s(situation) < settings.wait_s and joined_at <= situation.planned_at
    case = _Case(situation, settings, load, grown(situation, load, settings), waiting)
    if case.calm:
        case = _Case(situation, settings, load, shrunk(situation, load, settings), waiting=False)
    sizing = case.sizing
    if not sizing.takes.any():
        return explanation.decision(case.empty(), sizing)
    draft = case.draft()
    if case.calm and not draft.moves and not len(sizing.drain) and case.bound < settings.grow_ratio:
        replication.merge(draft)
    stuck = case.overloaded and draft.budget > 0 and draft.excess(case.goal) > MARGIN
    if stuck and case.bound > settings.grow_ratio and not sizing.add and not situation.pool.adding:
        sizing = grown(situation, load, settings, least=1)
    return explanation.decision(draft, sizing)


class _Diffusion(Enum):
    """How channels are divided further when the servers are full."""

    NONE = 0
    CAREFUL = 1
    """Only over servers that have room immediately."""
    BOLD = 2
    """Over all wanted servers; other shares make room afterwards."""


@dataclass(frozen=True)
class _Case:
    """A situation and the values derived from it before anything is moved."""

    situation: Situation
    settings: BalanceSettings
    load: Estimate
    sizing: Sizing
    waiting: bool
    """Whether channels moved so recently that only servers above `BEYOND_HELP` justify more moves. Servers that joined
    since the last plan end the wait.
    """

    @cached_property
    def coming(self) -> int:
        """Servers that are being added, or about to be requested."""
        return self.situation.pool.adding + self.sizing.add

    @cached_property
    def bound(self) -> float:
        """The lowest possible maximum of the load ratios, once all coming servers have joined."""
        pool = self.situation.pool
        more = self.coming * pool.new_capacity, self.coming * pool.new_cpu_capacity
        return self.load.bound(self.sizing.takes, *more)

    @cached_property
    def goal(self) -> float:
        """The load ratio above which a server is relieved; higher soon after a plan."""
        return max(self.settings.high_ratio, self._urgent_ratio if self.waiting else self._off_bound(OFF_BOUND))

    @cached_property
    def _urgent_ratio(self) -> float:
        """The load ratio above which a server is relieved without waiting, because it may soon fail."""
        return max(BEYOND_HELP, self._off_bound(FAR_OFF_BOUND))

    def _off_bound(self, part: float) -> float:
        return self.bound + part * max(0.0, self.settings.fail_ratio - self.bound)

    @cached_property
    def level(self) -> float:
        """The load ratio that relieved servers are brought to, or below."""
        return max(self.settings.safe_ratio, NEAR_BOUND * self.bound)

    @property
    def share_max(self) -> float:
        """Largest share of a replicated channel on one server."""
        return SHARE_OF_SAFE * self.settings.safe_ratio

    @cached_property
    def overloaded(self) -> bool:
        """Whether a server must be relieved."""
        return float(self.load.ratio.max(initial=0.0)) > self.goal

    @cached_property
    def full(self) -> bool:
        """Whether the servers will be full and no more can be added."""
        pool, there = self.situation.pool, int((~self.load.dead).sum())
        return self.level > self.settings.safe_ratio and there + pool.adding >= pool.servers_max

    @property
    def calm(self) -> bool:
        """Whether nothing is urgent, in progress or growing."""
        busy = self.overloaded or self.waiting or self.sizing.add or len(self.sizing.keep)
        return not busy and not self.situation.pool.adding and self.load.growth == 1.0 and not self.load.due

    def draft(self) -> Draft:
        """Return the cheapest plan; an empty one if none is worthwhile.

        Channels that were moved recently move only if servers are otherwise above `BEYOND_HELP`. Servers get more than
        they have room for only if one would otherwise soon fail.
        """
        settled = self.situation.at_s - self.situation.moved_at >= self.settings.settle_s
        grouped = self.empty(settled).grouped()
        now = float(self.load.ratio.max(initial=0.0)) / self.load.growth
        bounded = now < self.settings.fail_ratio
        draft = self._attempt(settled, self.share_max, self.settings.safe_ratio, grouped, bounded=bounded)
        if not self.overloaded:
            return draft if self._spreads(draft) else self.empty(settled)
        if not self.coming or now >= BEYOND_HELP:
            draft = self._finest(draft, settled, grouped, bounded=bounded)
        if float(draft.ratio.max()) / self.load.growth >= BEYOND_HELP and not settled.all():
            draft = self._finest(draft, np.ones_like(settled), grouped, bounded=bounded)
        if bounded and float(draft.ratio.max()) / self.load.growth >= self._urgent_ratio:
            draft = self._finest(draft, np.ones_like(settled), grouped, bounded=False)
        empty = self.empty(settled)
        relief = empty.excess(self.goal) - draft.excess(self.goal)
        lowers = float(empty.ratio.max() - draft.ratio.max()) >= MARGIN and relief > -MARGIN
        return draft if relief >= MARGIN or lowers else empty

    def _finest(self, draft: Draft, free: Bools, grouped: _Grouped, *, bounded: bool = True) -> Draft:
        """Return this draft or one with smaller shares of the large channels, whichever is cheaper."""
        others = [self._attempt(free, share, SHARE_ABOVE * share, grouped, bounded=bounded) for share in SHARES]
        return min((draft, *others), key=self._cost)

    def empty(self, free: Bools | None = None, *, bounded: bool = True) -> Draft:
        """Return a draft in which only the channels of dead servers move."""
        free = np.ones(len(self.situation.channels), np.bool_) if free is None else free
        draft = Draft(self.situation, self.load, self.settings, self.sizing.takes, free, bounded=bounded)
        draft.rescue()
        return draft

    def _cost(self, draft: Draft) -> float:
        """Return the cost of a draft by the objective, for as long as a balance lasts."""
        overload = OVERLOAD_HOUR_PRICE * BALANCE_LASTS_H * draft.excess(self.goal)
        waste = float(self._waste(draft.ratio.max(keepdims=True))[0])
        return overload + waste + self.settings.move_price * (draft.arrivals + REPLICA_MOVES * draft.replicas)

    def _spreads(self, draft: Draft) -> bool:
        """Return whether a draft without overload is worthwhile: moves for balance alone must lower the maximum."""
        gain = float(self.load.ratio.max() - draft.ratio.max()) * self.load.ahead
        return not draft.balanced or gain >= SPREAD_MIN / 2.0

    def _attempt(self, free: Bools, share: float, above: float, grouped: _Grouped, *, bounded: bool = True) -> Draft:
        """Return a draft in which shares of large channels above `above` are reduced to at most `share`.

        When the servers are full, channels are divided further if no server is filled above those that it relieves.
        """
        ways = (_Diffusion.BOLD, _Diffusion.CAREFUL, _Diffusion.NONE)
        for diffusion in ways if self.full and not self.waiting else ways[-1:]:
            draft = self._drafted(free, share, above, grouped, diffusion, bounded=bounded)
            if draft.is_safe:
                return draft
        return self.empty(free, bounded=bounded)

    def _drafted(
        self, free: Bools, share: float, above: float, grouped: _Grouped, diffusion: _Diffusion, *, bounded: bool
    ) -> Draft:
        draft = self.empty(free, bounded=bounded)
        replication.replicate(draft, share, above, self.level)
        if diffusion is not _Diffusion.NONE:
            replication.diffuse(draft, SHARE_WHEN_FULL, careful=diffusion is _Diffusion.CAREFUL)
        by_server, size = grouped
        level = self._level(draft, by_server, size)
        drained = ~self.sizing.takes & ~self.load.silent & ~self.load.dead
        if self.waiting:
            drained[:] = False
        draft.relieve(level, drained, by_server, beyond=not self.coming)
        if level is not None:
            replication.narrow(draft, self.goal, level, SHARE_WHEN_FULL)
        return draft

    def _level(self, draft: Draft, by_server: share_loops.ServerShares, size: Floats) -> float | None:
        """Return the load ratio to bring servers to; None if they stay as they are.

        A draft that has filled servers without relieving others continues until it has, like one that has not relieved
        all.
        """
        ratio = draft.ratio
        highest = float(ratio.max())
        overloaded = highest > self.goal or not draft.is_safe
        if not overloaded and (self.waiting or self.situation.pool.adding):
            return None
        low = NEAR_BOUND * self.bound
        if highest <= low:
            return None
        below = np.linspace(low, max(self.level, low), LEVELS)
        levels = np.unique(np.concatenate((below, np.linspace(below[-1], highest, LEVELS))))
        moves = share_loops.moves_for(levels, ratio, size, draft.shares.free, by_server)
        can = moves <= draft.budget
        if overloaded and can[levels <= below[-1]].any():
            can &= levels <= below[-1]
        cost = np.where(can, self._waste(levels) + self.settings.move_price * moves, np.inf)
        best = int(np.argmin(cost))
        gain = self._useful(highest) - self._useful(float(levels[best]))
        worth_it = gain >= SPREAD_MIN or (gain > 0.0 and self.overloaded)
        if overloaded or (worth_it and cost[best] < self._waste(levels[-1:])[0]):
            return float(levels[best])
        return None

    def _useful(self, level: float) -> float:
        """Return a load ratio as far as lowering it is worth anything, at the forecast load."""
        return max(level * self.load.ahead, self.settings.low_ratio)

    def _waste(self, levels: Floats) -> Floats:
        """Return the cost of the servers that are needed only because the busiest one is at a level."""
        servers = self.situation.hosts.cost[self.sizing.takes].sum() * self.settings.server_hour_price
        useful = np.maximum(levels * self.load.ahead, self.settings.low_ratio)
        return np.asarray(servers * BALANCE_LASTS_H * useful / self.settings.safe_ratio, np.float64)
