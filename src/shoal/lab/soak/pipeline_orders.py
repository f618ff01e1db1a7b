"""Orders to the processes of a pipeline soak, and their reports.

Owns both sets of messages. `shoal.lab.harness` carries them.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from shoal.lab.harness import Stop

CHANNELS: Final = {"soak.busy": 400.0, "soak.steady": 50.0, "soak.slow": 5.0, "soak.rare": 0.5}
"""The recorded channels, and how many messages a second each has: their rates differ by a factor of 800."""
CLOSING: Final = "soak.closing"
"""The channel of the message that closes the last windows."""
PATTERN: Final = "soak.*"
ROWS: Final = "rows.parquet"
WINDOWS: Final = "windows.parquet"
ARCHIVED: Final = "archived.parquet"
"""What the driver's three jobs have written, as the checker reads it."""


class StartPublishing(msgspec.Struct, tag=True, frozen=True):
    """Publish on all channels until `Stop`, and write a line for each confirmed message into `log`."""

    url: str
    log: str


class PublisherStatus(msgspec.Struct, tag=True, frozen=True):
    """Numbers of published and confirmed messages. `settled`: none is unconfirmed, and no more will come."""

    published: int
    confirmed: int
    settled: bool


class StartJobs(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Run the queries and the archive, on the checkpoints in `directory`; at `Stop` read what is left and end."""

    url: str
    directory: str
    window_s: int
    watermark_s: int


class JobStatus(msgspec.Struct, tag=True, frozen=True):
    """What the jobs have done since the driver started."""

    batches: int = 0
    """Micro-batches with rows, of both queries."""
    rows: int = 0
    archived: int = 0
    archive_batches: int = 0
    late: int = 0
    """Rows that Spark dropped because of the watermark. Copies of messages that were counted are among them."""
    restarts: int = 0
    """How often a query was started again because Spark was too slow for its own limit."""
    behind: int = 0
    """Entries that the job that is furthest behind had not read after its last batch."""


class JobsDone(msgspec.Struct, tag=True, frozen=True):
    """All is read, and the results are in files for the checker."""

    status: JobStatus


class JobsFailed(msgspec.Struct, tag=True, frozen=True):
    """A job ended with an error."""

    error: str


PublisherOrder: TypeAlias = StartPublishing | Stop
JobOrder: TypeAlias = StartJobs | Stop
PUBLISHER_ORDERS: Final = msgspec.json.Decoder(PublisherOrder)
PUBLISHER_REPORTS: Final = msgspec.json.Decoder(PublisherStatus)
JOB_ORDERS: Final = msgspec.json.Decoder(JobOrder)
JOB_REPORTS: Final = msgspec.json.Decoder(JobStatus | JobsDone | JobsFailed)
