"""Options of the balancer itself; those of the policies are in `settings.py`.

Owns the record and its checks. Every timeout has a name, a unit and a defined end. `PUBLIC` names the options that
users may need to change.
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
    """The table `[balancer]` of the configuration file."""

    policy: str = "shoal"
    """The policy that decides: `shoal`, `dynamoth`, `slots`, ... (see policies.md)."""

    auto: bool = False
    """Whether decisions are carried out immediately. Otherwise they are proposals, applied with `shoal plan apply`."""

    servers_min: int = 1
    """Smallest number of servers. No server is drained below it."""

    servers_max: int = 8
    """Largest number of servers. No server is added above it."""

    pool: str = ""
    """A fixed pool of servers, `id@host:port,...`, each with a running agent; with several sites `id@host:port/site`.
    Empty: the supervisor of a local cluster starts and stops servers; without one the number of servers is fixed."""

    new_max_out_bytes_per_s: float = 125_000_000.0
    """Capacity of an added server. A local cluster reports it itself."""

    forecast: str = ""
    """A file written by `shoal pipeline forecast`. It is read again after each change."""

    move_timeout_s: float = 60.0
    """How long the balancer waits for the moves of a plan. Then it may make the next plan; the moves continue."""

    join_timeout_s: float = 60.0
    """How long a requested server may take to join. Then the request is dropped and may be repeated."""

    retry_s: float = 5.0
    """Delay before a request that the provider refused is repeated."""

    empty_s: float = 5.0
    """How long a drained server must have no subscribers and no publications before it is removed."""

    keep_records: bool = True
    """Whether a drained server is kept until its records are archived. Its records are lost when it is removed."""

    def validate(self) -> None:
        """Raise ConfigError if a value is invalid or two values contradict each other."""
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

PUBLIC: Final = frozenset(
    {
        "policy",
        "auto",
        "servers_min",
        "servers_max",
        "pool",
        "new_max_out_bytes_per_s",
        "forecast",
        "keep_records",
    }
)
"""Options that users may need to change. The others are internal: they can be set, but may change between versions."""
