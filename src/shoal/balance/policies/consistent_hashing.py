"""Policy `consistent-hashing`: every channel is placed by a hash ring, and an overload adds a server.

The baseline of the paper's comparison (V.D). Server load is only used to decide on growth: a server joins the ring,
each of the others gives it an equal share of its points, and the channels that hash to these points move, hot or not.
The policy never replicates and never shrinks, like the paper's baseline. A dead or drained server is not in the ring,
so its channels go to the next points.

A plan that grows waits for `wait_s`, as in every policy. Channels follow the ring immediately, because their moves are
the second half of the plan that requested the server.
"""

from __future__ import annotations

from shoal.balance.columns import Placements
from shoal.balance.decision import Decision, Reason
from shoal.balance.policies.decision_builder import NO_CHANGE, Servers, decide_for, hash_reasons
from shoal.balance.policies.name_hashes import ring_hashes
from shoal.balance.policies.ring_homes import ring_of
from shoal.balance.policies.server_state import addable, average_ratio, highest_ratio, is_due, known_capacity
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Situation


def decide(situation: Situation, settings: BalanceSettings) -> Decision:
    """Place every channel at its home on the ring, and add a server if one is overloaded."""
    hosts = situation.hosts
    if not hosts.takes.any():
        return Decision.nothing()
    homes = ring_of(hosts, hosts.takes).homes(ring_hashes(situation.channels.names))
    reasons = hash_reasons(situation, Reason.HASH)
    return decide_for(situation, Placements.single(homes), reasons, growth(situation, settings))


def growth(situation: Situation, settings: BalanceSettings) -> Servers:
    """Add one server if a server is above the high ratio, the last plan is old enough, and none is being added."""
    capacity = known_capacity(situation)
    busiest = highest_ratio(situation.hosts.bytes_out, capacity)
    if busiest <= settings.high_ratio or situation.pool.adding or not addable(situation):
        return NO_CHANGE
    if not is_due(situation, settings):
        return NO_CHANGE
    average = average_ratio(situation.hosts.bytes_out, capacity)
    return Servers(add=1, reason=Reason.GROW, figures={"max_ratio": busiest, "average_ratio": average})
