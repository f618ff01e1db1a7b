"""The ledger: the fates of moves, when channels move, and which move a revision belongs to."""

from __future__ import annotations

from shoal.lab.soak.move_ledger import NARROW_S, Fate, Ledger
from shoal.lab.soak.round_log import EntryChanged, MoveRequested, RequestRemoved
from shoal.plan.entry import Phase
from shoal.plan.placement import Mode


def requested(at: float, channel: str = "c", server: str = "s2", eager: bool = False) -> MoveRequested:
    return MoveRequested(channel, Mode.SINGLE, (server,), eager, at)


def changed(at: float, phase: Phase, version: int, channel: str = "c", server: str = "s2") -> EntryChanged:
    return EntryChanged(channel, phase, version + list(Phase).index(phase), version, Mode.SINGLE, (server,), (), at)


def of(*records: MoveRequested | EntryChanged | RequestRemoved) -> Ledger:
    ledger = Ledger()
    for record in records:
        ledger.take(record)
    return ledger


def test_a_channel_moves_from_the_request_until_the_request_is_removed() -> None:
    ledger = of(requested(1.0), changed(1.1, Phase.PREPARE, 5), changed(1.2, Phase.SWITCH, 5))
    assert [move.fate for move in ledger.moves] == [Fate.OPEN]
    assert ledger.settle_s is None
    assert len(ledger.open) == 1
    ledger.take(changed(1.5, Phase.NARROW, 5))
    assert ledger.open == []
    assert ledger.moving_times() == [(1.0, 1.5 + NARROW_S)]
    ledger.take(RequestRemoved("c", 1.7))
    assert ledger.moving_times() == [(1.0, 1.7)]
    assert ledger.settle_s == 0.5


def test_the_end_of_a_move_may_be_seen_after_its_request_was_removed() -> None:
    ledger = of(requested(1.0), RequestRemoved("c", 2.0), changed(2.1, Phase.END, 5))
    assert [move.fate for move in ledger.moves] == [Fate.ENDED]
    assert ledger.moving_times() == [(1.0, 2.1)]


def test_a_second_request_replaces_the_first_and_only_an_unfinished_one() -> None:
    ledger = of(requested(1.0), changed(1.1, Phase.PREPARE, 5), requested(1.2, server="s3"))
    ledger.take(changed(1.4, Phase.END, 7, server="s3"))
    ledger.take(requested(3.0))
    assert [move.fate for move in ledger.moves] == [Fate.REPLACED, Fate.ENDED, Fate.OPEN]
    assert ledger.moving_times() == [(1.0, 1.4), (3.0, float("inf"))]


def test_a_request_that_was_removed_without_its_placement_was_aborted() -> None:
    ledger = of(changed(0.5, Phase.END, 3, server="s1"), requested(1.0), changed(1.1, Phase.PREPARE, 5))
    ledger.take(EntryChanged("c", Phase.END, 6, 3, Mode.SINGLE, ("s1",), (), 3.0))
    ledger.take(RequestRemoved("c", 3.1))
    assert [move.fate for move in ledger.moves] == [Fate.ABORTED]
    assert ledger.open == []


def test_a_move_back_that_undoes_the_one_before_has_ended() -> None:
    ledger = of(
        changed(0.5, Phase.END, 1, server="s1"),
        requested(1.0),
        changed(1.1, Phase.PREPARE, 9),
        requested(1.2, server="s1"),
    )
    ledger.take(RequestRemoved("c", 1.3))
    ledger.take(EntryChanged("c", Phase.END, 10, 1, Mode.SINGLE, ("s1",), (), 1.4))
    assert [move.fate for move in ledger.moves] == [Fate.REPLACED, Fate.ENDED]
    assert [move.version for move in ledger.moves] == [9, 0]


def test_a_channel_that_has_the_placement_already_arrives_when_its_request_is_removed() -> None:
    ledger = of(changed(0.5, Phase.END, 3), requested(1.0))
    ledger.take(changed(1.1, Phase.END, 3))
    assert [move.fate for move in ledger.moves] == [Fate.OPEN]
    ledger.take(RequestRemoved("c", 1.2))
    assert [move.fate for move in ledger.moves] == [Fate.ENDED]


def test_a_revision_belongs_to_the_move_whose_placement_was_the_newest() -> None:
    ledger = of(
        requested(1.0),
        changed(1.1, Phase.END, 5),
        requested(2.0, server="s3", eager=True),
        changed(2.1, Phase.END, 12, server="s3"),
    )
    assert [ledger.behind("c", revision) for revision in (4, 5, 11, 12, 99)] == [
        None, ledger.moves[0], ledger.moves[0], ledger.moves[1], ledger.moves[1],
    ]  # fmt: skip
    assert ledger.behind("other", 5) is None


def test_overlapping_moves_are_one_interval() -> None:
    ledger = of(requested(1.0, "a"), requested(1.5, "b"), requested(5.0, "c"))
    for at, channel in ((2.0, "a"), (3.0, "b"), (6.0, "c")):
        ledger.take(changed(at, Phase.END, 5, channel))
    assert ledger.moving_times() == [(1.0, 3.0), (5.0, 6.0)]
    assert {move.pair for move in ledger.moves} == {"single to single"}
