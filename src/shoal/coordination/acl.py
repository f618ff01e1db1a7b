"""Permissions of each role on the coordinator's Redis, as rules for ACL SETUSER or an ACL file.

Owns the roles on the coordinator. Permissions on the servers that carry messages are in `shoal.cluster.acl`. This
module never opens a connection and contains no passwords; the caller adds them. No role may run scripts, replicate,
change the configuration or read a key outside `shoal:`.

    client    reads the plan and receives notifications; writes nothing
    reader    a client that also reads the balancer's records, the pool states of servers, and what engines report
    pipeline  a reader that also writes load windows for the balancer
    agent     reads the plan and the agents' secret; takes leases and memberships of servers and stores, and writes
              reports (its own only, with `server_id`); writes requests about queues, for clients
    engine    a client that also takes the lease of an engine, and writes which instance serves
    admin     everything under `shoal:`, plus INFO to check the append-only file

Known limits: agents share the index and the counter of their leases, memberships, reports and requests. A rogue agent
could hide others from listings, but not take their leases. It could ask for any queue to be created or dropped.
Notifications are never trusted. Redis before 7.0 has no read-only key permission, so there an agent can write every key
that it can read; plan entries are signed, and forged ones are rejected. It could replace the secret that all agents
share, which it knows anyway.
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias, get_args

from shoal.coordination.layout import CHANNEL, LEASE, MEMBER, PREFIX, WINDOWS, counter_key, index_key
from shoal.errors import ConfigError

Role: TypeAlias = Literal["client", "reader", "pipeline", "agent", "engine", "admin"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)

PLAN_AREA: Final = "plan/"
BALANCE_AREA: Final = "balance/"
POOL_AREA: Final = "pool/"
SERVERS: Final = "servers"
"""Group of the server memberships, and area of the server leases."""
STORES: Final = "stores"
"""The same for stores."""
SECRETS_AREA: Final = "secrets/"
"""Secrets that only agents and leaders may read."""
REPORTS_AREA: Final = "reports/"
"""Reports by agents on moving units, one key per kind of unit and server."""
ENGINES_AREA: Final = "engines/"
"""Leases of engines, and which instance of each serves."""
MOVES_AREA: Final = "moves/"
"""Requests to leaders, one key per kind of unit and unit."""
QUEUE_REQUESTS: Final = "moves/queue/"
"""Those about queues. An agent passes them on for clients, which cannot write."""

READ_ONLY_KEYS_SINCE: Final = (7, 0)
"""First Redis version with read-only key permissions."""

DEFAULT_USER_RULES: Final = ("off", "resetpass", "allkeys", "allchannels", "+@all")
"""Rules for the user `default`: login is disabled, but all permissions stay.

Redis replays its append-only file as `default` when it starts, and EXEC checks that user's permissions. With `default
off -@all`, every transaction in the file is refused at the next start and only the log shows it. The coordinator writes
in transactions, so it would come back empty.
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
    """Return the ACL rules of a role: first no permissions at all, then the ones the role needs.

    `server_id` restricts an agent to the lease, membership and report of that server or store; without it, one user can
    serve all agents. `server_version` is the version of the coordinator's Redis. From 7.0 on, an agent cannot write
    keys that it only needs to read.
    """
    if role == "client":
        return [*_NOTHING, *_plan("~"), *_LISTEN, *_CONNECT, *_TRANSACT, *_READ_KEYS]
    if role in ("reader", "pipeline"):
        read = "%R~" if role == "pipeline" and server_version >= READ_ONLY_KEYS_SINCE else "~"
        areas = [*_plan(read), *_area(read, BALANCE_AREA), *_area(read, POOL_AREA), *_area(read, ENGINES_AREA)]
        areas += [f"{read}{PREFIX}{LEASE}{ENGINES_AREA}*", "+pttl"]
        windows = [f"~{PREFIX}{WINDOWS}*", "+xadd", "+set", "+del"] if role == "pipeline" else []
        return [*_NOTHING, *areas, *_LISTEN, *_CONNECT, *_TRANSACT, *_READ_KEYS, *windows]
    if role == "agent":
        read = "%R~" if server_version >= READ_ONLY_KEYS_SINCE else "~"
        keys = [*_plan(read), *_area(read, SECRETS_AREA), *_grants(read, server_id), *_reports(server_id)]
        keys += [f"~{PREFIX}{QUEUE_REQUESTS}*", f"~{index_key(MOVES_AREA)}", f"~{counter_key(MOVES_AREA)}"]
        return [*_NOTHING, *keys, *_LISTEN, *_CONNECT, *_TRANSACT, *_READ_KEYS, *_GRANT]
    if role == "engine":
        read = "%R~" if server_version >= READ_ONLY_KEYS_SINCE else "~"
        lease = f"{LEASE}{ENGINES_AREA}"
        keys = [f"~{PREFIX}{area}*" for area in (lease, ENGINES_AREA)]
        keys += [word for area in (lease, ENGINES_AREA) for word in (f"~{index_key(area)}", f"~{counter_key(area)}")]
        return [*_NOTHING, *_plan(read), *keys, *_LISTEN, *_CONNECT, *_TRANSACT, *_READ_KEYS, *_GRANT]
    if role == "admin":
        return [*_NOTHING, f"~{PREFIX}*", *_ADMIN, *_LISTEN, *_CONNECT, "+publish", "+time", "+info"]
    raise ConfigError(f"{role!r} is not a coordinator role", do=f"choose one of {', '.join(ROLES)}")


def _plan(read: str) -> list[str]:
    """Rules for reading and watching the plan."""
    return _area(read, PLAN_AREA)


def _area(read: str, area: str) -> list[str]:
    """Rules for the keys of an area, its index and its counter."""
    return [f"{read}{PREFIX}{area}*", read + index_key(area), read + counter_key(area)]


def _grants(read: str, server_id: str | None) -> list[str]:
    """Rules for leases and memberships of servers and stores: write its own, read all."""
    if server_id is not None and _SERVER_ID.fullmatch(server_id) is None:
        raise ConfigError(f"{server_id!r} is not a valid server id", do="use 1 to 64 letters, digits, '_', '.' or '-'")
    patterns = []
    for area in (f"{grant}{group}/" for group in (SERVERS, STORES) for grant in (LEASE, MEMBER)):
        patterns += [f"~{PREFIX}{area}{server_id or '*'}", f"~{index_key(area)}", f"~{counter_key(area)}"]
        if server_id is not None:
            patterns.append(f"{read}{PREFIX}{area}*")
    return patterns


def _reports(server_id: str | None) -> list[str]:
    """Rules for writing reports. Only the leader reads all reports."""
    return [
        f"~{PREFIX}{REPORTS_AREA}{f'*/{server_id}' if server_id else '*'}",
        f"~{index_key(REPORTS_AREA)}",
        f"~{counter_key(REPORTS_AREA)}",
    ]
