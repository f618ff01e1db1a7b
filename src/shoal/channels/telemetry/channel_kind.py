"""The telemetry of channels: the columns of the kinds `channel` and `server`, and what a channel costs its server.

Owns the two kinds. `shoal.load.record` encodes them, `analyzer` derives the figures.
"""

from __future__ import annotations

from typing import Final

from shoal.load import kinds
from shoal.load.kinds import Column, Cost, Folding, HostColumn, HostKind, Type, UnitKind

PUBLICATION_WORK: Final = 4.0
DELIVERY_WORK: Final = 1.0
"""The work of a server for one publication, including the agent's copy, and for one delivery. Only the ratio counts: an
observer adds a third to the cost of a publication without receivers."""

CHANNEL: Final = UnitKind(
    kinds.CHANNEL,
    columns=(
        Column("publishers", folding=Folding.PEAK),  # distinct clients; those of foreign publications are unknown
        Column("publisher_ids", Type.IDS),  # at most listed_max of them
        Column("publications", folding=Folding.RATE),  # including foreign ones, without forwarded ones and beacons
        Column("forwarded", folding=Folding.RATE),
        Column("subscribers", folding=Folding.PEAK),  # connections, as the server counts them; without patterns
        Column("registered"),  # subscribers that sent Hello to the agent
        Column("subscriber_ids", Type.IDS),  # at most listed_max of the registered ones
        Column("pattern_subscribers", folding=Folding.PEAK),  # connections, once for each pattern that matches
        Column("messages_sent", folding=Folding.RATE),  # (publications + forwarded) x receivers
        Column("bytes_in", folding=Folding.RATE),  # payloads with their envelopes, beacons included
        Column("bytes_out", folding=Folding.RATE),  # RESP frames of all of them to all receivers
        Column("foreign"),
        Column("beacons"),
    ),
    costs=(
        Cost("bandwidth_bytes_per_s", (("bytes_out", 1.0),)),
        Cost(
            "cpu_share",
            (("publications", PUBLICATION_WORK), ("forwarded", PUBLICATION_WORK), ("messages_sent", DELIVERY_WORK)),
        ),
    ),
)
"""A channel. A row is not complete if a limit was met, so that publishers may be missing."""

SERVER: Final = HostKind(
    kinds.SERVER,
    columns=(
        # Rates are null when there is nothing to compare with: the agent's or the server's first second.
        HostColumn("bytes_out_per_s", nullable=True, figure="bandwidth_bytes_per_s"),  # without the agent's own copy
        HostColumn("net_output_bytes_per_s", nullable=True),  # measured, all connections
        HostColumn("net_input_bytes_per_s", nullable=True),
        HostColumn("max_out_bytes_per_s", figure="capacity_bytes_per_s", folding=Folding.LAST),  # configured
        HostColumn("load_ratio", nullable=True),  # bytes_out_per_s / max_out_bytes_per_s
        HostColumn("cpu_share", nullable=True, figure="cpu_share"),  # of one core; threads may push it above 1
        HostColumn("connections", Type.INT, figure="connections", folding=Folding.PEAK),
        HostColumn("memory_bytes", Type.INT),
        HostColumn("observed_bytes", Type.INT),  # the agent's own copy, in this time unit
        HostColumn("internal", Type.INT),  # messages on inboxes
        HostColumn("internal_bytes", Type.INT),
        HostColumn("uncounted_bytes", Type.INT),  # of messages on channels that a limit kept out of the table
    ),
)
"""A Redis server with its agent."""
