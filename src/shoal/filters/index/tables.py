"""Tables: many encoded filters or events, back to back.

Owns the form in which filters and events come in bulk: from a file, a peer, or a loop that made them once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.errors import EventError, FilterError
from shoal.filters.event_batches import from_arrow, is_arrow
from shoal.filters.events import plain_event
from shoal.filters.filter import Filter, check_filter, no_filter
from shoal.filters.values import Event

if TYPE_CHECKING:
    import pyarrow

AnyEvent: TypeAlias = Event | bytes | bytearray | memoryview
"""An event as a mapping, or in its wire form."""
Events: TypeAlias = "WireTable | Iterable[AnyEvent] | pyarrow.RecordBatch | pyarrow.Table"
"""Many events: encoded, one by one, or in columns."""
_encoder: Final = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True, eq=False)
class WireTable:
    """Encoded things: the one with number `i` is `data[offsets[i]:offsets[i + 1]]`."""

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> bytes:
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()


def wire_table(items: Iterable[bytes]) -> WireTable:
    """A table of what is encoded already."""
    chunks = list(items)
    offsets = np.zeros(len(chunks) + 1, np.int64)
    np.cumsum([len(chunk) for chunk in chunks], out=offsets[1:])
    return WireTable(np.frombuffer(b"".join(chunks), np.uint8), offsets)


def filter_table(filters: Iterable[Filter]) -> WireTable:
    """A table of filters in their wire form. FilterError if something else is among them."""
    if isinstance(filters, Filter):
        raise FilterError("many filters are a sequence or a table of them, and this is one", do="use insert for one")
    try:
        given = list(filters)
    except TypeError as error:
        raise no_filter(filters) from error
    return wire_table(_encoder.encode(check_filter(each)) for each in given)


def event_table(events: Events) -> WireTable:
    """A table of events in their wire form, which some may have already, or of the rows of an Arrow batch. EventError
    for what cannot be encoded, and for one event; that the rest are events is seen when they are matched."""
    if isinstance(events, WireTable):
        return events
    if isinstance(events, str | bytes | bytearray | memoryview | Mapping):
        raise EventError("many events are a sequence or a table of them, and this is one", do="use match for one event")
    try:
        given = from_arrow(events) if is_arrow(events) else list(events)
    except TypeError as error:
        raise EventError(f"events are needed, not something of type {type(events).__name__}") from error
    return wire_table(map(event_wire, given))


def event_wire(event: AnyEvent) -> bytes:
    """An event in its wire form, which it may have already. EventError if it cannot have one."""
    if type(event) is dict:
        try:
            return _encoder.encode(event)
        except (TypeError, OverflowError, ValueError):
            return _checked_wire(event)
    return bytes(event) if isinstance(event, bytes | bytearray | memoryview) else _checked_wire(event)


def _checked_wire(event: Event) -> bytes:
    """The wire form of what the encoder does not know by itself: other mappings, and values of other types."""
    return _encoder.encode(plain_event(event))
