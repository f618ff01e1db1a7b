"""The connection commands of the model of Redis: HELLO, AUTH, PING, CLIENT and similar ones.

Owns: log-in, protocol version, names. Never touches: subscriptions and keys.
"""

from __future__ import annotations

from typing import Any, Final

from shoal.lab.sim.models.redis_base import Client, RedisBase
from shoal.queues.keyspace.resp import encode_frame
from shoal.wire.commands import Command

_OK: Final = b"OK"
_PONG: Final = encode_frame(b"PONG")
_WRONG_PASSWORD: Final = "WRONGPASS invalid username-password pair or user is disabled."


class ConnectionCommands(RedisBase):
    """The commands about the connection itself."""

    def _ping(self, client: Client, command: Command) -> None:
        if len(command) == 1 and client.protocol == 3:
            self._write(client, _PONG)
        elif len(command) > 2:
            self._error(client, "ERR wrong number of arguments for 'ping' command")
        elif client.protocol == 2 and client.subscriptions:
            self._reply(client, [b"pong", command[1] if len(command) == 2 else b""])
        else:
            self._reply(client, command[1] if len(command) == 2 else b"PONG")

    def _echo(self, client: Client, command: Command) -> None:
        self._reply(client, command[1])

    def _quit(self, client: Client, command: Command) -> None:
        self._reply(client, _OK)
        client.closing = client.closing or "quit"

    def _auth(self, client: Client, command: Command) -> None:
        if len(command) > 3:
            self._error(client, "ERR syntax error")
            return
        default = self.users.get("default")
        if len(command) == 2 and default is not None and default.no_password:
            self._error(
                client,
                "ERR AUTH <password> called without any password configured for the default user. "
                "Are you sure your configuration is correct?",
            )
        elif self._log_in(client, command[1] if len(command) == 3 else b"default", command[-1]):
            self._reply(client, _OK)

    def _log_in(self, client: Client, name: bytes, password: bytes) -> bool:
        """Logs a client in. If that fails, sends the error reply and returns False."""
        user = self.users.get(name.decode("latin-1"))
        if user is None or not user.accepts(password):
            self._error(client, _WRONG_PASSWORD)
            return False
        client.user, client.user_name = user, name.decode("latin-1")
        return True

    def _hello(self, client: Client, command: Command) -> None:
        if len(command) > 1 and not self._protocol_known(client, command[1]):
            return
        login: tuple[bytes, bytes] | None = None
        name: bytes | None = None
        at = 2
        while at < len(command):
            option = command[at].lower()
            if option == b"auth" and at + 2 < len(command):
                login = command[at + 1], command[at + 2]
                at += 3
            elif option == b"setname" and at + 1 < len(command):
                name = command[at + 1]
                at += 2
            else:
                self._error(client, f"ERR Syntax error in HELLO option '{command[at].decode('latin-1')}'")
                return
        if login is not None and not self._log_in(client, *login):
            return
        if client.user is None:
            self._error(
                client,
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH "
                "<user> <pass> option can be used to authenticate the client and select the RESP protocol "
                "version at the same time",
            )
            return
        if name is not None and not self._set_name(client, name):
            return
        client.protocol = int(command[1]) if len(command) > 1 else client.protocol
        facts: dict[bytes, Any] = {b"server": b"redis", b"version": b"7.0.15", b"proto": client.protocol}
        facts |= {b"id": client.id, b"mode": b"standalone", b"role": b"master", b"modules": []}
        flat = [part for pair in facts.items() for part in pair]
        self._reply(client, facts if client.protocol == 3 else flat)

    def _protocol_known(self, client: Client, text: bytes) -> bool:
        if text in (b"2", b"3"):
            return True
        number = text.isdigit() or (text[:1] == b"-" and text[1:].isdigit())
        known = "NOPROTO unsupported protocol version"
        self._error(client, known if number else "ERR Protocol version is not an integer or out of range")
        return False

    def _set_name(self, client: Client, name: bytes) -> bool:
        if not all(33 <= byte <= 126 for byte in name):
            self._error(client, "ERR Client names cannot contain spaces, newlines or special characters.")
            return False
        client.name = name
        return True

    def _client(self, client: Client, command: Command) -> None:
        word = command[1].lower()
        if word == b"setname":
            if self._set_name(client, command[2]):
                self._reply(client, _OK)
        elif word == b"getname":
            self._reply(client, client.name or None)
        elif word == b"id":
            self._reply(client, client.id)
        elif word == b"kill":
            self._kill(client, command[2:])
        else:
            lines = (
                f"id={other.id} name={other.name.decode()} sub={len(other.channels)} "
                f"psub={len(other.patterns)} omem={other.counted_bytes()} user={other.user_name} "
                f"resp={other.protocol}\n"
                for other in self.clients.values()
            )
            self._reply(client, "".join(lines).encode())

    def _kill(self, client: Client, options: Command) -> None:
        """Ends connections. Only the form with the options ID, TYPE pubsub and SKIPME is modelled."""
        wanted = {name.lower(): value.lower() for name, value in zip(options[::2], options[1::2], strict=False)}
        number = wanted.get(b"id", b"0")
        known = wanted.keys() <= {b"id", b"type", b"skipme"} and wanted.get(b"type", b"pubsub") == b"pubsub"
        if len(options) % 2 or not known or wanted.get(b"skipme", b"yes") not in (b"yes", b"no"):
            self._error(client, "ERR syntax error")
            return
        if not number.isdigit() or (b"id" in wanted and int(number) == 0):
            self._error(client, "ERR client-id should be greater than 0")
            return
        killed = 0
        for other in self.clients.values():
            spared = other is client and wanted.get(b"skipme", b"yes") == b"yes"
            meant = b"id" not in wanted or other.id == int(number)
            of_kind = b"type" not in wanted or other.subscriptions > 0
            if meant and of_kind and not spared and not other.closing:
                other.closing = "quit" if other is client else "killed"
                self.dirty[other] = None
                killed += 1
        self._reply(client, killed)
