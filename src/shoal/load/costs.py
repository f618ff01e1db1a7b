"""What the work of units costs their hosts, by the cost models of their kinds.

Owns the arithmetic: everything that a host used of a resource was for the work of its units, whatever their kind. So
one piece of work has a price on each host, and a unit used the price of its work.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.load.kinds import Cost, Kinds
from shoal.load.table import Floats, Ints
from shoal.load.window import LoadWindow


def work_of(units: pa.Table, cost: Cost) -> Floats:
    """The work of each row, of units of the kind that the cost belongs to."""
    work = np.zeros(units.num_rows)
    for rate, weight in cost.work:
        work += weight * units[rate].to_numpy()
    return work


def prices(window: LoadWindow, kind: str, resource: str, kinds: Kinds) -> Floats:
    """What one piece of work took of a resource, for each row of `window.units_of(kind)`; 0 where nothing was
    measured."""
    hosts = window.hosts
    names = hosts["host"].combine_chunks()
    done = np.zeros(hosts.num_rows)
    wanted: Ints = np.zeros(0, np.int64)
    for other in kinds.units:
        units, cost = window.units_of(other.name), other.cost(resource)
        if units.num_rows and (cost.work or other.name == kind):
            places: Ints = pc.index_in(units["host"], names).to_numpy()
            done += np.bincount(places, work_of(units, cost), hosts.num_rows)
            wanted = places if other.name == kind else wanted
    used = hosts[resource].fill_null(0.0).to_numpy()
    price: Floats = np.divide(used, done, out=np.zeros(len(done)), where=done > 0)
    return price[wanted]


def used_by_units(window: LoadWindow, kind: str, kinds: Kinds) -> Mapping[str, Floats]:
    """What each row of `window.units_of(kind)` used of each resource that its kind names."""
    units = window.units_of(kind)
    return {
        cost.resource: prices(window, kind, cost.resource, kinds) * work_of(units, cost)
        for cost in kinds.unit_kinds[kind].costs
    }
