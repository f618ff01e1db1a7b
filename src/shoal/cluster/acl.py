"""Permissions of each role on a data server, and the ACL files of all servers of a cluster.

Owns the roles on data servers; permissions on the coordinator are in `shoal.coordination.acl`. Each role gets only what
it needs: no role may run scripts, restore, replicate, change the configuration or access keys other than the telemetry
stream, the records of channels and the copy of the plan; clients may read the last two.

From 7.0 on, the rules of clients differ by command. A client may publish on application channels, to agents and to
other clients, but not the messages that only agents send, and it may not subscribe to the messages from clients to
agents. It may use any pattern, so it can still receive everything; docs/identity.md explains the consequences.

Redis has only positive channel patterns, so "every name that does not begin with `__shoal:`" is written as patterns for
all names that differ from the prefix in some position. Redis tries them in order on each command; the first one already
matches every name that does not begin with an underscore.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from shoal.coordination.acl import Role, acl_rules
from shoal.engine.messages import ENGINE_PREFIX
from shoal.plan.plan_copy import PLAN_COPY_KEY
from shoal.wire.envelope import (
    AGENT_CHANNEL,
    HEARTBEAT_CHANNEL,
    INBOX_PREFIX,
    PEER_PREFIX,
    RESERVED_PREFIX,
    TELEMETRY_KEY,
)
from shoal.wire.record_entry import ARCHIVED_KEY, INDEX_KEY

SELECTORS_SINCE: Final = (7, 0)
"""First Redis version with selectors: separate channels or keys for some commands."""
CHANNEL_RIGHTS_SINCE: Final = (6, 2)
"""First Redis version with channel permissions; older servers are rejected."""

CLIENT: Final = "client"
AGENT: Final = "agent"
READER: Final = "reader"
PIPELINE: Final = "pipeline"
ADMIN: Final = "admin"
ENGINE: Final = "engine"
ROLES: Final = (CLIENT, AGENT, READER, PIPELINE, ADMIN, ENGINE)
SUPERVISOR: Final = "supervisor"
"""Not a role: the user with which the supervisor of a local cluster changes the passwords of roles, and makes servers
read their certificates again (Redis cannot limit CONFIG SET to some settings). A user that may
change users may do everything, so no role has these rights."""

_NONE: Final[Mapping[str, str]] = {}
_UNSUBSCRIBE: Final = "+unsubscribe +punsubscribe"
_LISTEN: Final = f"+subscribe +psubscribe {_UNSUBSCRIBE}"
_COUNT: Final = "+pubsub|channels +pubsub|numsub +pubsub|numpat"
_BASE: Final = "+ping +client|setname +client|id"
_TELEMETRY: Final = f"~{TELEMETRY_KEY.decode()}"
_RECORDS: Final = f"~{INDEX_KEY.decode()}*"
_PLAN_COPY: Final = f"~{PLAN_COPY_KEY.decode()}"
_READ_RECORDS: Final = "+xrange +xrevrange +smembers +get"

QUEUE_KEYS: Final = "__shoal:q:"
"""Prefix of the keys and inboxes of queues on a store."""
_SCRIPT_COMMANDS: Final = (
    "+get +set +unlink +exists +time +publish +hget +hmget +hset +hdel +hgetall +hincrby +hkeys +hlen +hscan +lpush "
    "+rpush +lpop +llen +lindex +lrange +ltrim +zadd +zrem +zrange +zrangebyscore +zscore +zcard +sadd +srem "
    "+sismember +smembers +scard +xadd +xlen +xrange +xdel"
)
"""The commands that the scripts of queues call."""
_SCRIPTS: Final[Mapping[str, tuple[str, ...]]] = {
    CLIENT: ("put", "turn", "look", "repair"),
    AGENT: ("put", "turn", "look", "repair", "admin", "ship"),
    ADMIN: ("put", "turn", "look", "repair", "admin"),
}
"""The scripts of queues that each role may run."""

_REPLAY: Final = "allkeys allchannels +@all"
"""Permissions of the default user of the coordinator and of stores, whose login is disabled. Redis replays its
append-only file as that user and checks each transaction against them: without them the server would come back empty,
and only its log would show it.
"""


def names_without(*prefixes: str) -> list[str]:
    """Return glob patterns that together match every channel name (but the empty one) without these prefixes, most
    common first.
    """
    if set("".join(prefixes)) & set("[]^\\*?-"):
        raise ValueError(f"{prefixes!r} contain pattern characters")
    begins = sorted({prefix[:index] for prefix in prefixes for index in range(len(prefix))}, key=len)
    differ = []
    for begin in begins:
        following = {prefix[len(begin)] for prefix in prefixes if prefix.startswith(begin)}
        differ.append(f"{begin}[^{''.join(sorted(following))}]*")
    return [*differ, *(begin for begin in begins if begin)]


def _patterns(*prefixes: bytes) -> str:
    return " ".join(f"&{pattern}" for pattern in names_without(*(prefix.decode() for prefix in prefixes)))


def client_publish_guarded(version: tuple[int, ...]) -> bool:
    """Return whether a server of this version can prevent clients from publishing messages that only agents send."""
    return version[:2] >= SELECTORS_SINCE


def rights(role: str, version: tuple[int, ...]) -> str:
    """Return the ACL rules of a role on a server of this version."""
    if role in (CLIENT, ENGINE):
        common = f"{_BASE} {_UNSUBSCRIBE} {_COUNT} +info {_RECORDS} {_PLAN_COPY} {_READ_RECORDS}"
        if not client_publish_guarded(version):
            return f"allchannels {common} {_LISTEN} +publish"
        names = _patterns(RESERVED_PREFIX)
        application = _patterns(RESERVED_PREFIX, ENGINE_PREFIX)
        inbox, peer = f"&{INBOX_PREFIX.decode()}*", f"&{PEER_PREFIX.decode()}*"
        publish = f"(+publish {application if role == CLIENT else names} &{AGENT_CHANNEL.decode()} {peer})"
        subscribe = f"(+subscribe {names} &{HEARTBEAT_CHANNEL.decode()} {inbox} {peer})"
        return f"{common} {publish} {subscribe} (+psubscribe allchannels)"
    if role == AGENT:
        clients = "+client|list +client|kill"
        write = "+xadd +xlen +xtrim +sadd +set"
        keys = f"{_TELEMETRY} {_RECORDS} {_PLAN_COPY}"
        return f"allchannels {keys} {_BASE} {_LISTEN} {_COUNT} +publish +info {clients} {write} {_READ_RECORDS}"
    if role in (READER, PIPELINE):
        read = f"{_TELEMETRY} {_RECORDS} {_BASE} +info +xread +xlen +xinfo|stream {_READ_RECORDS}"
        tells = role == PIPELINE and version[:2] >= SELECTORS_SINCE
        return f"{read} (+set ~{ARCHIVED_KEY.decode()})" if tells else read
    if role == ADMIN:
        return f"{_RECORDS} {_BASE} {_COUNT} +info +client|list +client|kill +config|get +shutdown +get"
    raise ValueError(f"{role!r} is not a role on data servers; roles are {', '.join(ROLES)}")


def acl_file(
    default: str, rules: Mapping[str, str], passwords: Mapping[str, str], older: Mapping[str, str] = _NONE
) -> str:
    """Return the text of an ACL file: login as the default user is disabled, and passwords are stored as hashes.
    `older` are passwords that are valid too, by role."""
    lines = [f"user default off resetpass {default}"]
    for role, rule in rules.items():
        valid = [passwords[role], *([older[role]] if role in older else [])]
        lines.append(f"user {role} on {_digests(valid)} resetkeys resetchannels -@all {rule}")
    return "\n".join(lines) + "\n"


def supervisor_line(password: str) -> str:
    """Return the line of an ACL file for the user `supervisor`."""
    rule = "+ping +hello +client|setname +client|kill +acl|setuser +config|set"
    return f"user {SUPERVISOR} on {_digests([password])} resetkeys resetchannels -@all {rule}\n"


def _digests(passwords: Iterable[str]) -> str:
    return " ".join(f"#{hashlib.sha256(password.encode()).hexdigest()}" for password in passwords)


def data_acl_file(passwords: Mapping[str, str], version: tuple[int, ...], older: Mapping[str, str] = _NONE) -> str:
    """Return the ACL file of a data server."""
    rules = {role: rights(role, version) for role in ROLES}
    return acl_file("resetkeys resetchannels -@all", rules, passwords, older)


def store_rights(role: str, scripts: Mapping[str, str]) -> str:
    """Return the ACL rules of a role on a store. `scripts` are the SHA-1 names of the scripts of queues, by name.

    Clients run the scripts that put, take, look and repair. They cannot load them: a store that has come back serves
    clients when its agent has read the plan and loaded the scripts.
    Redis checks the commands inside a script with the rights of its caller, so a client can also run these commands
    itself, on the keys of queues: rights protect other data from clients of queues, and queues from mistakes of
    clients, but not from a client that writes to their keys.
    """
    run = " ".join(f"+evalsha|{scripts[name]}" for name in _SCRIPTS.get(role, ()))
    use = f"~{QUEUE_KEYS}* &{QUEUE_KEYS}* {_BASE} {run} {_SCRIPT_COMMANDS}"
    if role == CLIENT:
        return f"{use} +subscribe +unsubscribe"
    if role == ENGINE:
        return "+ping"  # an engine does not use stores
    if role in (READER, PIPELINE):
        return f"~{QUEUE_KEYS}* {_TELEMETRY} {_BASE} +info +get +xrange +xrevrange +xlen +xread +xinfo|stream"
    if role == AGENT:
        return f"{use} +script|load {_TELEMETRY} +info +client|list +client|kill"
    if role == ADMIN:
        manage = "+script|load +info +client|list +client|kill +config|get +shutdown"
        return f"{use} {_TELEMETRY} +xinfo|stream +subscribe +unsubscribe {manage}"
    raise ValueError(f"{role!r} is not a role on stores; roles are {', '.join(ROLES)}")


def store_acl_file(passwords: Mapping[str, str], scripts: Mapping[str, str], older: Mapping[str, str] = _NONE) -> str:
    """Return the ACL file of a store. Like the coordinator's, its default user keeps all rights without a login: a
    store writes scripts as transactions, and would come back empty."""
    rules = {role: store_rights(role, scripts) for role in ROLES}
    return acl_file(_REPLAY, rules, passwords, older)


def coordinator_acl_file(
    passwords: Mapping[str, str], version: tuple[int, ...], older: Mapping[str, str] = _NONE
) -> str:
    """Return the ACL file of the coordinator, with the same users."""
    here: dict[str, Role] = {
        CLIENT: "client",
        AGENT: "agent",
        READER: "reader",
        PIPELINE: "pipeline",
        ADMIN: "admin",
        ENGINE: "engine",
    }
    rules = {role: " ".join(acl_rules(there, server_version=version)) for role, there in here.items()}
    return acl_file(_REPLAY, rules, passwords, older)
