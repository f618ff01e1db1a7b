"""Which live participants could have proved that a gap is false.

Owns the judgement "a gap was reported although nothing was missing, and it could have been known". The simulator knows
the truth; the checkers use it to tell false gaps from unavoidable ones:

    false        nothing owed was missing, and a live participant knew that
    unprovable   nothing owed was missing, but no live participant could know

A publisher that runs knows everything about its stream. An agent knows a stream if it has heard that the stream ended.
If it has watched its server without a break since the subscription began, it knows how far the streams there have come;
if that holds for all servers on which a channel was placed since then, these agents know the channel's streams, unless
one of them had no room for all of these. If only its process has lived since then, and all clients had answered its
resync before that, it knows that there are no other publishers: each had to wait for its answer before the first
message. An agent whose tables are too small does not know that.

The publisher of a stream that ended because it was silent has forgotten it.

In runs where gaps are reported early, faults can last longer than a subscriber waits. There,
participants count as reachable only after the faults have been over for that long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.channels.states import AgentState
from shoal.lab.sim.history import Published
from shoal.lab.sim.scenario import BEGIN_S
from shoal.message import Gap
from shoal.wire.envelope import ENDED, client_of

if TYPE_CHECKING:
    from shoal.lab.sim.scenarios.channel_run_history import SubscriberRecord
    from shoal.lab.sim.scenarios.cluster import AgentProcess, ChannelScenario


def witnesses(run: ChannelScenario, sub: SubscriberRecord, gap: Gap) -> tuple[str, ...]:
    """The names of the nodes whose processes know what a gap is about, at this moment."""
    agents = [processes[-1] for processes in run.agent_processes]
    watching = [agent for agent in agents if _watches(run, agent)]
    steady = {agent.server for agent in watching if agent.steady_since < sub.called_at}
    faults_end_at = BEGIN_S + run.safety_s
    if not run.shape.healable and run.world.now < faults_end_at + run.shape.limits.gap_timeout_s:
        return ()
    if gap.publisher is None:
        if run.shape.full:
            return ()
        informed = [agent for agent in watching if agent.informed_since < sub.called_at]
        return tuple(agent.node.name for agent in informed if f"server {agent.server} " in gap.reason)
    messages = run.history.of(gap.channel, gap.publisher)
    if run.shape.idle and _may_have_ended(run, messages):
        return ()
    publishers = [app for app in run.apps if app.record.client == gap.publisher]
    found = [app.node.name for app in publishers if app.node.running and app.started and not app.leaving]
    last = max((message.sequence for message in messages), default=0)
    servers = run.servers_since(gap.channel, sub.called_at)
    heard_all = steady.issuperset(servers)
    heard_all = heard_all and all(_has_room(agent, gap) for agent in watching if agent.server in servers)
    found += [agent.node.name for agent in watching if _knows(agent, gap, last, heard_all)]
    return tuple(found)


def _may_have_ended(run: ChannelScenario, messages: list[Published]) -> bool:
    """Whether a publisher's stream has ended because it was silent, or may end now: then it does not answer. The gap
    does not say which of its streams it is about."""
    silent_since = max((message.called_at for message in messages), default=0.0)
    over_at = silent_since + run.shape.limits.publisher_idle_s / 2
    return len({message.epoch for message in messages}) > 1 or run.world.now > over_at - run.shape.limits.gap_timeout_s


def _watches(run: ChannelScenario, agent: AgentProcess) -> bool:
    """Whether an agent runs and is connected to a server that runs. The node of a removed server may be up again,
    without a process on it."""
    core = agent.agent.core
    server = run.network.nodes[agent.server]
    runs = agent.node.running and agent.node.incarnation == agent.incarnation
    return runs and server.running and core is not None and core.state is AgentState.SERVING


def _has_room(agent: AgentProcess, gap: Gap) -> bool:
    """Whether an agent has heard the stream of a gap, or can tell that it has not. Where its tables are full a stream
    may have gone on unlisted, and no subscriber can know that another server had all of its messages."""
    core = agent.agent.core
    assert core is not None
    channel = gap.channel.encode()
    return core.scanner.streams(channel).complete or any(
        client_of(stream) == gap.publisher for stream in core.streams(channel)
    )


def _knows(agent: AgentProcess, gap: Gap, last: int, heard_all: bool) -> bool:
    core = agent.agent.core
    assert core is not None
    streams = core.streams(gap.channel.encode()).items()
    heard = [end for stream, end in streams if client_of(stream) == gap.publisher and end & ~ENDED >= last]
    return any(end & ENDED or heard_all for end in heard)
