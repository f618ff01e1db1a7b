"""Recorded channels as a kind of streams of the Spark source: which streams of a server they are, and their rows.

Owns what the options `channel` and `where` mean. What a row is, is decided in `shoal.history.table`; this module runs
on Spark's workers and imports nothing of Spark.

    spark.readStream.format("shoal").option("kind", "channel").option("channel", "orders.*")
        .option("where", "volume > 300000")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from shoal.errors import ConfigError
from shoal.filters.language import parse
from shoal.history.table import SCHEMA, channel_text, dedupe, entries_to_batch, matching
from shoal.plan.keys import channel_of
from shoal.plan.keys import channel_text as stream_name
from shoal.wire.glob import glob_match
from shoal.wire.recorded import INDEX_KEY, record_key

__all__ = ["SCHEMA", "Channel", "dedupe", "entries_to_batch", "matching"]


class Channel:
    """The messages of recorded channels: those that the option `channel` names or, as a pattern, matches (default all),
    and with `where` only those whose attributes satisfy the filter. Gaps and ends of streams are rows too."""

    schema = SCHEMA.remove_metadata()

    def __init__(self, options: Mapping[str, str]) -> None:
        self._pattern = options.get("channel", "*").encode("utf-8", "surrogateescape")
        if not self._pattern:
            raise ConfigError("the option channel is empty", do="name a channel, or a pattern like orders.*")
        self._where = parse(options["where"]) if options.get("where") else None
        self.asked: Mapping[str, str] = {
            "kind": "channel",
            "channel": options.get("channel", "*"),
            **({} if self._where is None else {"where": options["where"]}),
        }

    def streams(self, ask: Callable[..., Any]) -> dict[str, bytes]:
        """The records of a server that are meant, by the channels' names in base64url."""
        channels = ask(b"SMEMBERS", INDEX_KEY) or ()
        return {
            stream_name(channel): record_key(channel)
            for channel in sorted(channels)
            if channel == self._pattern or glob_match(self._pattern, channel)
        }

    def rows(
        self, server: str, stream: str, entries: Sequence[tuple[Any, Any]], arrived_s: Sequence[float]
    ) -> pa.RecordBatch:
        """A row for each message, end and gap. `arrived_s` is not used: an entry's id says when it was recorded."""
        del arrived_s
        channel = channel_text(channel_of(stream, "") or stream.encode())
        batch = entries_to_batch(channel, server, [(str(entry), fields) for entry, fields in entries])
        if self._where is not None:
            kept = matching(pa.Table.from_batches([batch]), self._where).combine_chunks().to_batches()
            batch = kept[0] if kept else batch.slice(0, 0)
        return batch.replace_schema_metadata(None)
