"""A gap is false if it covers no message that was owed and did not arrive."""

from __future__ import annotations

import pytest

from shoal.lab.sim.history import Published, PublisherRecord, payload_of
from shoal.lab.sim.scenarios.channel_run_history import Handed, SubscriberRecord
from shoal.lab.soak.gap_truth import false_gaps
from shoal.message import Gap, Message

ALIVE, ENDED = 7, 8
PUBLISHERS = {ALIVE: PublisherRecord(ALIVE), ENDED: PublisherRecord(ENDED, ended_at=15.0)}
MESSAGES = [
    Published(1, "c", ALIVE, 1, called_at=2.0, confirmed_at=3.0),
    Published(2, "c", ALIVE, 2, called_at=11.0, confirmed_at=12.0),
    Published(3, "c", ALIVE, 3, called_at=13.0, confirmed_at=14.0),
    Published(4, "c", ENDED, 1, called_at=12.0, confirmed_at=12.5),
]


def subscriber(*gaps: Gap, got: tuple[int, ...]) -> SubscriberRecord:
    """A subscription from t=10 that got these messages and was told of these gaps at t=20."""
    record = SubscriberRecord("c", False, 99, 10.0)
    record.in_force_at = 10.5
    for message in MESSAGES:
        if message.number in got:
            item = Message("c", payload_of(message.number, 0), message.publisher, message.sequence)
            record.handed.append(Handed(16.0, item))
    record.handed += [Handed(20.0, gap) for gap in gaps]
    return record


@pytest.mark.parametrize(
    ("gap", "got", "is_false"),
    [
        (Gap("c", ALIVE, 2, 3, ""), (4,), False),
        (Gap("c", ALIVE, 3, 3, ""), (2, 4), False),
        (Gap("c", ALIVE, 3, 3, ""), (2, 3, 4), True),
        (Gap("c", ALIVE, 1, 1, ""), (2, 3, 4), True),
        (Gap("c", ALIVE, 4, None, ""), (2, 3, 4), True),
        (Gap("c", ALIVE, 2, None, ""), (3, 4), False),
        (Gap("c", None, 0, None, ""), (2, 3), False),
        (Gap("c", None, 0, None, ""), (3, 4), True),
        (Gap("c", None, 0, None, ""), (2, 3, 4), True),
    ],
)
def test_a_gap_is_true_if_it_covers_a_missing_message(gap: Gap, got: tuple[int, ...], is_false: bool) -> None:
    found = false_gaps(subscriber(gap, got=got), MESSAGES, PUBLISHERS)
    assert found == ([(20.0, gap)] if is_false else [])
