"""Channels whose entries name dead servers.

Owns their new placements, which do not depend on the policy: each is placed where clients already find it, on the
remaining servers of its placement or at its home. Then no entry names the dead server, and it joins empty if it comes
back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.balance.columns import Floats, Ints, Placements
from shoal.balance.decision import Decision, Reason
from shoal.balance.situation import Situation
from shoal.plan.entry import Entry, Phase
from shoal.plan.ring import Ring


def lost_channels(entries: Mapping[bytes, Entry], ring: Ring) -> tuple[bytes, ...]:
    """The channels that are not moving and whose entries name servers outside the ring, sorted."""
    here = {*ring.ids}
    return tuple(
        sorted(
            channel
            for channel, entry in entries.items()
            if entry.phase in (Phase.END, Phase.NARROW) and not here.issuperset(entry.placement.servers)
        )
    )


def with_lost(situation: Situation, decision: Decision, lost: tuple[bytes, ...]) -> Decision:
    """The decision with new placements added for lost channels that it does not move."""
    if not lost:
        return decision
    found = pc.index_in(pa.array(lost, pa.binary()), situation.channels.names).drop_null().to_numpy()
    rows: Ints = np.setdiff1d(found.astype(np.int64), decision.moves)
    if not len(rows):
        return decision
    own, new = situation.placements, decision.placements
    where = np.array([host for row in rows.tolist() for host in own.of(row)], np.int32)
    placements = Placements(
        np.concatenate([new.mode, own.mode[rows]]),
        np.concatenate([new.offsets, new.offsets[-1] + np.cumsum(own.degree[rows])]),
        np.concatenate([new.servers, where]),
    )
    figures: Floats = np.full((len(rows), len(decision.figure_names)), np.nan)
    return replace(
        decision,
        moves=np.concatenate([decision.moves, rows]),
        placements=placements,
        reasons=(*decision.reasons, *(Reason.LOST for _ in rows)),
        figures=np.concatenate([decision.figures.reshape(len(decision), figures.shape[1]), figures]),
    )
