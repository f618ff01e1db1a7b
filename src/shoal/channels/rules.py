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
    """A publisher says how far it has come: after a burst and on coming to a server."""
    handshake: bool = True
    """A subscription is in force only when the agents of all its servers have answered."""
    baseline: bool = True
    """A new subscription starts where the agent says that each stream stands."""
    lease: bool = True
    """A server whose word has run out is not used for publishing."""
    repeat: bool = True
    """A publish that no server has confirmed is repeated after the connection is lost."""
    earlier: bool = True
    """A new subscription also stands where the channel lived by the rings before, for a while."""


ALL_RULES = Rules()


def broken(name: str) -> Rules:
    """All rules but one."""
    if name not in Rules.__struct_fields__:
        raise ValueError(f"there is no rule {name!r}; the rules are {', '.join(Rules.__struct_fields__)}")
    return msgspec.structs.replace(ALL_RULES, **{name: False})
