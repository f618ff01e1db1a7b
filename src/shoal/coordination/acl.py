"""The rights of each role on the coordinator's Redis, as rules for ACL SETUSER or an ACL file.

Owns who may do what on the coordinator; the rights on servers that carry messages are in `shoal.cluster.acl`.
It never touches a connection and knows no passwords: whoever makes the users adds those. No role may script,
replicate, change the configuration or see a key outside `shoal:`.

    client    reads the plan, hears notifications; writes nothing
    reader    a client that also reads what the balancer has written down, and how servers stand in the pool
    pipeline  a reader that also writes load windows for the balancer
    agent     reads the plan; takes leases and memberships of servers and writes reports, its own only if `server_id`
              says which
    admin     everything under `shoal:`, and INFO, which says whether the append-only file is well

What the rights cannot express: agents share the index and the counter of their leases, memberships and reports, so a
rogue agent could hide others from listings, though not take their leases. A notification is not trusted by
anybody. Before Redis 7 a user cannot have some keys for reading only, so there an agent could write what it
may read; entries of the plan are signed, so that a forged one is refused.
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias, get_args

from shoal.coordination.layout import CHANNEL, LEASE, MEMBER, PREFIX, WINDOWS, counter_key, index_key
from shoal.errors import ConfigError

Role: TypeAlias = Literal["client", "reader", "pipeline", "agent", "admin"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)

PLAN_AREA: Final = "plan/"
BALANCE_AREA: Final = "balance/"
POOL_AREA: Final = "pool/"
SERVERS: Final = "servers"
"""The group of the servers' memberships, and the area of their leases."""
REPORTS_AREA: Final = "reports/"
"""What agents say of the units that move, one key for each kind of unit and each server."""

READ_ONLY_KEYS_SINCE: Final = (7, 0)
"""The first server version that can give a key for reading only."""

DEFAULT_USER_RULES: Final = ("off", "resetpass", "allkeys", "allchannels", "+@all")
"""The rules of the user `default`: nobody can log in as it, yet it keeps all rights.

When Redis starts it replays its append-only file in the name of `default`, and EXEC checks that user's
rights: with `default off -@all` every transaction in the file is refused at the next start, and only the log
says so. The coordinator writes by transactions, so it would come back empty.
"""

_NOTHING: Final = ("resetkeys", "resetchannels", "-@all")
_LISTEN: Final = (f"&{CHANNEL}", "+subscribe", "+unsubscribe")
_CONNECT: Final = ("+hello", "+ping")
_TRANSACT: Final = ("+watch", "+unwatch", "+multi", "+exec")
_READ_KEYS: Final = ("+get", "+mget", "+zrangebylex")
_GRANT: Final = (
    *("+time", "+incr", "+set", "+pexpire", "+del", "+publish"),
    *("+zadd", "+zrem", "+zremrangebyscore", "+zrange", "+pttl"),
)
_ADMIN: Final = (
    "+@read",
    "+@write",
    "+@transaction",
    "+@connection",
    "-@dangerous",
    "-@scripting",
    "-@blocking",
)

_SERVER_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def acl_rules(
    role: Role, *, server_id: str | None = None, server_version: tuple[int, ...] = READ_ONLY_KEYS_SINCE
) -> list[str]:
    """The rules of a role: nothing at first, then what its work needs.

    `server_id` narrows an agent to the lease, the membership and the report of that one server; without it the user can
    serve for all agents. `server_version` is that of the coordinator's Redis: from 7.0 on an agent cannot
    write what it only reads.
    """
    if role == "client":
        return [*_NOTHING, *_plan("~"), *_LISTEN, *_CONNECT, *_TRANSACT, *_READ_KEYS]
    if role in ("reader", "pipeline"):
        read = "%R~" if role == "pipeline" and server_version >= READ_ONLY_KEYS_SINCE else "~"
        areas = [*_plan(read), *_area(read, BALANCE_AREA), *_area(read, POOL_AREA)]
        windows = [f"~{PREFIX}{WINDOWS}*", "+xadd", "+set", "+del"] if role == "pipeline" else []
        return [*_NOTHING, *areas, *_LISTEN, *_CONNECT, *_TRANSACT, *_READ_KEYS, *windows]
    if role == "agent":
        read = "%R~" if server_version >= READ_ONLY_KEYS_SINCE else "~"
        keys = [*_plan(read), *_grants(read, server_id), *_reports(server_id)]
        return [*_NOTHING, *keys, *_LISTEN, *_CONNECT, *_TRANSACT, *_READ_KEYS, *_GRANT]
    if role == "admin":
        return [*_NOTHING, f"~{PREFIX}*", *_ADMIN, *_LISTEN, *_CONNECT, "+publish", "+time", "+info"]
    raise ConfigError(f"{role!r} is not a role on the coordinator", do=f"choose one of {', '.join(ROLES)}")


def _plan(read: str) -> list[str]:
    """What reading and watching the plan needs."""
    return _area(read, PLAN_AREA)


def _area(read: str, area: str) -> list[str]:
    """The keys of one area, with its index and its counter."""
    return [f"{read}{PREFIX}{area}*", read + index_key(area), read + counter_key(area)]


def _grants(read: str, server_id: str | None) -> list[str]:
    """The leases and memberships of servers: one of each to write, all to read."""
    if server_id is not None and _SERVER_ID.fullmatch(server_id) is None:
        raise ConfigError(
            f"{server_id!r} cannot be the id of a server", do="use 1 to 64 letters, digits, '_', '.' or '-'"
        )
    patterns = []
    for shelf in (f"{LEASE}{SERVERS}/", f"{MEMBER}{SERVERS}/"):
        patterns += [f"~{PREFIX}{shelf}{server_id or '*'}", f"~{index_key(shelf)}", f"~{counter_key(shelf)}"]
        if server_id is not None:
            patterns.append(f"{read}{PREFIX}{shelf}*")
    return patterns


def _reports(server_id: str | None) -> list[str]:
    """What writing reports needs; only the leader reads them all."""
    return [
        f"~{PREFIX}{REPORTS_AREA}{f'*/{server_id}' if server_id else '*'}",
        f"~{index_key(REPORTS_AREA)}",
        f"~{counter_key(REPORTS_AREA)}",
    ]
