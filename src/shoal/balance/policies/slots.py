"""Policy `slots`: Redis Cluster's 16384 fixed slots, distributed by count.

A channel's slot is the CRC16 of its name (of the text in its `{}`, if any); a slot belongs to one server, and slots
move as a whole. Redis Cluster's `--cluster rebalance` distributes slots by number, or by weights from the operator,
never by load. This policy does the same, with capacities as weights. If a server is overloaded it adds one and
distributes the slots again; without a server to add, it can do nothing about a hot slot.

A hash of slot and server, highest first, decides which slots a server gets, up to its share. The table therefore
depends only on the servers, and hardly more slots move than the new shares require. The policy never shrinks.
"""

from __future__ import annotations

import numpy as np

from shoal.balance.columns import Bools, Floats, Hosts, Hosts32, Ints, Placements
from shoal.balance.decision import Decision, Reason
from shoal.balance.policies.consistent_hashing import growth
from shoal.balance.policies.decision_builder import decide_for, hash_reasons
from shoal.balance.policies.name_hashes import SLOTS, Hashes, key_slots
from shoal.balance.policies.server_state import silent, targets
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Situation
from shoal.plan.ring import ring_hash
from shoal.wire.raw_bytes import kernel


def decide(situation: Situation, settings: BalanceSettings) -> Decision:
    """Place every channel on the server of its slot, and add a server if one is overloaded."""
    if not situation.hosts.takes.any():
        return Decision.nothing()
    hosts, unheard = situation.hosts, silent(situation)
    slots = key_slots(situation.channels.names)
    servers = slot_table(hosts, targets(hosts) | unheard)[slots]
    if unheard.any():  # silent servers cannot receive channels now
        servers = np.where(unheard[servers], slot_table(hosts, targets(hosts))[slots], servers)
    reasons = hash_reasons(situation, Reason.HASH)
    return decide_for(situation, Placements.single(servers), reasons, growth(situation, settings))


def slot_table(hosts: Hosts, members: Bools) -> Hosts32:
    """Return the host of each slot if these hosts share all slots."""
    rows = np.flatnonzero(members)
    seeds = np.array([ring_hash(hosts.ids[row].encode()) for row in rows.tolist()], np.uint64)
    table = np.empty(SLOTS, np.int64)
    _share_out(seeds, slot_shares(hosts.capacity[rows]), table)
    return rows[table].astype(np.int32)


def slot_shares(capacity: Floats) -> Ints:
    """Return the number of slots per server: in proportion to capacity, the largest remainders rounded up."""
    weights = capacity if capacity.sum() > 0 else np.ones(len(capacity))
    exact = SLOTS * (weights / weights.sum())
    shares: Ints = np.floor(exact).astype(np.int64)
    missing = SLOTS - int(shares.sum())
    shares[np.argsort(shares - exact, kind="stable")[:missing]] += 1
    return shares


@kernel
def _share_out(seeds: Hashes, shares: Ints, table: Ints) -> None:
    """Assign each slot to the server with the highest hash of the two among those with room in their share."""
    room = shares.copy()
    for slot in range(len(table)):
        best, highest = -1, np.uint64(0)
        for server in range(len(seeds)):
            if room[server] > 0:
                mixed = seeds[server] + np.uint64(slot + 1) * np.uint64(0x9E3779B97F4A7C15)
                mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
                mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
                mixed ^= mixed >> np.uint64(31)
                if best < 0 or mixed > highest:
                    best, highest = server, mixed
        room[best] -= 1
        table[slot] = best
