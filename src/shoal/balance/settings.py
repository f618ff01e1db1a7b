"""The balancer's settings: thresholds, waits and bounds, each with a name and a unit.

Owns the record and its checks. A policy takes what it needs and ignores the rest; ratios are of a server's capacity.
"""

from __future__ import annotations

import itertools
from typing import Final

import msgspec

from shoal.errors import ConfigError


class BalanceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set about balancing."""

    # -- Windows ---------------------------------------------------------------------------------------------

    window_s: int = 2
    """How long a load window is, in whole seconds: the analyzer's unit."""

    lateness_s: float = 1.5
    """How long after its end a window waits for records that are late. Then it is closed without them."""

    past_windows: int = 30
    """How many windows back a trend is seen from."""

    # -- All policies ----------------------------------------------------------------------------------------

    high_ratio: float = 0.80
    """Load ratio above which a server is overloaded, and is relieved."""

    safe_ratio: float = 0.70
    """Load ratio below which an overloaded server is brought, and above which no server is filled."""

    grow_ratio: float = 0.60
    """Average load ratio above which a server is added when the present ones cannot be brought below `high_ratio`."""

    low_ratio: float = 0.35
    """Average load ratio below which servers are freed."""

    fail_ratio: float = 1.15
    """Load ratio at which a server fails."""

    wait_s: float = 10.0
    """Least time between two plans (the paper's T_wait)."""

    # -- Dynamoth --------------------------------------------------------------------------------------------

    all_subscribers_ratio: float = 20.0
    """Publications a second for each subscriber above which a channel's subscribers stand at several servers."""

    all_publishers_ratio: float = 40.0
    """Subscribers for each publication a second above which a channel's publishers use several servers."""

    publications_min: float = 400.0
    """Publications a second below which a channel is not replicated for them."""

    subscribers_min: int = 200
    """Subscribers below which a channel is not replicated for them."""

    # -- Shoal -----------------------------------------------------------------------------------------------

    moves_max: int = 1000
    """Channels that one plan may move."""

    moved_share: float = 0.35
    """What one plan may bring to a server, as a part of what the server could carry beside its load (up to
    `fail_ratio`). At 0.35 moves make no server fail even if all that moves goes by both ways for a while."""

    settle_s: float = 20.0
    """For how long a channel that was placed stays there, unless its server fails or is overloaded beyond help."""

    horizon_s: float = 20.0
    """How far ahead growth is anticipated: about the time that a new server takes to be there and to be filled."""

    forecast_s: float = 60.0
    """How far ahead a forecast is looked at, if there is one: servers are there, and filled, before its peak."""

    replicas_max: int = 16
    """Servers that one channel may have."""

    server_hour_price: float = 1.0
    """What an hour of a new server costs, in the unit of `move_price`."""

    move_price: float = 0.0005
    """What moving one channel is worth avoiding, in the unit of `server_hour_price`."""

    def validate(self) -> None:
        """Raise ConfigError if a value cannot be, or if two of them cannot be together."""
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
