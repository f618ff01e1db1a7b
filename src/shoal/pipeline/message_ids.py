"""The attribute by which consumers recognise a message that a job publishes again.

Owns its name, and the ids of archived messages. The ids of the Spark sink are in `shoal.pipeline.source.writer`.
"""

from __future__ import annotations

from typing import Final

ID_ATTRIBUTE: Final = "shoal_id"


def archived_id(channel: str, publisher: int | None, epoch: int, sequence: int, server: str, entry: str) -> str:
    """The id of an archived message: the same each time it is replayed. A message of a plain Redis client has no
    number, and is named by its entry in the record."""
    return f"{channel}/{publisher:012x}/{epoch}/{sequence}" if publisher else f"{channel}/{server}/{entry}"
