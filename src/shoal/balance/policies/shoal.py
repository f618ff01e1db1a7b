"""The policy `shoal`: few moves that pay, before a server is overloaded, and no more servers than it takes.

Owns when something is done, and how far it goes. The parts know the rest: `estimate` what servers carry, `trend` what
they will, `sizing` how many there should be, `degrees` and `replication` over how many a channel is spread, `draft`
and `packing` what goes where, `words` the figures behind it.

The objective, in the unit of `server_hour_price`:

    an hour of the servers + what overload costs (both in `sizing`)
    + the part of an hour of the servers that an uneven load wastes, for as long as a balance lasts
    + `move_price` for each server that a channel comes to, and `REPLICA_MOVES` times that for each it has more

The waste: servers are added for the busiest one, so a pool whose busiest server is at ratio `r` where `b` were possible
pays for `(r - b) / safe_ratio` of itself too much. To what level servers are brought is where waste and moves cost
least together; below `low_ratio` nothing is wasted, and nothing moves for less than `SPREAD_MIN`.

What triggers a plan:

- a server above `high_ratio`, at the load of the horizon. It is brought to `safe_ratio` or below. If all load, divided
  perfectly, comes to more than that (`bound`), the servers are brought to nearly the bound instead, and large channels
  are spread over more servers if that is what it takes;
- a channel of which one server would have more than `safe_ratio`: it gets more servers;
- an uneven load, worth a plan by the objective: servers have joined, say;
- servers to be emptied; and in calm times channels that have more servers than they need.

Where there is a forecast, servers are added before the rise that it tells of, what is uneven is worth a plan by the
load that is coming, and no server is freed shortly before or after.

What has jumped is looked at once more: the window in which a load rises has seen only a part of it, and a plan made for
that part would be in the way of the next one. A server that is beyond help already does not wait.

A plan must not be the overload itself: it brings to no server more than `moved_share` of what that could carry beside
its load of now. What does not fit waits for the next plan, and what is too large for that is divided. Only dead
servers, a channel that nobody has room for on a server that is drained, and a server that would be about to fail
otherwise are no subject of this.

It settles: a plan that relieves must lower the sum of what is above the goal by a margin, or the highest ratio without
making more of that sum, one that spreads the highest ratio by more, so that under steady load there can be but a few
of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

import numpy as np

from shoal.balance.columns import NEVER, Bools, Floats
from shoal.balance.decision import Decision
from shoal.balance.policies import packing, replication, words
from shoal.balance.policies.draft import MARGIN, Draft
from shoal.balance.policies.estimate import Estimate, estimate, since_moves_s
from shoal.balance.policies.sizing import OVERLOAD_HOUR_PRICE, Sizing, grown, shrunk
from shoal.balance.policies.trend import jumped
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Situation

FRESH_WINDOWS: Final = 2
"""Windows after a plan before the next one can be: one of them has then seen nothing but the new placements."""
SHARE_OF_SAFE: Final = 0.3
"""What one server may have of a channel that is replicated, as part of the safe ratio: room to grow, and so small that
a plan can move it."""
SHARES: Final = (0.2, 0.1, 0.05)
"""Smaller ones that are tried, as load ratios: they find room where large ones push others out."""
SHARE_ABOVE: Final = 1.5
"""How many times larger than that a share must be before it is made so small."""
SHARE_WHEN_FULL: Final = 0.05
"""The same when servers are full and there can be no more: what each channel does from moment to moment then matters,
and evens out over many small shares."""
NEAR_BOUND: Final = 1.02
"""How near to the bound servers are brought at the most."""
OFF_BOUND: Final = 1 / 3
"""The part of the way from the bound to the fail ratio at which a server is relieved though all are above the high
ratio. It is brought back to nearly the bound, and left alone until it has come as far again."""
FAR_OFF_BOUND: Final = 2 / 3
"""The same, soon after a plan."""
SPREAD_MIN: Final = 0.15
"""By how much the highest load ratio must fall for a plan that only spreads."""
BALANCE_LASTS_H: Final = 1 / 12
"""For how long a balance is worth something: then the load is another one."""
REPLICA_MOVES: Final = 10
"""What it counts that a channel has one more server, in moves: clients hold more connections."""
BEYOND_HELP: Final = 1.0
"""Load ratio of a server from which on channels are moved again though they were placed within `settle_s`."""
LEVELS: Final = 24
"""Levels that are compared below the safe ratio, and as many above it."""

_Shelved: TypeAlias = tuple[packing.Shelves, Floats]
"""The shares of each server, largest first, and the size of each share."""


def decide(situation: Situation, settings: BalanceSettings) -> Decision:
    """The policy."""
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
        return words.decision(case.empty(), sizing)
    draft = case.draft()
    if case.calm and not draft.moves and not len(sizing.drain) and case.bound < settings.grow_ratio:
        replication.merge(draft)
    stuck = case.overloaded and draft.budget > 0 and draft.excess(case.goal) > MARGIN
    if stuck and case.bound > settings.grow_ratio and not sizing.add and not situation.pool.adding:
        sizing = grown(situation, load, settings, least=1)
    return words.decision(draft, sizing)


class _Diffusion(Enum):
    """How channels are made finer when the servers are full."""

    NONE = 0
    CAREFUL = 1
    """Only over servers that can bear it at once."""
    BOLD = 2
    """Over all that are wanted; other shares make room afterwards."""


@dataclass(frozen=True, slots=True)
class _Case:
    """A situation with all that follows from it before anything is moved."""

    situation: Situation
    settings: BalanceSettings
    load: Estimate
    sizing: Sizing
    waiting: bool
    """Whether channels were moved so recently that only what is beyond help is a reason to move others. Servers that
    have joined since the last plan end the wait."""

    @property
    def coming(self) -> int:
        """Servers that are on their way, or are about to be asked for."""
        return self.situation.pool.adding + self.sizing.add

    @property
    def bound(self) -> float:
        """The lowest that the highest load ratio can be, once all servers are there that are on their way."""
        pool = self.situation.pool
        more = self.coming * pool.new_capacity, self.coming * pool.new_cpu_capacity
        return self.load.bound(self.sizing.takes, *more)

    @property
    def goal(self) -> float:
        """The load ratio above which a server is relieved: soon after a plan only if it is beyond help otherwise."""
        return max(self.settings.high_ratio, self._dire if self.waiting else self._off_bound(OFF_BOUND))

    @property
    def _dire(self) -> float:
        """The load ratio above which a server does not wait: it may fail soon."""
        return max(BEYOND_HELP, self._off_bound(FAR_OFF_BOUND))

    def _off_bound(self, part: float) -> float:
        return self.bound + part * max(0.0, self.settings.fail_ratio - self.bound)

    @property
    def level(self) -> float:
        """The load ratio to which it is brought, at least."""
        return max(self.settings.safe_ratio, NEAR_BOUND * self.bound)

    @property
    def share_max(self) -> float:
        """What one server should have of a replicated channel, at the most."""
        return SHARE_OF_SAFE * self.settings.safe_ratio

    @property
    def overloaded(self) -> bool:
        """Whether a server is to be relieved."""
        return float(self.load.ratio.max(initial=0.0)) > self.goal

    @property
    def full(self) -> bool:
        """Whether the servers will be full and there can be no more of them."""
        pool, there = self.situation.pool, int((~self.load.dead).sum())
        return self.level > self.settings.safe_ratio and there + pool.adding >= pool.servers_max

    @property
    def calm(self) -> bool:
        """Whether nothing is urgent, under way or growing."""
        busy = self.overloaded or self.waiting or self.sizing.add or len(self.sizing.keep)
        return not busy and not self.situation.pool.adding and self.load.growth == 1.0 and not self.load.due

    def draft(self) -> Draft:
        """The plan that costs least; an empty one if none is worth it.

        Channels that should rest are moved only if servers are beyond help otherwise, and servers given more than they
        have room for only if one would be about to fail.
        """
        settled = self.situation.at_s - self.situation.moved_at >= self.settings.settle_s
        shelved = self.empty(settled).shelved()
        now = float(self.load.ratio.max(initial=0.0)) / self.load.growth
        bounded = now < self.settings.fail_ratio
        draft = self._attempt(settled, self.share_max, self.settings.safe_ratio, shelved, bounded=bounded)
        if not self.overloaded:
            return draft if self._spreads(draft) else self.empty(settled)
        if not self.coming or now >= BEYOND_HELP:
            draft = self._finest(draft, settled, shelved, bounded=bounded)
        if float(draft.ratio.max()) / self.load.growth >= BEYOND_HELP and not settled.all():
            draft = self._finest(draft, np.ones_like(settled), shelved, bounded=bounded)
        if bounded and float(draft.ratio.max()) / self.load.growth >= self._dire:
            draft = self._finest(draft, np.ones_like(settled), shelved, bounded=False)
        empty = self.empty(settled)
        relief = empty.excess(self.goal) - draft.excess(self.goal)
        lowers = float(empty.ratio.max() - draft.ratio.max()) >= MARGIN and relief > -MARGIN
        return draft if relief >= MARGIN or lowers else empty

    def _finest(self, draft: Draft, free: Bools, shelved: _Shelved, *, bounded: bool = True) -> Draft:
        """This one, or one with smaller shares of the large channels, whichever costs less."""
        others = [self._attempt(free, share, SHARE_ABOVE * share, shelved, bounded=bounded) for share in SHARES]
        return min((draft, *others), key=self._cost)

    def empty(self, free: Bools | None = None, *, bounded: bool = True) -> Draft:
        """A draft in which nothing moves but what is on dead servers."""
        free = np.ones(len(self.situation.channels), np.bool_) if free is None else free
        draft = Draft(self.situation, self.load, self.settings, self.sizing.takes, free, bounded=bounded)
        draft.rescue()
        return draft

    def _cost(self, draft: Draft) -> float:
        """What a draft costs by the objective, for as long as a balance lasts."""
        overload = OVERLOAD_HOUR_PRICE * BALANCE_LASTS_H * draft.excess(self.goal)
        waste = float(self._waste(draft.ratio.max(keepdims=True))[0])
        return overload + waste + self.settings.move_price * (draft.arrivals + REPLICA_MOVES * draft.replicas)

    def _spreads(self, draft: Draft) -> bool:
        """Whether a draft without overload is worth it: what it moves for balance alone must lower the maximum."""
        gain = float(self.load.ratio.max() - draft.ratio.max()) * self.load.ahead
        return not draft.balanced or gain >= SPREAD_MIN / 2.0

    def _attempt(self, free: Bools, share: float, above: float, shelved: _Shelved, *, bounded: bool = True) -> Draft:
        """A draft with shares of the large channels that are no larger than `share`, where they were above `above`.

        When the servers are full it is made finer still, if that can be done without filling a server beyond those
        that it relieves.
        """
        ways = (_Diffusion.BOLD, _Diffusion.CAREFUL, _Diffusion.NONE)
        for diffusion in ways if self.full and not self.waiting else ways[-1:]:
            draft = self._drafted(free, share, above, shelved, diffusion, bounded=bounded)
            if draft.lowers:
                return draft
        return self.empty(free, bounded=bounded)

    def _drafted(
        self, free: Bools, share: float, above: float, shelved: _Shelved, diffusion: _Diffusion, *, bounded: bool
    ) -> Draft:
        draft = self.empty(free, bounded=bounded)
        replication.replicate(draft, share, above, self.level)
        if diffusion is not _Diffusion.NONE:
            replication.diffuse(draft, SHARE_WHEN_FULL, careful=diffusion is _Diffusion.CAREFUL)
        shelves, size = shelved
        level = self._level(draft, shelves, size)
        drained = ~self.sizing.takes & ~self.load.silent & ~self.load.dead
        if self.waiting:
            drained[:] = False
        draft.relieve(level, drained, shelves, beyond=not self.coming)
        if level is not None:
            replication.narrow(draft, self.goal, level, SHARE_WHEN_FULL)
        return draft

    def _level(self, draft: Draft, shelves: packing.Shelves, size: Floats) -> float | None:
        """The load ratio to bring servers to; None if they stay as they are.

        A draft that has filled servers so far without relief to others goes on until it has, as one that has not
        relieved all does."""
        ratio = draft.ratio
        highest = float(ratio.max())
        overloaded = highest > self.goal or not draft.lowers
        if not overloaded and (self.waiting or self.situation.pool.adding):
            return None
        low = NEAR_BOUND * self.bound
        if highest <= low:
            return None
        below = np.linspace(low, max(self.level, low), LEVELS)
        levels = np.unique(np.concatenate((below, np.linspace(below[-1], highest, LEVELS))))
        moves = packing.moves_for(levels, ratio, size, draft.shares.free, shelves)
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
        """A load ratio as far as lowering it is worth something: at the load that is forecast."""
        return max(level * self.load.ahead, self.settings.low_ratio)

    def _waste(self, levels: Floats) -> Floats:
        """What the part of the servers costs that is there only because the busiest is at a level."""
        servers = self.situation.hosts.cost[self.sizing.takes].sum() * self.settings.server_hour_price
        useful = np.maximum(levels * self.load.ahead, self.settings.low_ratio)
        return np.asarray(servers * BALANCE_LASTS_H * useful / self.settings.safe_ratio, np.float64)
