"""The rules of the channel protocol that can be switched off, one by one, to prove that the checkers see it.

Production always runs with every rule on. `shoal sim channels --break NAME` removes one from the shipped core.
"""

from __future__ import annotations

import msgspec


class Rules(msgspec.Struct, frozen=True):
    """One flag for each rule; what it guards stands beside it."""

    dedupe: bool = True
    """A sequence number below the next expected one is a duplicate and is dropped."""
    order: bool = True
    """A message past a hole waits until the hole is healed or reported."""
    heal: bool = True
    """A hole is asked for at its publisher before it is reported."""
    beacon: bool = True
    """It is said how far a stream has come: by its publisher after a burst and on coming to a server, by agents to
    servers that have not heard it."""
    handshake: bool = True
    """A subscription is in force only when the agents of all its servers have answered."""
    baseline: bool = True
    """A new subscription starts where the agent says that each stream stands."""
    lease: bool = True
    """A server whose word has run out is not used for publishing."""
    repeat: bool = True
    """A publish that no server has confirmed is repeated after the connection is lost."""
    forward_old_to_new: bool = True
    """An agent passes on what a publisher with an old entry publishes on its server."""
    forward_new_to_old: bool = True
    """An agent passes on what is published to servers where subscribers did not follow a move."""
    home_help: bool = True
    """An agent does so too where its server has no part in the channel, as at the ring's home."""
    version_in_header: bool = True
    """The version in a message's header says which placement its publisher knew."""
    mark_forwarded: bool = True
    """What an agent passes on is marked, and nobody passes it on again."""
    all_unended_placements: bool = True
    """Subscribers stand by every placement that has not ended, not by the last two only."""
    prepare: bool = True
    """A move begins when the agents of all servers concerned know of it."""
    widen_before_switch: bool = True
    """Publishers are told of a new placement after subscribers stand by it."""
    narrow_last: bool = True
    """Subscribers leave an old placement after its publishers."""
    record_once: bool = True
    """A copy of a message is recorded once on a server."""
    record_absence: bool = True
    """A recorder that was away asks publishers for what it missed, and writes down what they no longer have."""
    record_loss: bool = True
    """A recorder writes down at once that its server has lost a record."""
    fence: bool = True
    """What a leader writes counts only while it leads."""
    drained: bool = True
    """A server leaves when nobody has used it for a while, and nothing names it."""
    one_at_a_time: bool = True
    """A plan is made when the moves of the one before have ended."""
    basis: bool = True
    """A proposal is applied only to the plan that it was made from."""
    once: bool = True
    """A proposal is applied once, also if nothing but the number of servers tells that it was."""
    settle: bool = True
    """It is remembered when plans were made and channels placed, so that a policy leaves them alone for a while."""
    deletions: bool = True
    """An agent forgets what is deleted from the plan: a channel whose mark is gone is not recorded any more."""
    fresh_load: bool = True
    """A balancer that begins to lead forgets the load that it measured when it led before."""
    guest: bool = True
    """A server that the balancer adds is marked as a guest before it joins, so that no channel moves with the ring."""
    state_first: bool = True
    """The balancer's state names a plan before the first of its moves is asked for."""


ALL_RULES = Rules()


def broken(name: str) -> Rules:
    """All rules but one."""
    if name not in Rules.__struct_fields__:
        raise ValueError(f"there is no rule {name!r}; the rules are {', '.join(Rules.__struct_fields__)}")
    return msgspec.structs.replace(ALL_RULES, **{name: False})
