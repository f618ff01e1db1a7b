"""What servers carry, as the `shoal` policy sees it: measured, modelled by share, and grown to the horizon.

Owns the estimate that all parts of the policy compute with. Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from shoal.balance.columns import NEVER, Bools, Floats, shares
from shoal.balance.policies import reckoning
from shoal.balance.policies.trend import growth
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Situation

CAPACITY_MIN: Final = 1e-9
"""A server of no capacity that takes channels is one of nearly none: its ratio is huge, not undefined."""

FULL: Final = 0.97
"""Part of what a host can do at the most (its capacity times the fail ratio; its cores) at which it is said to do no
more than it can."""
SEEN_WINDOWS: Final = 4
"""Windows after a plan until one of them has seen nothing but the new placements: channels take a while to move."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Loads at the horizon: what was measured, times `growth`."""

    growth: float
    bytes_out: Floats
    """By share: bytes a second."""
    cpu: Floats
    """By share: cores."""
    host_bytes_out: Floats
    """By host: what its shares and everything else on it send."""
    host_cpu: Floats
    capacity: Floats
    """By host. Dead and silent ones have all the room there is: they are not busy, and nobody puts anything there."""
    cpu_capacity: Floats
    room_bytes_out: Floats
    """By host: what one plan may bring to it."""
    room_cpu: Floats
    takes: Bools
    """Hosts that may receive channels and can carry any."""
    dead: Bools
    """Hosts that are gone: they can carry nothing, and what is placed there is placed nowhere."""
    silent: Bools
    """Hosts of which the window does not tell, though channels there did something: they are left alone."""
    ahead: float = 1.0
    """By what factor more than that is forecast: servers are added for it, and what is spread is worth more by it."""
    due: bool = False
    """Whether a rise is forecast, or was until a moment ago and may be late: no server is freed."""

    @property
    def ratio(self) -> Floats:
        """The load ratio of each host: of bandwidth or of CPU, whichever is higher."""
        return np.maximum(self.host_bytes_out / self.capacity, self.host_cpu / self.cpu_capacity)

    def bound(self, takes: Bools, more: float = 0.0, more_cpu: float = 0.0) -> float:
        """The ratio that all load would have, divided perfectly among these hosts and so much more capacity: no
        placement has a lower maximum."""
        if not takes.any():
            return np.inf
        bytes_out = self.host_bytes_out.sum() / (self.capacity[takes].sum() + more)
        return float(max(bytes_out, self.host_cpu.sum() / (self.cpu_capacity[takes].sum() + more_cpu)))


def since_moves_s(situation: Situation) -> float:
    """How long ago channels were last placed; a plan that only asked for servers has changed no load."""
    return situation.at_s - float(situation.moved_at.max(initial=NEVER))


def estimate(situation: Situation, settings: BalanceSettings) -> Estimate:
    """The estimate for a situation.

    What a host carries is what was measured there: its channels by the model, and a rest, which is what the model gets
    wrong (few clients do not spread evenly) and what the host does beside. The rest stays where channels go. A host
    that sends as much as it can is not believed to be asked for no more. And right after a plan nothing that was
    measured is believed: the window may have seen channels where they were before. Then a host that its channels alone
    do not overload is not relieved, nor given more than it has room for.

    What a plan may bring to a host is `moved_share` of what the host could carry beside its load of now, whatever else
    leaves it: while channels move, some of their messages go by both ways.
    """
    factor = growth(situation.past_at, situation.past_bytes_out, settings.horizon_s)
    hosts = situation.hosts
    bytes_out, cpu = shares(situation.channels, situation.placements)
    servers = situation.placements.servers
    model_bytes = np.bincount(servers, bytes_out, len(hosts))
    model_cpu = np.bincount(servers, cpu, len(hosts))
    dead, silent = reckoning.dead(hosts), reckoning.silent(situation)
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
    """What a forecast says beyond the growth that is seen already; 1 without one."""
    if situation.forecast is None:
        return 1.0
    return max(1.0, situation.forecast.rise(situation.at_s, settings.forecast_s) / factor)


def _is_due(situation: Situation, settings: BalanceSettings) -> bool:
    """Whether a forecast has a rise that is to come, or should have come by now."""
    if situation.forecast is None:
        return False
    around = situation.at_s - settings.forecast_s, situation.at_s
    return any(situation.forecast.rise(moment, settings.forecast_s) > 1.0 for moment in around)
