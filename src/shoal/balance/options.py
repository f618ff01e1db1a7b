"""What can be set about the balancer itself, beside the settings of its policy.

Owns the record and its checks. Each wait has a name and a unit, and says what happens at its end.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from shoal.errors import ConfigError
from shoal.plan.ring import ServerAddress

SERVERS_MAX: Final = 1000
_POOL_ENTRY: Final = re.compile(r"([A-Za-z0-9_.-]{1,64})@(\[[^]]+\]|[^:@\s]+):(\d{1,5})(?:/([^/@\s]+))?")


class BalancerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a balancer works."""

    policy: str = "shoal"
    """The policy that it goes by."""

    auto: bool = False
    """Whether what the policy wants is done at once. If not, it is proposed and applied on request only."""

    servers_min: int = 1
    """No server is drained if fewer than so many would be left."""

    servers_max: int = 8
    """No server is added beyond so many."""

    pool: str = ""
    """A fixed pool of servers, `id@host:port,...`, each with its agent running; `id@host:port/site` where there are
    several sites. Empty: the local cluster's supervisor starts and ends servers, or nobody does where there is none."""

    new_max_out_bytes_per_s: float = 125_000_000.0
    """What a server that is added may send. A local cluster says it itself."""

    forecast: str = ""
    """A file of forecasts, as `shoal pipeline forecast` writes it, read again when it is new. Empty: none."""

    move_timeout_s: float = 60.0
    """How long the moves of a plan are waited for. Then the next plan may be made; the mover goes on with them."""

    join_timeout_s: float = 60.0
    """How long a server that was asked for may take to join. Then it is given up, and may be asked for again."""

    retry_s: float = 5.0
    """Wait before the provider is asked again for what it refused."""

    empty_s: float = 5.0
    """How long a drained server must be without subscribers and publications before it is removed."""

    keep_records: bool = True
    """Whether a drained server stays until all that was recorded there is archived: its records go with it."""

    def validate(self) -> None:
        """Raise ConfigError if a value cannot be, or if two of them cannot be together."""
        for name in ("new_max_out_bytes_per_s", "move_timeout_s", "join_timeout_s", "retry_s", "empty_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"balancer.{name} is {getattr(self, name)!r}", do="give a number above 0")
        if not 1 <= self.servers_min <= self.servers_max <= SERVERS_MAX:
            raise ConfigError(
                f"balancer.servers_min is {self.servers_min} and balancer.servers_max {self.servers_max}",
                do=f"give 1 <= servers_min <= servers_max <= {SERVERS_MAX}",
            )
        self.pool_addresses()

    def pool_addresses(self) -> tuple[ServerAddress, ...]:
        """The servers of the fixed pool."""
        words = [word.strip() for word in self.pool.split(",") if word.strip()]
        found = []
        for word in words:
            match = _POOL_ENTRY.fullmatch(word)
            if match is None:
                raise ConfigError(f"balancer.pool has {word!r}", do="write each server as id@host:port[/site]")
            found.append(ServerAddress(match[1], match[2].strip("[]"), int(match[3]), match[4] or ""))
        if len({server.id for server in found}) < len(found):
            raise ConfigError("balancer.pool names a server twice", do="name each id once")
        return tuple(found)


DEFAULT_OPTIONS: Final = BalancerOptions()
