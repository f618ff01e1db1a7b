"""The queue of control messages: in order for each client, in turn for all clients, bounded in bytes."""

from __future__ import annotations

import pytest

from shoal.channels.agent import control_queue
from shoal.channels.agent.control_queue import ControlQueue


def taken(queue: ControlQueue) -> list[bytes]:
    found = []
    while queue:
        found.append(queue.take()[1])
    return found


def test_clients_take_turns_and_each_keeps_its_order() -> None:
    queue = ControlQueue()
    for number in range(1, 5):
        queue.put(1, b"flood %d" % number)
    queue.put(2, b"first")
    queue.put(3, b"other")
    queue.put(2, b"second")
    order = [b"flood 1", b"first", b"other", b"flood 2", b"second", b"flood 3", b"flood 4"]
    assert 2 in queue
    assert taken(queue) == order
    assert 2 not in queue


def test_it_is_full_at_its_size_and_other_clients_still_find_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_queue, "QUEUE_BYTES_MAX", 1000)
    queue = ControlQueue()
    for _ in range(2):
        counts = []
        for client in range(1, 10):
            count = 0
            while queue.has_room(client):
                queue.put(client, b"x" * 100)
                count += 1
            counts.append(count)
        assert counts == [5, 1, 1, 1, 1, 1, 0, 0, 0]
        queue.clear()
    assert taken(queue) == []
