"""The homes of many channels on a hash ring, equal to those of `shoal.plan.ring`.

Owns the points as columns. It does not depend on loads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from shoal.balance.columns import Bools, Hosts, Hosts32, Ints
from shoal.balance.policies.name_hashes import Hashes, ring_hashes
from shoal.plan.ring import POINTS_PER_SERVER


@dataclass(frozen=True, slots=True)
class RingColumns:
    """The points of a ring in order, and the host of each."""

    points: Hashes
    owners: Hosts32

    def points_of(self, hashes: Hashes) -> Ints:
        """Return the index of the point for each hash."""
        return np.searchsorted(self.points, hashes, side="right") % len(self.points)

    def homes(self, hashes: Hashes) -> Hosts32:
        """Return the host for each hash."""
        return self.owners[self.points_of(hashes)]


def ring_of(hosts: Hosts, members: Bools) -> RingColumns:
    """Return the ring of some hosts, at least one."""
    rows = np.flatnonzero(members)
    labels = [
        b"%b#%d" % (hosts.ids[row].encode(), index) for row in rows.tolist() for index in range(POINTS_PER_SERVER)
    ]
    points = ring_hashes(pa.array(labels, pa.binary()))
    order = np.argsort(points, kind="stable")
    return RingColumns(points[order], np.repeat(rows, POINTS_PER_SERVER)[order].astype(np.int32))
