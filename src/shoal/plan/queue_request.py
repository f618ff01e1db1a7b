"""Requests about queues: create one, drop it, change its settings, move its shards, give up shards that are lost.

Owns the records and their stored form. They are in the coordinator at `moves/queue/<name>`, one at a time for each
queue. Commands and agents write them; the leader's conductor answers them with `shoal.plan.queue_steps`.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

import msgspec

from shoal.errors import ConfigError, PlanError, QueueNameError
from shoal.plan.kinds import QUEUE
from shoal.plan.move_request import decode_body, encode_body
from shoal.plan.queue_settings import QueueSettings

NAME_CHARACTERS_MAX: Final = 128
_NAME: Final = re.compile(rb"[A-Za-z0-9_.-]{1,128}")


class CreateQueue(msgspec.Struct, frozen=True, tag="create"):
    """A request to create the queue `unit`. If it exists already, it is not changed. `id` identifies the request."""

    unit: bytes
    settings: QueueSettings
    id: str


class DropQueue(msgspec.Struct, frozen=True, tag="drop"):
    """A request to drop a queue with everything in it."""

    unit: bytes
    id: str


class ConfigureQueue(msgspec.Struct, frozen=True, tag="configure"):
    """A request to give a queue other settings. The number of shards cannot change."""

    unit: bytes
    settings: QueueSettings
    id: str


class MoveShards(msgspec.Struct, frozen=True, tag="move"):
    """A request to move shards of a queue: the wanted store of each shard that is named. They move one at a time."""

    unit: bytes
    shards: dict[int, str]
    id: str


class AbandonShards(msgspec.Struct, frozen=True, tag="abandon"):
    """A request to give up the shards of a queue on stores that are gone. They begin again, empty, elsewhere."""

    unit: bytes
    stores: tuple[str, ...]
    id: str


QueueRequest: TypeAlias = CreateQueue | DropQueue | ConfigureQueue | MoveShards | AbandonShards

_decoder: Final = msgspec.msgpack.Decoder(QueueRequest)


def encode_queue_request(request: QueueRequest) -> bytes:
    """The stored form of a request."""
    return encode_body(QUEUE, request)


def decode_queue_request(data: bytes) -> QueueRequest:
    """The request in `data`; PlanError if it is invalid or asks for impossible settings."""
    try:
        request: QueueRequest = decode_body(data, QUEUE, _decoder)
        check_name(request.unit)
        if isinstance(request, CreateQueue | ConfigureQueue):
            request.settings.validate()
    except (ValueError, ConfigError, QueueNameError) as error:
        raise PlanError(f"a request about a queue cannot be read: {error}") from error
    return request


def check_name(name: bytes) -> None:
    """Raises QueueNameError if a queue cannot have this name."""
    if _NAME.fullmatch(name) is None:
        raise QueueNameError(
            f"{name.decode(errors='replace')!r} is not a valid name of a queue",
            do=f"use 1 to {NAME_CHARACTERS_MAX} letters, digits, '_', '.' or '-'",
        )
