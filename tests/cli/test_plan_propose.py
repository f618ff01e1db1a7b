"""`shoal plan propose`: changes of other kinds than channels and servers are shown with their reasons."""

from __future__ import annotations

from tests.support.lamp_kind import SHELF, LampMove

from shoal.balance.change import HostsWanted
from shoal.balance.engine_entry import EngineMove, Layers
from shoal.balance.proposal import Proposal
from shoal.cli.plan_propose import facts_of, text_of

PROPOSAL = Proposal(
    policy="shoal",
    settings="",
    window_end_s=2.0,
    ring_version=1,
    basis="",
    changes=(
        LampMove(b"desk\n", 4, "y", "overload", {"watts": 90.0}),
        HostsWanted(SHELF.name, 2, "attic", "overload", {}),
        EngineMove(b"main", 3, Layers(1, 1, 1), Layers(1, 2, 1), "matching is the bottleneck", {"busy": 0.9}),
    ),
    max_ratio_before=0.0,
    max_ratio_after=0.0,
)


def test_other_kinds_are_shown_with_their_reasons() -> None:
    facts = facts_of(PROPOSAL)
    assert (facts["moves"], facts["servers"]) == ([], [])
    lamp, engine, shelf = facts["others"]
    assert (engine["unit"], engine["before"], engine["after"]) == ("main", (1, 1, 1), (1, 2, 1))
    assert (lamp["change"], lamp["unit"], lamp["after"], lamp["reason"]) == ("lamp", "desk\\n", "y", "overload")
    assert (shelf["change"], shelf["kind"], shelf["count"], shelf["site"]) == ("hosts", "shelf", 2, "attic")
    lines = text_of(PROPOSAL).splitlines()
    assert ": 2 moves," in lines[0]
    assert lines[1:] == [
        "  add 2 shelf: overload",
        "  lamp desk\\n: overload (watts 90)",
        "  engine main: 1-1-1 -> 1-2-1: matching is the bottleneck (busy 0.9)",
    ]
