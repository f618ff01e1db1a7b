"""Server loads as the `shoal` policy estimates them: measured, modelled by share, and grown to the horizon.

Owns the estimate that all parts of the policy use. It makes no decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from shoal.balance.columns import NEVER, Bools, Floats, shares
from shoal.balance.policies import server_state
from shoal.balance.policies.trend import growth
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Situation

CAPACITY_MIN: Final = 1e-9
"""Capacity assumed for a server without capacity that takes channels, so that its ratio is huge instead of
undefined.
"""

FULL: Final = 0.97
"""Share of a host's maximum (its capacity times the fail ratio; its cores) at which it counts as saturated."""
SEEN_WINDOWS: Final = 4
"""Windows after a plan until one of them contains only the new placements; channels take a while to move."""


@dataclass(frozen=True)
class Estimate:
    """Loads at the horizon: the measured loads times `growth`."""

    growth: float
    bytes_out: Floats
    """By share: bytes per second."""
    cpu: Floats
    """By share: cores."""
    host_bytes_out: Floats
    """By host: the output of its shares and of everything else on it."""
    host_cpu: Floats
    capacity: Floats
    """By host. Dead and silent hosts have infinite capacity: they are not busy, and nothing is placed there."""
    cpu_capacity: Floats
    room_bytes_out: Floats
    """By host: the load that one plan may bring to it."""
    room_cpu: Floats
    takes: Bools
    """Hosts that may receive channels and have capacity."""
    dead: Bools
    """Hosts that are gone: they carry nothing, and channels placed there are served nowhere."""
    silent: Bools
    """Hosts that are missing in the window although their channels were active: they are left alone."""
    ahead: float = 1.0
    """Factor of the forecast beyond `growth`: servers are added for it, and it raises the value of spreading load."""
    due: bool = False
    """Whether a rise is forecast, or was forecast recently and may be late: no server is freed."""

    @cached_property
    def ratio(self) -> Floats:
        """The load ratio of each host: the higher one of bandwidth and CPU."""
        return np.maximum(self.host_bytes_out / self.capacity, self.host_cpu / self.cpu_capacity)

    def bound(self, takes: Bools, more: float = 0.0, more_cpu: float = 0.0) -> float:
        """Return the ratio of the total load divided perfectly among these hosts and the extra capacity: the lowest
        possible maximum.
        """
        if not takes.any():
            return np.inf
        bytes_out = self.host_bytes_out.sum() / (self.capacity[takes].sum() + more)
        return float(max(bytes_out, self.host_cpu.sum() / (self.cpu_capacity[takes].sum() + more_cpu)))


def since_moves_s(situation: Situation) -> float:
    """Return the time since channels were last placed. A plan that only requested servers has not changed the load."""
    return situation.at_s - float(situation.moved_at.max(initial=NEVER))


def estimate(situation: Situation, settings: BalanceSettings) -> Estimate:
    """Return the estimate for a situation.

    The load of a host is its measured load: its channels by the model, plus a rest. The rest is the model's error (a
    few clients do not spread evenly) and other work of the host; it stays on the host if channels leave. If a host is
    saturated, its demand may be higher than measured, so a negative rest is ignored. Right after a plan, measurements
    are not used: the window may contain channels at their old place. Then a host that its channels alone do not
    overload is neither relieved nor given more than it has room for.

    A plan may bring to a host `moved_share` of its remaining capacity, regardless of what leaves it: while channels
    move, some of their messages take both paths.
    """
    factor = growth(situation.past_at, situation.past_bytes_out, settings.horizon_s)
    hosts = situation.hosts
    bytes_out, cpu = shares(situation.channels, situation.placements)
    servers = situation.placements.servers
    model_bytes = np.bincount(servers, bytes_out, len(hosts))
    model_cpu = np.bincount(servers, cpu, len(hosts))
    dead, silent = server_state.dead(hosts), server_state.silent(situation)
    model_bytes[silent] = model_cpu[silent] = 0.0
    capacity = np.where(dead | silent, np.inf, np.maximum(hosts.capacity, CAPACITY_MIN))
    cpu_capacity = np.where(dead | silent, np.inf, np.maximum(hosts.cpu_capacity, CAPACITY_MIN))
    rest_bytes, rest_cpu = hosts.bytes_out - model_bytes, hosts.cpu - model_cpu
    full = hosts.bytes_out >= FULL * settings.fail_ratio * capacity
    rest_bytes = np.where(full | dead, rest_bytes.clip(min=0.0), rest_bytes)
    rest_cpu = np.where((hosts.cpu >= FULL * cpu_capacity) | dead, rest_cpu.clip(min=0.0), rest_cpu)
    if since_moves_s(situation) < SEEN_WINDOWS * settings.window_s:
        busy = np.maximum(model_bytes / capacity, model_cpu / cpu_capacity) * factor > settings.high_ratio
        room_bytes = (settings.high_ratio * capacity / factor - model_bytes).clip(min=0.0)
        room_cpu = (settings.high_ratio * cpu_capacity / factor - model_cpu).clip(min=0.0)
        rest_bytes = np.where(busy, 0.0, np.minimum(rest_bytes.clip(min=0.0), room_bytes))
        rest_cpu = np.where(busy, 0.0, np.minimum(rest_cpu.clip(min=0.0), room_cpu))
    load_bytes, load_cpu = model_bytes + rest_bytes, model_cpu + rest_cpu
    return Estimate(
        growth=factor,
        bytes_out=bytes_out * factor,
        cpu=cpu * factor,
        host_bytes_out=load_bytes * factor,
        host_cpu=load_cpu * factor,
        capacity=capacity,
        cpu_capacity=cpu_capacity,
        room_bytes_out=(settings.fail_ratio * capacity - load_bytes) * settings.moved_share * factor,
        room_cpu=(cpu_capacity - load_cpu) * settings.moved_share * factor,
        takes=hosts.takes & (hosts.capacity > 0),
        dead=dead,
        silent=silent,
        ahead=_ahead(situation, settings, factor),
        due=_is_due(situation, settings),
    )


def _ahead(situation: Situation, settings: BalanceSettings, factor: float) -> float:
    """Return the forecast growth beyond the growth already observed; 1 without a forecast."""
    if situation.forecast is None:
        return 1.0
    return max(1.0, situation.forecast.rise(situation.at_s, settings.forecast_s) / factor)


def _is_due(situation: Situation, settings: BalanceSettings) -> bool:
    """Return whether a forecast has a rise that is due, or should have happened by now."""
    if situation.forecast is None:
        return False
    around = situation.at_s - settings.forecast_s, situation.at_s
    return any(situation.forecast.rise(moment, settings.forecast_s) > 1.0 for moment in around)
