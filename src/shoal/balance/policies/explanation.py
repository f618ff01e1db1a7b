"""Turns a draft of the `shoal` policy into a decision: the reason of every move, and the figures behind it.

Owns the explanation of moves. It makes no decisions.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.balance.columns import Floats, Ints, Placements
from shoal.balance.decision import Decision, Reason
from shoal.balance.policies.draft import Draft
from shoal.balance.policies.pool_size import Sizing

FIGURES: Final = (
    "left_before",
    "left_after",
    "chosen_before",
    "chosen_after",
    "bytes_out",
    "cpu",
    "publications",
    "publishers",
    "subscribers",
    "degree_before",
    "degree",
    "growth",
)
"""Load ratios of the busiest server left and of the busiest chosen, as measured before and as expected after; the
channel's load; its number of servers; the estimated growth.
"""


def decision(draft: Draft, sizing: Sizing) -> Decision:
    """Return the decision for a draft. The largest moves come first."""
    situation = draft.situation
    rows, placements = draft.placements()
    before, after = draft.estimate.ratio / draft.estimate.growth, draft.ratio / draft.estimate.growth
    left, chosen = _busiest(situation.placements, rows, placements, before, after)
    channels = situation.channels
    cpu = channels.cpu_in[rows] + channels.cpu_out[rows]
    figures = np.column_stack(
        (
            before[left],
            after[left],
            before[chosen],
            after[chosen],
            channels.bytes_out[rows],
            cpu,
            channels.publications[rows],
            channels.publishers[rows],
            channels.subscribers[rows],
            situation.placements.degree[rows],
            placements.degree,
            np.full(len(rows), draft.estimate.growth),
        )
    )
    return Decision(
        moves=rows,
        placements=placements,
        reasons=_reasons(draft, rows, left),
        figure_names=FIGURES,
        figures=figures,
        add=sizing.add,
        drain=sizing.drain,
        keep=sizing.keep,
        server_reason=sizing.reason,
        server_figures=sizing.figures,
    )


def _reasons(draft: Draft, rows: Ints, left: Ints) -> tuple[Reason, ...]:
    high = draft.settings.high_ratio
    drained = ~draft.takes[left]
    overload = draft.estimate.ratio[left] > high
    codes = np.select((draft.estimate.dead[left], drained, overload), (0, 1, 2), 3)
    names = (Reason.LOST, Reason.DRAIN, Reason.OVERLOAD, Reason.SPREAD)
    reasons = [names[code] for code in codes.tolist()]
    reasons[: len(draft.replaced)] = [reason for _, _, reason in draft.replaced.values()]
    return tuple(reasons)


def _busiest(old: Placements, rows: Ints, new: Placements, before: Floats, after: Floats) -> tuple[Ints, Ints]:
    """Return, for each move, the busiest server that it leaves and the busiest that it chooses; if none, of all its
    servers.
    """
    left = old.servers[old.offsets[rows]].astype(np.int64)
    chosen = new.servers[new.offsets[:-1]].astype(np.int64)
    for at in np.flatnonzero((old.degree[rows] > 1) | (new.degree > 1)).tolist():
        was, will_be = old.of(int(rows[at])), new.of(at)
        gone = [server for server in was if server not in will_be] or was
        come = [server for server in will_be if server not in was] or will_be
        left[at] = max(gone, key=lambda server: (before[server], server))
        chosen[at] = max(come, key=lambda server: (after[server], server))
    return left, chosen
