"""The steps of a channel's move: the phases, what each waits for, and what becomes of requests."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.support.mover_store import (
    CHANNEL,
    PREPARE_S,
    SERVERS,
    SIGNER,
    WIDEN_S,
    Store,
    bare,
    mover,
    place,
)

from shoal.coordination.interface import Versioned
from shoal.plan import steps
from shoal.plan.conductor import ConductorView
from shoal.plan.entry import Entry, Phase
from shoal.plan.move_request import MoveRequest, encode_request
from shoal.plan.placement import BY_THE_RING, Mode, Placement, at_home
from shoal.plan.signature import Signer
from shoal.rules import without


def test_a_move_from_home_goes_through_all_phases() -> None:
    store = Store()
    target, home = store.others[0], store.home
    store.ask(target)
    assert store.run() == [Phase.PREPARE, Phase.WIDEN, Phase.SWITCH, Phase.NARROW, Phase.END]
    prepare, widen, switch, narrow, end = map(bare, store.written)
    old, new = at_home(3, home), place(4, target)
    assert prepare == Entry(CHANNEL, new, Phase.PREPARE, (old,), old.version, 4)
    assert widen == Entry(CHANNEL, new, Phase.WIDEN, (old,), old.version, 5)
    assert switch == Entry(CHANNEL, new, Phase.SWITCH, (old,), 0, 6)
    assert narrow == Entry(CHANNEL, new, Phase.NARROW, (old,), 0, 7)
    assert end == Entry(CHANNEL, new, Phase.END, (), 0, 8)
    assert store.dropped == [""]


def test_an_entry_that_does_not_move_is_left_alone() -> None:
    store = Store()
    store.put(Entry(CHANNEL, place(2, "s2")))
    assert store.run() == []
    assert store.mover.next_check_s is None


def test_a_move_begins_where_the_entry_says() -> None:
    store = Store()
    store.put(Entry(CHANNEL, place(9, "s2"), revision=12))
    store.ask("s3", "s4", mode=Mode.ALL_PUBLISHERS, eager=True)
    entry = store.look()
    newest = place(13, "s3", "s4", mode=Mode.ALL_PUBLISHERS)
    assert bare(entry) == Entry(CHANNEL, newest, Phase.PREPARE, (place(9, "s2"),), 9, 13, eager=True)


def test_prepare_waits_for_the_agents_of_all_servers_concerned() -> None:
    store = Store()
    home, old, new, stranger = store.home, *store.others
    store.put(Entry(CHANNEL, place(9, old)))
    store.ask(new)
    store.look()
    store.say(f"{old} {new} {stranger}")
    assert store.look() is None, "the home's agent does not know yet"
    store.say(home, revision=store.entry().newness - 1)
    assert store.look() is None
    store.say(home)
    entry = store.look()
    assert entry is not None
    assert entry.phase is Phase.WIDEN


def test_a_move_that_agents_do_not_learn_of_is_given_up() -> None:
    store = Store()
    store.put(Entry(CHANNEL, place(9, "s2")))
    store.ask("s3")
    store.until(Phase.PREPARE)
    store.say("s1 s2 s4")
    assert store.look(PREPARE_S / 2) is None
    assert store.mover.next_check_s == pytest.approx(PREPARE_S / 2)
    entry = store.look(PREPARE_S / 2 + 0.1)
    assert bare(entry) == Entry(CHANNEL, place(9, "s2"), revision=11)
    assert store.dropped == ["the agents of s3 did not learn of it within 10 s"]
    assert store.given_up == store.dropped
    assert store.look(PREPARE_S) is None


def test_widen_waits_for_subscribers_and_needs_no_help_then() -> None:
    store = Store()
    store.ask(store.others[0])
    store.until(Phase.WIDEN)
    store.all_well()
    store.say(store.home, behind=1)
    assert store.look() is None
    store.say(store.home, behind=0, here=1)
    entry = store.look()
    assert entry is not None
    assert (entry.phase, entry.helped) == (Phase.SWITCH, ())


def test_after_the_widen_timeout_those_behind_are_helped() -> None:
    store = Store()
    store.ask(store.others[0])
    store.until(Phase.WIDEN)
    store.all_well()
    store.say(store.home, behind=2)
    store.look()
    assert store.mover.next_check_s == pytest.approx(WIDEN_S - 0.1)
    entry = store.look(WIDEN_S + 0.1)
    assert entry is not None
    assert (entry.phase, entry.helped) == (Phase.SWITCH, (store.home,))


def test_a_server_whose_agent_is_silent_is_helped_too() -> None:
    store = Store()
    store.ask(store.others[0])
    store.until(Phase.WIDEN)
    store.say(store.others[0])
    entry = store.look(WIDEN_S + 0.1)
    assert entry is not None
    assert (entry.phase, entry.helped) == (Phase.SWITCH, (store.home,))


def test_publishers_are_not_sent_to_a_server_whose_agent_is_silent() -> None:
    store = Store()
    target = store.others[0]
    store.ask(target)
    store.until(Phase.WIDEN)
    store.say(store.home)
    assert store.look(10 * WIDEN_S) is None
    store.say(target, behind=1)
    entry = store.look()
    assert entry is not None
    assert (entry.phase, entry.helped) == (Phase.SWITCH, ()), "all that is published comes by the target itself"


def test_a_spread_placement_helps_those_behind_on_its_own_servers() -> None:
    store = Store()
    home, other = store.home, store.others[0]
    store.ask(home, other, mode=Mode.ALL_SUBSCRIBERS)
    store.until(Phase.WIDEN)
    store.all_well()
    store.say(home, behind=1)
    entry = store.look(WIDEN_S + 0.1)
    assert entry is not None
    assert (entry.phase, entry.helped) == (Phase.SWITCH, (home,)), "publishers may use the other server only"


def test_switch_waits_until_the_old_servers_have_handed_over() -> None:
    store = Store()
    home, other, target, _ = store.home, *store.others
    store.put(Entry(CHANNEL, place(9, home, other, mode=Mode.ALL_SUBSCRIBERS)))
    store.ask(target)
    switch = store.until(Phase.SWITCH)
    store.say(home, handed=switch.newness)
    store.say(other, handed=switch.newness - 1)
    assert store.look(100.0) is None
    store.say(other, handed=switch.newness)
    entry = store.look()
    assert entry is not None
    assert entry.phase is Phase.NARROW


def test_narrow_ends_when_nobody_is_behind_and_nobody_is_left() -> None:
    store = Store()
    target, home = store.others[0], store.home
    store.ask(target)
    store.until(Phase.NARROW)
    store.all_well()
    store.say(target, here=5, behind=1)
    assert store.look() is None
    store.say(target, here=5)
    store.say(home, here=1)
    assert store.look() is None
    store.say(home)
    entry = store.look()
    assert entry is not None
    assert entry.phase is Phase.END


def test_who_does_not_leave_is_helped_after_a_while() -> None:
    store = Store()
    target, home = store.others[0], store.home
    store.ask(target)
    narrow = store.until(Phase.NARROW)
    assert narrow.helped == ()
    store.all_well()
    store.say(home, behind=1, here=1)
    assert store.look() is None, "it stands at the target too"
    entry = store.look(WIDEN_S + 0.1)
    assert entry is not None
    assert (entry.phase, entry.helped, entry.newness) == (Phase.NARROW, (home,), narrow.newness + 1)
    store.all_well()
    store.say(home, behind=1, here=1)
    assert store.look(100.0) is None
    store.say(home)
    entry = store.look()
    assert entry is not None
    assert (entry.phase, entry.helped) == (Phase.END, ())


def test_help_is_taken_back_where_nobody_needs_it() -> None:
    store = Store()
    a, b, c, _ = SERVERS
    stranger = Entry(CHANNEL, place(9, a), Phase.NARROW, (place(8, b, c, mode=Mode.ALL_PUBLISHERS),), 0, 12, True)
    store.put(replace(stranger, helped=(b, c)))
    store.all_well()
    store.say(c, behind=1, here=1)
    store.look()
    entry = store.look(WIDEN_S + 0.1)
    assert entry is not None
    assert entry.helped == (c,)


def test_the_end_of_a_move_is_not_waited_for_where_only_the_idle_are_missing() -> None:
    store = Store()
    store.ask(store.others[0])
    store.until(Phase.NARROW)
    store.all_well()
    store.say(store.home, behind=1, here=1, spoken=False)
    assert store.look() is None
    assert store.dropped == [], "it may just not have come to it"
    assert store.look(WIDEN_S / 2) is None
    assert store.dropped == [""]
    store.say(store.home)
    entry = store.look()
    assert entry is not None
    assert entry.phase is Phase.END


def test_the_end_of_a_move_is_not_waited_for_because_of_strangers() -> None:
    store = Store()
    store.ask(store.others[0])
    store.until(Phase.NARROW)
    store.all_well()
    store.say(store.home, behind=1, here=1)
    store.look()
    assert store.dropped == []
    store.look(WIDEN_S + 0.1)
    store.all_well()
    store.say(store.home, behind=1, here=1)
    store.look(WIDEN_S + 0.1)
    assert store.dropped == [""]


def test_a_second_move_keeps_every_placement_that_has_not_ended() -> None:
    store = Store()
    home, a, b, c = store.home, *store.others
    store.ask(a)
    store.until(Phase.WIDEN)
    store.ask(b)
    entry = store.look()
    assert entry is not None
    assert entry.phase is Phase.PREPARE
    assert [placement.servers for placement in entry.earlier] == [(home,), (a,)]
    assert entry.publishing.servers == (home,)
    store.until(Phase.SWITCH)
    store.ask(c)
    entry = store.look()
    assert entry is not None
    assert [placement.servers for placement in entry.earlier] == [(home,), (a,), (b,)]
    assert entry.publishing.servers == (b,)
    assert store.run()[-1] is Phase.END
    assert store.entry().placement.servers == (c,)
    assert store.dropped == [""]


def test_a_new_target_before_anybody_knew_of_the_old_one_replaces_it() -> None:
    store = Store()
    home, a, b, _ = store.home, *store.others
    store.ask(a)
    store.look()
    store.ask(b)
    entry = store.look()
    assert bare(entry) == Entry(CHANNEL, place(5, b), Phase.PREPARE, (at_home(3, home),), BY_THE_RING | 3, 5)


def test_a_second_move_while_subscribers_leave_keeps_the_help() -> None:
    store = Store()
    home, a, b, _ = store.home, *store.others
    store.ask(a)
    store.until(Phase.NARROW)
    store.all_well()
    store.say(home, behind=1, here=1)
    store.ask(b)
    entry = store.look()
    assert entry is not None
    assert (entry.phase, entry.helped) == (Phase.PREPARE, (home,))
    assert [placement.servers for placement in entry.earlier] == [(a,)]


def test_back_to_where_nobody_has_left_yet_is_the_end() -> None:
    store = Store()
    store.ask(store.others[0])
    store.look()
    store.ask(store.home)
    entry = store.look()
    assert bare(entry) == Entry(CHANNEL, at_home(3, store.home), revision=5)
    assert store.dropped == ["the channel lives there already"]


def test_back_in_the_middle_is_one_more_move() -> None:
    store = Store()
    store.ask(store.others[0])
    store.until(Phase.SWITCH)
    store.ask(store.home)
    entry = store.look()
    assert entry is not None
    assert [placement.servers for placement in entry.earlier] == [(store.home,), (store.others[0],)]
    assert store.run()[-1] is Phase.END
    assert store.entry().placement.servers == (store.home,)


def test_a_request_that_asks_for_haste_makes_a_running_move_eager() -> None:
    store = Store()
    store.ask(store.others[0])
    widen = store.until(Phase.WIDEN)
    store.ask(store.others[0], eager=True)
    entry = store.look()
    assert entry == replace(widen, eager=True, revision=widen.newness + 1)
    assert store.run() == [Phase.SWITCH, Phase.NARROW, Phase.END]
    assert not store.entry().eager


def test_haste_before_the_agents_know_begins_the_move_again() -> None:
    """The revision after that of a placement is taken for one that widens (`Entry.follows_from`)."""
    store = Store()
    store.ask(store.others[0])
    store.until(Phase.PREPARE)
    store.ask(store.others[0], eager=True)
    entry = store.look()
    assert bare(entry) == Entry(
        CHANNEL, place(5, store.others[0]), Phase.PREPARE, (at_home(3, store.home),), BY_THE_RING | 3, 5, True
    )


def test_more_help_and_haste_are_no_new_phase() -> None:
    store = Store()
    store.ask(store.others[0])
    narrow = store.until(Phase.NARROW)
    store.all_well()
    store.say(store.home, behind=1, here=1)
    helping = store.look(WIDEN_S)
    assert helping is not None
    assert (helping.helped, helping.since) == ((store.home,), narrow.newness)
    store.ask(store.others[0], eager=True)
    hurried = store.look()
    assert hurried is not None
    assert (hurried.newness, hurried.since) == (narrow.newness + 2, narrow.newness)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (MoveRequest(CHANNEL, ("s9",), Mode.SINGLE, False, "x"), "the ring has no server s9"),
        (MoveRequest(CHANNEL, ("s1", "s2"), Mode.SINGLE, False, "x"), "one server, not 2"),
        (MoveRequest(CHANNEL, (), Mode.ALL_PUBLISHERS, False, "x"), "at least one server"),
        (MoveRequest(b"other", ("s1",), Mode.SINGLE, False, "x"), "names another channel"),
        (MoveRequest(CHANNEL, ("s2",), Mode.SINGLE, True, "x", goes_there=True), "not moving there"),
    ],
)
def test_a_request_that_makes_no_sense_is_dropped(request_: MoveRequest, reason: str) -> None:
    store = Store()
    store.requests[CHANNEL] = Versioned(encode_request(request_), 7)
    assert store.look() is None
    assert reason in store.dropped[0]
    assert store.entries == {}


def test_nothing_is_moved_to_a_server_that_is_being_removed() -> None:
    """It leaves the ring once it is empty, and would take the channel with it."""
    store = Store()
    store.leaving = {store.others[0]}
    store.ask(store.others[0])
    assert store.look() is None
    assert store.dropped == [f"nothing new is placed on {store.others[0]}, which is being removed"]
    store.ask(store.others[1])
    assert store.look() is not None


def test_a_channel_may_stay_on_a_server_that_is_being_removed() -> None:
    """Another of its servers has died: the channel is placed where it still is, and moves away later."""
    store = Store()
    dying, staying = store.others[:2]
    store.put(Entry(CHANNEL, Placement(9, Mode.ALL_SUBSCRIBERS, (dying, staying)), Phase.END))
    store.leaving = {staying}
    store.ask(staying)
    assert store.look() is not None
    assert store.dropped == []


def test_a_move_goes_on_although_its_server_is_to_be_removed() -> None:
    """It is removed when no entry names it any more."""
    store = Store()
    store.ask(store.others[0])
    assert store.look() is not None
    store.leaving = {store.others[0]}
    store.until(Phase.NARROW)
    assert store.entry().placement.servers == (store.others[0],)


def test_garbage_is_dropped() -> None:
    store = Store()
    store.requests[CHANNEL] = Versioned(b"garbage", 7)
    assert store.look() is None
    assert "cannot be read" in store.dropped[0]


def test_a_request_for_where_the_channel_lives_is_dropped() -> None:
    store = Store()
    store.ask(store.home)
    assert store.look() is None
    assert store.dropped == ["the channel lives there already"]


def test_a_bad_request_does_not_stop_the_move_that_runs() -> None:
    store = Store()
    store.ask(store.others[0])
    store.until(Phase.WIDEN)
    store.all_well()
    store.ask("s9")
    entry = store.look()
    assert entry is not None
    assert entry.phase is Phase.SWITCH
    assert store.dropped == ["the ring has no server s9"]


def test_a_forged_entry_counts_as_none() -> None:
    store = Store()
    forged = Signer(Signer.generate()).line(Entry(CHANNEL, place(50, "s4")))
    store.entries[CHANNEL] = Versioned(forged, 7)
    assert store.look() is None
    store.version = 7
    store.ask(store.others[0])
    entry = store.look()
    assert entry is not None
    assert entry.earlier == (at_home(3, store.home),)


def test_an_entry_under_the_name_of_another_channel_counts_as_none() -> None:
    store = Store()
    moving = Entry(b"other", place(9, "s1"), Phase.SWITCH, (place(8, "s2"),))
    store.entries[CHANNEL] = Versioned(SIGNER.line(moving), 7)
    store.say("s1 s2 s3 s4")
    assert store.run() == []


def test_without_a_ring_nothing_is_decided() -> None:
    new = mover()
    request = MoveRequest(CHANNEL, ("s1",), Mode.SINGLE, False, "x")
    assert new.observe(ConductorView(None, {}, {CHANNEL: Versioned(encode_request(request), 1)}, {}), 1.0) == []
    assert new.next_check_s is None


def test_many_channels_move_at_once() -> None:
    store = Store()
    channels = [b"tile.%d" % number for number in range(50)]
    for channel in channels:
        store.ask(next(id for id in SERVERS if id != store.ring.home(channel)), channel=channel)
    store.run(6)
    assert {store.entry(channel).phase for channel in channels} == {Phase.END}
    assert store.mover.moving == 0
    assert store.dropped == [""] * 50


@pytest.mark.parametrize("phase", [Phase.PREPARE, Phase.WIDEN, Phase.SWITCH, Phase.NARROW])
def test_a_new_mover_goes_on(phase: Phase) -> None:
    store = Store()
    store.ask(store.others[0])
    store.until(phase)
    store.mover = mover()
    assert store.run()[-1] is Phase.END
    assert len(store.written) == 5


def test_the_timeouts_of_a_new_mover_begin_with_its_first_look() -> None:
    store = Store()
    store.ask(store.others[0])
    store.look()
    store.look(PREPARE_S - 1)
    store.mover = mover()
    assert store.look(2.0) is None
    entry = store.look(PREPARE_S)
    assert entry is not None
    assert entry.phase is Phase.END


# -- rules that can be broken ------------------------------------------------------------------------------------


def test_without_the_rule_prepare_the_mover_does_not_wait() -> None:
    store = Store(rules=without("prepare"))
    store.ask(store.others[0])
    assert [store.look(), store.look()] == store.written
    assert [entry.phase for entry in store.written] == [Phase.PREPARE, Phase.WIDEN]


def test_without_the_rule_widen_before_switch_publishers_go_first() -> None:
    store = Store(rules=without("widen_before_switch"))
    store.ask(store.others[0])
    assert store.run() == [Phase.PREPARE, Phase.SWITCH, Phase.NARROW, Phase.END]
    assert all(entry.helped == () for entry in store.written)


# -- the table ---------------------------------------------------------------------------------------------------


def test_every_phase_can_be_reached_and_left() -> None:
    assert {phase for phase, _ in steps.MOVE} == {*Phase}
    assert {*steps.MOVE.values()} == {*Phase}


def test_an_event_that_the_table_does_not_know_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="cannot take"):
        steps.step(Phase.END, "all left")
