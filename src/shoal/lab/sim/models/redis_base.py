"""The base of the model of Redis: options, clients, output buffers and their limits, permissions.

Owns: a client's output buffer, when the client is disconnected, and which commands are refused. Never touches: what
commands do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from hiredis import ReplyError

from shoal.lab.sim.models.redis_acl import ALLOWED, COMMANDS, CONTAINERS, DENIED_COMMAND, DENIED_KEY, CommandSpec, User
from shoal.queues.keyspace.resp import encode_frame
from shoal.wire.commands import Command

STATIC_BUFFER_BYTES: Final = 16 * 1024
"""The first part of a client's output, which Redis keeps in the client itself and does not count."""

_PLAIN_COMMANDS: Final = {name.upper().encode(): spec for name, spec in COMMANDS.items() if "|" not in name}
"""Commands without subcommands, as nearly all clients spell them."""

_NO_AUTH: Final = "NOAUTH Authentication required."


@dataclass(frozen=True, slots=True)
class BufferLimit:
    """`client-output-buffer-limit pubsub`: a client is disconnected above `hard_bytes`, or when it is above
    `soft_bytes` for too long; 0 is no limit."""

    hard_bytes: int = 32 * 1024 * 1024
    soft_bytes: int = 8 * 1024 * 1024
    soft_s: float = 60.0


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """How the server is configured."""

    users: Mapping[str, str] = field(default_factory=lambda: {"default": "on nopass ~* &* +@all"})
    """ACL lines by user name."""
    pubsub_limit: BufferLimit = BufferLimit()
    push_after_reply: bool = False
    """Whether a connection's own message comes after the reply to its PUBLISH, as since Redis 7.2."""


class Backlog(Protocol):
    """The kernel's side of a connection."""

    unsent_bytes: int
    """Output that the kernel has not taken yet."""


class NoBacklog:
    """A kernel that takes all output at once."""

    unsent_bytes = 0


class Client:
    """A connection as the server sees it."""

    __slots__ = (
        "backlog",
        "channels",
        "closing",
        "id",
        "name",
        "output",
        "output_bytes",
        "patterns",
        "protocol",
        "soft_since",
        "user",
        "user_name",
    )

    def __init__(self, number: int, user: User | None, backlog: Backlog) -> None:
        self.id = number
        self.name = b""
        self.protocol = 2
        self.user = user
        self.user_name = "default"
        self.channels: dict[bytes, None] = {}
        self.patterns: dict[bytes, None] = {}
        self.output: list[bytes] = []
        self.output_bytes = 0
        self.backlog = backlog
        self.closing = ""
        self.soft_since: float | None = None

    @property
    def subscriptions(self) -> int:
        """Channels and patterns together, as Redis counts them."""
        return len(self.channels) + len(self.patterns)

    def counted_bytes(self) -> int:
        """The output that counts against the limits."""
        return max(0, self.output_bytes + self.backlog.unsent_bytes - STATIC_BUFFER_BYTES)


