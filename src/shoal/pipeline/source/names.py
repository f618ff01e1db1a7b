"""The names of options: which there are, and what is said of one that there is not.

Owns the lists. Spark gives options in any case of letters; behind this module they are in lower case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from shoal.errors import ConfigError

CLUSTER: Final = ("coordinator", "stateDir", "servers", "user", "password")
READING: Final = (
    *CLUSTER,
    "kind",
    "channel",
    "where",
    "startingOffsets",
    "endingOffsets",
    "failOnDataLoss",
    "maxRowsPerBatch",
    "maxBytesPerBatch",
    "partitionsPerServer",
)
WRITING: Final = (*CLUSTER, "channel")

SPARKS_OWN: Final = ("checkpointlocation", "queryname", "asyncprogresstracking", "spark.")
"""How options begin that are Spark's: it hands them to every source."""

PATHS: Final = ("path", "paths")

OF_TABLES: Final = "provider"
"""What Spark adds to the options of a table that is created. It does not hand the others over when that is read."""


def named(given: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """The options that are ours; ConfigError for one that there is not."""
    if OF_TABLES in given:
        raise ConfigError(
            "a table of a catalog is read without its options", do="create a temporary view, or use spark.read"
        )
    spelled = {name.lower(): name for name in known}
    found = {}
    for name, value in given.items():
        lower = name.lower()
        if lower in spelled:
            found[lower] = value
        elif lower in PATHS:
            raise ConfigError(
                f"{value!r} is given as a path, and there are none", do="name a channel by the option channel"
            )
        elif not lower.startswith(SPARKS_OWN):
            near = get_close_matches(lower, spelled, 1)
            advice = f"did you mean {spelled[near[0]]}?" if near else f"give some of {', '.join(known)}"
            raise ConfigError(f"there is no option {name!r}", do=advice)
    return found
