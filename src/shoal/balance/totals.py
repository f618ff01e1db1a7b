"""Totals: the figures of each channel over all its servers, from the figures of each server.

Owns how figures of several servers are combined. It depends on the mode: every server of an `all_publishers` placement
sees every publication, every server of an `all_subscribers` placement every subscriber. The cost of a channel to its
server is declared by its kind (`shoal.load.kinds`).

    mode               publications  publishers  subscribers  deliveries, bytes
    single             sum           largest     largest      sum
    all_subscribers    sum           sum         largest      sum
    all_publishers     largest       largest     sum          sum, but patterns: mean

Every server of an `all_publishers` placement also sends every publication to the subscribers of patterns. Deliveries
are split in proportion to the numbers of pattern subscribers and of the channel's own subscribers. Bytes are split in
the same way, although a message to a pattern is longer by the length of the pattern.

A channel with the mode `single` is on two servers while it moves. Then each publication is on one of them and each
client on both, so the largest count is the best estimate.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.balance.columns import ALL_PUBLISHERS, ALL_SUBSCRIBERS, Channels, Placements
from shoal.load.kinds import Cost
from shoal.load.table import Floats, Ints


def channel_totals(
    names: pa.Array, placements: Placements, units: pa.Table, rows: Ints, cores: Floats, cost: Cost
) -> Channels:
    """The channels of a situation.

    `units` are the rows of channels in a load window, and `rows` the channel of each of them. `cost` is the cost model
    of processor time, `cores` the cores per unit of that work, row by row.
    """
    columns = {name: units[name].to_numpy() for name in _FIGURES}
    count = len(names)
    shared_publishers = placements.mode == ALL_PUBLISHERS
    shared_subscribers = placements.mode == ALL_SUBSCRIBERS
    publishers, subscribers = columns["publishers"], columns["subscribers"]
    work_in = sum(cost.weight(name) * columns[name] for name in ("publications", "forwarded"))
    work_out = cost.weight("messages_sent") * columns["messages_sent"]
    times_received = np.where(shared_publishers, placements.degree, 1)
    to_patterns = pattern_share(units)

    def once(values: Floats) -> tuple[Floats, Floats]:
        """Deliveries if each publication went to one server, and the part to patterns."""
        patterns = _sum(rows, values * to_patterns, count) / times_received
        return _sum(rows, values * (1.0 - to_patterns), count) + patterns, patterns

    bytes_out, pattern_bytes = once(columns["bytes_out"])
    return Channels(
        names=names,
        publications=np.where(
            shared_publishers,
            _largest(rows, columns["publications"], count),
            _sum(rows, columns["publications"], count),
        ),
        publishers=np.where(
            shared_subscribers, _sum(rows, publishers, count).astype(np.int64), _largest(rows, publishers, count)
        ),
        subscribers=np.where(
            shared_publishers, _sum(rows, subscribers, count).astype(np.int64), _largest(rows, subscribers, count)
        ),
        messages_out=once(columns["messages_sent"])[0],
        bytes_out=bytes_out,
        cpu_in=_sum(rows, work_in * cores, count) / times_received,
        cpu_out=once(work_out * cores)[0],
        pattern_part=np.divide(pattern_bytes, bytes_out, out=np.zeros(count), where=bytes_out > 0),
    )


def pattern_share(units: pa.Table) -> Floats:
    """For each row of a load window, the part of its deliveries that went to subscribers of patterns."""
    patterns: Floats = units["pattern_subscribers"].to_numpy().astype(np.float64)
    total: Floats = patterns + units["subscribers"].to_numpy()
    return np.divide(patterns, total, out=np.zeros(len(patterns)), where=total > 0)


_FIGURES: Final = ("publications", "forwarded", "messages_sent", "bytes_out", "publishers", "subscribers")


def _sum(rows: Ints, values: npt.NDArray[Any], count: int) -> Floats:
    return np.bincount(rows, values, count).astype(np.float64, copy=False)


def _largest(rows: Ints, values: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    largest = np.zeros(count, values.dtype)
    np.maximum.at(largest, rows, values)
    return largest
