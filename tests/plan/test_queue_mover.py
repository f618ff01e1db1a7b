"""The phases of a shard's move, and what each store has to do in them."""

from __future__ import annotations

import msgspec
import pytest

from shoal.limits import DEFAULT_LIMITS
from shoal.plan.queue_entry import QueueEntry, ShardPhase
from shoal.plan.queue_mover import (
    MOVE,
    abandon,
    begin,
    first_states,
    give_up,
    next_step,
    pause_s,
    renewed_states,
    settings_at,
    step,
    wanted_states,
)
from shoal.plan.queue_settings import QueueSettings
from shoal.plan.ring import ServerAddress
from shoal.queues.shard_mover import ShardStatus

Q1, Q2, Q3 = (ServerAddress(name, "h", number) for number, name in enumerate(("q1", "q2", "q3"), 1))


def entry_of(places: tuple[int, ...] = (0, 0, 0, 0), stores: tuple[ServerAddress, ...] = (Q1,)) -> QueueEntry:
    settings = QueueSettings(shards=len(places), messages_max=1000)
    return QueueEntry(b"orders", 7, 5, settings, stores, places)


def go_on(entry: QueueEntry, said: ShardStatus | None, age_s: float = 0.0) -> tuple[QueueEntry | None, str | None]:
    found, why = next_step(entry, said, lambda timeout_s: age_s >= timeout_s, DEFAULT_LIMITS)
    if found is not None:
        found.check()
        assert found.revision == entry.revision + 1
        assert found.version == entry.version
    return found, why


def moving(wanted: dict[int, ServerAddress] | None = None) -> QueueEntry:
    entry = begin(entry_of(), wanted or {1: Q2})
    assert entry is not None
    entry.check()
    return entry


def test_a_shard_moves_in_three_phases_and_the_entry_places_it_when_it_is_copied() -> None:
    entry = moving()
    assert entry.is_moving
    assert go_on(entry, None) == (None, None)
    assert go_on(entry, ShardStatus(entry.newness - 1)) == (None, None)
    copy, _ = go_on(entry, ShardStatus(entry.newness))
    assert copy is not None
    assert copy.move is not None
    assert copy.move.phase is ShardPhase.COPY
    assert copy.store_of(1) == Q1
    assert go_on(copy, ShardStatus(copy.newness)) == (None, None)
    opened, _ = go_on(copy, ShardStatus(copy.newness, copied=copy.move.since))
    assert opened is not None
    assert opened.move is not None
    assert opened.move.phase is ShardPhase.OPEN
    assert opened.store_of(1) == Q2
    assert go_on(opened, ShardStatus(copy.newness, copied=copy.move.since), age_s=1e9) == (None, None), "it must end"
    ended, why = go_on(opened, ShardStatus(opened.newness))
    assert why is None
    assert ended is not None
    assert not ended.is_moving
    assert ended.places == (0, 1, 0, 0)
    assert [store.id for store in ended.stores] == ["q1", "q2"]
    assert len({entry.stage, copy.stage, opened.stage, ended.stage}) == 4


def test_one_request_moves_many_shards_one_at_a_time_and_an_empty_store_is_not_listed() -> None:
    entry: QueueEntry | None = moving(dict.fromkeys(range(4), Q2))
    order = []
    while entry is not None and entry.move is not None:
        if entry.move.phase is ShardPhase.OPEN:
            order.append(entry.move.shard)
        entry, _ = go_on(entry, ShardStatus(entry.newness, copied=entry.move.since))
    assert order == [0, 1, 2, 3]
    assert entry is not None
    assert entry.stores == (Q2,)
    assert entry.places == (0, 0, 0, 0)


@pytest.mark.parametrize("phase", [ShardPhase.PREPARE, ShardPhase.COPY])
def test_a_move_is_given_up_before_the_switch_and_never_after_it(phase: ShardPhase) -> None:
    entry: QueueEntry | None = moving()
    if phase is ShardPhase.COPY:
        assert entry is not None
        entry, _ = go_on(entry, ShardStatus(entry.newness))
    assert entry is not None
    assert entry.move is not None
    late, why = go_on(entry, None, age_s=1000.0)
    assert late is not None
    assert not late.is_moving
    assert late.places == (0, 0, 0, 0)
    assert why is not None
    assert "q2" in why
    refused, why = go_on(entry, ShardStatus(refused=entry.move.since, trouble="no memory"))
    assert refused is not None
    assert why is not None
    assert "no memory" in why
    assert go_on(entry, ShardStatus(refused=3, trouble="of an earlier move")) == (None, None)
    assert give_up(entry).revision > entry.revision
    with pytest.raises(AssertionError):
        step(ShardPhase.OPEN, "given up")
    assert all(phase is not ShardPhase.OPEN or event != "given up" for phase, event in MOVE)