class RedisBase:
    """Clients, users, output. `dirty` are the clients with output to write, or that must be closed."""

    def __init__(self, options: RedisOptions) -> None:
        self.options = options
        self.users = {name: User(line) for name, line in options.users.items()}
        self.clients: dict[int, Client] = {}
        self.dirty: dict[Client, None] = {}
        self.now = 0.0
        self.cut_off = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.commands = 0
        self._next_id = 1

    def open(self, backlog: Backlog | None = None) -> Client:
        """A connection was accepted."""
        default = self.users.get("default")
        known = default is not None and default.enabled and default.no_password
        client = Client(self._next_id, default if known else None, backlog or NoBacklog())
        self._next_id += 1
        self.clients[client.id] = client
        return client

    def take_output(self, client: Client) -> bytes:
        """The output that must be written to the client now."""
        output, client.output, client.output_bytes = client.output, [], 0
        return output[0] if len(output) == 1 else b"".join(output)

    def check_soft_limit(self, client: Client) -> None:
        """Disconnects a client that was above the soft limit for too long. Called by the server's timer."""
        if client.subscriptions:
            self._check_limits(client, client.counted_bytes())

    def _write(self, client: Client, data: bytes) -> None:
        """Appends to a client's output, unless it is being disconnected."""
        if client.closing:
            return
        size = len(data)
        client.output.append(data)
        client.output_bytes += size
        self.bytes_out += size
        self.dirty[client] = None
        if client.channels or client.patterns:
            used = client.output_bytes + client.backlog.unsent_bytes - STATIC_BUFFER_BYTES
            if used > 0:
                self._check_limits(client, used)
            else:
                client.soft_since = None

    def _check_limits(self, client: Client, used: int) -> None:
        limit = self.options.pubsub_limit
        over_soft = 0 < limit.soft_bytes < used
        if not over_soft:
            client.soft_since = None
        elif client.soft_since is None:
            client.soft_since = self.now
            over_soft = False
        else:
            over_soft = self.now - client.soft_since > limit.soft_s
        if over_soft or 0 < limit.hard_bytes < used:
            self.cut_off += 1
            client.closing = "output buffer limit"
            client.output.clear()
            client.output_bytes = 0
            self.dirty[client] = None

    def _reply(self, client: Client, frame: Any) -> None:
        self._write(client, encode_frame(frame))

    def _error(self, client: Client, text: str) -> None:
        self._reply(client, ReplyError(text))

    def _refused(self, client: Client, command: Command) -> bool:
        """Answers a command that must not run: unknown, malformed, not authenticated, not allowed, or wrong in this
        state."""
        spec = self._spec_of(client, command)
        if spec is None:
            return True
        shown = spec.name
        if client.user is not None and client.user.unrestricted and client.protocol == 3:
            return False
        if client.user is None and not spec.no_auth:
            self._error(client, _NO_AUTH)
        elif client.user is not None and (verdict := client.user.check(spec, command)) != ALLOWED:
            if verdict == DENIED_COMMAND:
                self._error(client, f"NOPERM this user has no permissions to run the '{shown}' command")
            else:
                what = "keys" if verdict == DENIED_KEY else "channels"
                self._error(
                    client,
                    f"NOPERM this user has no permissions to access one of the {what} used as arguments",
                )
        elif client.protocol == 2 and client.subscriptions and not spec.subscribed:
            allowed = "(P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
            self._error(client, f"ERR Can't execute '{shown}': only {allowed}")
        else:
            return False
        return True

    def _spec_of(self, client: Client, command: Command) -> CommandSpec | None:
        """The spec of a command; None if it is invalid, after the error reply."""
        spec = _PLAIN_COMMANDS.get(command[0])
        if spec is not None and (len(command) == spec.arity or len(command) >= -spec.arity > 0):
            return spec
        name = command[0].decode("latin-1").lower()
        if name in CONTAINERS and len(command) > 1:
            subcommand = command[1].decode("latin-1")
            spec = COMMANDS.get(f"{name}|{subcommand.lower()}")
            if spec is None:
                self._error(client, f"ERR unknown subcommand '{subcommand:.128}'. Try {name.upper()} HELP.")
                return None
        elif name in CONTAINERS:
            self._error(client, f"ERR wrong number of arguments for '{name}' command")
            return None
        else:
            spec = COMMANDS.get(name)
        if spec is None:
            shown = "".join(f"'{part.decode('latin-1'):.128}' " for part in command[1:])
            unknown = command[0].decode("latin-1")
            self._error(client, f"ERR unknown command '{unknown:.128}', with args beginning with: {shown}")
        elif len(command) < -spec.arity or (spec.arity > 0 and len(command) != spec.arity):
            self._error(client, f"ERR wrong number of arguments for '{spec.name}' command")
            return None
        return spec
