"""The ledger: what becomes of moves, when anything is in motion, and which move a revision belongs to."""

from __future__ import annotations

from shoal.plan.entry import Phase
from shoal.plan.placement import Mode
from shoal.soak.ledger import NARROW_S, Fate, Ledger
from shoal.soak.records import Asked, Dropped, Phased


def asked(at: float, channel: str = "c", server: str = "s2", eager: bool = False) -> Asked:
    return Asked(channel, Mode.SINGLE, (server,), eager, at)


def phased(at: float, phase: Phase, version: int, channel: str = "c", server: str = "s2") -> Phased:
    return Phased(channel, phase, version + list(Phase).index(phase), version, Mode.SINGLE, (server,), (), at)


def of(*records: Asked | Phased | Dropped) -> Ledger:
    ledger = Ledger()
    for record in records:
        ledger.take(record)
    return ledger


def test_a_move_is_in_motion_from_its_request_until_its_request_is_gone() -> None:
    ledger = of(asked(1.0), phased(1.1, Phase.PREPARE, 5), phased(1.2, Phase.SWITCH, 5))
    assert [move.fate for move in ledger.moves] == [Fate.OPEN]
    assert ledger.settle_s is None
    assert len(ledger.open) == 1
    ledger.take(phased(1.5, Phase.NARROW, 5))
    assert ledger.open == []
    assert ledger.motions() == [(1.0, 1.5 + NARROW_S)]
    ledger.take(Dropped("c", 1.7))
    assert ledger.motions() == [(1.0, 1.7)]
    assert ledger.settle_s == 0.5


def test_the_end_of_a_move_may_be_seen_after_its_request_is_gone() -> None:
    ledger = of(asked(1.0), Dropped("c", 2.0), phased(2.1, Phase.END, 5))
    assert [move.fate for move in ledger.moves] == [Fate.ENDED]
    assert ledger.motions() == [(1.0, 2.1)]


def test_a_second_request_replaces_the_first_and_only_an_unfinished_one() -> None:
    ledger = of(asked(1.0), phased(1.1, Phase.PREPARE, 5), asked(1.2, server="s3"))
    ledger.take(phased(1.4, Phase.END, 7, server="s3"))
    ledger.take(asked(3.0))
    assert [move.fate for move in ledger.moves] == [Fate.REPLACED, Fate.ENDED, Fate.OPEN]
    assert ledger.motions() == [(1.0, 1.4), (3.0, float("inf"))]


def test_a_request_that_is_gone_without_its_placement_was_aborted() -> None:
    ledger = of(phased(0.5, Phase.END, 3, server="s1"), asked(1.0), phased(1.1, Phase.PREPARE, 5))
    ledger.take(Phased("c", Phase.END, 6, 3, Mode.SINGLE, ("s1",), (), 3.0))
    ledger.take(Dropped("c", 3.1))
    assert [move.fate for move in ledger.moves] == [Fate.ABORTED]
    assert ledger.open == []


def test_a_move_back_that_undoes_the_one_before_has_ended() -> None:
    ledger = of(
        phased(0.5, Phase.END, 1, server="s1"), asked(1.0), phased(1.1, Phase.PREPARE, 9), asked(1.2, server="s1")
    )
    ledger.take(Dropped("c", 1.3))
    ledger.take(Phased("c", Phase.END, 10, 1, Mode.SINGLE, ("s1",), (), 1.4))
    assert [move.fate for move in ledger.moves] == [Fate.REPLACED, Fate.ENDED]
    assert [move.version for move in ledger.moves] == [9, 0]


def test_a_channel_that_is_there_already_has_arrived_when_its_request_is_gone() -> None:
    ledger = of(phased(0.5, Phase.END, 3), asked(1.0))
    ledger.take(phased(1.1, Phase.END, 3))
    assert [move.fate for move in ledger.moves] == [Fate.OPEN]
    ledger.take(Dropped("c", 1.2))
    assert [move.fate for move in ledger.moves] == [Fate.ENDED]


def test_a_revision_belongs_to_the_move_whose_placement_was_the_newest() -> None:
    ledger = of(
        asked(1.0),
        phased(1.1, Phase.END, 5),
        asked(2.0, server="s3", eager=True),
        phased(2.1, Phase.END, 12, server="s3"),
    )
    assert [ledger.behind("c", revision) for revision in (4, 5, 11, 12, 99)] == [
        None, ledger.moves[0], ledger.moves[0], ledger.moves[1], ledger.moves[1],
    ]  # fmt: skip
    assert ledger.behind("other", 5) is None


def test_overlapping_motions_are_one() -> None:
    ledger = of(asked(1.0, "a"), asked(1.5, "b"), asked(5.0, "c"))
    for at, channel in ((2.0, "a"), (3.0, "b"), (6.0, "c")):
        ledger.take(phased(at, Phase.END, 5, channel))
    assert ledger.motions() == [(1.0, 3.0), (5.0, 6.0)]
    assert {move.pair for move in ledger.moves} == {"single to single"}
