"""The counters of the scenario `moves`: kinds of moves, phases, overlaps, deaths."""

from __future__ import annotations

from shoal.lab.sim.scenarios.moves_watch import MovesWatch
from shoal.plan.entry import Entry, Phase
from shoal.plan.placement import Mode, Placement

C = b"c"
HOME = Placement(1, Mode.SINGLE, ("s1",))
BOTH = Placement(5, Mode.ALL_SUBSCRIBERS, ("s1", "s2"))
FAR = Placement(7, Mode.SINGLE, ("s3",))


def entry(phase: Phase, *placements: Placement, revision: int, publish: int = 0, eager: bool = False) -> Entry:
    return Entry(C, placements[-1], phase, placements[:-1], publish, revision, eager)


def watched(*entries: Entry, idle: set[bytes] | None = None) -> MovesWatch:
    watch = MovesWatch(idle or set())
    for index, line in enumerate(entries):
        watch.written(line, HOME, float(index))
    return watch


WHOLE = (
    entry(Phase.PREPARE, HOME, BOTH, revision=5, publish=1),
    entry(Phase.WIDEN, HOME, BOTH, revision=6, publish=1),
    entry(Phase.SWITCH, HOME, BOTH, revision=7),
    entry(Phase.NARROW, HOME, BOTH, revision=8),
    entry(Phase.END, BOTH, revision=9),
)


def test_a_move_counts_its_phases_and_its_pair() -> None:
    seen = watched(*WHOLE).seen
    assert all(seen[f"phase {phase.value}"] == 1 for phase in Phase)
    assert seen["single -> all_subscribers"] == 1
    assert (seen["move"], seen["lazy move"], seen["eager move"]) == (1, 1, 0)
    assert not seen["abort"]
    assert not seen["second move before the end of the first"]


def test_a_new_revision_of_a_phase_is_not_a_new_phase() -> None:
    watch = watched(*WHOLE[:4], entry(Phase.NARROW, HOME, BOTH, revision=10))
    assert watch.seen["phase narrow"] == 1
    assert watch.written_at[C] == 3.0


def test_a_move_that_is_given_up_is_an_abort() -> None:
    seen = watched(*WHOLE[:2], entry(Phase.END, HOME, revision=7)).seen
    assert seen["abort"] == 1
    assert not seen["single -> all_subscribers"]


def test_a_second_move_before_the_end_of_the_first_is_not_an_abort() -> None:
    second = entry(Phase.PREPARE, HOME, BOTH, FAR, revision=7, publish=1)
    seen = watched(*WHOLE[:2], second).seen
    assert (seen["move"], seen["second move before the end of the first"], seen["abort"]) == (2, 1, 0)


def test_a_return_is_back_and_forth() -> None:
    back = entry(Phase.PREPARE, BOTH, Placement(10, Mode.SINGLE, ("s1",)), revision=10, publish=5)
    assert watched(*WHOLE, back).seen["back and forth"] == 1


def test_moves_of_two_channels_overlap_only_when_both_are_under_way() -> None:
    def other(version: int) -> Entry:
        return Entry(b"d", Placement(version, Mode.SINGLE, ("s2",)), Phase.PREPARE, (HOME,), 1, version)

    assert watched(*WHOLE, other(10)).seen["overlapping moves"] == 0
    assert watched(*WHOLE[:3], other(10)).seen["overlapping moves"] == 1


def test_deaths_count_in_the_phases_of_the_moves_that_involve_them() -> None:
    watch = watched(*WHOLE[:2])
    watch.died("agent", "s2")
    watch.died("agent", "s4")
    watch.died("coordinator", "coordinator")
    assert watch.seen["death of agent in widen"] == 1
    assert watch.seen["death of coordinator in widen"] == 1


def test_an_idle_channel_is_counted() -> None:
    assert watched(WHOLE[0], idle={C}).seen["idle move"] == 1
