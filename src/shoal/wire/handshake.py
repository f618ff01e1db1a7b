"""The handshake on a connection: login, identification of the server, and the meaning of its refusals.

Owns the commands that open a connection and the judgement of their answers. Never touches a socket:
`shoal.wire.connection` carries them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import hiredis

from shoal.errors import AuthenticationError, ConnectError, ProtocolError, ServerTooOldError
from shoal.wire.commands import Command

REDIS_VERSION_MIN: Final = (6, 2)
"""The first Redis with ACL rules for channels, which roles need, and whose transactions notice that a watched key has
expired. Every Valkey is newer.
"""

_DEFAULT_USER: Final = "default"
NO_REDIS: Final = "check that the address is a Redis or Valkey server's"


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """What a server says of itself: `redis` or `valkey`, its own version, and the id of this run of it.

    A changed `run_id` tells that the server was restarted and has forgotten its subscribers. It is None if the
    server was not asked.
    """

    name: str
    version: str
    run_id: str | None


def _hello_command(username: str | None, password: str | None, name: str) -> Command:
    """Switch to RESP3, log in, say our name. A user without a password logs in with an empty one."""
    hello: list[bytes] = [b"HELLO", b"3"]
    if username is not None or password is not None:
        hello += [b"AUTH", (username or _DEFAULT_USER).encode(), (password or "").encode()]
    hello += [b"SETNAME", name.encode()]
    return tuple(hello)


def handshake_commands(
    username: str | None, password: str | None, name: str, *, identify: bool = True
) -> list[Command]:
    """Say hello and, to `identify` the run of the server, ask for INFO, which takes the right to it: one round trip."""
    hello = _hello_command(username, password, name)
    return [hello, (b"INFO", b"server")] if identify else [hello]


def _judge_hello(hello: Any, *, where: str, username: str | None) -> tuple[str, str]:
    """The server's name and version, if it let us in and is new enough; else the error that says why not."""
    if isinstance(hello, hiredis.ReplyError):
        raise _refusal(hello, "HELLO", where, username)
    if not isinstance(hello, dict):
        raise ProtocolError(f"{where} answered HELLO with {type(hello).__name__}, not with a map", do=NO_REDIS)
    name, version = _text(hello.get(b"server")), _text(hello.get(b"version"))
    _check_version(name, version, where)
    return name, version


def judge_handshake(replies: list[Any], *, where: str, username: str | None) -> ServerIdentity:
    """The server's identity from the replies to `handshake_commands`; errors as in `_judge_hello`."""
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
        raise ProtocolError(f"{where} does not tell its run_id", do=NO_REDIS)
    if facts.get("server_name") == "valkey":
        return ServerIdentity("valkey", facts.get("valkey_version", version), facts["run_id"])
    return ServerIdentity(name, version, facts["run_id"])


def _check_version(name: str, version: str, where: str) -> None:
    """Refuse a Redis before 6.2; every Valkey is newer than that."""
    if name != "redis":
        return
    try:
        numbers = tuple(int(part) for part in version.split(".")[:2])
    except ValueError as error:
        raise ProtocolError(f"{where} tells a version that is none, {version!r}", do=NO_REDIS) from error
    if numbers < REDIS_VERSION_MIN:
        raise _too_old(where, f"is Redis {version}")


def _refusal(reply: hiredis.ReplyError, command: str, where: str, username: str | None) -> Exception:
    """The error that a refused command of the handshake means, with what to do about it. The reply is its cause, except
    where it repeats the password.
    """
    text = str(reply)
    code = text.split(" ", 1)[0]
    user = username or _DEFAULT_USER
    error: Exception
    if code == "NOPROTO" or "unknown command" in text:
        return _too_old(where, "is older than Redis 6 (it does not know HELLO 3)")
    if code == "WRONGPASS":
        error = AuthenticationError(
            f"{where} refused user {user!r} ({text})",
            do="check the user's name and password, and that it is enabled",
        )
    elif code == "NOAUTH":
        error = AuthenticationError(f"{where} wants a password ({text})", do="give a user name and a password")
    elif code == "NOPERM":
        error = AuthenticationError(
            f"user {user!r} at {where} may not run {command} ({text})",
            do=f"ACL SETUSER {user} +{command.lower()}",
        )
    else:
        error = ConnectError(f"{where} refused {command}: {text}")
    error.__cause__ = reply
    return error


def _too_old(where: str, what: str) -> ServerTooOldError:
    """The error for a server that cannot carry Shoal."""
    least = ".".join(map(str, REDIS_VERSION_MIN))
    return ServerTooOldError(f"{where} {what}", do=f"use Redis {least} or newer, or any Valkey")


def _text(value: object) -> str:
    """A field of HELLO's answer as text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else ""
