"""Requests about queues: what is stored, and what cannot be read."""

from __future__ import annotations

import pytest

from shoal.errors import PlanError
from shoal.plan.move_request import encode_body
from shoal.plan.queue_request import (
    ConfigureQueue,
    CreateQueue,
    DropQueue,
    QueueRequest,
    decode_queue_request,
    encode_queue_request,
)
from shoal.plan.queue_settings import QueueSettings

REQUESTS: list[QueueRequest] = [
    CreateQueue(b"orders", QueueSettings(shards=4), "r1"),
    DropQueue(b"orders", "r2"),
    ConfigureQueue(b"orders", QueueSettings(messages_max=5), "r3"),
]


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_request_is_read_as_it_was_written(request_: QueueRequest) -> None:
    assert decode_queue_request(encode_queue_request(request_)) == request_


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        encode_body("channel", REQUESTS[0]),
        encode_body("queue", {"type": "explode", "unit": b"orders", "id": "r"}),
        encode_queue_request(DropQueue(b"", "r")),
        encode_queue_request(DropQueue(b"or:ders", "r")),
        encode_queue_request(DropQueue(b"o" * 129, "r")),
        encode_queue_request(CreateQueue(b"orders", QueueSettings(shards=0), "r")),
        encode_queue_request(ConfigureQueue(b"orders", QueueSettings(messages_max=0), "r")),
    ],
)
def test_an_invalid_request_is_refused(data: bytes) -> None:
    with pytest.raises(PlanError, match="a request about a queue cannot be read"):
        decode_queue_request(data)
