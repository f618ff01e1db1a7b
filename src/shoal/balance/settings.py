"""Settings of the policies: thresholds, waits and bounds, each with a name and a unit.

Owns the record and its checks. A policy uses the settings that it needs. Ratios are relative to a server's capacity.
`PUBLIC` names the few that users may need to change.
"""

from __future__ import annotations

import itertools
from typing import Final

import msgspec

from shoal.errors import ConfigError


class BalanceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[balance]` of the configuration file."""

    # -- Windows ---------------------------------------------------------------------------------------------

    window_s: int = 2
    """Length of a load window in whole seconds, the unit of the analyzer."""

    lateness_s: float = 1.5
    """How long a window waits after its end for late records. Then it is closed without them."""

    past_windows: int = 30
    """Number of windows from which a trend is estimated."""

    # -- All policies ----------------------------------------------------------------------------------------

    high_ratio: float = 0.80
    """Load ratio above which a server is overloaded and channels are moved away."""

    safe_ratio: float = 0.70
    """Target load ratio: overloaded servers are relieved until they are below it, and no server is filled above it."""

    grow_ratio: float = 0.60
    """Average load ratio above which a server is added if the present servers cannot be brought below `high_ratio`."""

    low_ratio: float = 0.35
    """Average load ratio below which servers are drained and removed."""

    fail_ratio: float = 1.15
    """Load ratio at which a server fails."""

    wait_s: float = 10.0
    """Shortest time between two plans (T_wait in the Dynamoth paper)."""

    # -- Dynamoth --------------------------------------------------------------------------------------------

    all_subscribers_ratio: float = 20.0
    """Publications per second and subscriber above which a channel is replicated as `all_subscribers`."""

    all_publishers_ratio: float = 40.0
    """Subscribers per publication a second above which a channel is replicated as `all_publishers`."""

    publications_min: float = 400.0
    """Publications per second below which a channel is not replicated as `all_subscribers`."""

    subscribers_min: int = 200
    """Subscribers below which a channel is not replicated as `all_publishers`."""

    # -- Shoal -----------------------------------------------------------------------------------------------

    moves_max: int = 1000
    """Channels that one plan may move."""

    moved_share: float = 0.35
    """Load that one plan may move to a server, as a share of its free capacity up to `fail_ratio`. At 0.35 no server
    fails even if all moving load is forwarded by both servers for a while."""

    settle_s: float = 20.0
    """How long a channel stays after a move, unless its server fails or stays overloaded."""

    horizon_s: float = 20.0
    """How far ahead the trend is extrapolated: about the time until a new server has joined and carries load."""

    forecast_s: float = 60.0
    """How far ahead a forecast is read, so that servers have joined and carry load before its peak."""

    replicas_max: int = 16
    """Servers that one channel may have."""

    server_hour_price: float = 1.0
    """Cost of a new server for one hour, in the unit of `move_price`."""

    move_price: float = 0.0005
    """Cost of moving one channel, in the unit of `server_hour_price`."""

    # -- The engine ------------------------------------------------------------------------------------------

    engine_latency_ms: float = 100.0
    """Target of the engine's planner: 99 of 100 events are delivered within this time after the engine took them."""

    engine_operator_price: float = 1.0
    """Milliseconds of that latency that an operator must save to be worth its place, if processes are not busy."""

    engine_operators_max: int = 8
    """Matchers, and exit points, that the planner wants at most."""

    engine_settle_s: float = 10.0
    """How long a configuration of the engine must have been in force before the planner adds operators."""

    engine_shrink_s: float = 120.0
    """How long it must have been in force before the planner removes one."""

    def validate(self) -> None:
        """Raise ConfigError if a value is invalid or two values contradict each other."""
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise ConfigError(f"balance.{name} is {getattr(self, name)!r}", do="give a number above 0")
        order = ("low_ratio", "safe_ratio", "high_ratio", "fail_ratio")
        for small, large in itertools.pairwise(order):
            if getattr(self, small) >= getattr(self, large):
                raise ConfigError(
                    f"balance.{small} ({getattr(self, small)}) is not below balance.{large} ({getattr(self, large)})",
                    do=f"lower {small} or raise {large}",
                )


DEFAULT_SETTINGS: Final = BalanceSettings()

PUBLIC: Final = frozenset(
    {
        "high_ratio",
        "safe_ratio",
        "low_ratio",
        "wait_s",
        "engine_latency_ms",
        "engine_operator_price",
        "engine_operators_max",
    }
)
"""Settings that users may need to change. The others are internal: they can be set, but may change between versions."""
