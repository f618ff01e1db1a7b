"""The steps of a channel's move when servers leave the ring in the middle of moves, and in histories of any kind."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.mover_store import (
    CHANNEL,
    PREPARE_S,
    SERVERS,
    WIDEN_S,
    Store,
    bare,
    mover,
    place,
    ring_of,
)

from shoal.plan.entry import Entry, Phase, check_entry
from shoal.plan.placement import BY_THE_RING, Mode, at_home
from shoal.plan.steps import is_alive


def without(store: Store, *servers: str) -> None:
    left = tuple(member for member in store.ring.servers if member.id not in servers)
    store.ring = store.ring.next(left)


def test_a_server_that_left_is_not_waited_for() -> None:
    store = Store()
    home, a, b, c = store.home, *store.others
    store.put(Entry(CHANNEL, place(9, a, c, mode=Mode.ALL_PUBLISHERS)))
    store.ask(b)
    store.look()
    store.say(f"{a} {b} {home}", handed=100)
    assert store.look() is None
    without(store, c)
    for phase in (Phase.WIDEN, Phase.SWITCH, Phase.NARROW, Phase.END):
        store.say(f"{a} {b} {store.home}", handed=100)
        entry = store.look()
        assert entry is not None
        assert entry.phase is phase


@pytest.mark.parametrize("phase", [Phase.PREPARE, Phase.WIDEN, Phase.SWITCH])
def test_a_move_to_a_server_that_left_is_given_up(phase: Phase) -> None:
    store = Store()
    store.put(Entry(CHANNEL, place(9, "s2")))
    store.ask("s3")
    store.until(phase)
    without(store, "s3")
    entry = store.look()
    assert entry is not None
    assert bare(entry) == Entry(CHANNEL, place(9, "s2"), revision=entry.newness)
    assert store.dropped == ["none of its servers is in the ring any more"]


@pytest.mark.parametrize(
    ("first", "second", "phase", "publishes"),
    [
        (Phase.WIDEN, Phase.PREPARE, Phase.WIDEN, "s1"),
        (Phase.WIDEN, Phase.WIDEN, Phase.WIDEN, "s1"),
        (Phase.SWITCH, Phase.PREPARE, Phase.SWITCH, "s2"),
        (Phase.WIDEN, Phase.SWITCH, Phase.SWITCH, "s2"),
    ],
)
def test_a_second_move_that_is_given_up_leaves_the_first(
    first: Phase, second: Phase, phase: Phase, publishes: str
) -> None:
    store = Store()
    store.put(Entry(CHANNEL, place(9, "s1")))
    store.ask("s2")
    store.until(first)
    store.ask("s3")
    store.until(second)
    without(store, "s3")
    entry = store.look()
    assert entry is not None
    assert (entry.phase, entry.placement.servers) == (phase, ("s2",))
    assert entry.publishing.servers == (publishes,)
    assert entry.earlier == (place(9, "s1"),)
    assert store.run()[-1] is Phase.END
    assert store.entry().placement.servers == ("s2",)


def test_a_move_that_is_given_up_does_not_end_the_help_of_the_one_before() -> None:
    store = Store()
    store.put(Entry(CHANNEL, place(9, "s1"), Phase.NARROW, (place(8, "s2"),), 0, 12, helped=("s2",)))
    store.all_well()
    store.ask("s3")
    store.look()
    without(store, "s3")
    entry = store.look()
    assert entry is not None
    assert bare(entry) == Entry(CHANNEL, place(14, "s1"), Phase.NARROW, (place(9, "s1"),), 0, 14, helped=("s2",))
    store.all_well()
    store.say("s2", behind=1, here=1)
    assert store.look(100.0) is None
    store.say("s2")
    entry = store.look()
    assert entry is not None
    assert entry.phase is Phase.END


def test_a_move_whose_old_servers_left_begins_again_from_the_home() -> None:
    store = Store()
    home, old, new, _ = store.home, *store.others
    store.put(Entry(CHANNEL, place(9, old)))
    store.ask(new)
    store.look()
    without(store, old)
    entry = store.look()
    assert bare(entry) == Entry(
        CHANNEL, place(11, new), Phase.PREPARE, (at_home(4, home),), BY_THE_RING | 4, 11, helped=(old,)
    )


def test_a_channel_whose_servers_all_left_moves_from_its_home() -> None:
    store = Store()
    home, old, new, _ = store.home, *store.others
    store.put(Entry(CHANNEL, place(9, old)))
    without(store, old)
    store.ask(new)
    entry = store.look()
    assert bare(entry) == Entry(
        CHANNEL, place(10, new), Phase.PREPARE, (at_home(4, home),), BY_THE_RING | 4, 10, helped=(old,)
    )


def test_a_channel_whose_servers_all_left_can_be_placed_at_its_home() -> None:
    """It lives there already, but its entry names a server that may come back."""
    store = Store()
    old = store.others[0]
    store.put(Entry(CHANNEL, place(9, old)))
    without(store, old)
    store.ask(store.home)
    assert Phase.END in store.run()
    assert store.entry().placement.servers == (store.home,)
    store.ask(store.home)
    assert store.look() is None
    assert store.dropped == ["", ""]


def test_subscribers_on_a_server_that_comes_back_are_helped_until_they_have_followed() -> None:
    """They know an entry from before the server left, and by the new ring it sends them to that server again. The move
    that began from the home meanwhile is given up; then nobody must believe that everybody is at home."""
    store = Store()
    old, new = store.others[:2]
    store.put(Entry(CHANNEL, place(9, old)))
    members = store.ring.servers
    without(store, old)
    store.ask(new)
    store.look()
    store.ring = store.ring.next(members)
    store.say(" ".join(server for server in SERVERS if server != old))
    assert store.look() is None
    entry = store.look(PREPARE_S)
    assert entry is not None
    assert (entry.phase, entry.placement.servers, entry.helped) == (Phase.WIDEN, (store.home,), (old,))
    for phase in (Phase.SWITCH, Phase.NARROW):
        store.all_well()
        store.say(old, behind=1, here=1)
        entry = store.look() or store.look(WIDEN_S)
        assert entry is not None
        assert (entry.phase, entry.helped) == (phase, (old,))
    store.all_well()
    store.say(old, behind=1, here=1)
    assert store.look() is None
    assert store.look(WIDEN_S) is None, "whoever stands there is waited for"
    store.all_well()
    entry = store.look()
    assert entry is not None
    assert entry.phase is Phase.END


def test_publishers_follow_the_ring_as_long_as_subscribers_do() -> None:
    """The home of a channel leaves the ring while a move from there is prepared, and comes back after the move was
    given up. Subscribers that know no newer entry are there again."""
    store = Store()
    home, new = store.home, store.others[0]
    members = store.ring.servers
    store.ask(new)
    store.look()
    without(store, home)
    assert store.look() is not None
    assert store.look() is None
    given_up = store.look(PREPARE_S)
    assert given_up is not None
    assert (given_up.phase, given_up.placement.servers) == (Phase.WIDEN, (store.home,))
    assert given_up.publishing.version & BY_THE_RING
    assert store.look() is None
    assert store.look(WIDEN_S) is None, "the agent at home does not know of it"
    store.ring = store.ring.next(members)
    store.ask(store.others[2])
    entry = store.look()
    assert entry is not None
    assert entry.phase is Phase.PREPARE
    assert entry.publishing.version & BY_THE_RING


def test_a_home_that_leaves_while_it_is_given_an_entry_is_followed_by_the_next_one() -> None:
    store = Store()
    store.ask(store.others[0])
    store.look()
    without(store, store.home)
    assert store.look() is not None
    assert store.look() is None
    entry = store.look(PREPARE_S)
    assert entry is not None
    assert entry.phase is Phase.WIDEN
    without(store, store.home)
    entry = store.look()
    assert entry is not None
    assert (entry.phase, entry.placement.servers) == (Phase.WIDEN, (store.home,))
    assert entry.earlier == (at_home(store.ring.version, store.home),)
    assert Phase.END in store.run()
    assert store.entry().placement.servers == (store.home,)


def test_a_dead_placement_is_helped_when_a_later_move_is_given_up() -> None:
    store = Store()
    store.put(Entry(CHANNEL, place(9, "s1")))
    store.ask("s2")
    store.until(Phase.SWITCH)
    store.ask("s3")
    store.until(Phase.PREPARE)
    without(store, "s1", "s3")
    entry = store.look()
    assert entry is not None
    assert (entry.phase, entry.placement.servers, entry.helped) == (Phase.NARROW, ("s2",), ("s1",))


def test_the_end_is_reached_when_the_new_servers_leave_at_last() -> None:
    store = Store()
    store.ask(store.others[0])
    store.until(Phase.NARROW)
    without(store, store.others[0])
    store.all_well()
    store.say(store.home, here=3)
    entry = store.look()
    assert entry is not None
    assert entry.phase is Phase.END


# -- any history -------------------------------------------------------------------------------------------------

servers_ = st.lists(st.sampled_from(SERVERS), min_size=1, max_size=3, unique=True)
events = st.one_of(
    st.tuples(st.just("ask"), servers_, st.sampled_from([Mode.ALL_SUBSCRIBERS, Mode.ALL_PUBLISHERS]), st.booleans()),
    st.tuples(st.just("say"), servers_, st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.just("well")),
    st.tuples(st.just("well")),
    st.tuples(st.just("well")),
    st.tuples(st.just("ring"), servers_),
    st.tuples(st.just("new mover")),
    st.tuples(st.just("pass"), st.sampled_from([0.1, WIDEN_S, PREPARE_S])),
)


def check_step(store: Store, before: Entry | None, after: Entry) -> None:
    """What must hold between an entry and the one that follows it."""
    check_entry(after)
    assert (after.phase is Phase.PREPARE) <= (after.newness == after.placement.version)
    assert after.newness > (before.newness if before else store.ring.version)
    assert after.newness > store.ring.version
    assert after.publishing in after.subscribed, "publishers use a placement without subscribers"
    assert after.follows_from <= after.newness, "everybody is behind, for nobody can confirm what is asked for"
    if before is None or before.phase in (Phase.NARROW, Phase.END):
        return
    if after.phase in (Phase.NARROW, Phase.END) and (before.phase, after.phase) in (
        (Phase.SWITCH, Phase.NARROW),
        (Phase.NARROW, Phase.END),
    ):
        return
    kept = {(placement.mode, placement.servers) for placement in (*after.earlier, after.placement)}
    for placement in before.subscribed:
        gone = not any(server in store.ring.ids for server in placement.servers)
        assert gone or (placement.mode, placement.servers) in kept, "a placement was dropped before its time"


def check_publishers(store: Store, before: Entry | None, after: Entry) -> None:
    """Publishers change to another placement at a switch only, or when theirs has left the ring. So do those that
    follow the ring, also to the same servers."""
    if before is not None and is_alive(before.publishing, store.ring) and before.publishing.version & BY_THE_RING:
        assert after.publishing.version & BY_THE_RING or after.phase is Phase.SWITCH
    if before is None or after.phase is Phase.SWITCH or after.phase in (Phase.NARROW, Phase.END):
        return
    if any(server in store.ring.ids for server in before.publishing.servers):
        assert after.publishing.servers == before.publishing.servers


@settings(deadline=None, max_examples=100)
@given(st.lists(events, max_size=50))
def test_in_any_history_no_placement_is_left_too_early_and_moves_end(history: list[tuple]) -> None:  # type: ignore[type-arg]
    store = Store()
    for event in history:
        match event:
            case ("ask", servers, mode, eager):
                store.ask(*servers, mode=Mode.SINGLE if len(servers) == 1 else mode, eager=eager)
            case ("say", servers, back, behind, here) if CHANNEL in store.entries:
                revision = store.entry().newness - back
                store.say(" ".join(servers), revision=revision, handed=revision, behind=behind, here=here)
            case ("well",) if CHANNEL in store.entries:
                store.all_well()
            case ("ring", servers):
                store.ring = store.ring.next(ring_of(0, *servers).servers)
            case ("new mover",):
                store.mover = mover()
            case ("pass", seconds):
                store.now += seconds
        before = store.entry() if CHANNEL in store.entries else None
        after = store.look()
        if after is not None:
            check_step(store, before, after)
            check_publishers(store, before, after)
    store.run(12)
    assert store.requests == {}
    if CHANNEL in store.entries:
        assert store.entry().phase is Phase.END, "a move whose agents all report well ends"
