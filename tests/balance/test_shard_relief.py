"""Overloaded stores are relieved: never worse, never for ever, never back and forth."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.balance.shard_relief import GAIN_MIN, GOAL, HIGH, MESSAGES_MAX, SHARDS_MAX, ShardUse, Share, relieve


def shards_of(queue: bytes, store: str, *busy: float, messages: int = 10, first: int = 0) -> list[ShardUse]:
    return [ShardUse(queue, first + at, store, Share(each, 0.0), messages) for at, each in enumerate(busy)]


def loads(shards: list[ShardUse], *stores: str, idle: float = 0.0) -> dict[str, Share]:
    found = {store: Share(idle, 0.0) for store in stores}
    for shard in shards:
        found[shard.store] = found[shard.store].plus(shard.use)
    return found


def test_nothing_moves_while_no_store_is_overloaded() -> None:
    shards = shards_of(b"a", "q1", 0.3, 0.39)
    assert relieve(loads(shards, "q1", "q2"), shards) is None


def test_a_whole_queue_goes_if_that_suffices() -> None:
    shards = shards_of(b"a", "q1", 0.3, 0.3) + shards_of(b"b", "q1", 0.1, 0.1)
    relief = relieve(loads(shards, "q1", "q2"), shards)
    assert relief is not None
    assert (relief.queue, relief.shards, relief.source, relief.target) == (b"b", (0, 1), "q1", "q2")


def test_else_shards_of_the_busiest_queue_with_few_messages_first() -> None:
    shards = shards_of(b"a", "q1", 0.2, 0.2, messages=4000) + shards_of(b"a", "q1", 0.2, 0.2, first=2)
    shards += shards_of(b"b", "q1", 0.06)
    relief = relieve(loads(shards, "q1", "q2"), shards)
    assert relief is not None
    assert (relief.queue, relief.shards, relief.target) == (b"a", (2, 3), "q2")


def test_a_store_that_has_the_queue_is_preferred() -> None:
    shards = shards_of(b"a", "q1", 0.4, 0.2, 0.2) + shards_of(b"a", "q3", 0.01, first=3)
    relief = relieve(loads(shards, "q1", "q2", "q3"), shards)
    assert relief is not None
    assert relief.target == "q3"


def test_the_only_busy_shard_stays_and_the_others_leave_it() -> None:
    only = shards_of(b"a", "q1", 0.9, 0.0)
    assert relieve(loads(only, "q1", "q2"), only) is None
    shards = shards_of(b"a", "q1", 0.65, 0.1, 0.1)
    relief = relieve(loads(shards, "q1", "q2"), shards)
    assert relief is not None
    assert relief.shards == (1, 2)


def test_a_new_store_is_wanted_if_the_others_have_no_room() -> None:
    shards = shards_of(b"a", "q1", 0.4, 0.4) + shards_of(b"b", "q2", 0.49)
    relief = relieve(loads(shards, "q1", "q2"), shards)
    assert relief is not None
    assert relief.target is None
    assert relieve(loads(shards, "q1", "q2", "q3"), shards) is not None


def test_large_shards_and_those_of_others_stay() -> None:
    shards = shards_of(b"a", "q1", 0.4, 0.4)
    for stay in (
        [shard._replace(messages=MESSAGES_MAX + 1) for shard in shards],
        [shard._replace(may_move=False) for shard in shards],
    ):
        assert relieve(loads(stay, "q1", "q2"), stay) is None


def test_memory_counts_like_time() -> None:
    shards = [ShardUse(b"a", at, "q1", Share(0.01, 0.3), 10) for at in range(3)]
    relief = relieve({"q1": Share(0.03, 0.9), "q2": Share(0.0, 0.1)}, shards)
    assert relief is not None
    assert (relief.shards, relief.target) == ((0,), "q2")


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[str, Share], list[ShardUse]]:
    stores = [f"q{number}" for number in range(draw(st.integers(1, 5)))]
    shards: list[ShardUse] = []
    for queue in range(draw(st.integers(0, 5))):
        spread = draw(st.booleans())
        home = draw(st.sampled_from(stores))
        for shard in range(draw(st.integers(1, 20))):
            use = Share(draw(st.sampled_from([0.0, 0.001, 0.02, 0.1, 0.4])), draw(st.sampled_from([0.0, 0.01, 0.2])))
            store = draw(st.sampled_from(stores)) if spread else home
            messages = draw(st.sampled_from([0, 10, 4_000, 50_000]))
            shards.append(ShardUse(b"%d" % queue, shard, store, use, messages, draw(st.integers(0, 5)) > 0))
    idle = draw(st.sampled_from([0.0, 0.1, 0.6]))
    return loads(shards, *stores, idle=idle), shards


@given(clusters())
@settings(deadline=None)
def test_a_plan_never_makes_it_worse_and_plans_end(cluster: tuple[dict[str, Share], list[ShardUse]]) -> None:
    stores, shards = cluster
    moved: set[tuple[bytes, int]] = set()
    for _ in range(200):
        relief = relieve(stores, shards)
        if relief is None or relief.target is None:
            break
        assert 1 <= len(relief.shards) <= SHARDS_MAX
        going = [shard for shard in shards if shard.queue == relief.queue and shard.shard in relief.shards]
        assert all(shard.store == relief.source and shard.may_move for shard in going)
        assert all(shard.messages <= MESSAGES_MAX for shard in going)
        assert not moved & {(shard.queue, shard.shard) for shard in going}, "a shard moves back and forth"
        moved |= {(shard.queue, shard.shard) for shard in going}
        shards = [shard._replace(store=relief.target) if shard in going else shard for shard in shards]
        before, after = stores, dict(stores)
        lost = Share(-relief.use.busy, -relief.use.memory)
        after[relief.source] = before[relief.source].plus(lost)
        after[relief.target] = before[relief.target].plus(relief.use)
        assert before[relief.source].most > HIGH
        assert after[relief.target].most <= GOAL + 1e-9
        assert relief.use.most >= GAIN_MIN
        assert max(share.most for share in after.values()) <= max(share.most for share in before.values()) + 1e-9
        stores = after
    else:
        pytest.fail("plans do not end")
