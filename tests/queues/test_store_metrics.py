"""The metrics of queues have a bounded number of labels."""

from __future__ import annotations

from shoal.queues.agent.meter import QueueFigures
from shoal.queues.agent.metrics import QUEUES_MAX, queue_metrics


def figures(messages: int, oldest_s: float = 0.0) -> QueueFigures:
    return QueueFigures(messages, oldest_s, 1, 2, 0, 3, 4, 5, 100, 90)


def values(given: dict[bytes, QueueFigures]) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels["queue"]): sample.value
        for metric in queue_metrics(given)
        for sample in metric.samples
    }


def test_each_queue_has_its_figures() -> None:
    found = values({b"orders": figures(7, 1.5)})
    assert found["shoal_queue_messages", "orders"] == 7
    assert found["shoal_queue_oldest_seconds", "orders"] == 1.5
    assert found["shoal_queue_dead_letters", "orders"] == 4
    assert found["shoal_queue_puts_total", "orders"] == 100
    assert len(found) == 9


def test_many_queues_share_a_label() -> None:
    found = values({b"q%d" % number: figures(number, float(number)) for number in range(QUEUES_MAX + 10)})
    assert len({queue for _, queue in found}) == QUEUES_MAX + 1
    assert found["shoal_queue_messages", "other"] == sum(range(10))
    assert found["shoal_queue_oldest_seconds", "other"] == 9
    assert ("shoal_queue_messages", "q9") not in found


def test_no_queue_has_no_samples() -> None:
    assert values({}) == {}
