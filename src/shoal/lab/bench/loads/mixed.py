"""`mixed`: wildcards, names whose case is ignored, networks, arrays and `is not`.

Owns the events (a request: address, name, client, port, tags) and the filters. Words, addresses and names are those of
`strings`. Each filter is cut from a source that could be an event, so that it matches some.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Final

import numpy as np

from shoal.filters.conjunctions import Conjunction
from shoal.filters.constraints import Constraint, Unlike
from shoal.filters.filter import Filter
from shoal.filters.ranges import OneOf
from shoal.filters.strings import Strings, strings_like
from shoal.filters.views import ADDRESS, FOLDED, address_bits, fold
from shoal.filters.wildcards import pattern_of
from shoal.lab.bench.loads.strings import SOURCES, addresses, drawn, names, vocabulary

WORDS: Final = (
    "events with an address, a name, a client (IPv4, a tenth IPv6), a port and three tags; a filter has a wildcard on "
    "the address (30 %), a name or a prefix of one without case (30 %), a network of the client (20 %), a tag and a "
    "prefix of the address (10 %), or a prefix of the name and `is not` a port (10 %)"
)
KINDS: Final = (0.30, 0.20, 0.10, 0.20, 0.10, 0.10)
PORTS: Final = 64
TAGS: Final = 3


def make(filters: int, events: int, seed: int) -> tuple[list[Filter], list[dict[str, Any]]]:
    """Filters and events."""
    rng = np.random.default_rng([seed, 0])
    words = vocabulary(2_000, rng)
    sources = _events(SOURCES, words, rng)
    kinds = rng.choice(len(KINDS), filters, p=KINDS).tolist()
    places = rng.integers(SOURCES, size=filters).tolist()
    draws = rng.random((filters, 3)).tolist()
    made = [
        Filter((Conjunction(tuple(sorted(_conditions(kind, sources[place], *each)))),))
        for kind, place, each in zip(kinds, places, draws, strict=True)
    ]
    return made, _events(events, words, np.random.default_rng([seed, 1]))


def _events(count: int, words: list[str], rng: np.random.Generator) -> list[dict[str, Any]]:
    columns = (
        addresses(count, words, rng),
        names(count, words, rng),
        _clients(count, rng),
        rng.integers(PORTS, size=count).tolist(),
        zip(*(drawn(words, count, rng) for _ in range(TAGS)), strict=True),
    )
    return [
        {"url": url, "name": name, "client": client, "port": port, "tags": list(tags)}
        for url, name, client, port, tags in zip(*columns, strict=True)
    ]


def _clients(count: int, rng: np.random.Generator) -> list[str]:
    numbers = (2**32 * rng.random(count) ** 2).astype(np.int64).tolist()
    newer = (rng.random(count) < 0.1).tolist()
    return [
        str(ipaddress.IPv6Address((0x20010DB8 << 96) + number) if is_newer else ipaddress.IPv4Address(number))
        for number, is_newer in zip(numbers, newer, strict=True)
    ]


def _conditions(kind: int, event: dict[str, Any], one: float, two: float, three: float) -> list[tuple[str, Constraint]]:
    """The constraints of a filter, cut from an event. The fractions determine lengths and places."""
    url, name = event["url"], event["name"]
    match kind:
        case 0:
            head, middle = 4 + int(8 * one), 14 + int(10 * two)
            pattern = pattern_of((url[:head], url[middle : middle + 3 + int(4 * three)], url[-3 - int(4 * one) :]))
            constraint = strings_like(pattern)
            assert constraint is not None
            return [("url", constraint)]
        case 1:
            return [(f"name{FOLDED}", OneOf((fold(name),)))]
        case 2:
            return [(f"name{FOLDED}", Strings(prefix=fold(name[: 4 + int(6 * one)])))]
        case 3:
            bits = address_bits(event["client"])
            assert bits is not None
            host_bits = 4 + int(16 * one)
            return [(f"client{ADDRESS}", Strings(prefix=bits[:-host_bits]))]
        case 4:
            tag = event["tags"][int(TAGS * two)]
            return [("tags", OneOf((tag,))), ("url", Strings(prefix=url[: 3 + int(8 * one)]))]
        case _:
            return [
                ("name", Strings(prefix=name[: 4 + int(6 * one)])),
                ("port", Unlike(True, Strings(), (int(PORTS * two),))),
            ]