def test_impossible_requests_are_refused_and_fulfilled_ones_change_nothing() -> None:
    assert begin(entry_of(), {0: Q1}) is None
    with pytest.raises(ValueError, match="no shard 9"):
        begin(entry_of(), {9: Q2})
    with pytest.raises(ValueError, match="moving already"):
        begin(moving(), {0: Q3})


def test_each_store_has_one_wanted_state_for_each_shard_in_each_phase() -> None:
    entry = moving()
    assert (wanted_states(entry, "q1"), wanted_states(entry, "q2")) == ("oooo", "gigg")
    copy, _ = go_on(entry, ShardStatus(entry.newness))
    assert copy is not None
    assert (wanted_states(copy, "q1"), wanted_states(copy, "q2")) == ("o.oo", "gigg")
    opened, _ = go_on(copy, ShardStatus(copy.newness, copied=entry.revision))
    assert opened is not None
    assert (wanted_states(opened, "q1"), wanted_states(opened, "q2")) == ("ogoo", "gogg")
    assert (wanted_states(give_up(copy), "q1"), wanted_states(give_up(copy), "q2")) == ("oooo", "gggg")
    assert first_states(opened, "q2") == "aoaa"


def test_after_an_abandon_each_shard_continues_or_begins_empty() -> None:
    """What a store must do depends on the version that it has: it may have missed an entry."""
    first = abandon(entry_of((0, 1, 2, 2), (Q1, Q2, Q3)), ["q1"], Q2, 9)
    first.check()
    assert (first.version, first.heirs, first.began) == (9, ("q2", "q3"), (9, 5, 5, 5))
    assert (renewed_states(first, "q2", 5), renewed_states(first, "q3", 5)) == ("eoaa", "aaoo")
    second = abandon(first, ["q3"], Q2, 20)
    second.check()
    assert (second.inherits, second.heirs, second.began) == (5, ("q2",), (9, 5, 20, 20))
    assert (renewed_states(second, "q2", 5), renewed_states(second, "q2", 9)) == ("eoee", "ooee")


def test_limits_are_exact_on_one_store_and_divided_by_shards_on_several() -> None:
    assert settings_at(entry_of(), "q1").messages_max == 1000
    spread = entry_of((0, 1, 1, 1), (Q1, Q2))
    assert [settings_at(spread, store).messages_max for store in ("q1", "q2", "q3")] == [250, 750, 1]
    assert settings_at(spread, "q1").lease_s == spread.settings.lease_s


def test_the_pause_grows_with_messages_bytes_and_ids() -> None:
    assert pause_s(0, 0, 0) < pause_s(1000, 0, 0) < pause_s(1000, 10**6, 0) < pause_s(1000, 10**6, 1000)
    assert pause_s(6000, 6000 * 150, 0) < DEFAULT_LIMITS.move_pause_s_max < pause_s(10**6, 10**8, 0)


def test_entries_with_an_inconsistent_move_are_refused() -> None:
    entry = moving()
    assert entry.move is not None
    for wrong in (
        msgspec.structs.replace(entry, target=()),
        msgspec.structs.replace(entry, move=None),
        msgspec.structs.replace(entry, target=(0, 1)),
        msgspec.structs.replace(entry, move=msgspec.structs.replace(entry.move, shard=4)),
        msgspec.structs.replace(entry, move=msgspec.structs.replace(entry.move, shard=0)),
        msgspec.structs.replace(entry, move=msgspec.structs.replace(entry.move, source="q2")),
        msgspec.structs.replace(entry, move=msgspec.structs.replace(entry.move, phase=ShardPhase.OPEN)),
        msgspec.structs.replace(entry, move=msgspec.structs.replace(entry.move, since=99)),
    ):
        with pytest.raises(ValueError, match="queue"):
            wrong.check()
