"""The resources that units use on their hosts, by the cost models of their kinds.

Owns the arithmetic: all that a host used of a resource is attributed to the work of its units, of any kind. This gives
a price per unit of work on each host, and each unit used the price of its work.
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
    """The work of each row; the units are of the kind of the cost."""
    work = np.zeros(units.num_rows)
    for rate, weight in cost.work:
        work += weight * units[rate].to_numpy()
    return work


def prices(window: LoadWindow, kind: str, resource: str, kinds: Kinds) -> Floats:
    """The price of one unit of work in a resource, for each row of `window.units_of(kind)`; 0 without measurements."""
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
    """The use of each resource in the kind's cost model, for each row of `window.units_of(kind)`."""
    units = window.units_of(kind)
    return {
        cost.resource: prices(window, kind, cost.resource, kinds) * work_of(units, cost)
        for cost in kinds.unit_kinds[kind].costs
    }
