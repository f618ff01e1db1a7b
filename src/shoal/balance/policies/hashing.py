"""Policy `consistent-hashing`: every channel lives where a hash ring says, and an overload means one more server.

The baseline of the paper's comparison (V.D). It knows the load of servers only as a reason to grow: a server joins the
ring, each of the others gives it an equal share of its points, and what hashes to these moves, hot or not. It never
replicates and never shrinks: the paper's baseline does neither. A dead or drained server is not in the ring, so that
its channels go to the next points.

A plan that grows waits for `wait_s` as every policy does. Channels follow the ring at once, because their moves are
the second half of the plan that asked for the server.
"""

from __future__ import annotations

from shoal.balance.columns import Placements
from shoal.balance.decision import Decision, Reason
from shoal.balance.policies.deciding import AS_THEY_ARE, Servers, decide_for, hash_reasons
from shoal.balance.policies.naming import ring_hashes
from shoal.balance.policies.reckoning import addable, average_ratio, highest_ratio, is_due, known_capacity
from shoal.balance.policies.ring_homes import ring_of
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Situation


def decide(situation: Situation, settings: BalanceSettings) -> Decision:
    """Every channel to its home on the ring, and a new server if one is overloaded."""
    hosts = situation.hosts
    if not hosts.takes.any():
        return Decision.nothing()
    homes = ring_of(hosts, hosts.takes).homes(ring_hashes(situation.channels.names))
    reasons = hash_reasons(situation, Reason.HASH)
    return decide_for(situation, Placements.single(homes), reasons, growth(situation, settings))


def growth(situation: Situation, settings: BalanceSettings) -> Servers:
    """One more server if a server is above the high ratio, the last plan is long enough ago, and none is coming."""
    capacity = known_capacity(situation)
    busiest = highest_ratio(situation.hosts.bytes_out, capacity)
    if busiest <= settings.high_ratio or situation.pool.adding or not addable(situation):
        return AS_THEY_ARE
    if not is_due(situation, settings):
        return AS_THEY_ARE
    average = average_ratio(situation.hosts.bytes_out, capacity)
    return Servers(add=1, reason=Reason.GROW, figures={"max_ratio": busiest, "average_ratio": average})
