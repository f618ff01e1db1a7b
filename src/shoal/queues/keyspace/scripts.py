"""Scripts in the model of Redis: the shipped Lua texts run in Lua 5.1 (`lupa`), on the keys of the model.

Owns: `redis.call` inside a script, and how values go from Lua to replies and back. Never touches: connections and
rights. A script runs as a whole, as in Redis, and its errors end it without undoing its writes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from hiredis import ReplyError

from shoal.extras import needed
from shoal.queues.keyspace.keys import Keys

NO_SCRIPT: Final = "NOSCRIPT No matching script. Please use EVAL."

Publish = Callable[[bytes, bytes], int]
"""Publishes a message; returns the number of receivers."""


def sha_of(text: bytes) -> bytes:
    """The name of a script."""
    return hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()


class ScriptCache:
    """The scripts that one server process knows. They do not survive it."""

    def __init__(self) -> None:
        self._texts: dict[bytes, bytes] = {}

    def load(self, text: bytes) -> bytes:
        """Add a script; return its name."""
        name = sha_of(text)
        self._texts[name] = text
        return name

    def run(
        self,
        name: bytes,
        keys: tuple[bytes, ...],
        arguments: tuple[bytes, ...],
        data: Keys,
        publish: Publish,
        now: float,
    ) -> Any:
        """The reply of a script; an error reply if it is unknown."""
        text = self._texts.get(name.lower())
        return ReplyError(NO_SCRIPT) if text is None else run_script(text, keys, arguments, data, publish, now)


def run_script(
    text: bytes, keys: tuple[bytes, ...], arguments: tuple[bytes, ...], data: Keys, publish: Publish, now: float
) -> Any:
    """Run a script at the server's time `now`; return its reply."""
    lua = _lua()
    table = lua.table_from

    def call(*words: Any) -> Any:
        command = tuple(map(_argument, words))
        name = command[0].lower()
        reply: Any
        if name == b"time":
            whole = int(now)
            reply = [b"%d" % whole, b"%d" % int((now - whole) * 1_000_000)]
        elif name == b"publish":
            reply = publish(command[1], command[2])
        else:
            reply = data.execute(command, now)
        if isinstance(reply, ReplyError):
            raise reply
        return _to_lua(reply, table)

    environment = table({b"call": call, b"error_reply": lambda text: table({b"err": text})})
    try:
        return _to_reply(_compiled(text)(table(list(keys)), table(list(arguments)), environment, _structs()))
    except ReplyError as error:
        return error


@cache
def _lua() -> Any:
    with needed("running the scripts of queues without a store"):
        from lupa.lua51 import LuaRuntime

    return LuaRuntime(encoding=None, unpack_returned_tuples=False)


@cache
def _compiled(text: bytes) -> Any:
    return _lua().execute(b"return function(KEYS, ARGV, redis, struct)\n" + text + b"\nend")


@cache
def _structs() -> Any:
    """The library `struct` of Redis, for the formats that the scripts use: those mean the same in Python."""
    lua = _lua()

    def pack(form: bytes, *values: Any) -> bytes:
        whole = (int(value) if kind == "B" else value for kind, value in zip(form[1:].decode(), values, strict=True))
        return struct.pack(form, *whole)

    def read(form: bytes, data: bytes) -> Any:
        return lua.table_from(struct.unpack(form, data))

    make = lua.eval(
        b"function(pack, read) return {pack = pack, unpack = function(f, d) return unpack(read(f, d)) end} end"
    )
    return make(pack, read)


def _argument(word: Any) -> bytes:
    """An argument of `redis.call`: numbers are printed as Redis prints them."""
    if isinstance(word, bytes):
        return word
    if isinstance(word, int):
        return b"%d" % word
    if isinstance(word, float):
        return b"%.17g" % word
    raise ReplyError("ERR Lua redis lib command arguments must be strings or integers")


def _to_lua(reply: Any, table: Any) -> Any:
    if reply is None:
        return False
    if isinstance(reply, list):
        return table([_to_lua(part, table) for part in reply])
    return reply


def _to_reply(value: Any) -> Any:
    """A value of Lua as a reply: numbers lose their fraction, an array ends at its first nil."""
    if value is None or value is False:
        return None
    if value is True:
        return 1
    if isinstance(value, int | float):
        return int(value)
    if isinstance(value, bytes):
        return value
    if (error := value[b"err"]) is not None:
        return ReplyError(error.decode())
    found = []
    at = 1
    while (part := value[at]) is not None:
        found.append(_to_reply(part))
        at += 1
    return found
