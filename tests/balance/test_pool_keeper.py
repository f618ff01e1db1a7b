"""When a drained server counts as empty, with any clocks."""

from __future__ import annotations

import pytest
from tests.balance.balancer_scene import T, ring_of, window_of

from shoal.balance.effects import BalancerView, ProviderState, PutMark, RemoveServer
from shoal.balance.pool_keeper import PoolKeeper, Quietness
from shoal.plan.keys import Mark

EMPTY_S = 5.0
RING = ring_of("s1", "s2", guests=("s2",))


def steps(pool: PoolKeeper, quiet: Quietness, now_s: float) -> list[PutMark | RemoveServer]:
    view = BalancerView(RING, {}, {}, {"s2": Mark.DRAIN}, ProviderState(1, 9, ("s1", "s2")))
    return list(pool.steps(view, RING, quiet, set(), now_s))


@pytest.mark.parametrize("ahead_s", [0, 2])
def test_a_server_must_be_empty_for_the_whole_time_even_if_its_clock_is_ahead(ahead_s: int) -> None:
    """If a clock is ahead, windows end in the future: their load was measured before the server was drained."""
    pool, quiet = PoolKeeper(EMPTY_S, retry_s=1.0), Quietness()
    left_at = None
    for now_s in range(T, T + 20, 2):
        quiet.learn(window_of(now_s + ahead_s - 2, ["s1", "s2"]))
        if steps(pool, quiet, float(now_s)) and left_at is None:
            left_at = now_s
    assert left_at is not None
    assert left_at - T >= EMPTY_S


def test_without_the_rule_a_server_leaves_at_once() -> None:
    pool = PoolKeeper(EMPTY_S, retry_s=1.0, is_confirmed=False)
    assert [step.mark for step in steps(pool, Quietness(), float(T)) if isinstance(step, PutMark)] == [Mark.OUT]
