"""Entries: what each phase means, and which of them cannot be."""

from __future__ import annotations

import msgspec
import pytest

from shoal.errors import ForgedEntryError
from shoal.plan.entry import Entry, Phase, check_entry
from shoal.plan.placement import Mode, Placement, at_home
from shoal.plan.signature import Signer, Verifier

OLD = Placement(5, Mode.SINGLE, ("s1",))
NEW = Placement(10, Mode.ALL_SUBSCRIBERS, ("s2", "s1"))
MOVING = Entry(b"tile", NEW, Phase.WIDEN, (OLD,), 5, 11, since=11)


@pytest.mark.parametrize(
    ("phase", "publish", "subscribed", "publishing", "follows_from"),
    [
        (Phase.PREPARE, 5, (OLD,), OLD, 0),
        (Phase.WIDEN, 5, (OLD, NEW), OLD, 11),
        (Phase.SWITCH, 10, (OLD, NEW), NEW, 11),
        (Phase.NARROW, 0, (NEW,), NEW, 13),
    ],
)
def test_what_a_phase_means(
    phase: Phase, publish: int, subscribed: tuple[Placement, ...], publishing: Placement, follows_from: int
) -> None:
    entry = Entry(b"tile", NEW, phase, (OLD,), publish, 13, since=13)
    check_entry(entry)
    assert entry.subscribed == subscribed
    assert entry.publishing is publishing
    assert entry.publishing in entry.subscribed
    assert entry.follows_from == follows_from
    assert entry.servers == ("s1", "s2")


def test_an_entry_at_rest_stands_by_its_placement() -> None:
    entry = Entry(b"tile", NEW)
    check_entry(entry)
    assert entry.subscribed == (NEW,)
    assert entry.publishing is NEW
    assert entry.newness == 10
    assert entry.follows_from == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"earlier": ()}, "no earlier placement"),
        ({"earlier": (NEW,)}, "order of their versions"),
        ({"phase": Phase.END}, "has ended"),
        ({"publish": 7}, "has no placement with the version"),
        ({"publish": 10}, "cannot use version 10"),
        ({"phase": Phase.SWITCH}, "cannot use version 5"),
        ({"revision": 9}, "older than its newest"),
        ({"placement": at_home(10, "s2")}, "derived from the ring"),
    ],
)
def test_entries_that_cannot_be_are_refused_by_who_signs_and_by_who_reads(change: dict[str, object], why: str) -> None:
    entry = msgspec.structs.replace(MOVING, **change)
    with pytest.raises(ValueError, match=why):
        Signer(bytes(32)).line(entry)


def test_a_moving_entry_survives_signing() -> None:
    signer = Signer(bytes(32))
    assert Verifier(signer.public).entry(signer.line(MOVING)) == MOVING


def test_a_forged_one_is_refused() -> None:
    with pytest.raises(ForgedEntryError):
        Verifier(Signer(bytes(32)).public).entry(Signer(bytes(range(32))).line(MOVING))
