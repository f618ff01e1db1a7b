"""Policy `dynamoth`: the load balancer of the Dynamoth paper (III.B), with its open points settled.

First channels, then servers. A channel is replicated if the ratio of its publications to its subscribers, or the
reverse, is large (Algorithm 1). Then, with the expected loads: the busiest channels leave a server above the high ratio
for the least loaded ones (Algorithm 2), and servers are added if that is not enough. If the average is low, the least
loaded server gives its channels away slowly and is freed; this stops if load rises. A plan is made if the last one is
at least `wait_s` old; only the channels of a dead server are placed immediately.

Owns the order of the steps and the decisions about servers. docs/policies.md lists the paper's open points and their
solutions.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from shoal.balance.columns import SINGLE, Bools, Floats, Ints, Placements
from shoal.balance.decision import Decision, Reason
from shoal.balance.policies.decision_builder import (
    NO_CHANGE,
    REASONS,
    Reasons,
    Servers,
    all_for,
    decide_for,
    differing,
    on_silent,
)
from shoal.balance.policies.dynamoth_channels import BAND, REPLICATION_WAIT_S, replace_lost, replicate, wanted
from shoal.balance.policies.dynamoth_servers import Parts, empty_out, level, relieve
from shoal.balance.policies.server_state import (
    addable,
    average_ratio,
    dead,
    draining,
    estimated_loads,
    highest_ratio,
    is_due,
    known_capacity,
    ratios,
    silent,
    targets,
)
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Situation

FREED_SHARE: Final = 0.1
"""Load that one plan takes off a server that is being freed, as a share of its capacity: the paper's "slowly"."""


def decide(situation: Situation, settings: BalanceSettings) -> Decision:
    """Return the next plan."""
    hosts = situation.hosts
    if not hosts.takes.any():
        return Decision.nothing()
    reasons = all_for(Reason.OVERLOAD, len(situation.channels))
    placements = _without_dead(situation, reasons)
    if not is_due(situation, settings):
        return decide_for(situation, placements, reasons)
    placements = _channel_level(situation, settings, placements, reasons)
    loads = estimated_loads(situation, placements)
    parts = Parts.of(situation.channels, placements, len(hosts))
    parts.moved[on_silent(situation)] = True
    if highest_ratio(loads, known_capacity(situation)) > settings.high_ratio:
        servers = _high_load(situation, settings, parts, loads)
    else:
        calm = not len(differing(situation.placements, placements)) and not silent(situation).any()
        servers = _low_load(situation, settings, parts, loads, calm)
        reasons[parts.rows[parts.host != placements.servers]] = REASONS.index(Reason.DRAIN)
    return decide_for(situation, Placements(placements.mode, placements.offsets, parts.host), reasons, servers)


def _without_dead(situation: Situation, reasons: Reasons) -> Placements:
    """Return the placements after the channels of dead servers were placed elsewhere."""
    hosts, placements = situation.hosts, situation.placements
    rows = np.unique(placements.rows[dead(hosts)[placements.servers]])
    if not len(rows):
        return placements
    reasons[rows] = REASONS.index(Reason.LOST)
    loads = estimated_loads(situation, placements)
    return replace_lost(situation.channels, placements, rows, loads, hosts.capacity, targets(hosts))


def _channel_level(
    situation: Situation, settings: BalanceSettings, placements: Placements, reasons: Reasons
) -> Placements:
    """Apply Algorithm 1 to all channels; a replicated channel must have been unchanged for a while."""
    hosts, channels = situation.hosts, situation.channels
    may_take = targets(hosts)
    want = wanted(channels, placements, settings, min(int(may_take.sum()), settings.replicas_max))
    differs = (want.mode != placements.mode) | (want.servers != placements.degree)
    differs &= ~on_silent(situation)
    differs &= (placements.mode == SINGLE) | (situation.at_s - situation.moved_at >= REPLICATION_WAIT_S)
    rows: Ints = np.flatnonzero(differs)
    if not len(rows):
        return placements
    fewer = want.servers[rows] < placements.degree[rows]
    reasons[rows] = REASONS.index(Reason.REPLICATE)
    reasons[rows[fewer]] = REASONS.index(Reason.MERGE)
    loads = estimated_loads(situation, placements)
    return replicate(channels, placements, want, rows, loads, hosts.capacity, may_take, settings.safe_ratio)


