"""The witnesses of a gap: only processes that run, and that together have heard everything on the channel."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.channels.states import AgentState
from shoal.lab.sim.scenario import BEGIN_S
from shoal.lab.sim.scenarios.cluster import AgentProcess, ChannelScenario
from shoal.lab.sim.scenarios.gap_witness import witnesses
from shoal.message import Gap
from shoal.wire.envelope import stream_id

GAP = Gap("c", None, 0, None, "no agent watched server s1 for a while; publishers are unknown", None)


def witnesses_of(
    *,
    running: bool = True,
    incarnation: int = 1,
    state: AgentState = AgentState.SERVING,
    healable: bool = True,
    now: float = 0.0,
    informed_since: float = 0.0,
) -> Any:
    """Who knows that nothing is missing; the agent's process was the first one on its node."""
    node = SimpleNamespace(name="agent-s1", running=running, incarnation=incarnation)
    core = SimpleNamespace(state=state)
    agent = SimpleNamespace(
        server="s1",
        node=node,
        incarnation=1,
        agent=SimpleNamespace(core=core),
        informed_since=informed_since,
        steady_since=0.0,
    )
    network = SimpleNamespace(nodes={"s1": SimpleNamespace(running=True)})
    shape = SimpleNamespace(full=False, healable=healable, limits=SimpleNamespace(gap_timeout_s=2.0))
    world = SimpleNamespace(now=now)
    run: Any = SimpleNamespace(agent_processes=[[agent]], network=network, shape=shape, safety_s=10.0, world=world)
    sub: Any = SimpleNamespace(called_at=1.0)
    return witnesses(run, sub, GAP)


def test_an_agent_that_has_run_since_before_the_subscription_is_a_witness() -> None:
    assert witnesses_of() == ("agent-s1",)


def test_one_that_may_not_know_all_publishers_since_then_is_none() -> None:
    assert witnesses_of(informed_since=2.0) == ()


def test_where_gaps_come_early_it_is_one_only_when_faults_have_been_over_for_long_enough() -> None:
    assert witnesses_of(healable=False, now=BEGIN_S + 11.9) == ()
    assert witnesses_of(healable=False, now=BEGIN_S + 12.0) == ("agent-s1",)


def test_an_agent_knows_all_publishers_when_its_process_has_heard_from_all_clients_and_not_before() -> None:
    """One that the process before it had answered may have published and died until then."""
    core = SimpleNamespace(knows_publishers=False)
    run = SimpleNamespace(world=SimpleNamespace(now=3.0), agent_wrote=lambda *_: None)
    agent: Any = SimpleNamespace(
        agent=SimpleNamespace(core=core), run=run, server="s1", informed_since=math.inf, steady_since=0.0
    )
    for now, knows, since in ((3.0, False, math.inf), (4.0, True, 4.0), (5.0, True, 4.0)):
        run.world.now, core.knows_publishers = now, knows
        AgentProcess.wrote(agent, "s1", b"")
        assert agent.informed_since == since


def witnesses_of_stream(*, listed_by: set[str], roomless: set[str]) -> Any:
    """Who knows the end of a stream whose publisher has died. The channel was on both servers; agents have listed it
    up to its last message, or not, and have had room for all streams, or not."""

    def agent(server: str) -> Any:
        streams = {stream_id(7, 1): 4} if server in listed_by else {}
        listing = SimpleNamespace(complete=server not in roomless)
        core = SimpleNamespace(
            state=AgentState.SERVING,
            streams=lambda _: streams,
            scanner=SimpleNamespace(streams=lambda _: listing),
        )
        node = SimpleNamespace(name=f"agent-{server}", running=True, incarnation=1)
        return SimpleNamespace(
            server=server, node=node, incarnation=1, agent=SimpleNamespace(core=core), steady_since=0.0
        )

    run: Any = SimpleNamespace(
        agent_processes=[[agent("s1")], [agent("s2")]],
        network=SimpleNamespace(nodes=dict.fromkeys(("s1", "s2"), SimpleNamespace(running=True))),
        shape=SimpleNamespace(healable=True, idle=False, limits=SimpleNamespace(gap_timeout_s=2.0)),
        safety_s=10.0,
        world=SimpleNamespace(now=0.0),
        history=SimpleNamespace(of=lambda *_: [SimpleNamespace(sequence=4)]),
        apps=[],
        servers_since=lambda *_: {"s1", "s2"},
    )
    return witnesses(run, SimpleNamespace(called_at=1.0), Gap("c", 7, 5, None, "", None))  # type: ignore[arg-type]


def test_agents_that_have_heard_everything_know_the_end_of_a_stream() -> None:
    assert witnesses_of_stream(listed_by={"s2"}, roomless=set()) == ("agent-s2",)
    assert witnesses_of_stream(listed_by={"s1", "s2"}, roomless={"s1"}) == ("agent-s1", "agent-s2")


def test_where_an_agent_had_no_room_for_the_stream_it_may_have_gone_on_unlisted() -> None:
    assert witnesses_of_stream(listed_by={"s2"}, roomless={"s1"}) == ()


@pytest.mark.parametrize("change", [{"running": False}, {"state": AgentState.AWAY}, {"incarnation": 2}])
def test_an_agent_that_is_away_or_whose_process_has_ended_is_none(change: dict[str, Any]) -> None:
    """When faults end, the node of a removed server is up again, but there is no process on it."""
    assert witnesses_of(**change) == ()


@pytest.mark.parametrize(
    ("since", "servers"), [(0.5, {"s1", "s2"}), (1.0, {"s1", "s2"}), (3.0, {"s1", "s2"}), (4.0, {"s1"}), (9.0, {"s1"})]
)
def test_agents_of_all_servers_where_a_channel_was_since_the_subscription_began_must_have_heard_it(
    since: float, servers: set[str]
) -> None:
    """A publisher may have been on a server that died with its agent before the channel moved on."""
    run: Any = SimpleNamespace(placements={"c": [(1.0, {"s1"}), (2.0, {"s2"}), (4.0, {"s1"})]})
    assert ChannelScenario.servers_since(run, "c", since) == servers
