"""Arrays: attributes with several values.

Owns what an event with arrays means: it stands for all its *variants*, the events that have one element of each array,
and it matches a filter if one of them does. So a predicate on an array is true if it is true of some element,
predicates on one attribute in a conjunction are about the same element, and negation is about each element: `a != 1`
matches `[1, 2]`, because 2 is not 1. A null or an array in an array counts for nothing, and an array without
elements is absence. Never touches filters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import product
from math import prod
from typing import Any, Final

from shoal.filters.values import native

ARRAY_TYPES: Final = (list, tuple)


def combinations_of(event: Mapping[str, Any]) -> int:
    """The number of variants of an event."""
    return prod(len(value) or 1 for value in event.values() if isinstance(value, ARRAY_TYPES))


def variants_of(event: Mapping[str, Any], names: Collection[str] | None = None) -> Iterator[dict[str, Any]]:
    """The variants of an event. With `names`, they have only these attributes."""
    single: dict[str, Any] = {}
    arrays: dict[str, list[Any]] = {}
    for name, value in event.items():
        if names is not None and name not in names:
            continue
        if isinstance(value, ARRAY_TYPES):
            elements = [native(each) for each in value if each is not None and not isinstance(each, ARRAY_TYPES)]
            if elements:
                arrays[name] = elements
        else:
            single[name] = value
    for chosen in product(*arrays.values()):
        yield single | dict(zip(arrays, chosen, strict=True))
