"""The course of a channel: whatever a publisher knows, and whoever has followed a move or not, what is published and
what agents forward together reach every subscriber."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.support.core_driver import SIGNER, channel_at, ring
from tests.support.dispatch_driver import entry_of, single

from shoal.channels.agent.forward_targets import ForwardTargets
from shoal.plan.book import PlanBook
from shoal.plan.entry import Entry, Phase, check_entry
from shoal.plan.placement import Mode, Placement
from shoal.plan.signature import Verifier
from shoal.rules import ALL_RULES, Rules, without

ALL = ("s1", "s2", "s3", "s4", "s5")
RING = ring(3, ALL)
TILE = channel_at(RING, "s1")
STALE_VERSION = 99
OLD, NEW = single(2, "s2"), single(7, "s3")
MOVES = (Phase.PREPARE, Phase.WIDEN, Phase.SWITCH, Phase.NARROW)


def book_of(entry: Entry | None, members: tuple[str, ...] = ALL) -> PlanBook:
    book = PlanBook(Verifier(SIGNER.public))
    book.accept_ring(SIGNER.ring(ring(3, members)))
    if entry is not None:
        book.accept_entry(SIGNER.line(entry))
    return book


def targets(entry: Entry | None, server: str, rules: Rules = ALL_RULES) -> ForwardTargets:
    return ForwardTargets(book_of(entry), TILE, server, rules)


# The property

server_sets = st.lists(st.sampled_from(ALL), min_size=1, max_size=3, unique=True).map(tuple)


@st.composite
def placements(draw: st.DrawFn, version: int) -> Placement:
    servers = draw(server_sets)
    modes = [Mode.ALL_SUBSCRIBERS, Mode.ALL_PUBLISHERS] + ([Mode.SINGLE] if len(servers) == 1 else [])
    return Placement(version, draw(st.sampled_from(modes)), servers)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    versions = sorted(draw(st.sets(st.integers(1, 20), min_size=2, max_size=4)))
    *earlier, newest = [draw(placements(version)) for version in versions]
    phase = draw(st.sampled_from(Phase))
    if phase is Phase.END:
        return Entry(TILE, newest, phase, revision=30)
    publish = draw(st.sampled_from(earlier)).version if phase in (Phase.PREPARE, Phase.WIDEN) else newest.version
    helped = draw(st.lists(st.sampled_from(ALL), max_size=2, unique=True))
    entry = Entry(TILE, newest, phase, tuple(earlier), publish, 30, helped=tuple(helped))
    check_entry(entry)
    return entry


def reach(book: PlanBook, published: Iterable[str], version: int | None) -> set[str]:
    """Where a message is heard that was published on some servers; no version: it has no header."""
    reached = set(published)
    for server in published:
        here = ForwardTargets(book, TILE, server)
        reached.update(here.of_foreign if version is None else here.of_version(version))
    return reached


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.none(), entries()), st.data())
def test_every_subscriber_is_reached(entry: Entry | None, data: st.DataObject) -> None:
    members = data.draw(st.lists(st.sampled_from(ALL), min_size=2, unique=True).map(tuple))
    book = book_of(entry, members)
    client, publisher = data.draw(st.integers(0, 2**48 - 1)), data.draw(st.integers(0, 2**48 - 1))
    known = [book.placement(TILE), *book.subscribed(TILE), *((*entry.earlier, entry.placement) if entry else ())]
    belief = data.draw(st.one_of(st.sampled_from(known), placements(STALE_VERSION)))
    published = [server for server in belief.publish_servers(publisher) if server in members]
    foreign = data.draw(st.booleans())
    assume(published)
    reached = reach(book, published[:1] if foreign else published, None if foreign else belief.version)
    stands = {server for placement in book.subscribed(TILE) for server in placement.subscribe_servers(client)}
    assert reached & stands, "a subscriber that has followed"
    if entry is None:
        return
    for helped in entry.helped:
        assert helped in reached or helped not in members, "a subscriber that has not, or a foreign one"
    ahead = set(entry.placement.subscribe_servers(client)) & set(members)
    strange = not any(set(published) & set(used.servers) for used in (*entry.earlier, book.placement(TILE)))
    if ahead and (entry.phase is Phase.SWITCH or strange):
        assert reached & ahead, "a subscriber that has been told of the next phase before this agent"


@settings(max_examples=80, deadline=None)
@given(entries(), st.sampled_from(ALL), st.integers(0, 100))
def test_nothing_goes_where_it_was_heard_or_twice_or_out_of_the_ring(entry: Entry, server: str, version: int) -> None:
    book = book_of(entry, ALL[1:])
    here = ForwardTargets(book, TILE, server)
    for targets in (here.of_foreign, here.of_version(version), here.of_streams):
        assert server not in targets
        assert len(set(targets)) == len(targets)
        assert set(targets) <= set(ALL[1:])
    if not here.watched:
        assert here.of_foreign == here.of_version(version) == here.of_streams == ()


# Who is watched


def test_at_home_nothing_is_watched_and_elsewhere_everything() -> None:
    assert not targets(None, "s1").watched
    assert targets(None, "s2").watched
    assert targets(None, "s2").of_foreign == targets(None, "s2").of_version(1) == ("s1",)


@pytest.mark.parametrize("mode", [Mode.SINGLE, Mode.ALL_SUBSCRIBERS])
def test_where_the_channel_has_come_to_rest_nothing_is_watched(mode: Mode) -> None:
    entry = Entry(TILE, Placement(7, mode, ("s2",) if mode is Mode.SINGLE else ("s2", "s3")))
    assert not targets(entry, "s2").watched
    assert targets(entry, "s1").watched, "the home, where strangers come"
    assert targets(entry, "s4").watched


def test_copies_for_all_servers_are_watched_because_of_foreign_messages() -> None:
    entry = Entry(TILE, Placement(7, Mode.ALL_PUBLISHERS, ("s2", "s3")))
    assert targets(entry, "s2").watched
    assert targets(entry, "s2").of_foreign == ("s3",)
    assert targets(entry, "s2").of_version(7) == ()
    assert targets(entry, "s2").quiet_version == 7
    assert targets(entry, "s3").of_version(6) == ("s2",)


@pytest.mark.parametrize("phase", MOVES)
@pytest.mark.parametrize("server", ALL)
def test_a_channel_that_moves_is_watched_everywhere(phase: Phase, server: str) -> None:
    assert targets(entry_of(TILE, phase, 9, NEW, OLD), server).watched


# What goes where in each phase


@pytest.mark.parametrize(
    ("phase", "on_old", "on_new", "at_home"),
    [
        (Phase.PREPARE, {2: (), 1: (), None: ()}, {7: ("s2",), None: ("s2",)}, {1: ("s2", "s3"), None: ("s2", "s3")}),
        (Phase.WIDEN, {2: (), 1: (), None: ()}, {7: ("s2",), None: ("s2",)}, {1: ("s2", "s3"), None: ("s2", "s3")}),
        (Phase.SWITCH, {2: ("s3",), None: ("s3",)}, {7: (), None: ()}, {1: ("s2", "s3"), 2: ("s2", "s3")}),
        (Phase.NARROW, {2: ("s3",), None: ("s3",)}, {7: (), None: (), 2: ()}, {1: ("s3",), None: ("s3",)}),
        (Phase.END, {2: ("s3",), None: ("s3",)}, {7: (), None: ()}, {1: ("s3",), None: ("s3",)}),
    ],
)
def test_what_goes_where(
    phase: Phase,
    on_old: dict[int | None, tuple[str, ...]],
    on_new: dict[int | None, tuple[str, ...]],
    at_home: dict[int | None, tuple[str, ...]],
) -> None:
    entry = entry_of(TILE, phase, 9, NEW, *(() if phase is Phase.END else (OLD,)))
    for server, expected in (("s2", on_old), ("s3", on_new), ("s1", at_home)):
        here = targets(entry, server)
        for version, servers in expected.items():
            found = here.of_foreign if version is None else here.of_version(version)
            assert found == servers, (server, version)


def test_servers_that_are_helped_get_what_does_not_reach_them() -> None:
    entry = entry_of(TILE, Phase.SWITCH, 9, NEW, OLD, helped=("s2", "s3"))
    assert targets(entry, "s3").of_version(7) == ("s2",)
    assert targets(entry, "s3").quiet_version is None
    assert targets(entry, "s2").of_version(2) == ("s3",)


def test_of_servers_that_all_got_a_copy_the_first_one_helps() -> None:
    both = Placement(7, Mode.ALL_PUBLISHERS, ("s3", "s4"))
    entry = entry_of(TILE, Phase.NARROW, 9, both, OLD, helped=("s2", "s4"))
    assert targets(entry, "s3").of_version(7) == ("s2",)
    assert targets(entry, "s4").of_version(7) == ()


def test_who_is_behind() -> None:
    widen = targets(entry_of(TILE, Phase.WIDEN, 9, NEW, OLD), "s2")
    assert [version for version in (1, 2, 7, 8) if widen.is_behind(version)] == [1, 8]
    switch = targets(entry_of(TILE, Phase.SWITCH, 9, NEW, OLD), "s2")
    assert [version for version in (1, 2, 7, 8) if switch.is_behind(version)] == [1, 2, 8]
    assert not targets(None, "s2").is_behind(1), "there is no entry to tell"


def test_who_is_concerned() -> None:
    entry = entry_of(TILE, Phase.NARROW, 9, NEW, OLD, helped=("s4",))
    assert [server for server in ALL if targets(entry, server).concerned] == ["s1", "s2", "s3", "s4"]


# Broken rules


def test_each_rule_can_be_broken() -> None:
    switch = entry_of(TILE, Phase.SWITCH, 9, NEW, OLD, helped=("s4",))
    assert targets(switch, "s2", without("forward_old_to_new")).of_version(2) == ("s4",)
    assert targets(switch, "s3", without("forward_new_to_old")).of_version(7) == ()
    assert targets(switch, "s1", without("home_help")).of_version(1) == ()
    assert targets(switch, "s2", without("home_help")).of_version(2) == ("s3", "s4")
    headers = targets(switch, "s1", without("version_in_header"))
    assert headers.of_version(1) == ("s4",)
    assert headers.of_foreign == ("s2", "s3", "s4")
    assert not headers.is_behind(1)
