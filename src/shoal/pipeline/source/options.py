"""The options of the source "shoal", read and checked.

Owns what they mean and their defaults; their names are in `names`.

    kind                telemetry (default), and the other kinds there are
    channel, where      of the kind channel
    coordinator         shoal://user:password@host:port; or
    servers             s1=host:port,s2=host:port; or
    stateDir            that of a local cluster (default: the one of `shoal up`)
    user, password      the log-in, where the address has none
    startingOffsets     earliest (default), latest, or JSON as Spark writes offsets down
    endingOffsets       of a batch: latest (default), or JSON
    failOnDataLoss      true (default): a stream that was trimmed before it was read is an error, and so is a server
                        that left with entries unread or, for a batch, one that does not answer;
                        false: a warning, and the oldest that is left comes next
    maxRowsPerBatch     how many entries one micro-batch takes at most (default 10000; 0: all there are)
    maxBytesPerBatch    how large those may be together, about: by the newest entry of each stream (default 128 MiB)
    partitionsPerServer in how many parts the streams of a server are read (default 1)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shoal.errors import ConfigError
from shoal.pipeline.source.kinds import Kind, kind_of
from shoal.pipeline.source.names import READING, named
from shoal.pipeline.source.offsets import ServerOffset, read_offset
from shoal.pipeline.source.where import Cluster, cluster_of

MAX_ROWS_PER_BATCH: Final = 10_000
MAX_BYTES_PER_BATCH: Final = 128 * 1024 * 1024
PARTITIONS_PER_SERVER_MAX: Final = 1024
EARLIEST: Final = "earliest"
LATEST: Final = "latest"

Start = str | dict[str, ServerOffset]
"""`EARLIEST`, `LATEST`, or an offset."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What to read, and how."""

    kind: Kind
    cluster: Cluster
    starting: Start
    ending: Start
    fail_on_data_loss: bool
    rows_max: int
    """Entries of one micro-batch; 0: no limit."""
    bytes_max: int
    """How large they may be together, about; holds where `rows_max` does."""
    partitions_per_server: int


def read_options(given: Mapping[str, str]) -> SourceOptions:
    """The options that Spark hands over; ConfigError if one of them cannot be."""
    options = named(given, READING)
    kind = kind_of(options)
    ending = _offset("endingOffsets", options.get("endingoffsets", LATEST), kind)
    if ending == EARLIEST:
        raise ConfigError("endingOffsets is earliest", do="give latest, or JSON")
    return SourceOptions(
        kind=kind,
        cluster=cluster_of(options),
        starting=_offset("startingOffsets", options.get("startingoffsets", EARLIEST), kind),
        ending=ending,
        fail_on_data_loss=_truth("failOnDataLoss", options.get("failondataloss", "true")),
        rows_max=_number("maxRowsPerBatch", options.get("maxrowsperbatch", str(MAX_ROWS_PER_BATCH)), 0, 2**62),
        bytes_max=_number("maxBytesPerBatch", options.get("maxbytesperbatch", str(MAX_BYTES_PER_BATCH)), 1, 2**62),
        partitions_per_server=_number(
            "partitionsPerServer", options.get("partitionsperserver", "1"), 1, PARTITIONS_PER_SERVER_MAX
        ),
    )


def _offset(name: str, text: str, kind: Kind) -> Start:
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    try:
        found: Any = json.loads(text)
        return read_offset(found, kind.asked)
    except ValueError as error:
        raise ConfigError(f"{name} is {text!r}", do=f"give {EARLIEST}, {LATEST} or JSON ({error})") from error


def _truth(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{name} is {text!r}", do="give true or false")
    return text.lower() == "true"


def _number(name: str, text: str, least: int, most: int) -> int:
    if not text.strip().isdecimal() or not least <= int(text) <= most:
        raise ConfigError(f"{name} is {text!r}", do=f"give a number from {least} to {most}")
    return int(text)
