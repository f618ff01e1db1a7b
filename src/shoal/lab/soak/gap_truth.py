"""Whether the gaps that a subscription was told are true: did it really miss a message that was owed?

Owns the judgement. It uses what the applications logged, and nothing of the router.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.lab.sim.history import Published, PublisherRecord
from shoal.lab.sim.scenarios.channel_run_history import SubscriberRecord, number_of
from shoal.message import Gap, Message


def false_gaps(
    sub: SubscriberRecord, messages: Iterable[Published], publishers: dict[int, PublisherRecord]
) -> list[tuple[float, Gap]]:
    """The gaps of a subscription that cover no message that it missed and was owed, and when it was told of them."""
    gaps = [(handed.at, handed.item) for handed in sub.handed if isinstance(handed.item, Gap)]
    if not gaps:
        return []
    got = {number_of(handed.item) for handed in sub.handed if isinstance(handed.item, Message)}
    missed = [
        message
        for message in messages
        if message.number not in got
        and sub.reads(message.unit)
        and (message.confirmed_at is None or message.confirmed_at >= sub.called_at)
    ]
    return [
        (at, gap)
        for at, gap in gaps
        if not any(_covers(gap, at, message, publishers[message.publisher]) for message in missed)
    ]


def _covers(gap: Gap, at: float, message: Published, publisher: PublisherRecord) -> bool:
    if message.called_at > at:
        return False
    if gap.publisher is None:
        return publisher.ended_at is not None and publisher.ended_at <= at
    if (gap.channel, gap.publisher) != (message.unit, message.publisher):
        return False
    return gap.first <= message.sequence and (gap.last is None or message.sequence <= gap.last)
