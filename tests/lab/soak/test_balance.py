"""The report on the balancer: when it reacted, when that helped, and what it moved twice."""

from __future__ import annotations

from shoal.lab.soak.balance import Balance, BalanceLogReader
from shoal.lab.soak.round_log import DecisionMade, EntryChanged, LoadEnded, LoadLine, LoadRaised, Record, RingMembers
from shoal.plan.entry import Phase
from shoal.plan.placement import Mode

END = 30.0


def decided(at: float, channel: str = "hot", servers: tuple[str, ...] = ("s1", "s2")) -> DecisionMade:
    return DecisionMade("d", ((channel, Mode.ALL_SUBSCRIBERS, servers, "replicate"),), 0, (), 1.2, 0.6, at)


def entry(at: float, phase: Phase, servers: tuple[str, ...], channel: str = "hot") -> EntryChanged:
    mode = Mode.SINGLE if len(servers) == 1 else Mode.ALL_SUBSCRIBERS
    return EntryChanged(channel, phase, 1, 1, mode, servers, (), at)


def loads(*ratios: float, server: str = "s1", begin: float = 10.5) -> list[Record]:
    return [LoadLine(server, ratio, 0.1, begin + second) for second, ratio in enumerate(ratios)]


def summed(*lines: Record, channel: str = "hot", servers: int = 2) -> Balance:
    """The report on these lines. The load is raised at 10, and lines are taken in the order of their times."""
    reader = BalanceLogReader()
    taken = [*lines, LoadRaised(channel, servers, 10.0), LoadEnded(END)]
    for line in sorted(taken, key=lambda line: getattr(line, "at", 0.0)):
        reader.take(line)
    return reader.sum_up()


def test_a_channel_is_replicated_when_its_publishers_are_notified_of_several_servers() -> None:
    found = summed(
        entry(1.0, Phase.END, ("s1",)),
        decided(5.0),
        decided(11.0, "other"),
        decided(12.0, servers=("s2",)),
        decided(12.5),
        entry(12.6, Phase.PREPARE, ("s1", "s2")),
        entry(12.8, Phase.WIDEN, ("s1", "s2")),
        entry(13.0, Phase.SWITCH, ("s1", "s2")),
        entry(13.2, Phase.NARROW, ("s1", "s2")),
    )
    assert (found.detected_s, found.replicated_s) == (2.5, 3.0)
    assert found.replicated_on == ("s1", "s2")
    assert found.decisions == 3
    assert (found.moved, found.moved_twice) == (1, ())


def test_what_did_not_happen_has_no_time() -> None:
    found = summed(entry(1.0, Phase.END, ("s1",)), entry(12.0, Phase.WIDEN, ("s1", "s2")))
    assert (found.detected_s, found.replicated_s, found.relieved_s, found.joined_s) == (None, None, None, None)
    assert BalanceLogReader().sum_up() == Balance()


def test_a_channel_moved_twice_if_it_got_two_new_placements_under_raised_load() -> None:
    there, back = ("s2",), ("s1",)
    found = summed(
        entry(1.0, Phase.END, ("s1",), "a"),
        entry(2.0, Phase.END, ("s3",), "a"),
        *(entry(11.0 + step, phase, there, "a") for step, phase in enumerate(Phase)),
        entry(1.0, Phase.END, ("s1",), "b"),
        entry(12.0, Phase.SWITCH, there, "b"),
        entry(20.0, Phase.SWITCH, back, "b"),
        entry(1.0, Phase.END, ("s1",), "c"),
        entry(12.0, Phase.SWITCH, there, "c"),
        entry(END + 1, Phase.SWITCH, back, "c"),
    )
    assert found.moved == 3
    assert found.moved_twice == ("b",)


def test_the_load_is_balanced_when_all_servers_are_there_and_none_exceeds_the_high_ratio_any_more() -> None:
    early = [RingMembers(("s1",), 1.0), RingMembers(("s1", "s2"), 14.0)]
    found = summed(*early, *loads(0.5, 1.2, 1.2, 0.7, 0.7, 1.1, 0.6, 0.6, 0.6))
    assert found.joined_s == 4.0
    assert found.relieved_s == 7.5  # with the eighth second the average of two is below again
    assert found.balanced_s == 7.5
    assert found.highest_ratio == 1.2
    assert found.servers == 2
    late = summed(
        RingMembers(("s1", "s2"), 1.0),
        RingMembers(("s1",), 12.0),
        RingMembers(("s1", "s2"), 25.0),
        *loads(1.0, 0.5, 0.5),
    )
    assert (late.joined_s, late.balanced_s) == (15.0, 15.0)
    assert summed(*early[:1], *loads(1.2, 0.5, 0.5)).balanced_s is None
    assert summed(*early, *loads(1.2, 1.2, 1.2)).balanced_s is None


def test_a_late_report_repeats_the_last_one_and_a_silent_server_does_not_count() -> None:
    late = [*loads(0.5, 1.0), *loads(0.6, 0.6, 0.6, begin=13.5), *loads(*[0.1] * 6, server="s2")]
    found = summed(*late, RingMembers(("s1", "s2"), 1.0))
    assert (found.highest_ratio, found.relieved_s) == (1.0, 3.5)
    gone = [*loads(1.0, 1.0, server="s2"), *loads(*[0.5] * 12)]
    found = summed(*gone, RingMembers(("s1", "s2"), 1.0))
    assert found.relieved_s is not None
    assert (found.busiest_ratio, found.mean_ratio) == (0.5, 0.5)
