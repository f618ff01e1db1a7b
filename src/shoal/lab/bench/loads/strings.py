"""`strings`: prefixes, suffixes, substrings and a few equalities on addresses and names.

Owns the vocabulary, made of syllables, and the patterns. Each pattern is cut from an address or a name that could be in
an event, so that short patterns match often and long ones rarely.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.filters.conjunctions import Conjunction
from shoal.filters.constraints import Constraint
from shoal.filters.filter import Filter
from shoal.filters.ranges import OneOf
from shoal.filters.strings import Strings
from shoal.filters.values import Value

WORDS: Final = (
    "events with an address (host, path, number, ending; about 40 characters) and a name; a filter has a prefix, a "
    "suffix or a part of 5 to 20 characters of the address (85 %), a prefix or part of the name or all of it (25 %)"
)
SOURCES: Final = 50_000
"""Addresses and names that patterns are cut from."""
KINDS: Final[tuple[tuple[float, str | None, str | None], ...]] = (
    (0.35, "prefix", None),
    (0.20, "suffix", None),
    (0.20, "contains", None),
    (0.05, None, "prefix"),
    (0.05, None, "contains"),
    (0.05, None, "equal"),
    (0.05, "prefix", "prefix"),
    (0.05, "contains", "prefix"),
)
"""Probability, test on the address, test on the name."""
LENGTHS: Final = {"prefix": (5, 20), "suffix": (5, 15), "contains": (5, 12)}
NAME_LENGTH_MAX: Final = 9
"""Of a prefix or substring of a name: names are short."""
_CONSONANTS: Final = "bcdfglmnprstvz"
_SECTIONS: Final = ("news", "shop", "blog", "wiki", "media", "help", "forum", "archive")
_ENDINGS: Final = (".html", ".json", ".pdf", "", ".png", "/edit")
_DOMAINS: Final = (".com", ".org", ".net", ".info", ".co.uk", ".de")


def make(filters: int, events: int, seed: int) -> tuple[list[Filter], list[dict[str, Value]]]:
    """Filters and events."""
    rng = np.random.default_rng([seed, 0])
    words = vocabulary(2_000, rng)
    sources = addresses(SOURCES, words, rng), names(SOURCES, words, rng)
    made = _filters(filters, *sources, rng)
    rng = np.random.default_rng([seed, 1])
    pairs = zip(addresses(events, words, rng), names(events, words, rng), strict=True)
    return made, [{"url": address, "name": name} for address, name in pairs]


def vocabulary(count: int, rng: np.random.Generator) -> list[str]:
    """Different words of two to four syllables."""
    words: dict[str, None] = {}
    while len(words) < count:
        syllables = rng.integers(2, 5)
        letters = zip(rng.choice(list(_CONSONANTS), syllables), rng.choice(list("aeiou"), syllables), strict=True)
        words["".join(map("".join, letters))] = None
    return list(words)


def drawn(words: list[str], count: int, rng: np.random.Generator) -> list[str]:
    """Random words, the first of the list more often than the last."""
    return [words[place] for place in (len(words) * rng.random(count) ** 2).astype(np.int64).tolist()]


def addresses(count: int, words: list[str], rng: np.random.Generator) -> list[str]:
    """Random addresses."""
    columns = (
        drawn(words, count, rng),
        rng.choice(_DOMAINS, count).tolist(),
        rng.choice(_SECTIONS, count).tolist(),
        drawn(words, count, rng),
        drawn(words, count, rng),
        rng.integers(10_000, size=count).tolist(),
        rng.choice(_ENDINGS, count).tolist(),
    )
    return [
        f"{host}{domain}/{section}/{word}-{other}/{number}{ending}"
        for host, domain, section, word, other, number, ending in zip(*columns, strict=True)
    ]


def names(count: int, words: list[str], rng: np.random.Generator) -> list[str]:
    """Random names."""
    pairs = zip(drawn(words[:500], count, rng), drawn(words, count, rng), strict=True)
    return [f"{given.title()} {family.title()}" for given, family in pairs]


def _filters(count: int, urls: list[str], people: list[str], rng: np.random.Generator) -> list[Filter]:
    kinds = rng.choice(len(KINDS), count, p=[share for share, _, _ in KINDS]).tolist()
    places = rng.integers(SOURCES, size=count).tolist()
    draws = rng.random((count, 4)).tolist()
    filters = []
    for kind, place, (length, where, name_length, name_where) in zip(kinds, places, draws, strict=True):
        _, of_address, of_name = KINDS[kind]
        pairs: list[tuple[str, Constraint]] = []
        if of_name is not None:
            pairs.append(("name", _cut(of_name, people[place], name_length, name_where, NAME_LENGTH_MAX)))
        if of_address is not None:
            pairs.append(("url", _cut(of_address, urls[place], length, where, LENGTHS[of_address][1])))
        filters.append(Filter((Conjunction(tuple(pairs)),)))
    return filters


def _cut(kind: str, text: str, length: float, where: float, most: int) -> Constraint:
    """A pattern cut from a text. The two fractions determine its length and its position."""
    if kind == "equal":
        return OneOf((text,))
    least = LENGTHS[kind][0]
    size = least + int(length * (most - least + 1))
    if kind == "prefix":
        return Strings(prefix=text[:size])
    if kind == "suffix":
        return Strings(suffix=text[-size:])
    begin = int(where * max(1, len(text) - size + 1))
    return Strings(contains=(text[begin : begin + size],))
