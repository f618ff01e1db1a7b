"""The balancer view of `shoal top`, from the balancer's records."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console, Group

from shoal.balance.balancer_keys import BalancerState, Why
from shoal.balance.change import Place
from shoal.cli.top_balance import MOVES_SHOWN, PLANS_SHOWN, BalanceReader, BalanceView, render_balance, view_of
from shoal.errors import CoordinatorError
from shoal.plan.keys import Mark
from shoal.plan.placement import Mode
from shoal.plan.ring import Ring, ServerAddress

RING = Ring(4, tuple(ServerAddress(server, "h", 1) for server in ("s1", "s2", "s3")), guests=("s3",))


def why(at_s: float, digest: str, reason: str = "overload", servers: tuple[str, ...] = ("s2",)) -> Why:
    mode = Mode.SINGLE if len(servers) == 1 else Mode.ALL_PUBLISHERS
    before, after = Place(Mode.SINGLE, ("s1",)), Place(mode, servers)
    return Why(at_s, "shoal", digest, at_s, before, after, reason, {"left_before": 0.87})


def text_of(view: BalanceView) -> str:
    out = io.StringIO()
    Console(file=out, width=150, no_color=True).print(Group(*render_balance(view)))
    return out.getvalue()


def test_plans_and_moves_are_the_newest_with_their_reasons() -> None:
    whys = {b"c%d" % number: why(float(number), f"{number:064x}") for number in range(20)}
    whys[b"hot"] = why(19.0, f"{19:064x}", "replicate", ("s1", "s3"))
    view = view_of(RING, {}, BalancerState(), whys, 30.0)
    assert (view.placed, view.replicated) == (21, 1)
    assert len(view.plans) == PLANS_SHOWN
    assert len(view.moves) == MOVES_SHOWN
    assert (view.plans[0].moves, view.plans[0].age_s) == (2, 11.0)
    assert view.plans[0].reasons == {"overload": 1, "replicate": 1}
    assert {move.channel for move in view.moves[:2]} == {"c19", "hot"}
    text = text_of(view)
    assert "s1, s3 (all_publishers)" in text
    assert re.search(r"c19 +s1 +87 % +s2 +overload", text)


def test_servers_that_come_and_go_are_told() -> None:
    marks = {"s2": Mark.FREEING, "s4": Mark.OUT, "s5": Mark.LOST, "s6": Mark.OUT}
    state = BalancerState(1.0, "ab" * 32, {"s7": 2.0}, ("s6",))
    view = view_of(RING, marks, state, {}, 30.0)
    assert view.pool_states == {"s1": "home", "s2": "freeing", "s3": "guest", "s4": "out", "s5": "lost", "s6": "out"}
    text = text_of(view)
    assert "being added s7; being drained s2; out of the ring s4; lost s5; removed s6" in text
    assert "plan abababababab is under way" in text


async def test_without_the_right_to_know_the_view_says_so() -> None:
    class Refusing:
        async def list(self, prefix: str) -> dict[str, object]:
            raise CoordinatorError(f"cannot list {prefix}: 'client' has no permission")

    view = await BalanceReader(Refusing()).look(RING)  # type: ignore[arg-type]
    assert view.trouble is not None
    assert "no permission" in view.trouble
    assert "ring version 4" in text_of(view)


@pytest.mark.parametrize(("age_s", "words"), [(5.0, "5 s ago"), (600.0, "10 min ago"), (9000.0, "2 h ago")])
def test_ages_are_short(age_s: float, words: str) -> None:
    assert words in text_of(view_of(RING, {}, BalancerState(), {b"c": why(0.0, "a" * 64)}, age_s))
