"""Situations to try policies on: built by hand, drawn by Hypothesis, and followed over several plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from hypothesis import strategies as st

from shoal.balance.columns import MODES, NEVER, SINGLE, Channels, Floats, Hosts, Placements, host_loads
from shoal.balance.decision import Decision, changed
from shoal.balance.policies import Policy
from shoal.balance.policies.reckoning import dead, estimated_loads, ratios
from shoal.balance.settings import DEFAULT_SETTINGS, BalanceSettings
from shoal.balance.situation import Pool, Situation

AT_S = 1000.0


def make_channels(
    bytes_out: npt.ArrayLike,
    publications: npt.ArrayLike = 1.0,
    subscribers: npt.ArrayLike = 1,
    names: Sequence[bytes] | None = None,
) -> Channels:
    weights = np.asarray(bytes_out, np.float64)
    count = len(weights)
    return Channels(
        names=pa.array(names or [b"channel-%d" % row for row in range(count)], pa.binary()),
        publications=np.broadcast_to(np.asarray(publications, np.float64), count).copy(),
        publishers=np.ones(count, np.int64),
        subscribers=np.broadcast_to(np.asarray(subscribers, np.int64), count).copy(),
        messages_out=weights / 100.0,
        bytes_out=weights,
        cpu_in=np.zeros(count),
        cpu_out=np.zeros(count),
    )


def make_situation(
    channels: Channels,
    placements: Placements,
    capacity: npt.ArrayLike,
    *,
    takes: npt.ArrayLike | None = None,
    residual: npt.ArrayLike = 0.0,
    moved_at: npt.ArrayLike = NEVER,
    **changes: Any,
) -> Situation:
    """A situation in which servers send what their channels cost, and `residual` beside it."""
    room = np.asarray(capacity, np.float64)
    count = len(room)
    taking = np.ones(count, np.bool_) if takes is None else np.asarray(takes, np.bool_)
    hosts = Hosts(
        ids=tuple(f"server-{host}" for host in range(count)),
        capacity=room,
        cpu_capacity=np.ones(count),
        bytes_out=measured(channels, placements, room, taking) + np.asarray(residual, np.float64),
        cpu=np.zeros(count),
        cost=np.ones(count),
        takes=taking,
        heard=np.ones(count, np.bool_),
        joined_at=np.full(count, NEVER),
    )
    whole = Situation(
        at_s=AT_S,
        channels=channels,
        placements=placements,
        hosts=hosts,
        pool=Pool(1, 8, 0, 100.0, 1.0, 1.0),
        moved_at=np.broadcast_to(np.asarray(moved_at, np.float64), len(channels)).copy(),
        planned_at=NEVER,
        past_at=np.array([AT_S]),
        past_bytes_out=np.array([channels.bytes_out.sum()]),
    )
    return replace(whole, **changes)


def measured(channels: Channels, placements: Placements, capacity: Floats, takes: npt.NDArray[np.bool_]) -> Floats:
    bytes_out, _ = host_loads(channels, placements, len(capacity))
    return np.where(takes | (capacity > 0), bytes_out, 0.0)


def followed(situation: Situation, decision: Decision, settings: BalanceSettings = DEFAULT_SETTINGS) -> Situation:
    """The situation a while after a decision was carried out: servers that were asked for have not come."""
    placements = changed(situation.placements, decision.moves, decision.placements)
    hosts = situation.hosts
    beside = situation.residual()[0]
    takes = hosts.takes.copy()
    takes[decision.drain] = False
    takes[decision.keep] = True
    moved_at = situation.moved_at.copy()
    moved_at[decision.moves] = situation.at_s
    sent = measured(situation.channels, placements, hosts.capacity, takes) + beside
    return replace(
        situation,
        at_s=situation.at_s + settings.wait_s,
        placements=placements,
        hosts=replace(hosts, takes=takes, bytes_out=sent),
        moved_at=moved_at,
        planned_at=situation.planned_at if decision.is_empty else situation.at_s,
        past_at=np.append(situation.past_at, situation.at_s + settings.wait_s),
        past_bytes_out=np.append(situation.past_bytes_out, sent.sum()),
    )


def rounds_to_rest(decide: Policy, situation: Situation, settings: BalanceSettings, rounds: int) -> int:
    """How many plans with moves there are under steady load before one without; `rounds` if they do not end."""
    for count in range(rounds):
        decision = decide(situation, settings)
        if not len(decision):
            return count
        situation = followed(situation, decision, settings)
    return rounds


def load_ratios(situation: Situation, placements: Placements) -> Floats:
    return ratios(estimated_loads(situation, placements), situation.hosts.capacity)


def alive(situation: Situation) -> npt.NDArray[np.bool_]:
    return ~dead(situation.hosts)


@st.composite
def drawn_situations(draw: st.DrawFn, min_channels: int = 0, steady: bool = False) -> Situation:
    """Any situation that could be, and some that hardly could: giants, full servers, dead ones, nobody to take.

    A steady one has no dead or draining servers and a pool that stays as it is.
    """
    hosts = draw(st.integers(1, 7))
    rows = draw(st.integers(min_channels, 24))
    sizes = st.one_of(st.sampled_from([0.0, 1.0, 10.0, 20.0, 1000.0]), st.floats(0.0, 150.0))
    capacity = draw(st.lists(st.sampled_from([50.0, 100.0, 100.0, 200.0]), min_size=hosts, max_size=hosts))
    states = st.sampled_from(["up", "up", "up", "up", "draining", "dead", "nothing"])
    state = draw(st.lists(st.just("up") if steady else states, min_size=hosts, max_size=hosts))
    channels = make_channels(
        draw(st.lists(sizes, min_size=rows, max_size=rows)),
        draw(st.lists(st.sampled_from([0.0, 0.1, 10.0, 399.0, 500.0, 2000.0]), min_size=rows, max_size=rows)),
        draw(st.lists(st.sampled_from([0, 1, 10, 199, 250, 5000]), min_size=rows, max_size=rows)),
    )
    room = np.array([0.0 if how in ("dead", "nothing") else size for how, size in zip(state, capacity, strict=True)])
    servers = st.integers(0, hosts - 1)
    wide = draw(st.lists(st.sets(servers, min_size=1, max_size=4), min_size=rows, max_size=rows))
    mode = [draw(st.integers(1, len(MODES) - 1)) if len(row) > 1 else SINGLE for row in wide]
    most = hosts if steady else draw(st.integers(hosts, 10))
    return make_situation(
        channels,
        Placements.build(mode, [tuple(sorted(row)) for row in wide]),
        room,
        takes=[how in ("up", "nothing") for how in state],
        residual=0.0 if steady else draw(st.sampled_from([0.0, 0.0, 5.0])) * (room > 0),
        moved_at=NEVER if steady else draw(st.sampled_from([NEVER, AT_S - 5.0, AT_S - 60.0])),
        planned_at=NEVER if steady else draw(st.sampled_from([NEVER, AT_S - 60.0, AT_S - 1.0])),
        pool=Pool(most if steady else 1, most, 0 if steady else draw(st.integers(0, 1)), 100.0, 1.0, 1.0),
    )
