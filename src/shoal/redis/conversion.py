"""Converts values and errors between Shoal and redis-py.

Owns the encoding of values, the arguments of `subscribe`, and the mapping of errors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from redis import asyncio as redis_py
from redis import exceptions

from shoal import errors
from shoal.message import Gap

Encodable: TypeAlias = bytes | bytearray | memoryview | str | int | float
Name: TypeAlias = bytes | str
"""A channel or pattern as the application sees it: text with `decode_responses`, else bytes."""
Handler: TypeAlias = Callable[[dict[str, Any]], Any]
Response: TypeAlias = list[Any]
"""A response as a server would push it, for example [b"message", channel, data]."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A name and its handler, for names that cannot be keyword arguments."""

    name: Encodable
    handler: Handler | None = None


if not TYPE_CHECKING:
    Subscription = getattr(redis_py, "Subscription", Subscription)  # redis-py has it since 8.0


class MessagesLostError(exceptions.ConnectionError):
    """Messages are missing; `gap` says which. The subscription continues: read again for the messages after the gap.

    It is a ConnectionError because code written for redis-py treats that as "messages may be missing".
    """

    def __init__(self, gap: Gap) -> None:
        count = "an unknown number of" if gap.count is None else str(gap.count)
        super().__init__(f"{count} messages on {gap.channel!r} were lost: {gap.reason}")
        self.gap = gap


class Encoder:
    """Encodes values to bytes, and decodes bytes if the application asked for text."""

    def __init__(self, encoding: str, encoding_errors: str, decode_responses: bool) -> None:
        self.encoding = encoding
        self.encoding_errors = encoding_errors
        self.decode_responses = decode_responses

    def encode(self, value: Encodable) -> bytes:
        """A value as bytes."""
        if isinstance(value, str):
            return value.encode(self.encoding, self.encoding_errors)
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        if type(value) in (int, float):
            return repr(value).encode()
        raise exceptions.DataError(
            f"cannot send a value of type {type(value).__name__}: convert it to bytes, str, int or float first"
        )

    def decode(self, value: bytes) -> Name:
        """Received bytes, as text with `decode_responses`."""
        return value.decode(self.encoding, self.encoding_errors) if self.decode_responses else value

    def name(self, text: str) -> Name:
        """A channel's name from one of Shoal's messages, in the form that the application asked for."""
        return self.decode(text.encode("utf-8", "surrogateescape"))


def parse_subscriptions(args: Iterable[Any], handlers: Mapping[str, Handler]) -> dict[Any, Handler | None]:
    """Names and handlers from the arguments of `subscribe`: names, lists of names, `Subscription`s, keywords."""
    wanted: dict[Any, Handler | None] = {}
    for arg in flatten(args):
        if hasattr(arg, "handler"):
            wanted[arg.name] = arg.handler
        else:
            wanted[arg] = None
    wanted.update(handlers)
    return wanted


def flatten(args: Iterable[Any]) -> list[Any]:
    """The names in arguments that are names or lists of names."""
    return [name for arg in args for name in (arg if isinstance(arg, list | tuple | set) else [arg])]


def redis_error(error: errors.ShoalError) -> exceptions.RedisError:
    """redis-py's error for one of Shoal's, with the same text."""
    for kinds, translation in _TRANSLATIONS:
        if isinstance(error, kinds):
            return translation(str(error))
    return exceptions.RedisError(str(error))


_TRANSLATIONS: Final = (
    (errors.AuthenticationError, exceptions.AuthenticationError),
    ((errors.SubscribeTimeoutError, errors.NotConfirmedError), exceptions.TimeoutError),
    ((errors.ChannelNameError, errors.PayloadTooLargeError), exceptions.DataError),
    (errors.PublishError, exceptions.ResponseError),
    ((errors.ConnectError, errors.CoordinatorError, errors.BusClosedError), exceptions.ConnectionError),
)
"""The first that fits is used."""


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raises redis-py's errors instead of Shoal's."""
    try:
        yield
    except errors.ShoalError as error:
        raise redis_error(error) from error
