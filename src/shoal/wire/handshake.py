"""The handshake of a connection: login, identification of the server, and the errors for refusals.

Owns the first commands of a connection and the checks of their replies. It never touches a socket;
`shoal.wire.connection` sends and receives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import hiredis

from shoal.errors import AuthenticationError, ConnectError, ProtocolError, ServerTooOldError
from shoal.wire.commands import Command

REDIS_VERSION_MIN: Final = (6, 2)
"""The first Redis with ACL rules for channels, and with transactions that notice the expiry of a watched key. Every
Valkey is newer.
"""

_DEFAULT_USER: Final = "default"
NO_REDIS: Final = "check that the address is a Redis or Valkey server's"


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Name (`redis` or `valkey`), version and run id of a server.

    A changed `run_id` means that the server was restarted and has lost its subscribers. It is None if it was not
    requested.
    """

    name: str
    version: str
    run_id: str | None


def _hello_command(username: str | None, password: str | None, name: str) -> Command:
    """Switch to RESP3, log in and set the client name. A user without a password logs in with an empty one."""
    hello: list[bytes] = [b"HELLO", b"3"]
    if username is not None or password is not None:
        hello += [b"AUTH", (username or _DEFAULT_USER).encode(), (password or "").encode()]
    hello += [b"SETNAME", name.encode()]
    return tuple(hello)


def handshake_commands(
    username: str | None, password: str | None, name: str, *, identify: bool = True
) -> list[Command]:
    """Return HELLO and, with `identify`, INFO for the run id (which needs that permission): one round trip."""
    hello = _hello_command(username, password, name)
    return [hello, (b"INFO", b"server")] if identify else [hello]


def _judge_hello(hello: Any, *, where: str, username: str | None) -> tuple[str, str]:
    """Return the server's name and version; raises if it refused the login or is too old."""
    if isinstance(hello, hiredis.ReplyError):
        raise _refusal(hello, "HELLO", where, username)
    if not isinstance(hello, dict):
        raise ProtocolError(f"{where} answered HELLO with {type(hello).__name__}, not with a map", do=NO_REDIS)
    name, version = _text(hello.get(b"server")), _text(hello.get(b"version"))
    _check_version(name, version, where)
    return name, version


def judge_handshake(replies: list[Any], *, where: str, username: str | None) -> ServerIdentity:
    """Return the server's identity from the replies to `handshake_commands`; raises as `_judge_hello` does."""
    hello, *rest = replies
    name, version = _judge_hello(hello, where=where, username=username)
    if not rest:
        return ServerIdentity(name, version, None)
    (info,) = rest
    if isinstance(info, hiredis.ReplyError):
        raise _refusal(info, "INFO", where, username)
    if not isinstance(info, bytes):
        raise ProtocolError(f"{where} answered INFO with {type(info).__name__}, not with text", do=NO_REDIS)
    facts = dict(line.split(":", 1) for line in info.decode(errors="replace").splitlines() if ":" in line)
    if "run_id" not in facts:
        raise ProtocolError(f"{where} did not report its run_id", do=NO_REDIS)
    if facts.get("server_name") == "valkey":
        return ServerIdentity("valkey", facts.get("valkey_version", version), facts["run_id"])
    return ServerIdentity(name, version, facts["run_id"])


def _check_version(name: str, version: str, where: str) -> None:
    """Raise ServerTooOldError for a Redis before 6.2. Every Valkey is newer."""
    if name != "redis":
        return
    try:
        numbers = tuple(int(part) for part in version.split(".")[:2])
    except ValueError as error:
        raise ProtocolError(f"{where} reported an invalid version, {version!r}", do=NO_REDIS) from error
    if numbers < REDIS_VERSION_MIN:
        raise _too_old(where, f"is Redis {version}")


def _refusal(reply: hiredis.ReplyError, command: str, where: str, username: str | None) -> Exception:
    """Return the error for a refused command of the handshake. The reply is its cause, unless it may repeat the
    password."""
    text = str(reply)
    code = text.split(" ", 1)[0]
    user = username or _DEFAULT_USER
    error: Exception
    if code == "NOPROTO" or "unknown command" in text:
        return _too_old(where, "is older than Redis 6 (it does not support HELLO 3)")
    if code == "WRONGPASS":
        error = AuthenticationError(
            f"{where} refused user {user!r} ({text})",
            do="check the user's name and password, and that it is enabled",
        )
    elif code == "NOAUTH":
        error = AuthenticationError(f"{where} requires a password ({text})", do="set a user name and a password")
    elif code == "NOPERM":
        error = AuthenticationError(
            f"user {user!r} at {where} has no permission for {command} ({text})",
            do=f"ACL SETUSER {user} +{command.lower()}",
        )
    elif "max number of clients" in text:
        error = ConnectError(f"{where} has no room for another connection ({text})", do="raise its maxclients")
    else:
        error = ConnectError(f"{where} refused {command}: {text}")
    error.__cause__ = reply
    return error


def _too_old(where: str, what: str) -> ServerTooOldError:
    """Return the error for a server that is too old."""
    least = ".".join(map(str, REDIS_VERSION_MIN))
    return ServerTooOldError(f"{where} {what}", do=f"use Redis {least} or newer, or any Valkey")


def _text(value: object) -> str:
    """Return a field of the HELLO reply as text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else ""
