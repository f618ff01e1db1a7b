"""Events about the balancer's decisions, and their counts."""

from __future__ import annotations

from shoal.balance.change import ChannelMove, Place, ServerChange
from shoal.balance.decision_record import Outcome
from shoal.balance.proposal import Proposal
from shoal.lab.demo.balancer_events import MOVES_SHOWN_MAX, BalancerEvents
from shoal.lab.demo.server_events import EventKind
from shoal.plan.placement import Mode


class Texts(list[str]):
    def __call__(self, now: float, kind: EventKind, text: str) -> None:
        self.append(f"{kind} {text}")


def move(name: str, *servers: str, reason: str = "overload") -> ChannelMove:
    mode = Mode.SINGLE if len(servers) == 1 else Mode.ALL_SUBSCRIBERS
    return ChannelMove(
        name.encode(), 0, Place(Mode.SINGLE, ("s1",)), Place(mode, servers), reason, {"left_before": 0.934}
    )


def proposal(*moves: ChannelMove, servers: tuple[ServerChange, ...] = ()) -> Proposal:
    return Proposal(
        policy="shoal",
        settings="",
        window_end_s=10.0,
        ring_version=1,
        basis="",
        changes=(*moves, *servers),
        max_ratio_before=0.934,
        max_ratio_after=0.61,
    )


def change(what: str, server: str = "", count: int = 1) -> ServerChange:
    assert what in ("add", "drain", "keep")
    return ServerChange(what, server, count, "grow" if what == "add" else "shrink", {})  # type: ignore[arg-type]


def test_a_plan_has_its_reasons_and_replicated_channels_come_first() -> None:
    texts = Texts()
    events = BalancerEvents(texts)
    plan = proposal(move("a", "s2"), move("b", "s1", "s3", reason="replicate"), servers=(change("add", count=2),))
    events.take([plan], 1.0)
    assert texts == [
        f"plan plan {plan.digest[:6]}, busiest server 93% -> 61%: 2 channels to move, 2 servers to add (grow)",
        "move b: s1 -> s1, s3 (replicate, s1 at 93%, all_subscribers)",
        "move a: s1 -> s2 (overload, s1 at 93%)",
    ]
    assert (events.proposals, events.moves_asked, events.replicated) == (1, 2, {b"b"})


def test_the_outcome_of_a_plan_is_an_event_and_counted() -> None:
    texts = Texts()
    events = BalancerEvents(texts)
    plan = proposal(move("a", "s2"), move("b", "s2"), move("c", "s2"))
    events.take([plan, Outcome(2.0, plan.digest, "applied", {"moves": 3})], 1.0)
    assert events.moves_under_way == 3
    texts.clear()
    facts: dict[str, str | int | float] = {"moved": 2, "given_up": 1, "late": 0, "seconds": 1.25}
    events.take([Outcome(3.0, plan.digest, "ended", facts)], 3.0)
    assert texts == [f"seen plan {plan.digest[:6]}: 2 channels moved within 1.2 s, 1 stay where they were"]
    assert (events.moves_ended, events.moves_under_way) == (2, 0)


def test_servers_are_drained_until_they_are_kept() -> None:
    events = BalancerEvents(Texts())
    events.take([proposal(servers=(change("drain", "s3"), change("drain", "s4")))], 1.0)
    assert events.draining == {"s3", "s4"}
    events.take([proposal(servers=(change("keep", "s4"),))], 2.0)
    assert events.draining == {"s3"}


def test_of_many_moves_only_a_few_are_shown() -> None:
    texts = Texts()
    BalancerEvents(texts).take([proposal(*(move(f"t{number}", "s2") for number in range(MOVES_SHOWN_MAX + 4)))], 1.0)
    assert texts[-1] == "move and 4 more"
    assert len(texts) == 1 + MOVES_SHOWN_MAX + 1
