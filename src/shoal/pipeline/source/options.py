"""The options of the Spark source "shoal": names, defaults, and checks.

Owns the options. Spark accepts option names in any case; after this module they are in lower case.

    kind                telemetry (default), channel or dead (dead letters of queues)
    channel, where      of kind channel: a name or pattern, and a filter
    queue               of kind dead: a name or pattern (default: all queues)
    rows                of kind telemetry: hosts (default), units or records
    coordinator         shoal://user:password@host:port, or shoals://...?ca=FILE&cert=FILE, with files that all
                        workers have; or
    servers             s1=host:port,s2=host:port; or
    stateDir            the state directory of a local cluster (default: that of `shoal up`)
    user, password      login, if the address has none
    startingOffsets     earliest (default), latest, or JSON as Spark stores offsets
    startingTimestamp   instead of startingOffsets: start with the first entry recorded from then on; a date and time
                        (UTC unless it has a zone), milliseconds since 1970, or an age like 15m
    endingOffsets       of a batch: latest (default), or JSON
    failOnDataLoss      true (default): an error if a stream was trimmed before it was read, if a server left with
                        unread entries or, in a batch, if a server does not answer;
                        false: a warning, and reading continues with the oldest entry left
    maxRowsPerBatch     most entries in one micro-batch (default 10000; 0: no limit)
    maxBytesPerBatch    their approximate total size, estimated from the newest entry of each stream (default 128 MiB)
    partitionsPerServer number of tasks that read one server (default 1)
    serverWait          of a stream: for how many seconds the others wait for a server that does not answer (default 10
                        for kind channel, 0 for telemetry)
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from shoal.errors import ConfigError
from shoal.pipeline.source.cluster_address import SourceAddress, read_cluster_address
from shoal.pipeline.source.kinds import Kind, kind_of
from shoal.pipeline.source.offsets import ServerOffset, read_offset

MAX_ROWS_PER_BATCH: Final = 10_000
MAX_BYTES_PER_BATCH: Final = 128 * 1024 * 1024
PARTITIONS_PER_SERVER_MAX: Final = 1024
SERVER_WAIT_S_MAX: Final = 3600
EARLIEST: Final = "earliest"
LATEST: Final = "latest"

CLUSTER_OPTIONS: Final = ("coordinator", "stateDir", "servers", "user", "password")
READER_OPTIONS: Final = (
    *CLUSTER_OPTIONS,
    "kind",
    "channel",
    "where",
    "rows",
    "queue",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "maxRowsPerBatch",
    "maxBytesPerBatch",
    "partitionsPerServer",
    "serverWait",
)
WRITER_OPTIONS: Final = (*CLUSTER_OPTIONS, "channel")

SPARK_PREFIXES: Final = ("checkpointlocation", "queryname", "asyncprogresstracking", "spark.")
"""Prefixes of Spark's own options, which it passes to every source."""

PATHS: Final = ("path", "paths")

TABLE_OPTION: Final = "provider"
"""Spark adds this option when a catalog table is created. It drops the other options when that table is read."""

Start = str | int | dict[str, ServerOffset]
"""`EARLIEST`, `LATEST`, a time in milliseconds since 1970, or an offset."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of a reader."""

    kind: Kind
    cluster: SourceAddress
    starting: Start
    ending: Start
    fail_on_data_loss: bool
    rows_max: int
    """Entries in one micro-batch; 0: no limit."""
    bytes_max: int
    """Approximate size of a micro-batch; used only with `rows_max`."""
    partitions_per_server: int
    server_wait_s: float
    """For how long no batch is planned because a server does not answer."""


def known_options(given: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """The options of the source among those that Spark passes; ConfigError for an unknown one."""
    if TABLE_OPTION in given:
        raise ConfigError(
            "Spark reads a catalog table without its options", do="create a temporary view, or use spark.read"
        )
    spelled = {name.lower(): name for name in known}
    found = {}
    for name, value in given.items():
        lower = name.lower()
        if lower in spelled:
            found[lower] = value
        elif lower in PATHS:
            raise ConfigError(
                f"the source takes no path, but {value!r} is given", do="name a channel with the option channel"
            )
        elif not lower.startswith(SPARK_PREFIXES):
            near = get_close_matches(lower, spelled, 1)
            advice = f"did you mean {spelled[near[0]]}?" if near else f"the options are {', '.join(known)}"
            raise ConfigError(f"there is no option {name!r}", do=advice)
    return found


def read_options(given: Mapping[str, str]) -> SourceOptions:
    """The options that Spark passes to a reader; ConfigError if one has an invalid value."""
    options = known_options(given, READER_OPTIONS)
    kind = kind_of(options)
    ending = _offset("endingOffsets", options.get("endingoffsets", LATEST), kind)
    if ending == EARLIEST:
        raise ConfigError("endingOffsets is earliest", do="give latest, or JSON")
    return SourceOptions(
        kind=kind,
        cluster=read_cluster_address(options),
        starting=_starting(options, kind),
        ending=ending,
        fail_on_data_loss=_flag("failOnDataLoss", options.get("failondataloss", "true")),
        rows_max=_number("maxRowsPerBatch", options.get("maxrowsperbatch", str(MAX_ROWS_PER_BATCH)), 0, 2**62),
        bytes_max=_number("maxBytesPerBatch", options.get("maxbytesperbatch", str(MAX_BYTES_PER_BATCH)), 1, 2**62),
        partitions_per_server=_number(
            "partitionsPerServer", options.get("partitionsperserver", "1"), 1, PARTITIONS_PER_SERVER_MAX
        ),
        server_wait_s=_number("serverWait", options.get("serverwait", f"{kind.server_wait_s:g}"), 0, SERVER_WAIT_S_MAX),
    )


def _starting(options: Mapping[str, str], kind: Kind) -> Start:
    if "startingtimestamp" not in options:
        return _offset("startingOffsets", options.get("startingoffsets", EARLIEST), kind)
    if "startingoffsets" in options:
        raise ConfigError("both startingOffsets and startingTimestamp are given", do="give one of them")
    text = options["startingtimestamp"].strip()
    if text.isdecimal():
        return int(text)
    from shoal.bus.times import read_time  # also loads the whole client, which workers need not wait for

    try:
        return read_time(text, time.time()) // 1000
    except ConfigError as error:
        raise ConfigError(f"startingTimestamp: {error.what}", do=error.do) from None


def _offset(name: str, text: str, kind: Kind) -> Start:
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    try:
        found: Any = json.loads(text)
        return read_offset(found, kind.asked, kind.new_name)
    except ValueError as error:
        raise ConfigError(f"{name} is {text!r}", do=f"give {EARLIEST}, {LATEST} or JSON ({error})") from error


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{name} is {text!r}", do="give true or false")
    return text.lower() == "true"


def _number(name: str, text: str, least: int, most: int) -> int:
    if not text.strip().isdecimal() or not least <= int(text) <= most:
        raise ConfigError(f"{name} is {text!r}", do=f"give a number from {least} to {most}")
    return int(text)
