"""Filters: the language of content-based subscriptions, exact reasoning about them, and the matching index.

Owns what a filter and an event are. Never touches a socket, a file or a clock, except for the index's snapshots. The
index is in `shoal.filters.index`, which imports numpy and numba; the rest needs neither.

    from shoal.filters import parse
    from shoal.filters.index import Index

    index = Index()
    index.insert(7, parse("class = 'STOCK' and volume > 300000"))
    index.match({"class": "STOCK", "symbol": "YHOO", "volume": 310_000})        # array([7], dtype=uint32)
"""

from shoal.filters.advertisements import Advertisement, AdvertisementTable, advertisement_of
from shoal.filters.cloudevents import from_cloudevents
from shoal.filters.event_batches import from_arrow, to_arrow
from shoal.filters.events import check_event, decode_event, encode_event, parse_event
from shoal.filters.filter import Filter
from shoal.filters.language import parse
from shoal.filters.poset import Poset
from shoal.filters.values import Event, Value

__all__ = [
    "Advertisement",
    "AdvertisementTable",
    "Event",
    "Filter",
    "Poset",
    "Value",
    "advertisement_of",
    "check_event",
    "decode_event",
    "encode_event",
    "from_arrow",
    "from_cloudevents",
    "parse",
    "parse_event",
    "to_arrow",
]
