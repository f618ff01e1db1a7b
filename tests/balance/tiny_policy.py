"""A policy with given decisions, for tests of code that calls policies."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shoal.balance.columns import MODES, Placements
from shoal.balance.decision import Decision, Reason
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Situation
from shoal.plan.placement import Mode


class Wish:
    """The next decision of the policy."""

    def __init__(self) -> None:
        self.moves: Mapping[bytes, tuple[Mode, tuple[str, ...]]] = {}
        self.reason = Reason.OVERLOAD
        self.add = 0
        self.drain: tuple[str, ...] = ()
        self.keep: tuple[str, ...] = ()
        self.fails = False
        self.seen: list[Situation] = []


wish = Wish()


def decide(situation: Situation, settings: BalanceSettings) -> Decision:
    """The given decision, limited to channels and servers of the situation."""
    wish.seen.append(situation)
    if wish.fails:
        raise RuntimeError("no idea")
    names = situation.channels.names.to_pylist()
    ids = situation.hosts.ids
    moves = {channel: place for channel, place in wish.moves.items() if channel in names}
    rows = np.array([names.index(channel) for channel in moves], np.int64)
    placements = Placements.build(
        [MODES.index(mode) for mode, _ in moves.values()],
        [tuple(map(ids.index, servers)) for _, servers in moves.values()],
    )
    return Decision(
        rows,
        placements,
        tuple(wish.reason for _ in moves),
        ("bytes_out", "nobody_knows"),
        np.array([[situation.channels.bytes_out[row], np.nan] for row in rows]).reshape(len(rows), 2),
        wish.add,
        np.array([ids.index(server) for server in wish.drain], np.int32),
        np.array([ids.index(server) for server in wish.keep], np.int32),
        Reason.GROW if wish.add else Reason.SHRINK,
        {"average_ratio": 0.5},
    )