def _high_load(situation: Situation, settings: BalanceSettings, parts: Parts, loads: Floats) -> Servers:
    """Apply Algorithm 2. Add servers if the current ones are not enough; if there are none to add, level the load."""
    hosts, pool = situation.hosts, situation.pool
    may_take = targets(hosts)
    figures = _server_figures(situation, loads)
    average = figures["average_ratio"]
    capacity = known_capacity(situation)
    relieve(parts, loads, capacity, may_take, settings.high_ratio, settings.safe_ratio)
    missing = _missing_servers(situation, settings, parts, loads)
    more = addable(situation) + pool.adding + int(draining(situation).sum())
    if not missing or not more or average <= settings.grow_ratio:
        level(parts, loads, capacity, may_take, settings.high_ratio, _gain_min(settings))
        missing = _missing_servers(situation, settings, parts, loads) or _one_lowers(situation, settings, parts, loads)
    draining_hosts = np.flatnonzero(draining(situation)).astype(np.int32)
    keep = draining_hosts if missing or average > settings.low_ratio * (1 + BAND) else draining_hosts[:0]
    add = min(max(0, missing - len(keep)), addable(situation)) if not pool.adding else 0
    if not add and not len(keep):
        return NO_CHANGE
    return Servers(add=add, keep=keep, reason=Reason.GROW, figures=figures)


def _missing_servers(situation: Situation, settings: BalanceSettings, parts: Parts, loads: Floats) -> int:
    """Return how many new servers would take the load above the safe ratio from servers above the high ratio.

    Load that no new server could carry does not count: channels that are too large, and load that belongs to no
    channel.
    """
    capacity = known_capacity(situation)
    room = settings.safe_ratio * situation.pool.new_capacity
    stuck: Bools = (capacity > 0) & (loads > settings.high_ratio * capacity)
    if not stuck.any() or room <= 0:
        return 0
    movable = stuck[parts.host] & (parts.bytes_out <= room)
    carried = np.bincount(parts.host[movable], parts.bytes_out[movable], len(capacity))
    excess = np.minimum(loads - settings.safe_ratio * capacity, carried)[stuck]
    return math.ceil(float(excess.sum()) / room)


def _gain_min(settings: BalanceSettings) -> float:
    """Return the smallest reduction of the maximum of two servers that is worth a move of the last resort.

    It is the same as in Algorithm 2, whose targets end below the safe ratio. Measured loads vary: if less were enough,
    a channel that makes each server overloaded would follow these variations from server to server.
    """
    return settings.high_ratio - settings.safe_ratio


def _one_lowers(situation: Situation, settings: BalanceSettings, parts: Parts, loads: Floats) -> int:
    """Return 1 if moving a channel from a server above the high ratio to a new server would leave the new server lower;
    else 0.
    """
    capacity = known_capacity(situation)
    ratio = np.where(capacity > 0, ratios(loads, capacity), 0.0)
    if situation.pool.new_capacity <= 0:
        return 0
    lower = parts.bytes_out / situation.pool.new_capacity <= ratio[parts.host] - _gain_min(settings)
    lower &= (ratio[parts.host] > settings.high_ratio) & (parts.bytes_out > 0)
    return int(lower.any())


def _low_load(situation: Situation, settings: BalanceSettings, parts: Parts, loads: Floats, calm: bool) -> Servers:
    """Free the least loaded server while the average is low, if the others can carry its channels; or stop freeing.

    Starts only if `calm`: the plan has nothing else to do, and all servers report.
    """
    hosts = situation.hosts
    figures = _server_figures(situation, loads)
    average = figures["average_ratio"]
    draining_hosts = np.flatnonzero(draining(situation)).astype(np.int32)
    if average > settings.low_ratio * (1 + BAND):
        return Servers(keep=draining_hosts, reason=Reason.GROW, figures=figures) if len(draining_hosts) else NO_CHANGE
    if len(draining_hosts):
        stuck = [host for host in draining_hosts.tolist() if not _give_away(situation, settings, parts, loads, host)]
        keep = np.array(stuck, np.int32)
        return Servers(keep=keep, reason=Reason.GROW, figures=figures) if stuck else NO_CHANGE
    may_take = targets(hosts)
    enough = max(situation.pool.servers_min, 1)
    calm = calm and not situation.pool.adding and average < settings.low_ratio
    if not calm or int(hosts.takes.sum()) <= enough:
        return NO_CHANGE
    may_go = may_take & hosts.drainable
    if not may_go.any():
        return NO_CHANGE
    least = int(np.argmin(np.where(may_go, ratios(loads, hosts.capacity), np.inf)))
    if not _give_away(situation, settings, parts, loads, least):
        return NO_CHANGE
    return Servers(drain=np.array([least], np.int32), reason=Reason.SHRINK, figures=figures)


def _give_away(situation: Situation, settings: BalanceSettings, parts: Parts, loads: Floats, host: int) -> bool:
    """Move some channels of a server to others that stay below `grow_ratio`; return False if they have no room."""
    others = targets(situation.hosts)
    others[host] = False
    capacity = situation.hosts.capacity
    limit = min(settings.grow_ratio, settings.safe_ratio)
    step = FREED_SHARE * float(capacity[host])
    if not others.any():
        return False
    return empty_out(parts, host, loads, capacity, others, limit, step, settings.moves_max) >= 0


def _server_figures(situation: Situation, loads: Floats) -> dict[str, float]:
    capacity = known_capacity(situation)
    return {"max_ratio": highest_ratio(loads, capacity), "average_ratio": average_ratio(loads, capacity)}
